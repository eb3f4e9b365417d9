"""Guards what later stages read: composed texts, types on disk, and which judgements an evaluation
is made on.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pyarrow.parquet as pq

from model_code.corpus.tables import (
    TABLES,
    Corpus,
    find_query_lines,
    load_corpus,
    make_table,
    strip_query_lines,
    write_table,
)


def corpus(qrels: list[tuple[str, str, str]]) -> Corpus:
    names = ("d1", "d2", "d3")
    rest = {"title": "", "fields": "{}", "date": None}
    documents = [
        {"document_id": name, "text": name, "content_hash": name, **rest} for name in names
    ]
    queries = [
        {"query_id": query, "text": f"text of {query}", "split": split} for query, _, split in qrels
    ]
    pairs = [
        {"query_id": q, "document_id": d, "relevance": 2, "split": split} for q, d, split in qrels
    ]
    unique = make_table("queries", queries).drop_duplicates("query_id")
    return Corpus(
        make_table("documents", documents),
        make_table("passages", []),
        unique,
        make_table("qrels", pairs),
    )


def make_judged_corpus():
    """Make a corpus of two test queries and a train query."""
    return corpus([("q2", "d1", "test"), ("q1", "d2", "test"), ("q0", "d2", "train")])


def test_judged_queries_are_sorted():
    judgements = make_judged_corpus().judgements("test")

    assert judgements.source == "qrels"
    assert judgements.answers == {}
    assert list(judgements.queries.items()) == [("q1", "text of q1"), ("q2", "text of q2")]
    assert judgements.qrels == {"q1": {"d2": 2}, "q2": {"d1": 2}}


def test_judged_queries_keep_their_answers(tmp_path):
    tables = {name: getattr(make_judged_corpus(), name) for name in TABLES}
    queries = []
    for row in tables["queries"].to_dict("records"):
        answers = '["x", "a y"]'
        if row["query_id"] == "q2":
            answers = None
        queries.append({**row, "answers": answers})
    tables["queries"] = make_table("queries", queries)
    for name, table in tables.items():
        write_table(tmp_path, name, table)

    judgements = load_corpus(tmp_path).judgements("test")

    assert judgements.answers == {"q1": ["x", "a y"]}


def test_saved_tables_keep_values_and_types(tmp_path):
    written = corpus([("q1", "d1", "test")])
    for name in TABLES:
        write_table(tmp_path, name, getattr(written, name))

    for name in TABLES:
        pd.testing.assert_frame_equal(
            getattr(load_corpus(tmp_path), name), getattr(written, name), check_dtype=False
        )
    assert str(pq.read_schema(tmp_path / "documents.parquet").field("date").type) == "string"
    assert str(pq.read_schema(tmp_path / "passages.parquet").field("ordinal").type) == "int64"


def test_leading_query_line_is_stripped_for_evaluation():
    texts = {
        "d1": "Sort a\ncopy of it.\n\nStable.",
        "d2": "Find it.\n\nFast.",
        "d3": "Sort a copy of it. Stable.",
    }
    asked = [
        ("q1", "d1", "Sort a copy of it."),
        ("q2", "d2", "find it."),
        ("q3", "d3", "Sort a copy of it."),
    ]
    rows = [{"document_id": name, "title": name, "text": text} for name, text in texts.items()]
    windows = [*rows, {"document_id": "d1", "title": "d1", "text": "Stable."}]
    queries = make_table("queries", [{"query_id": query, "text": text} for query, _, text in asked])
    qrels = make_table(
        "qrels",
        [{"query_id": q, "document_id": d, "relevance": 1, "split": "test"} for q, d, _ in asked],
    )
    whole = Corpus(
        make_table("documents", rows),
        make_table("passages", [{"ordinal": 0, **row} for row in windows]),
        queries,
        qrels,
    )

    assert find_query_lines(whole) == {"d1": "Sort a\ncopy of it.\n\n"}

    seen = strip_query_lines(whole)
    assert seen.documents["text"].tolist() == ["Stable.", texts["d2"], texts["d3"]]
    assert seen.passages["text"].tolist() == ["Stable.", texts["d2"], texts["d3"], "Stable."]
    # The texts that are built and searched are whole.
    assert whole.documents["text"].tolist() == list(texts.values())


def test_queries_of_training_documents_are_named():
    made = corpus(
        [("q0", "d1", "train"), ("q1", "d1", "test"), ("q2", "d2", "test"), ("q3", "d3", "dev")]
    )

    assert made.judgements("test").with_known == {"q1"}
    assert made.judgements("dev").with_known == frozenset()


def test_row_that_brings_a_query_is_asked():
    made = corpus([("q1", "d1", "test"), ("q2", "d2", "test")])
    rows = made.documents.to_dict("records")
    judging = made.judgements("test").queries["q2"]
    brought = {"d1": "how to begin", "d2": judging.upper()}
    documents = [
        {**row, "queries": json.dumps([brought[row["document_id"]]])}
        for row in rows
        if row["document_id"] in brought
    ]
    with_queries = replace(made, documents=make_table("documents", documents))

    # The query of d2's row judges, so it is not known.
    assert with_queries.judgements("test").with_known == {"q1"}


def test_query_that_was_judged_not_relevant_is_not_known():
    made = corpus([("q1", "d1", "test"), ("q2", "d2", "test"), ("q3", "d3", "train")])
    documents = made.documents.assign(queries=json.dumps(["how to begin"]))
    asked_rows = replace(made, documents=documents)
    texts = {"q3": "How to begin?"}
    queries = made.queries.assign(
        text=[texts.get(query, query) for query in made.queries["query_id"]],
        not_relevant=[
            json.dumps(["d1"]) if query == "q3" else None for query in made.queries["query_id"]
        ],
    )

    assert asked_rows.judgements("test").with_known == {"q1", "q2"}
    assert replace(asked_rows, queries=queries).judgements("test").with_known == {"q2"}
