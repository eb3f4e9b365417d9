"""Test comparisons: tested pairs, numbers equal to those of the statistics, and query groups."""

from __future__ import annotations

from operator import itemgetter

import numpy as np
import pandas as pd
import pytest

from model_code.evaluation.comparison import compare_systems, most_changed_queries, query_groups
from model_code.evaluation.scores import SystemScores, average_over_seeds
from model_code.evaluation.settings import EvaluationSettings
from model_code.evaluation.significance import (
    bootstrap_interval,
    holm,
    interval_over_seeds,
    paired_randomisation_test,
)
from model_code.files import canonical_json

SETTINGS = EvaluationSettings(
    metrics=("nDCG@10", "hit@1"), bootstrap_samples=200, permutations=500, confidence=0.9
)
SIZE = 40


def system(name, quality, seed=0, size=SIZE):
    """Return random scores of a system; the quality is the mean of each metric."""
    generator = np.random.default_rng([seed, int(100 * quality)])
    ndcg = generator.beta(4 * quality, 4 * (1 - quality), size)
    hit = generator.uniform(size=size) < quality
    values = pd.DataFrame({"nDCG@10": ndcg, "hit@1": hit}, index=[f"q{i:03}" for i in range(size)])
    return SystemScores(name, "test", values.astype(float))


QUALITIES = {"hce": 0.7, "contrastive": 0.6, "zero_shot": 0.5, "bm25": 0.4, "dsi": 0.3}
SYSTEMS = [system(name, quality) for name, quality in QUALITIES.items()]
HCE = SYSTEMS[0]
ZERO_SHOT = SYSTEMS[2]
BM25 = SYSTEMS[3]


def find_difference(comparison, system_name, reference, metric="nDCG@10"):
    """Return the row that compares two systems."""
    for row in comparison["differences"]:
        if (row["system"], row["reference"], row["metric"]) == (system_name, reference, metric):
            return row
    raise LookupError(f"{system_name} is not compared with {reference} in {metric}")


@pytest.fixture(scope="module")
def comparison():
    return compare_systems(SYSTEMS, SETTINGS, seed=3)


def test_systems_are_ordered_by_kind():
    variant = system("bm25.rrf", 0.72, seed=1)

    comparison = compare_systems([variant, *SYSTEMS], SETTINGS, seed=0)

    names = list(comparison["systems"])
    assert names == ["bm25", "zero_shot", "contrastive", "dsi", "hce", "bm25.rrf"]


def test_systems_are_tested_against_earlier_references(comparison):
    pairs = []
    for row in comparison["differences"]:
        if row["metric"] == "hit@1":
            pairs.append((row["system"], row["reference"]))

    assert pairs == [
        ("zero_shot", "bm25"),
        ("contrastive", "bm25"),
        ("contrastive", "zero_shot"),
        ("dsi", "bm25"),
        ("dsi", "zero_shot"),
        ("dsi", "contrastive"),
        ("hce", "bm25"),
        ("hce", "zero_shot"),
        ("hce", "contrastive"),
    ]


def test_differences_are_ordered_by_metric(comparison):
    metrics = [row["metric"] for row in comparison["differences"]]

    assert metrics == ["nDCG@10"] * 9 + ["hit@1"] * 9


def test_variant_changes_no_difference(comparison):
    variant = system("bm25.rrf", 0.72, seed=1)

    with_variant = compare_systems([variant, *SYSTEMS], SETTINGS, seed=3)

    assert with_variant["differences"] == comparison["differences"]


def test_single_system_has_no_differences():
    assert compare_systems([HCE], SETTINGS, seed=0)["differences"] == []


