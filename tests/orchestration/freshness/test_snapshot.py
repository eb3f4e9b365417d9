"""Guards what a retrain trains on: the live documents, and queries with all their answers."""

from __future__ import annotations

import pandas as pd
import pytest

from model_code.collection.generations.generation import document_hashes
from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.ledger.events import Feedback
from model_code.corpus.cleaning import clean_document
from model_code.corpus.judgement_file import JudgedPair, record_judgements, text_query_id
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.files import SnapshotSource
from model_code.corpus.tables import make_table
from model_code.evaluation.gate_power import GateQueries
from orchestration.freshness.judged_pairs import (
    count_gate_queries,
    count_judgements,
    retrain_gate_obstacle,
    retrain_obstacle,
)
from orchestration.freshness.snapshot import export_snapshot
from orchestration.registry.gate import NO_JUDGED_QUERIES
from tests.live_example import BASE, add, collection_of, make_project, open_build, row


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
        make_table(name, rows).to_parquet(corpus_file(made, name))
    return made


def corpus_file(project, name):
    return project.artifacts / "corpus" / f"{name}.parquet"


def live_generation(project):
    return GenerationStore(project.live, "hce").current()


def export(project, only=None):
    """Export the live documents, and read the tables of the snapshot."""
    folder = project.root / "snapshot"
    export_snapshot(project, live_generation(project), folder, only)
    names = ("documents", "queries", "qrels")
    return {name: pd.read_parquet(folder / f"{name}.parquet") for name in names}


def rows_of(table, *columns):
    """The rows of a table as tuples, in ascending order, with None for missing splits."""
    values = table[list(columns)].astype(object)
    values = values.where(values.notna(), None)
    return sorted(values.itertuples(index=False, name=None), key=str)


@pytest.fixture
def arrived_queries(project):
    """Two documents arrived with a shared query; a third one was deleted."""
    collection = collection_of(project)
    queries = {"a": ["shared", "own"], "b": ["shared"], "gone": ["shared", "of what is gone"]}
    collection.receive([row(name, queries=queries[name]) for name in queries], "api")
    collection.remove(["gone"], "api")
    collection.apply()


def test_live_documents_are_exported(project, arrived_queries):
    documents = export(project)["documents"]

    assert list(documents["id"]) == ["a", "b", "numpy.sort", "str.split"]


def test_arrived_queries_are_exported(project, arrived_queries):
    queries = export(project)["queries"]

    assert dict(zip(queries["id"], queries["text"], strict=True)) == {
        "1": "how to sort",
        text_query_id("own"): "own",
        text_query_id("shared"): "shared",
    }


def test_all_documents_of_shared_query_answer_it(project, arrived_queries):
    qrels = export(project)["qrels"]

    without_split = qrels[qrels["split"].isna()]
    assert rows_of(without_split, "query_id", "document_id") == sorted(
        [
            (text_query_id("own"), "a"),
            (text_query_id("shared"), "a"),
            (text_query_id("shared"), "b"),
        ]
    )


def set_split(project, split):
    for name in ("queries", "qrels"):
        path = corpus_file(project, name)
        pd.read_parquet(path).assign(split=split).to_parquet(path)


def remove_qrels(project):
    path = corpus_file(project, "qrels")
    pd.read_parquet(path).iloc[:0].to_parquet(path)


def need_no_training_queries(project):
    project.params_file.write_text("retrievers: {hce: {min_judged_queries: 0}}\n")


def test_retrain_needs_training_queries(project):
    obstacle = retrain_obstacle(project, live_generation(project))

    assert obstacle.startswith("1 of about 75 judged questions; 0 train, 30 are needed: add ")


def test_test_queries_can_judge_a_retrain(project):
    need_no_training_queries(project)

    assert retrain_obstacle(project, live_generation(project)) is None


def test_dev_queries_cannot_judge_a_retrain(project):
    need_no_training_queries(project)
    set_split(project, "dev")

    assert retrain_obstacle(project, live_generation(project)) == NO_JUDGED_QUERIES


