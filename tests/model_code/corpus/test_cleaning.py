"""Guards cleaning: texts, what a document's or query's row must hold, and which duplicates become
one.
"""

from __future__ import annotations

import math
import random
import unicodedata
import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from model_code.corpus.cleaning import (
    SourceQuery,
    clean_document,
    clean_line,
    clean_query,
    clean_text,
    merge_duplicates,
)
from model_code.corpus.rows import Row, RowError
from model_code.text.documents import Document, parse_date

LETTERS = "ab é\u0301\u200b\ufeff\x00\x07\x85\t \n\r\u2028京🙂"


def document(limit=100, **values):
    return clean_document(Row("documents", "here:1", values), limit)


def test_cleaning_is_idempotent_and_keeps_every_visible_letter():
    draw = random.Random(0)
    for _ in range(300):
        text = "".join(draw.choices(LETTERS, k=draw.randrange(30)))
        clean = clean_text(text)
        assert clean_text(clean) == clean
        visible = [
            letter
            for letter in unicodedata.normalize("NFC", text)
            if letter.isprintable() and letter != " "
        ]
        assert [letter for letter in clean if letter.isprintable() and letter != " "] == visible
        assert "\n" not in clean_line(text)


MALFORMED = {
    "missing id": [{}, {"id": " "}, {"id": None}, {"id": float("nan")}],
    "bad id": [
        {"id": "a\x00b"},
        {"id": "a\nb"},
        {"id": "é" * 1025},
        {"id": True},
        {"id": 1.5},
        {"id": 1e300},
    ],
    "wrong type": [{"id": "1", "text": ["t"]}, {"id": "1", "title": 3}],
    "empty text": [{"id": "1", "text": " \x00 "}, {"id": "1", "text": None, "title": " "}],
    "invalid UTF-8": [
        {"id": "1", "text": "caf\udce9"},
        {"id": "\udce9"},
        {"id": "1", "fields": {"a": "\udce9"}},
    ],
    "huge text": [
        {"id": "1", "text": "t" * 101},
        {"id": "1", "fields": {"a": "x" * 1_000_000}},
        {"id": "1", "fields": {str(number): 1 for number in range(1001)}},
    ],
}


def flatten(values_by_name):
    """Return each value with its name."""
    pairs = []
    for name, values in values_by_name.items():
        pairs += [(value, name) for value in values]
    return pairs


@pytest.mark.parametrize(("values", "reason"), flatten(MALFORMED))
def test_malformed_documents_are_refused_with_their_reason(values, reason):
    columns = {"text": "t", **values}

    with pytest.raises(RowError) as refusal:
        document(**columns)

    assert refusal.value.reason == reason


def test_unusual_ids_and_title_only_documents_pass():
    for one in ("é" * 1024, "https://host/a b?c=d#e"):
        assert document(id=one, text="t").document_id == one
    for text in ("", None):
        assert document(id=7, title="A title", text=text).title == "A title"


def test_numbers_that_json_does_not_have_are_null():
    fields = {"score": math.nan, "deep": [{"x": math.inf, "y": 1.5}], "whole": 3}
    kept = {"score": None, "deep": [{"x": None, "y": 1.5}], "whole": 3}

    assert document(id=1, text="t", fields=fields).fields == kept


def test_the_content_hash_changes_exactly_with_the_content():
    first = document(id="1", title="T", text="two  words", fields={"b": 1, "a": 2})
    assert (
        document(id="9", title="T ", text="two words", fields={"a": 2, "b": 1}).content_hash
        == first.content_hash
    )

    others = [
        document(id="1", title="", text="T two words"),
        document(id="1", title="T", text="two words"),
    ]
    assert len({first.content_hash, *(other.content_hash for other in others)}) == 3


def test_iso_dates_are_parsed_others_become_fields():
    noon = datetime(2025, 1, 31, 12, tzinfo=UTC)
    assert parse_date("2025-01-31T12:00:00Z") == noon
    assert parse_date(datetime(2025, 1, 31, 12)) == noon
    assert parse_date(noon.astimezone(timezone(timedelta(hours=5)))) == noon
    assert parse_date(date(2025, 1, 31)) == parse_date("2025-01-31")
    assert document(id="1", text="t", date="2025-01-31").date == "2025-01-31T00:00:00+00:00"

    unread = document(id="1", text="t", date="spring")
    assert unread.date is None
    assert unread.fields == {"date": "spring"}


def query(**values) -> SourceQuery:
    return clean_query(Row("queries", "here:1", {"id": "1", "text": "when", **values}), 100)