def test_system_has_mean_and_bootstrap_interval(comparison):
    cell = comparison["systems"]["hce"]["nDCG@10"]

    scores = HCE.values["nDCG@10"].to_numpy()
    low, high = bootstrap_interval(scores[:, None], 200, 0.9, 3)
    assert cell["queries"] == SIZE
    assert cell["over"] == "queries"
    assert cell["trainings"] == 1
    assert cell["value"] == pytest.approx(scores.mean(), abs=1e-6)
    assert cell["low"] == pytest.approx(low[0], abs=1e-6)
    assert cell["high"] == pytest.approx(high[0], abs=1e-6)


def test_difference_has_interval_and_p(comparison):
    row = find_difference(comparison, "hce", "bm25")

    differences = (HCE.values["nDCG@10"] - BM25.values["nDCG@10"]).to_numpy()
    low, high = bootstrap_interval(differences[:, None], 200, 0.9, 3)
    p = paired_randomisation_test(differences[:, None], 500, 3)
    assert row["difference"] == pytest.approx(differences.mean(), abs=1e-6)
    assert row["low"] == pytest.approx(low[0], abs=1e-6)
    assert row["high"] == pytest.approx(high[0], abs=1e-6)
    assert row["p"] == pytest.approx(p[0], abs=1e-6)


def test_p_is_corrected_per_metric(comparison):
    rows = [row for row in comparison["differences"] if row["metric"] == "nDCG@10"]

    expected = holm(np.array([row["p"] for row in rows]))
    assert [row["p_holm"] for row in rows] == pytest.approx(expected, abs=1e-5)


def test_better_system_is_found(comparison):
    row = find_difference(comparison, "hce", "bm25")

    assert row["low"] > 0
    assert row["p_holm"] < 0.05


def test_equal_system_has_no_difference():
    twin = SystemScores("twin", "test", BM25.values)

    row = find_difference(compare_systems([*SYSTEMS, twin], SETTINGS, seed=0), "twin", "bm25")

    assert row["difference"] == 0
    assert row["low"] == 0
    assert row["high"] == 0
    assert row["p_holm"] == 1


def test_order_of_systems_does_not_matter(comparison):
    reversed_comparison = compare_systems(SYSTEMS[::-1], SETTINGS, seed=3)

    assert canonical_json(reversed_comparison) == canonical_json(comparison)


def test_order_of_metrics_does_not_matter():
    reordered = SystemScores("bm25", "test", BM25.values[["hit@1", "nDCG@10"]])

    comparison = compare_systems([ZERO_SHOT, BM25], SETTINGS, seed=0)
    reordered_comparison = compare_systems([ZERO_SHOT, reordered], SETTINGS, seed=0)

    by_metric = itemgetter("metric")
    differences = sorted(comparison["differences"], key=by_metric)
    reordered_differences = sorted(reordered_comparison["differences"], key=by_metric)
    zero_shot = comparison["systems"]["zero_shot"]
    assert zero_shot == reordered_comparison["systems"]["zero_shot"]
    assert differences == reordered_differences


def test_another_system_changes_only_holms_correction(comparison):
    without_dsi = compare_systems(SYSTEMS[:4], SETTINGS, seed=3)

    assert without_dsi["systems"]["hce"] == comparison["systems"]["hce"]
    shared_rows = [row for row in comparison["differences"] if row["system"] != "dsi"]
    keys = ("system", "reference", "metric", "difference", "low", "high", "p")
    for row, shared_row in zip(without_dsi["differences"], shared_rows, strict=True):
        assert [row[key] for key in keys] == [shared_row[key] for key in keys]


def trained(name, seeds, size=SIZE):
    """Return the scores of a system that was trained `seeds` times."""
    runs = [system(name, 0.6, seed=0, size=size)]
    for seed in range(1, seeds):
        runs.append(system(f"{name}_seed{seed}", 0.6, seed=seed, size=size))
    (average,) = average_over_seeds(runs)
    return average


@pytest.mark.parametrize(
    ("seeds", "over"), [(1, "queries"), (2, "queries"), (3, "queries and seeds")]
)
def test_intervals_are_over_seeds_from_three_trainings(seeds, over):
    comparison = compare_systems([BM25, trained("hce", seeds)], SETTINGS, seed=0)

    cell = comparison["systems"]["hce"]["nDCG@10"]
    assert cell["over"] == over
    assert cell["trainings"] == seeds
    difference = comparison["differences"][0]
    assert difference["over"] == over
    assert difference["trainings"] == seeds


