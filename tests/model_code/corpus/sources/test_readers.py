"""Guards the readers: equal rows from every format, and a bad line costs that line alone."""

from __future__ import annotations

import csv
import gzip
import io
import json

import pandas as pd
import pytest

from model_code.corpus.rows import Malformed
from model_code.corpus.sources.readers import read_rows
from model_code.errors import FreshetError

RECORDS = [{"id": "1", "text": 'say "tide",\nthen wave'}, {"id": "2", "text": "京 moss\u2028fern"}]


def written(folder, name: str):
    if name.endswith(".parquet"):
        pd.DataFrame(RECORDS).to_parquet(folder / name)
        return folder / name
    stream = io.StringIO()
    if ".csv" in name:
        table = csv.DictWriter(stream, ["id", "text"])
        table.writeheader()
        table.writerows(RECORDS)
    else:
        stream.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in RECORDS)
    content = stream.getvalue().encode()
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return folder / name


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.csv", "a.csv.gz", "a.parquet"])
def test_every_format_gives_the_same_rows(tmp_path, name):
    assert [dict(row.values) for row in read_rows(written(tmp_path, name), "documents", name)] == RECORDS


def test_a_bad_json_line_costs_that_line_alone(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"id": 1}\n\n{"id": \n[1]\n{"id": "\xff"}\r\n{"id": 2}')
    rows = list(read_rows(path, "documents", "a"))
    assert [row.location for row in rows] == ["a:1", "a:3", "a:4", "a:5", "a:6"]
    assert [row.reason for row in rows if isinstance(row, Malformed)] == ["bad JSON", "bad JSON"]
    assert [row.values["id"] for row in rows if not isinstance(row, Malformed)] == [1, "\udcff", 2]


def test_a_bad_csv_line_costs_that_line_alone(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('id,text\n1,"a\nb"\n2\n3,c,d\n\n4,e\n')
    rows = list(read_rows(path, "documents", "a"))
    assert [(row.location, isinstance(row, Malformed)) for row in rows] == [
        ("a:3", False), ("a:4", True), ("a:5", True), ("a:7", False)
    ]  # fmt: skip
    assert rows[1].detail == "1 cells under 2 columns"


def test_quotes_in_a_tsv_are_letters(tmp_path):
    (tmp_path / "a.tsv").write_text('query-id\tscore\n"q\t1\n')
    assert [row.values for row in read_rows(tmp_path / "a.tsv", "qrels", "a")] == [{"query-id": '"q', "score": "1"}]


def test_a_whole_file_that_cannot_be_read_is_one_clear_error(tmp_path):
    cut = gzip.compress(b'{"id": 1}\n' * 1000)[:30]
    for name, content, message in [
        ("a.jsonl.gz", cut, "not a whole .gz"),
        ("b.jsonl.gz", b"plain", "not a whole .gz"),
        ("a.parquet", b"plain", "not a Parquet file"),
        ("a.txt", b"plain", "unknown format"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FreshetError, match=message):
            list(read_rows(tmp_path / name, "documents", name))
