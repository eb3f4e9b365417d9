"""Queries that users typed are trained on after a retrain, and become no public known queries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from model_code.collection.ledger.events import Feedback
from model_code.corpus.build import BuiltCorpus, build_corpus
from model_code.corpus.corpus_queries import KNOWN_QUERIES, CorpusQueries, query_hash
from model_code.corpus.judgement_file import JudgedPair, record_judgements, text_query_id
from model_code.corpus.settings import CorpusSettings, QuerySplitSettings
from model_code.corpus.sources.files import SnapshotSource
from model_code.corpus.tables import load_corpus, make_table, read_public_queries, write_table
from model_code.project import Project
from model_code.text.settings import PassageSettings
from orchestration.cli.demo import example_queries
from orchestration.freshness.feedback import feedback_relevance
from orchestration.freshness.judged_pairs import read_judged_pairs
from orchestration.freshness.snapshot import export_snapshot
from orchestration.service.overview import example_questions
from tests.live_example import add, collection_of, make_project, row
from tests.orchestration.freshness.test_snapshot import live_generation, rows_of

# Every query without a split is trained on.
SPLITS = QuerySplitSettings(test_share=0.0, dev_share=0.0, gate_share=0.0)

THUMB = "my secret thumb"
CLICK = "my secret click"
RAISED = "my secret raised thumb"
JUDGED = "how to sort an array"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Two live documents, a judged pair, and feedback of all kinds."""
    made = make_project(tmp_path)
    write_corpus(made, {"queries": make_table("queries", []), "qrels": make_table("qrels", [])})
    record_judgements(made.judgements, [JudgedPair(JUDGED, "numpy.sort")])
    rate(made, THUMB, verdict="up")
    rate(made, CLICK, verdict="click", rank=5)
    rate(made, RAISED, verdict="up", raised=True)
    return made


def rate(project: Project, query: str, document_id: str = "numpy.sort", **values: object) -> None:
    opinion = Feedback(query, document_id, who="ada", **values)  # type: ignore[arg-type]
    collection_of(project).ledger.record_feedback(opinion)


def write_corpus(project: Project, tables: dict[str, pd.DataFrame]) -> None:
    folder = project.artifacts / "corpus"
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        write_table(folder, name, table)


def retrain_corpus(project: Project) -> BuiltCorpus:
    """Build the corpus of a retrain, and keep it as that of the project."""
    folder = project.root / "snapshot"
    export_snapshot(project, live_generation(project), folder)
    settings = CorpusSettings(source="snapshot", path="snapshot", splits=SPLITS)
    built = build_corpus(SnapshotSource(settings, project.root), settings, PassageSettings())
    write_corpus(project, built.tables)
    built.known_queries.save(project.artifacts / "corpus" / KNOWN_QUERIES)
    return built


def known_texts(known: CorpusQueries) -> set[str]:
    return {query.text for query in known.queries}


def test_retrain_makes_no_feedback_a_known_query(project: Project) -> None:
    retrain_corpus(project)

    path = project.artifacts / "corpus" / KNOWN_QUERIES
    assert known_texts(CorpusQueries.load(path)) == {JUDGED}
    assert "secret" not in path.read_text()


def test_retrain_trains_on_thumbs_and_clicks(project: Project) -> None:
    built = retrain_corpus(project)

    texts = set(built.tables["queries"]["text"])
    assert texts == {JUDGED, THUMB, CLICK}
    assert set(built.tables["qrels"]["split"]) == {"train"}
    assert built.known_queries.trained_feedback == {
        ("numpy.sort", query_hash(THUMB)),
        ("numpy.sort", query_hash(CLICK)),
    }
    assert query_hash(THUMB) in built.known_queries.trained_hashes


def test_second_retrain_knows_that_queries_were_typed(project: Project) -> None:
    retrain_corpus(project)

    built = retrain_corpus(project)

    assert known_texts(built.known_queries) == {JUDGED}
    assert set(built.tables["queries"]["text"]) == {JUDGED, THUMB, CLICK}


def test_withdrawn_thumb_is_not_trained_on_again(project: Project) -> None:
    retrain_corpus(project)
    collection_of(project).ledger.withdraw_feedback("ada", THUMB, "numpy.sort")

    built = retrain_corpus(project)

    assert set(built.tables["queries"]["text"]) == {JUDGED, CLICK}


def test_forgotten_query_is_in_no_snapshot(project: Project) -> None:
    """The corpus and the feedback may still name it: another thumb can come after the request."""
    retrain_corpus(project)
    ledger = collection_of(project).ledger
    ledger.forget_query(JUDGED)
    ledger.forget_query(CLICK)
    rate(project, CLICK.upper(), verdict="up")

    built = retrain_corpus(project)

    assert set(built.tables["queries"]["text"]) == {THUMB}
    assert known_texts(built.known_queries) == set()


def test_thumb_down_is_no_evidence_of_the_build(project: Project) -> None:
    """The live collection counts it, and it would count twice."""
    asked = "sort a column"
    add(collection_of(project), row("new", queries=[asked]))
    rate(project, asked, "new", verdict="down")
    rate(project, asked, verdict="up")

    built = retrain_corpus(project)

    evidence = built.known_queries.by_document()["new"]
    assert [(query.text, query.source, query.weight) for query in evidence] == [(asked, "row", 1)]


