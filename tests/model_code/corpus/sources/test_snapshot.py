"""Guards snapshots: what was accepted once comes back as it was, and equal contents have equal hashes."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

from model_code.corpus.build import build_corpus
from model_code.corpus.lock import make_lock
from model_code.corpus.settings import CorpusSettings, PassageSettings
from model_code.corpus.sources.base import open_source
from model_code.corpus.sources.snapshot import write_snapshot
from model_code.errors import FreshetError

SETTINGS = CorpusSettings(source="snapshot", path="snapshot", merge_duplicates="none")
TABLES = {
    "documents": [
        {"id": "b", "title": "Boats", "text": "sails and masts", "fields": '{"date": "soon", "text": "a field"}'},
        {"id": "a", "title": "", "text": "sails and masts", "fields": "{}"},
    ],
    "queries": [{"id": "q1", "text": "what has sails"}, {"id": "q2", "text": "what has masts"}],
    "qrels": [
        {"query_id": "q1", "document_id": "a", "relevance": 2, "split": "test"},
        {"query_id": "q2", "document_id": "b", "relevance": 1, "split": None},
    ],
}


def test_documents_queries_and_splits_come_back(tmp_path):
    write_snapshot(tmp_path / "snapshot", TABLES)
    built = build_corpus(open_source(SETTINGS, tmp_path), SETTINGS, PassageSettings())
    documents = built.tables["documents"].set_index("document_id")
    assert list(documents["text"]) == ["sails and masts"] * 2, "duplicates were settled before"
    assert json.loads(documents.loc["b", "fields"]) == {"date": "soon", "text": "a field"}
    splits = built.tables["queries"].set_index("query_id")["split"]
    assert splits["q1"] == "test"
    assert splits["q2"] in ("train", "dev", "test"), "a query without a split gets one"
    assert built.report["documents_quarantined"] == 0
    assert built.tables["qrels"].set_index("query_id").loc["q1", "relevance"] == 2


def test_answers_come_back_and_a_snapshot_without_any_has_no_column_for_them(tmp_path):
    named = {**TABLES, "queries": [{**TABLES["queries"][0], "answers": '["a boat"]'}, TABLES["queries"][1]]}
    for tables, expected in ((named, ['["a boat"]', None]), (TABLES, None)):
        write_snapshot(tmp_path / "snapshot", tables)
        queries = build_corpus(open_source(SETTINGS, tmp_path), SETTINGS, PassageSettings()).tables["queries"]
        assert (queries["answers"].tolist() if "answers" in queries else None) == expected
        held = pq.read_schema(tmp_path / "snapshot" / "queries.parquet").names
        assert held == (["id", "text"] if expected is None else ["id", "text", "answers"])


def test_equal_contents_have_equal_hashes_wherever_they_lie(tmp_path):
    for place in ("one", "two"):
        write_snapshot(tmp_path / place / "snapshot", TABLES)
    locks = [make_lock(SETTINGS, tmp_path / place) for place in ("one", "two")]
    assert locks[0] == locks[1]
    assert str(tmp_path) not in json.dumps(locks)


def test_a_missing_table_is_named(tmp_path):
    with pytest.raises(FreshetError, match=r"documents.parquet does not exist"):
        make_lock(SETTINGS, tmp_path)
