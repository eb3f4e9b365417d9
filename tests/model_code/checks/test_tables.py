"""Guards that every broken contract is found and reported with its rows, and that a sound corpus
passes.
"""

from __future__ import annotations

import pytest

from model_code.checks.tables import check_tables
from model_code.context import StageContext
from model_code.corpus.build import build_corpus
from model_code.corpus.corpus_queries import KNOWN_QUERIES, CorpusQueries, query_hash
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.tables import make_table, write_table
from model_code.errors import FreshetError
from model_code.files import write_json
from model_code.stages.contract import check_contract
from model_code.text.settings import PassageSettings
from tests.model_code.checks.damage import (
    assert_refused,
    column_with,
    each,
    first_row_removed,
    first_row_repeated,
    json_item_with,
    json_with,
    removed,
    table_with,
    written,
)
from tests.model_code.corpus.conftest import RowSource

DOCUMENTS = [{"id": f"d{i}", "text": f"text {i}"} for i in range(40)]
QUERIES = [{"id": f"q{i}", "text": f"query {i}"} for i in range(4)]
QRELS = [{"query_id": f"q{i}", "document_id": f"d{i}", "split": "test"} for i in range(4)]


def build(asked=True):
    """Build the tables of a corpus with test queries or without any."""
    rows = {"documents": DOCUMENTS}
    if asked:
        rows.update(queries=QUERIES, qrels=QRELS)
    return dict(build_corpus(RowSource(**rows), CorpusSettings(), PassageSettings()).tables)


@pytest.fixture
def tables():
    return build()


@pytest.mark.parametrize(
    ("table", "column", "value", "message"),
    [
        (
            "documents",
            "document_id",
            "d0",
            "documents breaks its contract in 2 rows: document_id must be unique.*d0",
        ),
        ("documents", "title", None, "title breaks not_nullable"),
        (
            "passages",
            "document_id",
            "d99",
            r"document_id must be a document_id of documents.*row 1: 'd99'",
        ),
        ("passages", "ordinal", -1, "ordinal breaks"),
        ("queries", "text", "", "text breaks str_contains"),
        ("queries", "split", "later", "split breaks isin"),
        ("queries", "split", "train", "split must be its query's split.*'q1'"),
        ("qrels", "query_id", "q9", r"query_id must be a query_id of queries.*'q9'"),
        ("qrels", "document_id", "d99", r"document_id must be a document_id of documents.*'d99'"),
        ("qrels", "relevance", 0, "relevance breaks"),
        ("qrels", "query_id", "", "query_id breaks str_length"),
    ],
)
def test_broken_rules_are_reported_with_first_rows(tables, table, column, value, message):
    tables[table].loc[1, column] = value

    with pytest.raises(FreshetError, match=message):
        check_tables(tables)


@pytest.mark.parametrize("answers", ["[]", '["a", ""]', '"a"', '["a", 5]', "a", ""])
def test_answers_are_a_list_of_texts_or_none(tables, answers):
    check_tables({"queries": tables["queries"].assign(answers=['["a"]', None, '["b", "c"]', None])})
    with pytest.raises(FreshetError, match="answers breaks list of texts.*row 1"):
        check_tables({"queries": tables["queries"].assign(answers=['["a"]', answers, None, None])})


def test_wrong_columns_and_types_are_refused(tables):
    for broken, culprit in (
        (tables["qrels"].drop(columns="split"), "'split'"),
        (tables["qrels"].assign(extra=1), "'extra'"),
        (tables["qrels"].astype({"relevance": float}), "'float64'"),
    ):
        with pytest.raises(
            FreshetError, match=f"qrels breaks its contract: .*{culprit}; its columns are query_id"
        ):
            check_tables({"qrels": broken})


EXPECTATION = {
    "table": "queries",
    "expectation": "some",
    "bounds": {"min_value": 1},
    "observed": 2,
    "passed": True,
}


def outputs(root, asked=True, documents=3):
    """Write a corpus, two pseudo-queries for each document, and a verdict.

    Returns:
        The context of each stage by its name.
    """
    folders = {name: root / name for name in ("corpus", "pseudo_queries", "acceptance")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    tables = build(asked)
    for name, table in tables.items():
        write_table(folders["corpus"], name, table)
    write_json(folders["corpus"] / "reading_notes.json", [])
    queries = tables["queries"]
    judging = queries[queries["split"].isin(["dev", "gate", "test"])]
    held_out = frozenset(query_hash(text) for text in judging["text"])
    CorpusQueries((), held_out).save(folders["corpus"] / KNOWN_QUERIES)
    rows = []
    for number in range(documents):
        for i in range(2):
            rows.append(
                {
                    "query_id": f"d{number}~{i}",
                    "document_id": f"d{number}",
                    "text": f"text {i}",
                    "kind": "inverse_cloze",
                }
            )
    write_table(folders["pseudo_queries"], "pseudo_queries", make_table("pseudo_queries", rows))
    write_json(
        folders["acceptance"] / "verdict.json", {"passed": True, "expectations": [EXPECTATION]}
    )
    return {name: StageContext(root, folders, folder, {}, root) for name, folder in folders.items()}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return outputs(tmp_path_factory.mktemp("sound"))


def test_sound_ones_pass(sound, tmp_path):
    for places in (sound, outputs(tmp_path, asked=False, documents=0)):
        for stage, place in places.items():
            check_contract(stage, place)


def pseudo_query_with(column, value):
    """Set a value of the first pseudo-query."""
    return column_with("pseudo_queries.parquet", column, value)


def without_reason(table):
    """Leave out the column `reason`."""
    return table.drop(columns="reason")


def with_another_column(table):
    """Add a column that the table must not have."""
    return table.assign(more=1)


BROKEN = {
    "corpus": [
        (removed("quarantine.parquet"), "must hold quarantine.parquet"),
        (written("qrels.parquet", "cut"), "it cannot be read: Arrow"),
        (removed("reading_notes.json"), "must hold reading_notes.json"),
        (written("reading_notes.json", "cut"), "it cannot be read"),
        (removed("known_queries.json"), "must hold known_queries.json"),
        (
            json_with("known_queries.json", held_out=["0" * 64]),
            "must name the queries of dev, gate and test",
        ),
        (
            table_with("quarantine.parquet", without_reason),
            "quarantine breaks.*'reason'",
        ),
        (
            table_with("passages.parquet", first_row_removed),
            "document_id must be a document_id of passages",
        ),
    ],
    "pseudo_queries": [
        (removed("pseudo_queries.parquet"), "must hold pseudo_queries.parquet"),
        (
            pseudo_query_with("document_id", "d99"),
            "document_id must be of a document of the corpus.*'d99'",
        ),
        (pseudo_query_with("text", ""), "text breaks str_contains"),
        (pseudo_query_with("text", " \t"), "text breaks str_contains"),
        (pseudo_query_with("kind", None), "kind breaks not_nullable"),
        (
            table_with("pseudo_queries.parquet", first_row_repeated),
            "query_id must be unique",
        ),
        (table_with("pseudo_queries.parquet", with_another_column), "'more'"),
    ],
    "acceptance": [
        (removed("verdict.json"), "must hold verdict.json"),
        (json_with("verdict.json", passed=False), "must have passed"),
        (json_with("verdict.json", expectations=[]), "must have passed"),
        (
            json_item_with("verdict.json", ["expectations", 0], passed=False),
            "must have passed",
        ),
    ],
}


@each(BROKEN)
def test_each_broken_rule_is_named(sound, tmp_path, name, damage, message):
    assert_refused(name, sound[name], tmp_path, damage, message)