def test_pair_that_a_person_judges_as_well_is_known(project: Project) -> None:
    record_judgements(project.judgements, [JudgedPair(THUMB.title(), "numpy.sort")])

    built = retrain_corpus(project)

    assert known_texts(built.known_queries) == {JUDGED, THUMB.title()}


def test_query_of_a_row_stays_known_beside_a_thumb(project: Project) -> None:
    add(collection_of(project), row("new", queries=["Sort a column"]))
    rate(project, "sort a column?", "new", verdict="up")
    rate(project, "sort a column?", verdict="up")

    built = retrain_corpus(project)

    known = [query for query in built.known_queries.queries if "column" in query.text]
    assert {(query.text, query.document_id) for query in known} == {("Sort a column", "new")}


def test_qrels_without_origin_stay_known(project: Project) -> None:
    queries = make_table("queries", [{"query_id": "1", "text": "from a file", "split": "train"}])
    judged = {"query_id": "1", "document_id": "str.split", "relevance": 1, "split": "train"}
    write_corpus(project, {"queries": queries, "qrels": make_table("qrels", [judged])})

    built = retrain_corpus(project)

    assert known_texts(built.known_queries) == {JUDGED, "from a file"}


def test_pages_show_no_typed_query(project: Project) -> None:
    project.params_file.write_text("{retrievers: {hce: {}}, corpus: {path: rows.jsonl}}\n")
    project.judgements.unlink()

    before = example_questions(project)
    retrain_corpus(project)
    after = example_questions(project)

    assert not any("secret" in text for text in (*before, *after))
    folder = project.artifacts / "corpus"
    assert load_corpus(folder).typed_queries == {text_query_id(THUMB), text_query_id(CLICK)}
    assert list(read_public_queries(folder)["text"]) == []


def test_demo_shows_no_typed_query(project: Project) -> None:
    project.params_file.write_text("{retrievers: {hce: {}}, corpus: {path: rows.jsonl}}\n")
    tables = retrain_corpus(project).tables
    in_test = {name: tables[name].assign(split="test") for name in ("queries", "qrels")}
    write_corpus(project, in_test)

    assert set(example_queries(project)) == {JUDGED}


def test_thumb_and_judgement_of_equal_query_share_a_split(project: Project) -> None:
    record_judgements(project.judgements, [JudgedPair("sort a list", "numpy.sort", 1, "dev")])
    rate(project, "Sort a list?", "str.split", verdict="up")

    pairs = read_judged_pairs(project, live_generation(project))

    query_id = text_query_id("sort a list")
    assert pairs.splits[query_id] == "dev"
    assert pairs.relevance[query_id, "str.split"] == 1
    assert text_query_id("Sort a list?") not in pairs.texts


def test_thumb_joins_the_evaluated_one_of_equal_queries(project: Project) -> None:
    queries = [
        {"query_id": "1", "text": "Sort it", "split": "train"},
        {"query_id": "2", "text": "sort it?", "split": "gate"},
    ]
    qrels = [
        {"query_id": row["query_id"], "document_id": "numpy.sort", "relevance": 1, **split}
        for row, split in zip(queries, ({"split": "train"}, {"split": "gate"}), strict=True)
    ]
    tables = {"queries": make_table("queries", queries), "qrels": make_table("qrels", qrels)}
    write_corpus(project, tables)
    rate(project, "SORT IT", "str.split", verdict="up")

    export_snapshot(project, live_generation(project), project.root / "snapshot")

    exported = pd.read_parquet(project.root / "snapshot" / "qrels.parquet")
    rows = rows_of(exported, "query_id", "document_id", "split", "origin")
    assert ("2", "str.split", "gate", "feedback") in rows
    assert ("1", "numpy.sort", "train", None) in rows


def test_raised_opinions_add_no_weight() -> None:
    thumb = Feedback("how?", "a", "up", raised=True)
    click = Feedback("how?", "b", "click", rank=9, raised=True)
    down = Feedback("how?", "c", "down", raised=True)

    assert feedback_relevance([thumb, click, down]) == {"how?": {"c": 0}}


def test_person_counts_once_for_equal_queries() -> None:
    spellings = ["sort a list", "Sort a list?", "sort a LIST!"]
    ups = [Feedback(text, "a", "up", who="ada") for text in spellings]
    downs = [Feedback("sort a list", "a", "down", who=name) for name in ("bob", "eve")]
    clicks = [Feedback(text, "b", "click", rank=2, who="ada") for text in spellings]

    grades = feedback_relevance([*ups, *downs, *clicks])

    assert list(grades.values()) == [{"a": 0}]


def test_origin_of_other_sources_is_their_own(project: Project) -> None:
    built = retrain_corpus(project)
    qrels = built.tables["qrels"]

    others = replace(load_corpus(project.artifacts / "corpus"), qrels=qrels.drop(columns="origin"))

    assert others.typed_queries == frozenset()
