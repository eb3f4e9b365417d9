"""Guards how values of Python, numpy and pandas become JSON in requests."""

from __future__ import annotations

import json
from collections import deque
from enum import Enum

import numpy as np
import pandas as pd
import pytest

from freshet.client import Client, encode_json
from freshet.errors import InvalidRequest


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ({float("nan")}, [None]),
        (deque([1, float("inf")]), [1, None]),
        (range(2), [0, 1]),
        (Colour.RED, "red"),
        (np.bytes_(b"x"), "x"),
        (pd.Series([pd.Timestamp("2024-01-31"), pd.NaT]), ["2024-01-31T00:00:00", None]),
    ],
)
def test_values_have_a_form_in_json(value, written):
    assert json.loads(encode_json({"f": value})) == {"f": written}


@pytest.mark.parametrize(
    "value", [b"\xff", memoryview(b"x"), object(), 1j, {np.int64(1): 2}, {(1, 2): 3}]
)
def test_value_without_form_is_refused_in_one_line(value):
    with pytest.raises(InvalidRequest, match="cannot be written as JSON") as refusal:
        encode_json({"f": value})
    assert "\n" not in str(refusal.value)


def test_table_of_pandas_is_a_list_of_rows(monkeypatch):
    sent = {}
    monkeypatch.setattr(Client, "_change", lambda self, path, body, wait: sent.update(body))
    frame = pd.DataFrame({"_id": [1, 2], "text": ["one", None]})
    Client("http://127.0.0.1:1").add(frame)
    assert json.loads(encode_json(sent["documents"])) == [
        {"_id": 1, "text": "one"},
        {"_id": 2, "text": None},
    ]


@pytest.mark.parametrize("value", [None, 5, "ab", b"ab", {"a": 1}])
def test_value_that_is_no_list_is_refused(value):
    client = Client("http://127.0.0.1:1")
    for method in (client.add, client.delete, client.search_many):
        with pytest.raises(InvalidRequest, match="must be a list"):
            method(value)
