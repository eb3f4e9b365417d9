"""Guards sources of files: plain tables, the BEIR layout, and that a snapshot is built again as it
was written.
"""

from __future__ import annotations

import json

import pandas as pd
import pyarrow.parquet as pq
import pytest

from model_code.corpus.build import build_corpus
from model_code.corpus.settings import ColumnSettings, CorpusSettings, FileSettings
from model_code.corpus.sources.base import open_source
from model_code.corpus.sources.files import BeirSource, FilesSource, write_snapshot
from model_code.errors import FreshetError
from model_code.text.settings import PassageSettings

COLUMNS = ColumnSettings(
    document_id="sku",
    title="name",
    text="body",
    date="since",
    query_id="number",
    query_text="question",
    qrel_query="number",
    qrel_document="sku",
    relevance="grade",
    split="fold",
)


def files_settings(documents: str, queries: str, columns: ColumnSettings) -> CorpusSettings:
    files = FileSettings(queries=queries, qrels="judged.jsonl")
    return CorpusSettings(source="files", path=documents, files=files, columns=columns)


def test_mapped_columns_of_three_formats(tmp_path):
    (tmp_path / "products.csv").write_text(
        "sku,name,body,since,shop\n1,Moss,soft,2024-01-01,wood\n"
    )
    pd.DataFrame({"number": [5], "question": ["what is soft"], "user": ["x"]}).to_parquet(
        tmp_path / "asked.parquet"
    )
    (tmp_path / "judged.jsonl").write_text(
        '{"number": 5, "sku": "1", "grade": 2, "fold": "test"}\n'
    )
    source = FilesSource(files_settings("products.csv", "asked.parquet", COLUMNS), tmp_path)
    rows = {
        table: [dict(row.values) for row in source.rows(table)]
        for table in ("documents", "queries", "qrels")
    }

    assert rows == {
        "documents": [
            {
                "id": "1",
                "title": "Moss",
                "text": "soft",
                "date": "2024-01-01",
                "fields": {"shop": "wood"},
            }
        ],
        "queries": [{"id": 5, "text": "what is soft"}],
        "qrels": [{"query_id": 5, "document_id": "1", "relevance": 2, "split": "test"}],
    }
    assert list(source.describe()["files"]) == ["documents.csv", "qrels.jsonl", "queries.parquet"]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_answers_are_read_in_every_format(tmp_path, suffix):
    asked = pd.DataFrame(
        {"_id": ["1", "2"], "text": ["when", "who"], "strings": [["in 2008", "2008"], None]}
    )
    if suffix == "csv":
        asked["strings"] = ['["in 2008", "2008"]', ""]
        asked.to_csv(tmp_path / "asked.csv", index=False)
    elif suffix == "jsonl":
        asked.to_json(tmp_path / "asked.jsonl", orient="records", lines=True)
    else:
        asked.to_parquet(tmp_path / "asked.parquet")
    (tmp_path / "notes.jsonl").write_text('{"_id": "d", "text": "a note"}\n')
    (tmp_path / "judged.jsonl").write_text('{"query-id": "1", "corpus-id": "d"}\n')
    settings = files_settings("notes.jsonl", f"asked.{suffix}", ColumnSettings(answers="strings"))
    queries = build_corpus(FilesSource(settings, tmp_path), settings, PassageSettings()).tables[
        "queries"
    ]

    assert queries["answers"].tolist() == ['["in 2008", "2008"]', None]


def test_a_missing_file_is_one_clear_error(tmp_path):
    with pytest.raises(FreshetError, match="absent.jsonl does not exist"):
        FilesSource(CorpusSettings(source="files", path="absent.jsonl"), tmp_path).describe()


