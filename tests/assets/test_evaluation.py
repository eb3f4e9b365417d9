"""Guards the evaluation assets: what their pages show of dev, test and variants, and the check for judged queries."""

from __future__ import annotations

import pytest

from assets.evaluation import has_queries, metrics_table, preview_baselines, preview_evaluation
from model_code.context import StageContext
from model_code.files import write_json


@pytest.mark.parametrize(("dev", "test", "passed"), [(0, 3, True), (5, 3, True), (5, 0, True), (0, 0, False)])
def test_queries_of_either_split_will_do(tmp_path, dev: int, test: int, passed: bool):
    write_json(tmp_path / "metrics.json", {"dev": {"queries": dev}, "test": {"queries": test}})
    context = StageContext(tmp_path, {}, tmp_path, {}, tmp_path)
    assert has_queries(context) == (passed, {"dev": dev, "test": test})


def test_a_page_shows_dev_beside_test_and_a_table_per_variant(tmp_path):
    metrics = {"dev": {"queries": 2, "hit@1": 0.5}, "test": {"queries": 4, "hit@1": 0.75}}
    for name, folder in {"zero_shot": "zero_shot", "zero_shot.rrf": "zero_shot/variants/rrf", "bm25": "bm25"}.items():
        write_json(tmp_path / folder / "metrics.json", metrics | {"system": name, "source": "qrels"})
    assert "| hit@1 | 0.5 | 0.75 |" in metrics_table(metrics)
    assert list(preview_evaluation(tmp_path / "zero_shot")) == ["metrics", "zero_shot.rrf metrics"]
    assert list(preview_baselines(tmp_path)) == ["bm25 metrics", "zero_shot metrics", "zero_shot.rrf metrics"]


def test_a_split_without_queries_has_empty_cells():
    text = metrics_table({"dev": {"queries": 0}, "test": {"queries": 4, "hit@1": 0.75}})
    assert "| hit@1 |  | 0.75 |" in text
