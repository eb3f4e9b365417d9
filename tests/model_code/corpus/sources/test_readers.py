"""Guards the readers: equal rows from every format, and a bad line costs that line alone."""

from __future__ import annotations

import csv
import gzip
import io
import json
import struct

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model_code.corpus.rows import RefusedRow
from model_code.corpus.sources import readers
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
    if name.endswith(".gz"):
        content = gzip.compress(content)
    (folder / name).write_bytes(content)
    return folder / name


NAMES = ["a.jsonl", "a.jsonl.gz", "a.ndjson", "a.NDJSON", "a.csv", "a.csv.gz", "a.parquet"]


@pytest.mark.parametrize("name", NAMES)
def test_every_format_gives_the_same_rows(tmp_path, name):
    assert [
        dict(row.values) for row in read_rows(written(tmp_path, name), "documents", name)
    ] == RECORDS


def test_a_bad_json_line_costs_that_line_alone(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"id": 1}\n\n{"id": \n[1]\n{"id": "\xff"}\r\n{"id": 2}')
    rows = list(read_rows(path, "documents", "a"))

    assert [row.location for row in rows] == ["a:1", "a:3", "a:4", "a:5", "a:6"]
    assert [row.reason for row in rows if isinstance(row, RefusedRow)] == ["bad JSON", "bad JSON"]
    assert [row.values["id"] for row in rows if not isinstance(row, RefusedRow)] == [1, "\udcff", 2]


def test_a_bad_csv_line_costs_that_line_alone(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('id,text\n1,"a\nb"\n2\n3,c,d\n\n4,e\n')
    rows = list(read_rows(path, "documents", "a"))

    assert [(row.location, isinstance(row, RefusedRow)) for row in rows] == [
        ("a:3", False),
        ("a:4", True),
        ("a:5", True),
        ("a:7", False),
    ]
    assert rows[1].detail == "1 cells under 2 columns"


def test_lines_swallowed_by_stray_quote_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text('id,text\n1,a\n2,"b\n3,c\n4,"d"\n5,e\n6,"f" f\n7,"g"\n')
    rows = list(read_rows(tmp_path / "a.csv", "documents", "a"))

    assert [row.location for row in rows if isinstance(row, RefusedRow)] == [
        "a:3",
        "a:4",
        "a:5",
        "a:7",
    ]
    assert "in a row that begins at line 3" in rows[2].detail
    assert [row.values["id"] for row in rows if not isinstance(row, RefusedRow)] == ["1", "5", "7"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id,text,id\n1,a,2\n", "more than one column named 'id'"),
        ("id,text\r1,a\r", r"no header of columns.*Lines must end in \\n or \\r\\n"),
        ('id,"text\n1,a\n', "^a:1: a quote"),
        (
            'id,text\n1,a\n2,"b\n3,c\n4,d\n',
            r'^a:3: a quote \("\) opens in this row and never closes',
        ),
    ],
)
def test_unusable_csv_files_are_refused(tmp_path, content, message):
    (tmp_path / "a.csv").write_bytes(content.encode())

    with pytest.raises(FreshetError, match=message):
        list(read_rows(tmp_path / "a.csv", "documents", "a"))


def test_parquet_with_duplicate_column_is_refused(tmp_path):
    pq.write_table(pa.table([["1"], ["2"]], names=["id", "id"]), tmp_path / "a.parquet")

    with pytest.raises(FreshetError, match="more than one column named 'id'"):
        list(read_rows(tmp_path / "a.parquet", "documents", "a"))


def no_utf8() -> pa.Array:
    """The strings "a" and a byte that is no UTF-8."""
    return pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(struct.pack("<3i", 0, 1, 2)), pa.py_buffer(b"a\xff")]
    )


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (no_utf8(), "invalid UTF-8"),
        (pa.array([0, 2**62], pa.int64()).cast(pa.timestamp("us")), "bad line"),
        (pa.array([0, 2**31 - 5], pa.int32()).cast(pa.date32()), "bad line"),
    ],
)
def test_unreadable_parquet_value_refuses_only_its_row(tmp_path, column, reason):
    pq.write_table(pa.table({"id": ["1", "2"], "value": column}), tmp_path / "a.parquet")
    first, second = read_rows(tmp_path / "a.parquet", "documents", "a")

    assert first.values["id"] == "1"
    assert second.location == "a:2"
    assert second.reason == reason


