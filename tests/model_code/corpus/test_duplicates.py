"""Guards that duplicates are merged into the first of their kind, and that nothing else is."""

from __future__ import annotations

import pytest

from model_code.corpus.duplicates import merge_duplicates, merge_into_earliest
from model_code.documents import Document

DOCUMENTS = [
    Document("a", "Sea", "waves and tides"),
    Document("b", "Ocean", "Waves  and TIDES"),
    Document("c", "OCEAN", "deep water"),
    Document("d", "", "moss"),
    Document("e", "", "fern"),
    Document("f", "Sea", "salt"),
]


@pytest.mark.parametrize(
    ("by", "merged"),
    [
        ("none", {}),
        ("text", {"b": "a"}),
        ("title", {"c": "b", "f": "a"}),
        ("either", {"b": "a", "c": "a", "f": "a"}),  # c shares b's title, and b became a
    ],
)
def test_duplicates_are_merged_into_the_first(by, merged):
    kept, found = merge_duplicates(DOCUMENTS, by)
    assert found == merged
    assert [document.document_id for document in kept] == [name for name in "abcdef" if name not in merged]


def test_the_earliest_is_kept_where_it_stands_and_of_one_date_the_first():
    dates = {"x": ("moss", "2025-01-01"), "w": ("fern", "2026-01-01"), "b": ("Moss", "2020-01-01"),
             "a": ("moss", "2020-01-01")}  # fmt: skip
    kept, merged = merge_into_earliest([Document(n, "", text, date=date) for n, (text, date) in dates.items()], "text")
    assert [document.document_id for document in kept] == ["w", "b"]
    assert merged == {"x": "b", "a": "b"}


def test_merging_again_changes_nothing():
    for by in ("text", "title"):
        kept, _ = merge_duplicates(DOCUMENTS, by)
        assert merge_duplicates(kept, by) == (kept, {})
