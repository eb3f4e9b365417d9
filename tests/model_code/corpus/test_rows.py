"""Guards that refused rows are kept and counted, and that too many of them stop the build with names."""

from __future__ import annotations

import pytest

from model_code.corpus.rows import Malformed, Quarantine, Row, Unfit
from model_code.corpus.tables import COLUMNS
from model_code.errors import FreshetError


def refuse_odd(row: Row) -> int:
    if row.values["id"] % 2:
        raise Unfit("empty text", f"{row.values['id']} is odd")
    return row.values["id"]


def filled(documents: int) -> Quarantine:
    quarantine = Quarantine()
    rows = [Row("documents", f"file:{i}", {"id": i}) for i in range(documents)]
    assert list(quarantine.admit(rows, refuse_odd)) == list(range(0, documents, 2))
    return quarantine


def test_every_row_is_admitted_or_kept_with_its_reason():
    quarantine = filled(10)
    list(quarantine.admit([Malformed("queries", "file:1", "bad JSON", "no object", "[]")], refuse_odd))
    assert quarantine.read == {"documents": 10, "queries": 1}
    assert quarantine.reasons() == {"documents: empty text": 5, "queries: bad JSON": 1}
    table = quarantine.frame()
    assert list(table.columns) == list(COLUMNS["quarantine"])
    assert table.iloc[0].to_dict() == {
        "location": "file:1", "record_id": "1", "table": "documents", "reason": "empty text",
        "detail": "1 is odd", "excerpt": "{'id': 1}",
    }  # fmt: skip


def test_values_that_are_nested_too_deeply_are_refused_before_they_are_looked_at():
    quarantine, deep = Quarantine(), []
    for _ in range(5000):  # deeper than Python can print
        deep = [deep]
    rows = [Row("documents", "file:1", {"id": deep}), Row("documents", "file:2", {"id": 2, "fields": {"a": [{}]}})]
    assert list(quarantine.admit(rows, refuse_odd)) == [2]
    (refused,) = quarantine.refused
    assert (refused.location, refused.reason) == ("file:1", "bad JSON")
    assert refused.detail == "values are nested more than 100 deep"


def test_the_limit_is_a_share_of_each_table():
    filled(10).enforce(0.5)
    with pytest.raises(FreshetError, match=r"5 of 10 rows of documents .* file:1 empty text \(1 is odd\); file:3"):
        filled(10).enforce(0.49)
    diluted = filled(10)
    diluted.read["queries"] += 1_000_000
    with pytest.raises(FreshetError):
        diluted.enforce(0.49)