def test_queries_for_removed_documents_judge_nothing(project):
    need_no_training_queries(project)
    path = corpus_file(project, "qrels")
    pd.read_parquet(path).assign(document_id="gone").to_parquet(path)

    assert retrain_obstacle(project, live_generation(project)) == NO_JUDGED_QUERIES


def test_queries_that_documents_bring_can_judge(project):
    need_no_training_queries(project)
    remove_qrels(project)
    # Of forty queries some are in the splits gate and test.
    queries = [f"asks {number}" for number in range(40)]
    add(collection_of(project), row("a", queries=queries))

    assert retrain_obstacle(project, live_generation(project)) is None


def test_obstacle_is_unknown_without_corpus(project):
    corpus_file(project, "queries").unlink()

    assert retrain_obstacle(project, live_generation(project)) is None
    assert retrain_gate_obstacle(project, live_generation(project)) is None


def test_gate_queries_for_new_documents_are_counted_apart(project):
    add(collection_of(project), row("new"))
    pairs = [JudgedPair(f"old {number}", "str.split", 1, "gate") for number in range(5)]
    pairs.extend(JudgedPair(f"new {number}", "new", 1, "gate") for number in range(3))
    pairs.append(JudgedPair("old 0", "new", 0, "gate"))
    record_judgements(project.judgements, pairs)

    queries, judged = count_gate_queries(project, live_generation(project))

    assert queries == GateQueries(gain=3, no_loss=5)
    assert judged == 9


def test_gate_queries_of_one_kind_are_judged_together(project):
    queries, judged = count_gate_queries(project, live_generation(project))

    assert queries == GateQueries(gain=1)
    assert judged == 1


def test_largest_number_of_queries_limits_the_gate(project):
    project.params_file.write_text("evaluation: {max_queries: 4}\nretrievers: {hce: {}}\n")
    add(collection_of(project), row("new"))
    pairs = [JudgedPair(f"old {number}", "str.split", 1, "gate") for number in range(6)]
    pairs.extend(JudgedPair(f"new {number}", "new", 1, "gate") for number in range(2))
    record_judgements(project.judgements, pairs)

    queries, _ = count_gate_queries(project, live_generation(project))

    assert queries == GateQueries(gain=1, no_loss=3)


def test_queries_of_built_documents_are_judged(project):
    open_build(project, BASE, queries={"str.split": ["asked before"]})

    queries = export(project)["queries"]

    assert text_query_id("asked before") in set(queries["id"])


def test_own_judgements_are_exported(project):
    record_judgements(
        project.judgements,
        [
            JudgedPair("Which one splits?", "str.split", 2, "train"),
            JudgedPair("which one splits?", "numpy.sort", 0),
            JudgedPair("asks for nothing that is live", "gone"),
        ],
    )

    qrels = export(project)["qrels"]

    query_id = text_query_id("Which one splits?")
    assert rows_of(qrels, "query_id", "document_id", "relevance") == [
        ("1", "numpy.sort", 1),
        (query_id, "numpy.sort", 0),
        (query_id, "str.split", 2),
    ]


def test_stated_split_of_query_without_answer_in_corpus_is_kept(project):
    """The judged document was added after the build, so that the corpus has the query alone."""
    add(collection_of(project), row("new"))
    text = "asks for what is new"
    queries = pd.read_parquet(corpus_file(project, "queries"))
    queries.loc[len(queries)] = {"query_id": text_query_id(text), "text": text, "split": None}
    queries.to_parquet(corpus_file(project, "queries"))
    record_judgements(project.judgements, [JudgedPair(text, "new", split="gate")])

    qrels = export(project)["qrels"]

    assert (text_query_id(text), "new", "gate") in rows_of(
        qrels, "query_id", "document_id", "split"
    )