def test_map_of_parquet_is_an_object(tmp_path):
    ports = pa.array([[("Oslo", 2)], [], None], pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"id": ["1", "2", "3"], "ports": ports}), tmp_path / "a.parquet")

    rows = list(read_rows(tmp_path / "a.parquet", "documents", "a"))

    assert [row.values["ports"] for row in rows] == [{"Oslo": 2}, {}, None]


def test_map_with_equal_keys_refuses_only_its_row(tmp_path):
    ports = pa.array([[("Oslo", 2), ("Oslo", 3)], []], pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"id": ["1", "2"], "ports": ports}), tmp_path / "a.parquet")

    first, second = read_rows(tmp_path / "a.parquet", "documents", "a")

    assert isinstance(first, RefusedRow)
    assert second.values["id"] == "2"


def test_text_that_parquet_stores_as_bytes_is_text(tmp_path):
    table = pa.table({"id": [b"1"], "text": ["quay é".encode()], "hash": [b"\xff\x00"]})
    pq.write_table(table, tmp_path / "a.parquet")

    (row,) = read_rows(tmp_path / "a.parquet", "documents", "a")

    assert row.values == {"id": "1", "text": "quay é", "hash": b"\xff\x00"}


def test_dictionary_columns_of_parquet_are_plain_values(tmp_path):
    words = pa.array(["wool", None, "wool"]).dictionary_encode()
    lists = pa.array([["a"], [], None], pa.list_(pa.dictionary(pa.int8(), pa.string())))
    table = pa.table({"id": ["1", "2", "3"], "word": words, "tags": lists})
    pq.write_table(table, tmp_path / "a.parquet")

    rows = list(read_rows(tmp_path / "a.parquet", "documents", "a"))

    assert [row.values["word"] for row in rows] == ["wool", None, "wool"]
    assert [row.values["tags"] for row in rows] == [["a"], [], None]


def test_blanks_around_names_and_cells_are_no_part_of_them(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('id , text\n1, "wool, and silk"\n2, say "wool"\n')

    rows = list(read_rows(path, "documents", "a"))

    assert [row.values for row in rows] == [
        {"id": "1", "text": "wool, and silk"},
        {"id": "2", "text": 'say "wool"'},
    ]


def test_damaged_parquet_page_is_reported(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"id": [str(i) for i in range(3000)]})
    pq.write_table(table, path, compression="zstd", row_group_size=1024)
    page = pq.read_metadata(path).row_group(1).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[page : page + 200] = b"\x55" * 200
    path.write_bytes(content)

    with pytest.raises(FreshetError, match=r"a is damaged after row 1024; fetch it again \("):
        list(read_rows(path, "documents", "a"))


def test_quotes_in_a_tsv_are_letters(tmp_path):
    (tmp_path / "a.tsv").write_text('query-id\tscore\n"q\t1\n')

    assert [row.values for row in read_rows(tmp_path / "a.tsv", "qrels", "a")] == [
        {"query-id": '"q', "score": "1"}
    ]


def test_unreadable_file_is_reported(tmp_path):
    cut = gzip.compress(b'{"id": 1}\n' * 1000)[:30]
    for name, content, message in [
        ("a.jsonl.gz", cut, "not a whole .gz"),
        ("b.jsonl.gz", b"plain", "not a whole .gz"),
        ("a.parquet", b"plain", "not a Parquet file"),
        ("a.txt", b"plain", "is one document"),
        ("a.xyz", b"plain", "unknown format"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FreshetError, match=message):
            list(read_rows(tmp_path / name, "documents", name))


def test_columns_without_a_name_may_be_many(tmp_path):
    (tmp_path / "a.csv").write_text("_id,text,,\n1,hello,,\n")
    (row,) = read_rows(tmp_path / "a.csv", "documents", "a.csv")

    assert row.values["_id"] == "1"
    assert row.values["text"] == "hello"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".tsv", ".jsonl"])
