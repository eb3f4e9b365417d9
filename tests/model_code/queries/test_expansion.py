"""Guards BM25's documents with generated queries: whose queries, which ones, and that they help to find them."""

from __future__ import annotations

import pandas as pd

from model_code.index.bm25 import Bm25
from model_code.queries.expansion import expanded_texts, generated_queries

TABLE = pd.DataFrame(
    [
        ("a", "how to order", "sequence_to_sequence", "train"),
        ("b", "what is a heap", "sequence_to_sequence", "test"),
        ("a", "a list", "inverse_cloze", "train"),
        ("a", "rank items", "sequence_to_sequence", "train"),
    ],
    columns=["document_id", "text", "kind", "split"],
)


def test_only_generated_training_queries_count():
    assert generated_queries(TABLE) == {"a": ["how to order", "rank items"]}
    assert generated_queries(TABLE.head(0)) == {}


def test_every_passage_of_a_document_gets_its_queries_and_is_found_by_them():
    texts, ids = ["sort a list", "more on sorting", "open a file"], ["a", "a", "c"]
    expanded = expanded_texts(texts, ids, generated_queries(TABLE))
    assert expanded == [
        "sort a list how to order rank items", "more on sorting how to order rank items", "open a file"
    ]  # fmt: skip
    assert Bm25(texts, ids).search(["order"], 1) == [[]]
    assert [document for document, _ in Bm25(expanded, ids).search(["order"], 1)[0]] == ["a"]