@pytest.mark.parametrize(
    ("columns", "judged", "read"),
    [
        (ColumnSettings(), {"score": 2}, [2]),
        (ColumnSettings(), {"relevance": 0}, [0]),
        (ColumnSettings(), {"score": 2, "relevance": 0}, [2]),
        (ColumnSettings(relevance="grade"), {"grade": 3, "relevance": 0}, [3]),
        (ColumnSettings(), {"grade": 3}, []),
    ],
)
def test_relevance_column_is_named_or_default(tmp_path, columns, judged, read):
    (tmp_path / "notes.jsonl").write_text('{"_id": "d", "text": "a note"}\n')
    (tmp_path / "asked.jsonl").write_text('{"_id": "1", "text": "who"}\n')
    judgement = {"query-id": "1", "corpus-id": "d", **judged}
    (tmp_path / "judged.jsonl").write_text(json.dumps(judgement) + "\n")
    source = FilesSource(files_settings("notes.jsonl", "asked.jsonl", columns), tmp_path)

    (row,) = source.rows("qrels")

    assert [value for name, value in row.values.items() if name == "relevance"] == read


BEIR_DOCUMENTS = [
    {"_id": "d1", "title": "Moss", "text": "soft", "place": "wood"},
    {"_id": "d2", "text": "hard"},
]
BEIR_QUERIES = [{"_id": "q1", "text": "what is soft"}]


def beir_source(root, **more) -> BeirSource:
    return BeirSource(CorpusSettings(source="beir", path="data", **more), root)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("splits", [("train", "dev", "gate", "test"), ("train", "test"), ("test",)])
def test_plain_or_compressed_with_any_splits(tmp_path, write_beir, compress, splits):
    qrels = {split: [("q1", "d1", 1)] for split in splits}
    write_beir(tmp_path / "data", BEIR_DOCUMENTS, BEIR_QUERIES, qrels, compress)
    beir = beir_source(tmp_path)
    documents = [row.values for row in beir.rows("documents")]

    assert documents[0] == {
        "id": "d1",
        "title": "Moss",
        "text": "soft",
        "fields": {"place": "wood"},
    }
    assert documents[1]["id"] == "d2"
    assert [row.values for row in beir.rows("queries")] == [{"id": "q1", "text": "what is soft"}]

    judged = [
        {"query_id": "q1", "document_id": "d1", "relevance": "1", "split": split}
        for split in splits
    ]
    assert [row.values for row in beir.rows("qrels")] == judged

    end = ".gz" if compress else ""
    assert [row.location for row in beir.rows("qrels")] == [
        f"qrels/{split}.tsv{end}:2" for split in splits
    ]


QUERIES_WITH_ANSWERS = [
    {"_id": "q1", "text": "one", "answers": ["1"]},
    {"_id": "q2", "text": "two", "metadata": {"answers": ["2"], "query": "an id"}},
    {"_id": "q3", "text": "three", "metadata": {}},
    {"_id": "q4", "text": "four", "answers": None, "metadata": {"answers": ["4"]}},
]


@pytest.fixture
def answered(tmp_path, write_beir):
    """A folder with a data set whose queries have answers."""
    qrels = {"test": [("q1", "d1", 1)]}
    write_beir(tmp_path / "data", BEIR_DOCUMENTS, QUERIES_WITH_ANSWERS, qrels)
    return tmp_path


def test_answers_are_read_from_record_or_metadata(answered):
    rows = beir_source(answered).rows("queries")

    answers = [row.values.get("answers") for row in rows]
    assert answers == [["1"], ["2"], None, ["4"]]


def test_answers_without_a_column_are_not_read(answered):
    source = beir_source(answered, columns=ColumnSettings(answers=None))

    for row in source.rows("queries"):
        assert set(row.values) == {"id", "text"}


def test_judgements_of_another_folder(tmp_path, write_beir):
    write_beir(tmp_path / "data", BEIR_DOCUMENTS, BEIR_QUERIES, {"test": [("q1", "d1", 1)]})
    write_beir(
        tmp_path / "data",
        BEIR_DOCUMENTS,
        BEIR_QUERIES,
        {"dev": [("q1", "d2", 1)]},
        qrels_folder="qrels-seen",
    )
    chosen = beir_source(tmp_path, qrels="qrels-seen")

    assert [(row.values["document_id"], row.values["split"]) for row in chosen.rows("qrels")] == [
        ("d2", "dev")
    ]
    assert beir_source(tmp_path).describe()["content_hash"] != chosen.describe()["content_hash"]
    with pytest.raises(FreshetError, match="corpus.qrels names that folder"):
        beir_source(tmp_path, qrels="qrels-typo")


