"""Guards the files source: columns are mapped, other columns kept as fields, formats may differ from table to table."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from model_code.corpus.build import build_corpus
from model_code.corpus.settings import ColumnSettings, CorpusSettings, FileSettings, PassageSettings
from model_code.corpus.sources.files import Source
from model_code.errors import FreshetError

COLUMNS = ColumnSettings(
    document_id="sku", title="name", text="body", date="since", query_id="number", query_text="question",
    qrel_query="number", qrel_document="sku", relevance="grade", split="fold",
)  # fmt: skip


def test_mapped_columns_of_three_formats(tmp_path):
    (tmp_path / "products.csv").write_text("sku,name,body,since,shop\n1,Moss,soft,2024-01-01,wood\n")
    pd.DataFrame({"number": [5], "question": ["what is soft"], "user": ["x"]}).to_parquet(tmp_path / "asked.parquet")
    (tmp_path / "judged.jsonl").write_text('{"number": 5, "sku": "1", "grade": 2, "fold": "test"}\n')
    settings = CorpusSettings(
        source="files", path="products.csv", files=FileSettings("asked.parquet", "judged.jsonl"), columns=COLUMNS
    )
    source = Source(settings, tmp_path)
    rows = {table: [dict(row.values) for row in source.rows(table)] for table in ("documents", "queries", "qrels")}
    assert rows == {
        "documents": [
            {"id": "1", "title": "Moss", "text": "soft", "date": "2024-01-01", "fields": {"shop": "wood"}}
        ],
        "queries": [{"id": 5, "text": "what is soft"}],
        "qrels": [{"query_id": 5, "document_id": "1", "relevance": 2, "split": "test"}],
    }  # fmt: skip
    assert list(source.describe()["files"]) == ["documents.csv", "qrels.jsonl", "queries.parquet"]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_answers_are_read_from_their_column_in_every_format(tmp_path, suffix):
    asked = pd.DataFrame({"_id": ["1", "2"], "text": ["when", "who"], "strings": [["in 2008", "2008"], None]})
    if suffix == "csv":
        asked["strings"] = ['["in 2008", "2008"]', ""]
        asked.to_csv(tmp_path / "asked.csv", index=False)
    elif suffix == "jsonl":
        asked.to_json(tmp_path / "asked.jsonl", orient="records", lines=True)
    else:
        asked.to_parquet(tmp_path / "asked.parquet")
    (tmp_path / "notes.jsonl").write_text('{"_id": "d", "text": "a note"}\n')
    (tmp_path / "judged.jsonl").write_text('{"query-id": "1", "corpus-id": "d"}\n')
    files, columns = FileSettings(f"asked.{suffix}", "judged.jsonl"), ColumnSettings(answers="strings")
    settings = CorpusSettings(source="files", path="notes.jsonl", files=files, columns=columns)
    queries = build_corpus(Source(settings, tmp_path), settings, PassageSettings()).tables["queries"]
    assert queries["answers"].tolist() == ['["in 2008", "2008"]', None]


def test_a_missing_file_is_one_clear_error(tmp_path):
    with pytest.raises(FreshetError, match="absent.jsonl does not exist"):
        Source(CorpusSettings(source="files", path="absent.jsonl"), tmp_path).describe()


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
def test_relevance_is_the_named_column_or_the_usual_ones(tmp_path, columns, judged, read):
    (tmp_path / "notes.jsonl").write_text('{"_id": "d", "text": "a note"}\n')
    (tmp_path / "asked.jsonl").write_text('{"_id": "1", "text": "who"}\n')
    (tmp_path / "judged.jsonl").write_text(json.dumps({"query-id": "1", "corpus-id": "d"} | judged) + "\n")
    files = FileSettings("asked.jsonl", "judged.jsonl")
    settings = CorpusSettings(source="files", path="notes.jsonl", files=files, columns=columns)
    (row,) = Source(settings, tmp_path).rows("qrels")
    assert [value for name, value in row.values.items() if name == "relevance"] == read
