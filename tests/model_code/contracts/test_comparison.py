"""Guards the contract of the comparison, on what the stage makes of a few systems."""

from __future__ import annotations

from dataclasses import replace

import pytest

from model_code.contracts.registry import check
from model_code.errors import FreshetError
from model_code.evaluation import plots
from model_code.evaluation.plots import Picture
from model_code.evaluation.settings import EvaluationSettings
from model_code.stages import comparison
from tests.model_code.contracts.damage import assert_refused, json_edited, json_with, removed, written
from tests.model_code.stages.test_comparison import context, write_inputs


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    root = tmp_path_factory.mktemp("comparison")
    place = context(write_inputs(root), root / "output")
    place.output.mkdir()
    with pytest.MonkeyPatch.context() as patch:  # drawing takes seconds
        patch.setattr(plots, "draw", lambda name, caption, size, paint: Picture(name, caption, b"png", "<svg></svg>"))
        comparison.run(place)
    return place


def in_comparison(edit):
    return json_edited("comparison.json", edit)


def cell(comparison, **changes):
    comparison["systems"]["hce"]["MAP"].update(changes)


def test_a_whole_comparison_passes(compared):
    check("comparison", compared)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (removed("comparison.html"), "must hold comparison.html"),
        (written("training.csv"), "must hold training.csv: missing or empty"),
        (written("comparison.json", "{"), "it cannot be read: JSONDecodeError"),
        (json_with("comparison.json", main_metric="MAP"), "must state the main metric 'nDCG@10'"),
        (json_with("metrics.json", hce={}), "metrics.json must hold the means"),
        (json_with("comparison.json", queries=0), "must be on at least one query"),
        (json_with("comparison.json", split="train"), "unknown split 'train'"),
        (json_with("comparison.json", source="nobody"), "unknown source 'nobody'"),
        (in_comparison(lambda value: value["systems"].pop("hce.rrf")), "1 missing, such as 'hce.rrf'"),
        (in_comparison(lambda value: value["dev"]["systems"].pop("bm25")), "comparison.json, dev: .*such as 'bm25'"),
        (in_comparison(lambda value: value["systems"]["hce"].pop("nDCG@10")), "hce must have the main metric"),
        (in_comparison(lambda value: value["systems"]["hce"].pop("MAP")), "the metrics of hce: 1 missing"),
        (in_comparison(lambda value: cell(value, low=0.99, high=1.0)), "value must lie within its interval.*hce MAP"),
        (in_comparison(lambda value: cell(value, value=1.2, high=1.3)), "value breaks in_range.*1.2"),
        (in_comparison(lambda value: cell(value, queries=3)), "queries breaks .*48"),
        (in_comparison(lambda value: value["differences"][0].update(low=0.9)), "difference must lie within"),
        (in_comparison(lambda value: value["differences"][0].update(p=1.5)), "p breaks in_range.*1.5"),
        (in_comparison(lambda value: value["differences"][0].update(p=1.0, p_holm=0.1)), "p_holm must be p or more"),
        (in_comparison(lambda value: value["differences"][0].update(reference="x")), "reference breaks isin"),
        (
            in_comparison(lambda value: value["differences"][0].update(difference=0.9, high=1.0)),
            "a difference must be that of the two systems' values",
        ),
    ],
)
def test_each_broken_rule_is_named(compared, tmp_path, damage, message):
    assert_refused("comparison", compared, tmp_path, damage, message)


def test_another_main_metric_is_another_comparison(compared):
    settings = compared.settings | {"evaluation": EvaluationSettings(main_metric="MAP")}
    with pytest.raises(FreshetError, match="main metric 'MAP'"):
        check("comparison", replace(compared, settings=settings))
