"""Guards what a retrain trains on: the documents that are live, and queries with all documents that
answer them.
"""

from __future__ import annotations

import pandas as pd
import pytest

from model_code.collection.generations.generation import document_hashes
from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.ledger.events import Feedback
from model_code.corpus.cleaning import clean_document
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.files import SnapshotSource
from model_code.corpus.tables import make_table
from orchestration.freshness.snapshot import arrival_query_id, export_snapshot, gate_has_no_queries
from tests.live_example import add, collection_of, make_project, row


@pytest.fixture
def project(tmp_path):
    """Two documents, and a judged query for one of them."""
    made = make_project(tmp_path)
    tables = {
        "queries": [{"query_id": "1", "text": "how to sort", "split": "test"}],
        "qrels": [{"query_id": "1", "document_id": "numpy.sort", "relevance": 1, "split": "test"}],
    }
    (made.artifacts / "corpus").mkdir(parents=True)
    for name, rows in tables.items():
        make_table(name, rows).to_parquet(made.artifacts / "corpus" / f"{name}.parquet")
    return made


def snapshot(project, only=None):
    folder = project.root / "snapshot"
    export_snapshot(project, GenerationStore(project.live, "hce").current(), folder, only)
    return {
        name: pd.read_parquet(folder / f"{name}.parquet")
        for name in ("documents", "queries", "qrels")
    }


def test_a_query_that_several_documents_came_with_is_one_query_that_all_of_them_answer(project):
    collection = collection_of(project)
    asked = {"a": ["shared", "own"], "b": ["shared"], "gone": ["shared", "of what is gone"]}
    collection.receive([row(one, queries=asked[one]) for one in asked], "api")
    collection.remove(["gone"], "api")
    collection.apply()
    found = snapshot(project)
    assert dict(zip(found["queries"]["id"], found["queries"]["text"], strict=True)) == {
        "1": "how to sort",
        arrival_query_id("own"): "own",
        arrival_query_id("shared"): "shared",
    }
    pairs = found["qrels"][["query_id", "document_id", "split"]].itertuples(index=False)
    assert sorted((query, document) for query, document, split in pairs if split is None) == sorted(
        [
            (arrival_query_id("own"), "a"),
            (arrival_query_id("shared"), "a"),
            (arrival_query_id("shared"), "b"),
        ]
    )
    assert list(found["documents"]["id"]) == ["a", "b", "numpy.sort", "str.split"]


@pytest.mark.parametrize(
    "judges", ["nobody", "dev", "test", "nobody of what is live", "documents", "no corpus"]
)
def test_a_retrain_is_unjudged_where_its_gate_has_no_query(project, judges):
    qrels = project.artifacts / "corpus" / "qrels.parquet"
    for path in (qrels, qrels.with_name("queries.parquet")):
        pd.read_parquet(path).assign(split="dev" if judges == "dev" else "test").to_parquet(path)
    table = pd.read_parquet(qrels)
    if judges in ("nobody", "documents"):
        table.iloc[:0].to_parquet(qrels)
    elif judges == "nobody of what is live":
        table.assign(document_id="gone").to_parquet(qrels)
    elif judges == "no corpus":
        qrels.with_name("queries.parquet").unlink()
    queries = [f"asks {number}" for number in range(40 * (judges == "documents"))]
    add(collection_of(project), row("a", queries=queries))
    unjudged = gate_has_no_queries(project, GenerationStore(project.live, "hce").current())
    assert unjudged is (judges in ("nobody", "dev", "nobody of what is live"))


def test_a_part_of_the_documents_comes_with_the_queries_for_them_alone(project):
    add(collection_of(project), *(row(one, queries=["shared", f"of {one}"]) for one in "ab"))
    found = snapshot(project, {"a", "str.split"})
    assert list(found["documents"]["id"]) == ["a", "str.split"]
    assert sorted(found["queries"]["text"]) == ["of a", "shared"]
    assert set(found["qrels"]["document_id"]) == {"a"}


def test_the_strings_that_answer_a_query_go_along(project):
    assert "answers" not in snapshot(project)["queries"]
    path = project.artifacts / "corpus" / "queries.parquet"
    pd.read_parquet(path).assign(answers='["by sort"]').to_parquet(path)
    add(collection_of(project), row("a", queries=["new"]))
    rows = snapshot(project)["queries"].set_index("id")["answers"]
    assert rows.to_dict() == {arrival_query_id("new"): None, "1": '["by sort"]'}


def test_a_document_keeps_its_date_and_is_read_back_as_it_was(project):
    add(collection_of(project), row("a", date="2026-11-25"), {"id": "b", "text": "b"})
    generation = GenerationStore(project.live, "hce").current()
    snapshot(project)
    settings = CorpusSettings(source="snapshot", path="snapshot")
    read = {
        row.values["id"]: row for row in SnapshotSource(settings, project.root).rows("documents")
    }
    found = {name: clean_document(row, 1000) for name, row in read.items()}
    assert (found["a"].date, found["b"].date) == ("2026-11-25T00:00:00+00:00", None)
    assert {name: document.content_hash for name, document in found.items()} == document_hashes(
        generation
    )


def test_a_query_that_the_corpus_judges_already_stays_that_one_in_its_split(project):
    """As documents of the corpus's own packages do; test queries must not be trained on."""
    asked = {"numpy.sort": ["How to sort"], "list.sort": ["how to sort", "new"]}
    add(collection_of(project), *(row(one, "new", queries=asked[one]) for one in asked))
    found = snapshot(project)
    assert list(found["queries"]["id"]) == [arrival_query_id("new"), "1"]
    rows = (
        found["qrels"][["query_id", "document_id", "split"]]
        .fillna("")
        .itertuples(index=False, name=None)
    )
    assert sorted(rows) == [
        ("1", "list.sort", "test"),
        ("1", "numpy.sort", "test"),
        (arrival_query_id("new"), "list.sort", ""),
    ]


def test_what_people_said_of_hits_is_judged_like_the_corpus_and_a_thumb_down_is_no_relevance(
    project,
):
    collection = collection_of(project)
    said = [
        ("new", "numpy.sort", "up", 1, "ada"),
        ("new", "str.split", "down", 2, "ada"),
        ("how to sort", "str.split", "click", 3, "ada"),
        ("how to sort", "numpy.sort", "down", 1, "ada"),
        ("first only", "numpy.sort", "click", 1, "ada"),
        ("only down", "numpy.sort", "down", 1, "ada"),
        ("of what is gone", "gone", "up", 1, "ada"),
    ]
    for query, document, verdict, rank, who in said:
        collection.ledger.record_feedback(Feedback(query, document, verdict, rank, who))
    found = snapshot(project)
    assert set(found["queries"]["text"]) == {"how to sort", "new"}
    rows = found["qrels"][["query_id", "document_id", "relevance", "split"]].itertuples(
        index=False, name=None
    )
    assert sorted(rows) == sorted(
        [
            ("1", "numpy.sort", 1, "test"),
            ("1", "str.split", 1, "test"),
            (arrival_query_id("new"), "numpy.sort", 1, None),
            (arrival_query_id("new"), "str.split", 0, None),
        ]
    )
