"""Guards that refused rows are kept and counted, that too many of them stop the build with names,
and that the columns which the settings name must be there.
"""

from __future__ import annotations

from dataclasses import asdict

import pytest

from model_code.corpus.quarantine import Quarantine
from model_code.corpus.rows import RefusedRow, Row, RowError, require_columns
from model_code.corpus.settings import ColumnSettings
from model_code.corpus.tables import COLUMNS, make_table
from model_code.errors import FreshetError


def refuse_odd(row: Row) -> int:
    if row.values["id"] % 2:
        raise RowError("empty text", f"{row.values['id']} is odd")
    return row.values["id"]


def filled(documents: int) -> Quarantine:
    quarantine = Quarantine()
    rows = [Row("documents", f"file:{i}", {"id": i}) for i in range(documents)]
    assert list(quarantine.admit(rows, refuse_odd)) == list(range(0, documents, 2))
    return quarantine


def test_every_row_is_admitted_or_quarantined():
    quarantine = filled(10)
    list(
        quarantine.admit(
            [RefusedRow("queries", "file:1", "bad JSON", "no object", "[]")], refuse_odd
        )
    )

    assert quarantine.read == {"documents": 10, "queries": 1}
    assert quarantine.reasons() == {"documents: empty text": 5, "queries: bad JSON": 1}

    table = make_table("quarantine", [asdict(row) for row in quarantine.refused])
    assert list(table.columns) == list(COLUMNS["quarantine"])
    assert table.iloc[0].to_dict() == {
        "location": "file:1",
        "record_id": "1",
        "table": "documents",
        "reason": "empty text",
        "detail": "1 is odd",
        "excerpt": "{'id': 1}",
    }


def test_deeply_nested_values_are_refused():
    quarantine = Quarantine()
    # These lists are nested deeper than Python can print.
    deep = []
    for _ in range(5000):
        deep = [deep]
    rows = [
        Row("documents", "file:1", {"id": deep}),
        Row("documents", "file:2", {"id": 2, "fields": {"a": [{}]}}),
    ]

    assert list(quarantine.admit(rows, refuse_odd)) == [2]

    (refused,) = quarantine.refused
    assert refused.location == "file:1"
    assert refused.reason == "bad JSON"
    assert refused.detail == "values are nested more than 100 deep"


def test_the_limit_is_a_share_of_each_table():
    filled(10).enforce(0.5)
    with pytest.raises(
        FreshetError, match=r"5 of 10 rows of documents .* file:1 empty text \(1 is odd\); file:3"
    ):
        filled(10).enforce(0.49)

    diluted = filled(10)
    diluted.read["queries"] += 1_000_000

    with pytest.raises(FreshetError):
        diluted.enforce(0.49)


DOCUMENTS = [{"ticket": 1, "body": "moss"}, {"ticket": 2, "body": "fern", "opened": "2025-01-01"}]
NAMED = {"document_id": "ticket", "text": "body"}


def check(records, table="documents", **columns) -> None:
    rows = (Row(table, f"it:{number}", values) for number, values in enumerate(records, start=1))
    require_columns(rows, table, ColumnSettings(**columns), "it.jsonl")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {**NAMED, "title": "subjct"},
            r"'subjct' \(corpus.columns.title\); it has: ticket, body, opened\.",
        ),
        (
            {**NAMED, "text": "bdy", "date": "opend"},
            r"'bdy' \(corpus.columns.text\), 'opend' \(corpus.columns.date\);",
        ),
        (
            {},
            r"'_id' \(corpus.columns.document_id\), 'text' \(corpus.columns.text\); it has: ticket",
        ),
    ],
)
def test_missing_column_is_refused_with_existing_columns(columns, message):
    with pytest.raises(FreshetError, match=f"^it.jsonl has no column {message}"):
        check(DOCUMENTS, **columns)


@pytest.mark.parametrize(
    ("table", "record", "column", "name"),
    [
        ("qrels", {"query-id": 1, "corpus-id": 2, "grade": 0}, "relevance", "grade"),
        (
            "queries",
            {"_id": 1, "text": "who", "metadata": {"strings": ["nobody"]}},
            "answers",
            "strings",
        ),
    ],
)
def test_misspelt_optional_column_is_refused(table, record, column, name):
    check([record], table, **{column: name})
    with pytest.raises(FreshetError, match=rf"'{name}s' \(corpus.columns.{column}\)"):
        check([record], table, **{column: f"{name}s"})


def test_column_check_reads_no_more_than_needed():
    def rows():
        yield RefusedRow("documents", "it:1", "bad JSON", "", "")
        yield Row("documents", "it:2", {"_id": 1, "text": "moss"})
        raise AssertionError("read on")

    require_columns(rows(), "documents", ColumnSettings(), "it")
    check([], title="subject")
    check(DOCUMENTS, **NAMED, date="opened")
