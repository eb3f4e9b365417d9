"""Guards the BEIR source: plain or .gz, any subset of splits, another folder of judgements."""

from __future__ import annotations

import pytest

from model_code.corpus.settings import ColumnSettings, CorpusSettings
from model_code.corpus.sources.beir import Source
from model_code.errors import FreshetError

DOCUMENTS = [{"_id": "d1", "title": "Moss", "text": "soft", "place": "wood"}, {"_id": "d2", "text": "hard"}]
QUERIES = [{"_id": "q1", "text": "what is soft"}]


def source(root, **more) -> Source:
    return Source(CorpusSettings(source="beir", path="data", **more), root)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("splits", [("train", "dev", "test"), ("train", "test"), ("test",)])
def test_plain_or_compressed_with_any_splits(tmp_path, write_beir, compress, splits):
    write_beir(tmp_path / "data", DOCUMENTS, QUERIES, {split: [("q1", "d1", 1)] for split in splits}, compress)
    beir = source(tmp_path)
    documents = [row.values for row in beir.rows("documents")]
    assert documents[0] == {"id": "d1", "title": "Moss", "text": "soft", "fields": {"place": "wood"}}
    assert documents[1]["id"] == "d2"
    assert [row.values for row in beir.rows("queries")] == [{"id": "q1", "text": "what is soft"}]
    judged = [{"query_id": "q1", "document_id": "d1", "relevance": "1", "split": split} for split in splits]
    assert [row.values for row in beir.rows("qrels")] == judged
    end = ".gz" if compress else ""
    assert [row.location for row in beir.rows("qrels")] == [f"qrels/{split}.tsv{end}:2" for split in splits]


def test_answers_stand_beside_the_text_or_among_the_metadata(tmp_path, write_beir):
    queries = [
        {"_id": "q1", "text": "one", "answers": ["1"]},
        {"_id": "q2", "text": "two", "metadata": {"answers": ["2"], "query": "an id"}},
        {"_id": "q3", "text": "three", "metadata": {}},
        {"_id": "q4", "text": "four", "answers": None, "metadata": {"answers": ["4"]}},
    ]
    write_beir(tmp_path / "data", DOCUMENTS, queries, {"test": [("q1", "d1", 1)]})
    assert [row.values.get("answers") for row in source(tmp_path).rows("queries")] == [["1"], ["2"], None, ["4"]]
    none = source(tmp_path, columns=ColumnSettings(answers=None))
    assert {name for row in none.rows("queries") for name in row.values} == {"id", "text"}


def test_judgements_of_another_folder(tmp_path, write_beir):
    write_beir(tmp_path / "data", DOCUMENTS, QUERIES, {"test": [("q1", "d1", 1)]})
    write_beir(tmp_path / "data", DOCUMENTS, QUERIES, {"dev": [("q1", "d2", 1)]}, qrels_folder="qrels-seen")
    chosen = source(tmp_path, qrels="qrels-seen")
    assert [(row.values["document_id"], row.values["split"]) for row in chosen.rows("qrels")] == [("d2", "dev")]
    assert source(tmp_path).describe()["content_hash"] != chosen.describe()["content_hash"]
    with pytest.raises(FreshetError, match="corpus.qrels names that folder"):
        source(tmp_path, qrels="qrels-typo")


def test_documents_alone_are_enough_but_not_less(tmp_path, write_beir):
    write_beir(tmp_path / "data", DOCUMENTS)
    assert [list(source(tmp_path).rows(table)) for table in ("queries", "qrels")] == [[], []]
    (tmp_path / "data/corpus.jsonl").unlink()
    with pytest.raises(FreshetError, match="must name a BEIR folder"):
        source(tmp_path)


def test_a_misspelt_column_is_refused_and_the_split_needs_none(tmp_path, write_beir):
    write_beir(tmp_path / "data", DOCUMENTS, QUERIES, {"test": [("q1", "d1", 1)]})
    named = source(tmp_path, columns=ColumnSettings(split="fold"))
    named.describe()
    assert [row.values["split"] for row in named.rows("qrels")] == ["test"]
    with pytest.raises(FreshetError, match=r"^qrels of data has no column 'grade' \(corpus.columns.relevance\)"):
        source(tmp_path, columns=ColumnSettings(relevance="grade")).describe()