@pytest.mark.parametrize(
    ("read", "values", "reason"),
    [
        (clean_query, {"id": "1", "text": "\n"}, "empty text"),
        (clean_query, {"id": "1"}, "missing column"),
        (clean_document, {"id": "1"}, "missing column"),
    ],
)
def test_malformed_queries_are_refused_with_reason(read, values, reason):
    with pytest.raises(RowError) as refusal:
        read(Row("queries", "here:1", values), 100)
    assert refusal.value.reason == reason


SHAPES = {
    ("2008", "two"): ['["2008", "two"]', {"text": ["2008", "two"], "answer_start": [3, 9]}],
    ("2008", "2.5", "two"): [[2008, 2.5, "two"]],
    ("2008",): ["2008", 2008, ["2008", " ", ""]],
    ("in 2008",): ["in  2008"],
    ("in 2008", "2008", "café"): [["in  2008", "2008", "in 2008", "cafe\u0301"]],
    ('{"text": ["2008"]}',): ['{"text": ["2008"]}'],
    (): [[""], None, [], " ", "null", {"text": [], "answer_start": []}],
}


@pytest.mark.parametrize(("given", "answers"), flatten(SHAPES))
def test_answers_are_read_from_all_common_shapes(given, answers):
    assert query(answers=given) == SourceQuery("1", "when", answers)


@pytest.mark.parametrize(
    "given",
    [
        {"aliases": ["2008"]},
        {"text": {"a": 1}},
        [None],
        [["2008"]],
        True,
        [float("nan")],
        ["caf\udce9"],
        "caf\udce9",
        ["x" * 51, "y" * 50],
        "[" * 100_000,
    ],
)
def test_query_with_unreadable_answers_is_kept(given):
    assert query(answers=given) == SourceQuery("1", "when", (), has_unread_answers=True)


DOCUMENTS = [
    Document("a", "Sea", "waves and tides"),
    Document("b", "Ocean", "Waves  and TIDES"),
    Document("c", "OCEAN", "deep water"),
    Document("d", "", "moss"),
    Document("e", "", "fern"),
    Document("f", "Sea", "salt"),
]


@pytest.mark.parametrize(
    ("by", "merged"), [("none", {}), ("text", {"b": "a"}), ("title", {"c": "b", "f": "a"})]
)
def test_merging_duplicates_is_idempotent(by, merged):
    kept, found = merge_duplicates(DOCUMENTS, by)

    assert found == merged
    assert [document.document_id for document in kept] == [
        name for name in "abcdef" if name not in merged
    ]
    assert merge_duplicates(kept, by) == (kept, {})


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (np.int64(3), 3),
        (np.float32("nan"), None),
        (np.array([1.5, np.nan]), [1.5, None]),
        (pd.Timestamp("2024-01-31"), "2024-01-31T00:00:00"),
        ([pd.NaT, pd.NA], [None, None]),
        (Decimal("9.90"), 9.9),
        (date(2024, 1, 31), "2024-01-31"),
        (b"caf\xc3\xa9", "caf\u00e9"),
        (Path("a/b"), "a/b"),
        (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        ({"b", "a"}, ["a", "b"]),
        (1j, "1j"),
    ],
)
def test_fields_are_kept_as_json_has_them(value, kept):
    assert document(id="a", text="x", fields={"f": value}).fields == {"f": kept}


@pytest.mark.parametrize(
    ("values", "document_id", "text", "day"),
    [
        ({"id": np.int64(3), "text": np.str_("x"), "date": pd.NaT}, "3", "x", None),
        ({"id": uuid.UUID(int=7), "text": b"x"}, "00000000-0000-0000-0000-000000000007", "x", None),
        ({"id": "a", "title": float("nan"), "text": "x"}, "a", "x", None),
        (
            {"id": "a", "text": "x", "date": pd.Timestamp("2024-01-31")},
            "a",
            "x",
            "2024-01-31T00:00:00+00:00",
        ),
    ],
)
def test_ids_texts_and_dates_of_tables_are_read(values, document_id, text, day):
    cleaned = document(**values)

    assert cleaned.document_id == document_id
    assert cleaned.text == text
    assert cleaned.date == day


def test_column_of_ids_with_a_missing_one_is_read():
    column = pd.Series([1, None, 12])

    assert document(id=column[0], text="x").document_id == "1"
    assert document(id=column[2], text="x").document_id == "12"


@pytest.mark.parametrize("document_id", [1.5, float("nan"), True, pd.NaT, b"\xff", ["a"], None])
def test_other_ids_are_refused_in_one_line(document_id):
    with pytest.raises(RowError, match="missing id|bad id") as refusal:
        document(id=document_id, text="x")
    assert "\n" not in str(refusal.value)
