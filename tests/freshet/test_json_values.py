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


@pytest.mark.parametrize(
    "value", [12, 12.0, np.int64(12), np.float64(12), pd.Series([12, None])[0]]
)
def test_whole_number_is_an_id_everywhere(monkeypatch, value):
    requests = []

    def request(self, method, path, body=None, timeout=None):
        requests.append((path, body))
        return {"verdict": "up", "results": [], "hits": [], "retriever": "r", "generation": 0}

    monkeypatch.setattr(Client, "_request", request)
    monkeypatch.setattr("freshet.client.parse_answer", lambda kind, value: value)
    client = Client("http://127.0.0.1:1")

    client.get(value)
    client.delete([value])
    client.search(like=value)
    client.feedback("q", value, "up")

    assert requests[0][0] == "/documents/12"
    assert requests[1][1]["ids"] == ["12"]
    assert requests[2][1]["like"] == "12"
    assert requests[3][1]["document_id"] == "12"


@pytest.mark.parametrize("value", [1.5, True, None, float("nan"), ["a"], object(), pd.NA])
def test_value_that_is_no_id_is_refused_in_one_line(value):
    client = Client("http://127.0.0.1:1")
    with pytest.raises(InvalidRequest, match="an id is a text or a whole number"):
        client.get(value)
