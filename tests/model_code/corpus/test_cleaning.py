"""Guards cleaning (idempotent, loses no visible letter), identity of contents, and every refusal of a row."""

from __future__ import annotations

import math
import random
import unicodedata
from datetime import UTC, date, datetime, timedelta, timezone

import pytest

from model_code.corpus.cleaning import clean_line, clean_text, document_of, parse_date
from model_code.corpus.rows import Row, Unfit

LETTERS = "ab é\u0301\u200b\ufeff\x00\x07\x85\t \n\r\u2028京🙂"


def document(keep_title_only=False, limit=100, **values):
    return document_of(Row("documents", "here:1", values), limit, keep_title_only)


def test_cleaning_is_idempotent_and_keeps_every_visible_letter():
    draw = random.Random(0)
    for _ in range(300):
        text = "".join(draw.choices(LETTERS, k=draw.randrange(30)))
        clean = clean_text(text)
        assert clean_text(clean) == clean
        visible = [letter for letter in unicodedata.normalize("NFC", text) if letter.isprintable() and letter != " "]
        assert [letter for letter in clean if letter.isprintable() and letter != " "] == visible
        assert "\n" not in clean_line(text)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"text": "t"}, "missing id"),
        ({"id": " ", "text": "t"}, "missing id"),
        ({"id": None, "text": "t"}, "missing id"),
        ({"id": True, "text": "t"}, "missing id"),
        ({"id": "a\x00b", "text": "t"}, "bad id"),
        ({"id": "a\nb", "text": "t"}, "bad id"),
        ({"id": "é" * 1025, "text": "t"}, "bad id"),
        ({"id": "1"}, "missing column"),
        ({"id": "1", "text": ["t"]}, "wrong type"),
        ({"id": "1", "text": "t", "title": 3}, "wrong type"),
        ({"id": "1", "text": " \x00 "}, "empty text"),
        ({"id": "1", "text": None, "title": "t"}, "empty text"),
        ({"id": "1", "text": "t" * 101}, "huge text"),
        ({"id": "1", "text": "caf\udce9"}, "invalid UTF-8"),
        ({"id": "\udce9", "text": "t"}, "invalid UTF-8"),
        ({"id": "1", "text": "t", "fields": {"a": "\udce9"}}, "invalid UTF-8"),
    ],
)
def test_malformed_documents_are_refused_with_their_reason(values, reason):
    with pytest.raises(Unfit) as refusal:
        document(**values)
    assert refusal.value.reason == reason


def test_the_longest_id_and_one_with_blanks_and_slashes_pass():
    for one in ("é" * 1024, "https://host/a b?c=d#e"):
        assert document(id=one, text="t").document_id == one


def test_numbers_that_json_does_not_have_are_null():
    fields = {"score": math.nan, "deep": [{"x": math.inf, "y": 1.5}], "whole": 3}
    assert document(id=1, text="t", fields=fields).fields == {
        "score": None,
        "deep": [{"x": None, "y": 1.5}],
        "whole": 3,
    }


def test_a_document_with_a_title_only_is_kept_on_demand():
    assert document(id=7, title="A title", text="", keep_title_only=True).document_id == "7"
    with pytest.raises(Unfit, match="keep_title_only"):
        document(id=7, title="A title", text="")


def test_the_content_hash_changes_exactly_with_the_content():
    first = document(id="1", title="T", text="two  words", fields={"b": 1, "a": 2})
    assert document(id="9", title="T ", text="two words", fields={"a": 2, "b": 1}).content_hash == first.content_hash
    others = [document(id="1", title="", text="T two words"), document(id="1", title="T", text="two words")]
    assert len({first.content_hash, *(other.content_hash for other in others)}) == 3


def test_dates_are_read_in_any_iso_form_and_kept_as_a_field_otherwise():
    noon = datetime(2025, 1, 31, 12, tzinfo=UTC)
    assert parse_date("2025-01-31T12:00:00Z") == parse_date(datetime(2025, 1, 31, 12)) == noon
    assert parse_date(noon.astimezone(timezone(timedelta(hours=5)))) == noon
    assert parse_date(date(2025, 1, 31)) == parse_date("2025-01-31")
    assert document(id="1", text="t", date="2025-01-31").date == "2025-01-31T00:00:00+00:00"
    unread = document(id="1", text="t", date="spring")
    assert (unread.date, unread.fields) == (None, {"date": "spring"})