def test_documents_alone_are_enough_but_not_less(tmp_path, write_beir):
    write_beir(tmp_path / "data", BEIR_DOCUMENTS)
    assert [list(beir_source(tmp_path).rows(table)) for table in ("queries", "qrels")] == [[], []]

    (tmp_path / "data/corpus.jsonl").unlink()
    with pytest.raises(FreshetError, match="must name a BEIR folder"):
        beir_source(tmp_path)


def test_misspelt_relevance_column_is_refused(tmp_path, write_beir):
    write_beir(tmp_path / "data", BEIR_DOCUMENTS, BEIR_QUERIES, {"test": [("q1", "d1", 1)]})
    named = beir_source(tmp_path, columns=ColumnSettings(split="fold"))
    named.describe()

    assert [row.values["split"] for row in named.rows("qrels")] == ["test"]
    with pytest.raises(
        FreshetError, match=r"^qrels/test.tsv has no column 'grade' \(corpus.columns.relevance\)"
    ):
        beir_source(tmp_path, columns=ColumnSettings(relevance="grade")).describe()


SETTINGS = CorpusSettings(source="snapshot", path="snapshot", merge_duplicates="none")
TABLES = {
    "documents": [
        {
            "id": "b",
            "title": "Boats",
            "text": "sails and masts",
            "fields": '{"date": "soon", "text": "a field"}',
        },
        {"id": "a", "title": "", "text": "sails and masts", "fields": "{}"},
    ],
    "queries": [{"id": "q1", "text": "what has sails"}, {"id": "q2", "text": "what has masts"}],
    "qrels": [
        {"query_id": "q1", "document_id": "a", "relevance": 2, "split": "test"},
        {"query_id": "q2", "document_id": "b", "relevance": 1, "split": None},
    ],
}


def export_and_build(tmp_path, queries):
    """Write a snapshot of TABLES with these queries, and build a corpus from it."""
    write_snapshot(tmp_path / "snapshot", {**TABLES, "queries": queries})
    return build_corpus(open_source(SETTINGS, tmp_path), SETTINGS, PassageSettings())


def test_exported_corpus_is_read_back_unchanged(tmp_path):
    built = export_and_build(tmp_path, TABLES["queries"])

    documents = built.tables["documents"].set_index("document_id")
    qrels = built.tables["qrels"].set_index("query_id")
    # Duplicates were settled before the export.
    assert list(documents["text"]) == ["sails and masts", "sails and masts"]
    assert json.loads(documents.loc["b", "fields"]) == {"date": "soon", "text": "a field"}
    assert built.report["documents_quarantined"] == 0
    assert qrels.loc["q1", "relevance"] == 2


def test_exported_query_without_a_split_gets_one(tmp_path):
    built = export_and_build(tmp_path, TABLES["queries"])

    splits = built.tables["queries"].set_index("query_id")["split"]
    assert splits["q1"] == "test"
    assert splits["q2"] in ("train", "dev", "gate", "test")


def test_exported_answers_are_read_back(tmp_path):
    answers = ['["a boat"]', None]
    queries = []
    for row, answer in zip(TABLES["queries"], answers, strict=True):
        queries.append({**row, "answers": answer})

    built = export_and_build(tmp_path, queries)

    schema = pq.read_schema(tmp_path / "snapshot" / "queries.parquet")
    assert built.tables["queries"]["answers"].tolist() == answers
    assert schema.names == ["id", "text", "answers"]


def test_export_without_answers_has_no_column_for_them(tmp_path):
    built = export_and_build(tmp_path, TABLES["queries"])

    schema = pq.read_schema(tmp_path / "snapshot" / "queries.parquet")
    assert "answers" not in built.tables["queries"]
    assert schema.names == ["id", "text"]