def test_own_judgement_replaces_that_of_the_corpus(project):
    record_judgements(project.judgements, [JudgedPair("how to sort", "numpy.sort", 3)])

    qrels = export(project)["qrels"]

    assert rows_of(qrels, "query_id", "relevance") == [("1", 3)]


def test_own_judgement_replaces_feedback(project):
    feedback = Feedback("which one splits?", "str.split", "down", 1, "ada")
    collection_of(project).ledger.record_feedback(feedback)
    record_judgements(project.judgements, [JudgedPair("Which one splits?", "str.split")])

    counts = count_judgements(project)

    assert counts.total == 2


def test_sample_is_exported_with_its_queries_only(project):
    documents = [row(name, queries=["shared", f"of {name}"]) for name in "ab"]
    add(collection_of(project), *documents)

    snapshot = export(project, only={"a", "str.split"})

    assert list(snapshot["documents"]["id"]) == ["a", "str.split"]
    assert sorted(snapshot["queries"]["text"]) == ["of a", "shared"]
    assert set(snapshot["qrels"]["document_id"]) == {"a"}


def test_no_answers_are_exported_without_any(project):
    assert "answers" not in export(project)["queries"]


def test_answers_of_corpus_queries_are_exported(project):
    path = corpus_file(project, "queries")
    pd.read_parquet(path).assign(answers='["by sort"]').to_parquet(path)
    add(collection_of(project), row("a", queries=["new"]))

    answers = export(project)["queries"].set_index("id")["answers"]

    assert answers.to_dict() == {text_query_id("new"): None, "1": '["by sort"]'}


def test_exported_document_is_read_back_unchanged(project):
    add(collection_of(project), row("a", date="2026-11-25"), {"id": "b", "text": "b"})
    generation = live_generation(project)
    export(project)

    settings = CorpusSettings(source="snapshot", path="snapshot")
    documents = {}
    for source_row in SnapshotSource(settings, project.root).rows("documents"):
        documents[source_row.values["id"]] = clean_document(source_row, 1000)

    assert documents["a"].date == "2026-11-25T00:00:00+00:00"
    assert documents["b"].date is None
    hashes = {name: document.content_hash for name, document in documents.items()}
    assert hashes == document_hashes(generation)


def test_query_of_corpus_keeps_its_id_and_split(project):
    """Test queries must not be trained on, also if documents arrive with them."""
    queries = {"numpy.sort": ["How to sort"], "list.sort": ["how to sort", "new"]}
    add(collection_of(project), *(row(name, "new", queries=queries[name]) for name in queries))

    snapshot = export(project)

    assert list(snapshot["queries"]["id"]) == [text_query_id("new"), "1"]
    assert rows_of(snapshot["qrels"], "query_id", "document_id", "split") == [
        ("1", "list.sort", "test"),
        ("1", "numpy.sort", "test"),
        (text_query_id("new"), "list.sort", None),
    ]


def test_feedback_is_exported_as_judgements(project):
    ledger = collection_of(project).ledger
    for query, document_id, verdict, rank in [
        ("new", "numpy.sort", "up", 1),
        ("new", "str.split", "down", 2),
        ("how to sort", "str.split", "click", 3),
        # The corpus judges this pair, and counts.
        ("how to sort", "numpy.sort", "down", 1),
        # One click on the first hit is not enough.
        ("first only", "numpy.sort", "click", 1),
        # A query without a relevant live document is left out.
        ("only down", "numpy.sort", "down", 1),
        ("of what is gone", "gone", "up", 1),
    ]:
        ledger.record_feedback(Feedback(query, document_id, verdict, rank, "ada"))

    snapshot = export(project)

    assert set(snapshot["queries"]["text"]) == {"how to sort", "new"}
    assert rows_of(snapshot["qrels"], "query_id", "document_id", "relevance", "split") == [
        ("1", "numpy.sort", 1, "test"),
        ("1", "str.split", 1, "test"),
        (text_query_id("new"), "numpy.sort", 1, None),
        (text_query_id("new"), "str.split", 0, None),
    ]
