"""Guards that every broken contract is found and reported with its rows, and that a sound corpus passes."""

from __future__ import annotations

import pandas as pd
import pytest

from model_code.context import StageContext
from model_code.contracts.corpus import check_tables
from model_code.contracts.registry import check
from model_code.corpus.build import build_corpus
from model_code.corpus.settings import CorpusSettings, PassageSettings
from model_code.corpus.tables import frame, write_table
from model_code.errors import FreshetError
from model_code.files import write_json
from tests.model_code.contracts.damage import (
    assert_refused,
    json_edited,
    json_with,
    removed,
    table_with,
    written,
)
from tests.model_code.corpus.conftest import RowSource


@pytest.fixture
def tables():
    rows = {
        "documents": [{"id": f"d{i}", "text": f"text {i}"} for i in range(4)],
        "queries": [{"id": f"q{i}", "text": f"query {i}"} for i in range(4)],
        "qrels": [{"query_id": f"q{i}", "document_id": f"d{i}", "split": "test"} for i in range(4)],
    }
    built = build_corpus(RowSource(**rows), CorpusSettings(), PassageSettings())
    return dict(built.tables)


def test_a_sound_corpus_passes(tables):
    check_tables(tables)


@pytest.mark.parametrize(
    ("table", "column", "value", "message"),
    [
        ("documents", "document_id", "d0", "documents breaks its contract in 2 rows: document_id must be unique.*d0"),
        ("documents", "title", None, "title breaks not_nullable"),
        ("passages", "document_id", "d9", r"document_id must be a document_id of documents.*row 1: 'd9'"),
        ("passages", "ordinal", -1, "ordinal breaks"),
        ("queries", "text", "", "text breaks str_contains"),
        ("queries", "split", "later", "split breaks isin"),
        ("queries", "split", "train", "split must be its query's split.*'q1'"),
        ("qrels", "query_id", "q9", r"query_id must be a query_id of queries.*'q9'"),
        ("qrels", "document_id", "d9", r"document_id must be a document_id of documents.*'d9'"),
        ("qrels", "relevance", 0, "relevance breaks"),
        ("qrels", "query_id", "", "query_id breaks str_length"),
    ],
)
def test_each_broken_rule_is_named_with_its_first_rows(tables, table, column, value, message):
    tables[table].loc[1, column] = value
    with pytest.raises(FreshetError, match=message):
        check_tables(tables)


@pytest.mark.parametrize("answers", ["[]", '["a", ""]', '"a"', '["a", 5]', "a", ""])
def test_answers_are_a_list_of_texts_or_none(tables, answers):
    check_tables({"queries": tables["queries"].assign(answers=['["a"]', None, '["b", "c"]', None])})
    with pytest.raises(FreshetError, match="answers breaks list of texts.*row 1"):
        check_tables({"queries": tables["queries"].assign(answers=['["a"]', answers, None, None])})


def test_missing_and_unknown_columns_and_wrong_types_are_refused(tables):
    for broken, culprit in (
        (tables["qrels"].drop(columns="split"), "'split'"),
        (tables["qrels"].assign(extra=1), "'extra'"),
        (tables["qrels"].astype({"relevance": float}), "'float64'"),
    ):
        with pytest.raises(FreshetError, match=f"qrels breaks its contract: .*{culprit}; its columns are query_id"):
            check_tables({"qrels": broken})


EXPECTATION = {"table": "queries", "expectation": "some", "bounds": {"min_value": 1}, "observed": 2, "passed": True}


def build(root, qrels_of):
    """Corpus stage's output at `root / "corpus"`; each document is asked for in split `qrels_of`, or by nobody."""
    rows = {
        "documents": [{"id": f"d{i}", "text": f"text {i}"} for i in range(40)],
        "queries": [{"id": f"q{i}", "text": f"query {i}"} for i in range(4)],
        "qrels": [{"query_id": f"q{i}", "document_id": f"d{i}", "split": qrels_of} for i in range(4)],
    }
    chosen = rows if qrels_of else {"documents": rows["documents"]}
    built = build_corpus(RowSource(**chosen), CorpusSettings(), PassageSettings())
    (root / "corpus").mkdir(parents=True)
    for name, table in built.tables.items():
        write_table(root / "corpus", name, table)
    return StageContext(root, {"corpus": root / "corpus"}, root / "corpus", {}, root)


def pseudo(root, documents=3):
    """Two queries for each of so many documents."""
    place = build(root, None)
    table = pd.read_parquet(root / "corpus" / "documents.parquet")
    initial = table["document_id"].tolist()
    rows = [
        {"query_id": f"{name}~{i}", "document_id": name, "text": f"text {i}", "kind": "inverse_cloze"}
        for name in initial[:documents]
        for i in range(2)
    ]
    (root / "output").mkdir()
    write_table(root / "output", "pseudo_queries", frame("pseudo_queries", rows))
    return StageContext(root, place.inputs, root / "output", {}, root)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return build(tmp_path_factory.mktemp("corpus"), "test")


@pytest.fixture(scope="module")
def queries(tmp_path_factory):
    return pseudo(tmp_path_factory.mktemp("queries"))


@pytest.fixture(scope="module")
def verdict(tmp_path_factory):
    root = tmp_path_factory.mktemp("verdict")
    (root / "output").mkdir()
    write_json(root / "output" / "verdict.json", {"passed": True, "expectations": [EXPECTATION]})
    return StageContext(root, {}, root / "output", {}, root)


def test_sound_ones_pass(corpus, queries, verdict, tmp_path):
    check("corpus", corpus)
    check("corpus", build(tmp_path / "bare", None))
    check("pseudo_queries", queries)
    check("pseudo_queries", pseudo(tmp_path / "none", documents=0))
    check("acceptance", verdict)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (removed("quarantine.parquet"), "must hold quarantine.parquet"),
        (written("qrels.parquet", "cut"), "it cannot be read: Arrow"),
        (table_with("quarantine.parquet", lambda table: table.drop(columns="reason")), "quarantine breaks.*'reason'"),
        (table_with("passages.parquet", lambda table: table[1:]), "document_id must be a document_id of passages"),
    ],
)
def test_a_broken_table_of_the_corpus_is_named(corpus, tmp_path, damage, message):
    assert_refused("corpus", corpus, tmp_path, damage, message)


def first(column, value):
    return table_with("pseudo_queries.parquet", lambda table: table.assign(**{column: [value, *table[column][1:]]}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (removed("pseudo_queries.parquet"), "must hold pseudo_queries.parquet"),
        (first("document_id", "d99"), "document_id must be of a document of the corpus.*'d99'"),
        (first("text", ""), "text breaks str_contains"),
        (first("text", " \t"), "text breaks str_contains"),
        (first("kind", None), "kind breaks not_nullable"),
        (table_with("pseudo_queries.parquet", lambda table: pd.concat([table, table[:1]])), "query_id must be unique"),
        (table_with("pseudo_queries.parquet", lambda table: table.assign(more=1)), "'more'"),
    ],
)
def test_each_broken_rule_of_pseudo_queries_is_named(queries, tmp_path, damage, message):
    assert_refused("pseudo_queries", queries, tmp_path, damage, message)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (removed("verdict.json"), "must hold verdict.json"),
        (json_with("verdict.json", passed=False), "must have passed"),
        (json_with("verdict.json", expectations=[]), "must have passed"),
        (json_edited("verdict.json", lambda value: value["expectations"][0].update(passed=False)), "must have passed"),
    ],
)
def test_each_broken_rule_of_the_verdict_is_named(verdict, tmp_path, damage, message):
    assert_refused("acceptance", verdict, tmp_path, damage, message)
