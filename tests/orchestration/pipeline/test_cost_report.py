"""Guards the report of costs and its choices: every system is in every plot that its cost is known for; ties."""

from __future__ import annotations

import json

import pytest

from model_code.files import read_json
from orchestration.pipeline import cost_report
from orchestration.pipeline.cost_report import as_dict, choices, cost_table, lead, write_report
from orchestration.pipeline.costs import CostComparison, Costs


def costs(system: str, value: float, p50: float = 10.0, size: float = 1536.0, **changes: float | None) -> Costs:
    """One system; everything that is not given is middling."""
    numbers = {
        "dev": value + 0.01, "p95_ms": 1.3 * p50, "train_seconds": 200.0, "index_seconds": 40.0, "index_ms": 8.0,
        "searchable_seconds": 240.0, "memory_mb": 1500.0,
    } | changes  # fmt: skip
    return Costs(system, value, value - 0.02, value + 0.02, p50_ms=p50, bytes_per_document=size, **numbers)


UNTRAINED = {"train_seconds": 0.0, "memory_mb": 900.0}
BM25 = costs("bm25", 0.58, 0.4, 310.0, train_seconds=0.0, index_seconds=0.9, index_ms=0.2, searchable_seconds=0.9,
             memory_mb=None)  # fmt: skip
SYSTEMS = (
    BM25,
    costs("zero_shot", 0.65, 7.0, index_seconds=38.0, searchable_seconds=38.0, **UNTRAINED),
    costs("contrastive", 0.709, 7.1),
    costs("dsi", 0.690, 7.2, index_seconds=1.0, index_ms=0.2, searchable_seconds=301.0),
    costs("hce", 0.715, 7.0),
    costs("svdr", 0.700, 11.0, 4200.0, train_seconds=None, index_seconds=None, index_ms=None, searchable_seconds=None,
          memory_mb=None),
    costs("hce.bm25_rerank", 0.710, 8.4, 1846.0),
    costs("hce.rrf", 0.725, 7.9, 1846.0),
    costs("svdr.alpha", 0.66, 2.0, 4200.0),
    costs("svdr.beta", 0.68, 3.0, 4200.0),
    costs("svdr.rrf", 0.705, 12.0, 4510.0),
)  # fmt: skip


def comparison(systems: tuple[Costs, ...] = SYSTEMS, absent: tuple[str, ...] = ()) -> CostComparison:
    """These systems on 1,356 test queries."""
    return CostComparison("nDCG@10", "test", "qrels", 1356, 100, 4980, systems, absent)


def chosen(*systems):
    return {choice.goal: choice.system for choice in choices(comparison(systems) if systems else comparison())}


def test_each_goal_has_the_system_that_the_numbers_name():
    assert chosen() == {
        "best nDCG@10 on test": "hce.rrf",
        "best nDCG@10 on dev": "hce.rrf",
        "fastest query": "bm25",
        "smallest index": "bm25",
        "soonest searchable": "bm25",
        "fastest query within the best one's interval": "hce",
        "smallest index within the best one's interval": "hce",
    }


def test_what_is_not_recorded_wins_nothing():
    unknown = costs("new", 0.9, dev=None, searchable_seconds=None)
    found = chosen(unknown, costs("old", 0.5))
    assert (found["soonest searchable"], found["best nDCG@10 on dev"]) == ("old", "old")
    assert "best nDCG@10 on dev" not in chosen(unknown)


def test_of_equals_the_more_effective_one():
    assert chosen(costs("worse", 0.59), costs("better", 0.6))["fastest query within the best one's interval"] == (
        "better"
    )


def test_the_value_is_in_words():
    found = {choice.goal: choice.value for choice in choices(comparison())}
    assert found["fastest query"] == "0.4 ms at the median"
    assert found["smallest index"] == "310 bytes per document"
    assert found["soonest searchable"] == "after 0.9 s of training and indexing"


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