def test_interval_of_an_untrained_system_is_over_queries():
    comparison = compare_systems([BM25, trained("hce", 3)], SETTINGS, seed=0)

    cell = comparison["systems"]["bm25"]["nDCG@10"]
    assert cell["over"] == "queries"
    assert cell["trainings"] == 0


def test_interval_over_seeds_is_that_of_the_statistic():
    hce = trained("hce", 4)

    comparison = compare_systems([BM25, hce], SETTINGS, seed=0)

    cell = comparison["systems"]["hce"]["nDCG@10"]
    low, high = interval_over_seeds(hce.runs(["nDCG@10"]), None, 0.9)
    assert cell["low"] == pytest.approx(low[0], abs=1e-6)
    assert cell["high"] == pytest.approx(high[0], abs=1e-6)


def test_difference_over_seeds_is_that_of_the_statistic():
    hce = trained("hce", 4)

    comparison = compare_systems([BM25, hce], SETTINGS, seed=0)

    metrics = ["nDCG@10"]
    difference = comparison["differences"][0]
    low, high = interval_over_seeds(hce.runs(metrics), BM25.runs(metrics), 0.9, lowest=-1.0)
    assert difference["low"] == pytest.approx(low[0], abs=1e-6)
    assert difference["high"] == pytest.approx(high[0], abs=1e-6)


def test_reference_trained_once_has_no_seed_interval():
    systems = [trained("contrastive", 1), trained("hce", 3)]

    comparison = compare_systems(systems, SETTINGS, seed=0)

    assert comparison["differences"][0]["over"] == "queries"
    assert comparison["differences"][0]["trainings"] == 1


def test_few_queries_have_no_interval_over_seeds():
    comparison = compare_systems([trained("hce", 3, size=5)], SETTINGS, seed=0)

    assert comparison["systems"]["hce"]["nDCG@10"]["over"] == "queries"


def scores_of_groups(known, unknown):
    """Return scores of queries for documents with known queries, and of others."""
    with_known = [f"k{i:02}" for i in range(known)]
    others = [f"u{i:02}" for i in range(unknown)]
    values = pd.DataFrame({"hit@1": 1.0}, [*others, *with_known])
    # A query that was not evaluated belongs to no group.
    return SystemScores("a", "test", values, with_known=frozenset([*with_known, "k99"]))


def test_queries_are_grouped_by_known_queries():
    groups = query_groups(scores_of_groups(known=25, unknown=20))

    assert groups == {
        "without_known": [f"u{i:02}" for i in range(20)],
        "with_known": [f"k{i:02}" for i in range(25)],
    }


@pytest.mark.parametrize(("known", "unknown"), [(25, 19), (19, 25), (40, 0), (0, 40)])
def test_small_query_groups_are_not_reported(known, unknown):
    assert query_groups(scores_of_groups(known, unknown)) == {}


def hits(name, values):
    return SystemScores(name, "test", pd.DataFrame({"hit@1": values}, list("abcd")))


def test_most_changed_queries_leave_out_draws():
    better = hits("x", [0.9, 1.0, 0.2, 0.5])
    worse = hits("y", [0.4, 0.0, 0.3, 0.5])

    changed = most_changed_queries(better, worse, "hit@1")

    assert changed == {"won": [("b", 1.0), ("a", 0.5)], "lost": [("c", -0.1)]}


def test_most_changed_queries_are_limited():
    better = hits("x", [0.9, 1.0, 0.2, 0.5])
    worse = hits("y", [0.4, 0.0, 0.3, 0.5])

    changed = most_changed_queries(better, worse, "hit@1", number=1)

    assert changed["won"] == [("b", 1.0)]
