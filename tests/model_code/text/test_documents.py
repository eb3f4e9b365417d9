"""The identity of a document's content, and its form in the ledger."""

import json
from dataclasses import replace

import pytest

from model_code.errors import SettingsError
from model_code.text.documents import Document

DATE = "2025-01-31T00:00:00+00:00"
WHOLE = Document("a", "T", "text", {"n": 1, "m": [2]}, ("why?", "how?"), DATE)


@pytest.mark.parametrize(
    "other",
    [
        {"title": "t"},
        {"text": "other"},
        {"fields": {"n": 2, "m": [2]}},
        {"queries": ("why?",)},
        {"date": None},
        {"queries": ("how?", "why?")},
        {"title": "Ttext", "text": ""},
        {"queries": ("why?", "how?", DATE), "date": None},
    ],
)
def test_content_hash_depends_on_all_content(other):
    assert replace(WHOLE, **other).content_hash != WHOLE.content_hash


def test_content_hash_ignores_id_and_field_order():
    assert (
        replace(WHOLE, document_id="b", fields={"m": [2], "n": 1}).content_hash
        == WHOLE.content_hash
    )
    # as generations have it on disk
    assert Document("a", "T", "text", {"a": "x"}).content_hash[:8] == "ba9a1cf2"


@pytest.mark.parametrize(
    "document", [WHOLE, Document("b", "", "text only"), Document("c", "title only", "")]
)
def test_a_document_comes_back_from_its_payload(document):
    stored = json.loads(json.dumps(document.payload))
    again = Document.from_payload(document.document_id, stored)
    assert again == document
    assert again.content_hash == document.content_hash


@pytest.mark.parametrize(
    ("values", "message"), [(("", "T", "text"), "needs an id"), (("a", "", ""), "neither title")]
)
def test_document_needs_valid_id_and_text(values, message):
    with pytest.raises(SettingsError, match=message):
        Document(*values)
