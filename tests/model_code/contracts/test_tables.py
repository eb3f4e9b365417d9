"""Guards that every broken contract is found and reported with its rows, and that a sound corpus passes."""

from __future__ import annotations

import pytest

from model_code.contracts.tables import check_tables
from model_code.corpus.build import build_corpus
from model_code.corpus.settings import CorpusSettings, PassageSettings
from model_code.corpus.tables import frame
from model_code.errors import FreshetError
from tests.model_code.corpus.conftest import RowSource


@pytest.fixture
def tables():
    rows = {
        "documents": [{"id": f"d{i}", "text": f"text {i}"} for i in range(4)],
        "queries": [{"id": f"q{i}", "text": f"query {i}"} for i in range(4)],
        "qrels": [{"query_id": f"q{i}", "document_id": f"d{i}", "split": "test"} for i in range(4)],
    }
    built = build_corpus(RowSource(**rows), CorpusSettings(), PassageSettings())
    pseudo = {"query_id": "p0", "document_id": "d0", "text": "pseudo", "kind": "cloze", "split": "train"}
    return {**built.tables, "pseudo_queries": frame("pseudo_queries", [pseudo])}


def test_a_sound_corpus_passes(tables):
    check_tables(tables)


@pytest.mark.parametrize(
    ("table", "column", "value", "message"),
    [
        ("documents", "document_id", "d0", "documents breaks its contract in 2 rows: document_id must be unique.*d0"),
        ("documents", "part", "old", r"part breaks isin.*row 1: 'old'"),
        ("documents", "title", None, "title breaks not_nullable"),
        ("documents", "part", "new", "exactly the initial documents must have passages.*'d1'"),
        ("passages", "document_id", "d9", r"document_id must be a document_id of documents.*row 1: 'd9'"),
        ("passages", "ordinal", -1, "ordinal breaks"),
        ("queries", "text", "", "text breaks str_length"),
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


def test_pseudo_queries_have_a_contract_of_their_own(tables):
    tables["pseudo_queries"].loc[0, "document_id"] = "d9"
    with pytest.raises(FreshetError, match="pseudo_queries .* document_id must be a document_id of documents"):
        check_tables(tables)
    tables["pseudo_queries"].loc[0, ["document_id", "split"]] = ["d0", "later"]
    with pytest.raises(FreshetError, match="split breaks isin"):
        check_tables(tables)


def test_missing_and_unknown_columns_and_wrong_types_are_refused(tables):
    for broken, culprit in (
        (tables["qrels"].drop(columns="split"), "'split'"),
        (tables["qrels"].assign(extra=1), "'extra'"),
        (tables["qrels"].astype({"relevance": float}), "'float64'"),
    ):
        with pytest.raises(FreshetError, match=f"qrels breaks its contract: .*{culprit}; its columns are query_id"):
            check_tables({"qrels": broken})
