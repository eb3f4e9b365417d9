"""Guards the known queries of a corpus: training queries and rows give them, queries that judge never
do, and files keep them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from model_code.corpus.corpus_queries import CorpusQueries, collect_known_queries, query_hash
from model_code.text.documents import Document
from model_code.text.known_queries import QuerySource, resolve_queries

TEXTS = {
    "q1": "sort a list",
    "q2": "read a file",
    "q3": "draw a line",
    "q4": "Sort a list!",
}


def collect(splits: dict[str, str], grades: dict[tuple[str, str], int]) -> CorpusQueries:
    documents = [
        Document("a", "a", "x", queries=("order things", "DRAW a line"), date="2024-02-03"),
        Document("b", "b", "y"),
    ]
    return collect_known_queries(documents, TEXTS, splits, grades)


def test_training_queries_and_rows_are_known() -> None:
    known = collect({"q1": "train", "q2": "train"}, {("q1", "a"): 2, ("q2", "b"): 1})

    rows = {(query.document_id, query.text, query.source, query.weight) for query in known.queries}
    assert rows == {
        ("a", "sort a list", QuerySource.QRELS, 2),
        ("b", "read a file", QuerySource.QRELS, 1),
        ("a", "order things", QuerySource.ROW, 1.0),
        ("a", "DRAW a line", QuerySource.ROW, 1.0),
    }


@pytest.mark.parametrize("split", ["dev", "gate", "test"])
def test_query_that_judges_is_never_known(split: str) -> None:
    """The train query q4 repeats q1, and the row of document a repeats q3."""
    known = collect(
        {"q1": split, "q3": split, "q4": "train"},
        {("q1", "a"): 1, ("q3", "b"): 1, ("q4", "a"): 1},
    )

    assert [query.text for query in known.queries] == ["order things"]
    assert known.held_out == {query_hash("sort a list"), query_hash("draw a line")}


def test_judgement_of_zero_outweighs_the_row() -> None:
    texts = {"q": "order things"}
    documents = [Document("a", "a", "x", queries=("Order things",))]

    known = collect_known_queries(documents, texts, {}, {("q", "a"): 0})
    assert resolve_queries(known.queries) == []
    known = collect_known_queries(documents, texts, {}, {("q", "b"): 0})
    assert [query.document_id for query in resolve_queries(known.queries)] == ["a"]


def test_file_keeps_everything(tmp_path: Path) -> None:
    known = collect({"q1": "train", "q3": "test"}, {("q1", "a"): 2, ("q3", "b"): 1})
    known.save(tmp_path / "known.json")

    loaded = CorpusQueries.load(tmp_path / "known.json")
    assert set(loaded.queries) == set(known.queries)
    assert loaded.held_out == known.held_out
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "known.json").read_bytes()


@pytest.mark.parametrize("text", ["Sort in C++!", "sort in C", "sort in c#?"])
def test_hash_of_a_query_ignores_signs(text: str) -> None:
    """A held-out or forgotten query is recognised however its signs are written."""
    assert query_hash(text) == query_hash("sort in c")
