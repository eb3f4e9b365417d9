"""Guards the evaluation assets: what their pages show of dev, test and variants, and the check for judged queries."""

from __future__ import annotations

import pytest

from assets.evaluation import has_queries, preview_baselines, preview_comparison, preview_evaluation
from model_code.context import StageContext
from model_code.files import write_json


@pytest.mark.parametrize(("dev", "test", "passed"), [(0, 3, True), (5, 3, True), (5, 0, True), (0, 0, False)])
def test_queries_of_either_split_will_do(tmp_path, dev: int, test: int, passed: bool):
    write_json(tmp_path / "metrics.json", {"dev": {"queries": dev}, "test": {"queries": test}})
    context = StageContext(tmp_path, {}, tmp_path, {}, tmp_path)
    assert has_queries(context) == (passed, {"dev": dev, "test": test})


def test_a_page_shows_each_system_and_variant_as_a_row_of_test_and_of_dev(tmp_path):
    metrics = {"dev": {"queries": 0}, "test": {"queries": 4, "hit@1": 0.75}}
    for name, folder in {"zero_shot": "zero_shot", "zero_shot.rrf": "zero_shot/variants/rrf", "bm25": "bm25"}.items():
        write_json(tmp_path / folder / "metrics.json", metrics | {"system": name, "source": "qrels"})
    rows = [row.data for row in preview_evaluation(tmp_path / "zero_shot")["metrics"].records]
    assert rows[0] == {"system": "zero_shot", "split": "test", "queries": 4, "hit@1": 0.75}
    assert rows[2] == {"system": "zero_shot", "split": "dev", "queries": 0, "hit@1": ""}
    shown = [(row.data["system"], row.data["split"]) for row in preview_baselines(tmp_path)["metrics"].records]
    assert shown[:3] == [(name, "test") for name in ("bm25", "zero_shot", "zero_shot.rrf")]


def test_the_comparison_s_page_has_the_systems_best_first_and_one_text_of_plots(tmp_path):
    cells = {"bm25": 0.5, "hce": 0.7}
    systems = {name: {"MAP": {"value": 0.1}, "nDCG@10": {"value": value, "low": 0.4, "high": 0.8}}
               for name, value in cells.items()}  # fmt: skip
    write_json(tmp_path / "comparison.json", {"main_metric": "nDCG@10", "systems": systems})
    for name in ("recall", "levels"):
        (tmp_path / f"{name}.png").write_bytes(b"png")
    shown = preview_comparison(tmp_path)
    assert shown["results"].records[0].data == {"system": "hce", "nDCG@10": 0.7, "low": 0.4, "high": 0.8, "MAP": 0.1}
    assert shown["plots"].value.count("![") == 2
    assert shown["report"].value == str(tmp_path / "comparison.html")
