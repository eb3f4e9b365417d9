"""Guards the asset check of an evaluation: it holds if the comparison has any judged query to go by."""

from __future__ import annotations

import pytest

from assets.evaluation import has_queries
from model_code.files import write_json


@pytest.mark.parametrize(("dev", "test", "passed"), [(0, 3, True), (5, 3, True), (5, 0, True), (0, 0, False)])
def test_queries_of_either_split_will_do(tmp_path, dev: int, test: int, passed: bool):
    write_json(tmp_path / "metrics.json", {"dev": {"queries": dev}, "test": {"queries": test}})
    assert has_queries(tmp_path) == (passed, {"dev": dev, "test": test})