def test_rows_in_any_unicode_are_read(tmp_path, encoding, suffix):
    delimiter = "\t" if suffix == ".tsv" else ","
    text = f"id{delimiter}text\n1{delimiter}caf\u00e9 \u6392\n"
    if suffix == ".jsonl":
        text = '{"id": "1", "text": "caf\u00e9 \u6392"}\n'
    content = text.encode(encoding)
    path = tmp_path / f"a{suffix}"
    if suffix.endswith(".gz"):
        content = gzip.compress(content)
    path.write_bytes(content)
    (row,) = read_rows(path, "documents", "a")

    assert row.values == {"id": "1", "text": "caf\u00e9 \u6392"}
    assert row.notes == ()


def test_csv_in_an_old_encoding_is_read(tmp_path):
    content = "id,text\n1,Gr\u00f6\u00dfe \u2013 gut\n2,na\u00eff\n".encode("cp1252")
    (tmp_path / "a.csv").write_bytes(content)

    first, second = read_rows(tmp_path / "a.csv", "documents", "a.csv")

    assert first.values["text"] == "Gr\u00f6\u00dfe \u2013 gut"
    assert second.values["text"] == "na\u00eff"


def test_old_encoding_is_noted_once(tmp_path):
    content = "id,text\n1,Gr\u00f6\u00dfe\n2,na\u00eff\n".encode("cp1252")
    (tmp_path / "a.csv").write_bytes(content)

    first, second = read_rows(tmp_path / "a.csv", "documents", "a.csv")

    (note,) = first.notes
    assert note.file == "a.csv"
    assert note.kind == "encoding"
    assert second.notes == ()


def test_file_that_changes_its_encoding_is_refused_in_one_line(tmp_path):
    (tmp_path / "a.csv").write_bytes("id,text\n1,a\n".encode("utf-16") + b"\xd8")

    with pytest.raises(FreshetError, match="a.csv is not whole in the encoding utf-16"):
        list(read_rows(tmp_path / "a.csv", "documents", "a.csv"))


@pytest.mark.parametrize(
    "content",
    ['[{"id": 1}, 2]', '{"rows": [{"id": 1}, 2]}', '\ufeff[{"id": 1}, 2]'],
)
def test_json_array_gives_a_row_per_object(tmp_path, content):
    (tmp_path / "a.json").write_text(content)

    good, bad = read_rows(tmp_path / "a.json", "documents", "a")

    assert good.location == "a:1"
    assert good.values == {"id": 1}
    assert bad.location == "a:2"
    assert bad.reason == "bad JSON"


@pytest.mark.parametrize("content", ["[" * 100_000, '{"id": 1}\n{"id": 2}\n', "", "3"])
def test_json_that_is_no_array_is_refused(tmp_path, content):
    (tmp_path / "a.json").write_text(content)

    with pytest.raises(FreshetError, match="array of objects"):
        list(read_rows(tmp_path / "a.json", "documents", "a"))


def test_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "MAX_LINE_CHARACTERS", 1000)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"a" * 5000))

    with pytest.raises(FreshetError, match="a line of more than 1,000 characters"):
        list(read_rows(tmp_path / "a.jsonl.gz", "documents", "a"))


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('id\ttext\n1\t"a, b"\n', 2),
        ("id|text\n1|a, b\n", 2),
        ("sep=;\nid;text\n1;a, b\n", 3),
        ("SEP=|\r\nid|text\r\n1|a, b\r\n", 3),
        ('\n\nid,text\n1,"a, b"\n', 4),
    ],
)
def test_delimiter_of_csv_is_found(tmp_path, content, line):
    path = tmp_path / "a.csv"
    path.write_bytes(content.encode())

    (row,) = read_rows(path, "documents", "a.csv")

    assert row.values == {"id": "1", "text": "a, b"}
    assert row.location == f"a.csv:{line}"


def test_semicolons_of_a_spreadsheet_separate_cells(tmp_path):
    path = tmp_path / "Sales.CSV"
    path.write_text('_id;text;price\n1;"a; b";3,50\n')
    (row,) = read_rows(path, "documents", path.name)
    assert row.values == {"_id": "1", "text": "a; b", "price": "3,50"}
