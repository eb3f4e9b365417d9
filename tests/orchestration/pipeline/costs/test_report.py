"""Guards the report: unknown costs are called so, every system is in every plot that its cost is known for."""

from __future__ import annotations

import json

import pytest

from model_code.files import read_json
from orchestration.pipeline import cost_report
from orchestration.pipeline.cost_report import as_dict, cost_table, lead, write_report
from tests.orchestration.pipeline.costs.example import BM25, SYSTEMS, comparison, costs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    (folder / "cost_gone.png").write_bytes(b"of an earlier report")
    write_report(comparison(absent=("mlr",)), folder)
    return folder


def test_what_is_written(folder):
    names = {f"cost_{name}.png" for name in ("latency", "bytes", "indexing", "searchable", "memory")}
    assert {path.name for path in folder.iterdir()} == names | {f"comparison.{end}" for end in ("md", "html", "json")}
    text = (folder / "comparison.md").read_text()
    assert all(f"({name})" in text for name in names)
    assert "## Which to choose" in text
    assert "Compared before, but not built now: mlr." in text
    assert "<details>" not in (folder / "comparison.html").read_text()


def test_the_json_has_an_object_per_system(folder):
    content = read_json(folder / "comparison.json")
    assert set(content["systems"]) == {one.system for one in SYSTEMS}
    assert content["systems"]["hce.rrf"]["bytes_per_document"] == 1846.0
    assert content["systems"]["svdr"]["train_seconds"] is None
    assert content == json.loads(json.dumps(as_dict(comparison(absent=("mlr",)))))


def test_unknown_is_not_zero():
    table = cost_table(comparison())
    svdr = next(row for row in table.rows if row[0].text == "svdr")
    assert [cell.text for cell in svdr[5:]] == ["not recorded"] * 4
    assert len(table.rows) == len(SYSTEMS)
    assert "1,356 test queries, judged by the corpus's own qrels; latency of 100" in lead(comparison())


def test_the_least_of_a_column_is_marked_but_not_what_is_free():
    rows = {row[0].text: row for row in cost_table(comparison()).rows}
    assert rows["bm25"][2].best
    training = cost_table(comparison()).columns.index("training (s)")
    assert not rows["bm25"][training].best
    assert rows["hce"][training].best


def test_the_front_holds_what_nothing_beats():
    points = [(one.p50_ms, one.value) for one in SYSTEMS]
    kept = cost_report.front(points)
    beaten = [
        (cost, value)
        for cost, value in points
        if any(c <= cost and v >= value and (c, v) != (cost, value) for c, v in points)
    ]
    assert sorted(kept) == sorted(set(points) - set(beaten))


def test_a_variant_looks_like_its_system_but_hollow_and_no_two_look_alike():
    styles = cost_report.styles([one.system for one in SYSTEMS])
    assert styles["hce.rrf"]["color"] == styles["hce"]["color"]
    assert styles["hce.rrf"]["markerfacecolor"] == "none"
    assert styles["hce.rrf"]["marker"] == styles["svdr.rrf"]["marker"]
    assert len({tuple(sorted(style.items())) for style in styles.values()}) == len(SYSTEMS)


def test_a_cost_that_one_system_alone_has_is_not_drawn():
    one = costs("hce", 0.7, index_ms=None, searchable_seconds=None)
    drawn = {picture.name for picture in cost_report.cost_plots(comparison((BM25, one)))}
    assert drawn == {"cost_latency", "cost_bytes"}
