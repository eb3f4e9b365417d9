"""Guards the comparison: which pairs are tested, that numbers are those of the statistics alone,
refusals, groups.
"""

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
    generator = np.random.default_rng([seed, int(100 * quality)])
    ndcg, hit = (
        generator.beta(4 * quality, 4 * (1 - quality), size),
        generator.uniform(size=size) < quality,
    )
    values = pd.DataFrame({"nDCG@10": ndcg, "hit@1": hit}, index=[f"q{i:03}" for i in range(size)])
    return SystemScores(name, "test", values.astype(float))


QUALITIES = {"hce": 0.7, "contrastive": 0.6, "zero_shot": 0.5, "bm25": 0.4, "dsi": 0.3}
SYSTEMS = [system(name, quality) for name, quality in QUALITIES.items()]


def test_systems_are_tested_against_earlier_references():
    result = compare_systems([system("bm25.rrf", 0.72, seed=1), *SYSTEMS], SETTINGS, seed=0)
    assert list(result["systems"]) == ["bm25", "zero_shot", "contrastive", "dsi", "hce", "bm25.rrf"]
    rows = result["differences"]
    pairs = [(row["system"], row["reference"]) for row in rows if row["metric"] == "hit@1"]
    baselines = [("zero_shot", "bm25"), ("contrastive", "bm25"), ("contrastive", "zero_shot")]
    others = [
        (name, reference)
        for name in ("dsi", "hce")
        for reference in ("bm25", "zero_shot", "contrastive")
    ]
    assert pairs == baselines + others
    assert [row["metric"] for row in rows] == ["nDCG@10"] * 9 + ["hit@1"] * 9
    assert rows == compare_systems(SYSTEMS, SETTINGS, seed=0)["differences"], (
        "a variant changes no correction"
    )
    assert compare_systems([SYSTEMS[0]], SETTINGS, seed=0)["differences"] == [], (
        "there is no reference"
    )


def test_numbers_are_those_of_the_statistics():
    result = compare_systems(SYSTEMS, SETTINGS, seed=3)
    hce, bm25 = SYSTEMS[0].values["nDCG@10"].to_numpy(), SYSTEMS[3].values["nDCG@10"].to_numpy()
    low, high = bootstrap_interval(hce[:, None], 200, 0.9, 3)
    cell = result["systems"]["hce"]["nDCG@10"]
    assert cell["queries"] == SIZE
    assert cell["over"] == "queries"
    assert cell["trainings"] == 1
    found = [cell[key] for key in ("value", "low", "high")]
    assert found == pytest.approx([hce.mean(), low[0], high[0]], abs=1e-6)
    rows = [row for row in result["differences"] if row["metric"] == "nDCG@10"]
    (row,) = [row for row in rows if (row["system"], row["reference"]) == ("hce", "bm25")]
    low, high = bootstrap_interval((hce - bm25)[:, None], 200, 0.9, 3)
    p = paired_randomisation_test((hce - bm25)[:, None], 500, 3)[0]
    found = [row[key] for key in ("difference", "low", "high", "p")]
    assert found == pytest.approx([(hce - bm25).mean(), low[0], high[0], p], abs=1e-6)
    family = np.array([row["p"] for row in rows])
    assert [row["p_holm"] for row in rows] == pytest.approx(holm(family), abs=1e-5)


def test_better_system_is_found():
    twin = SystemScores("twin", "test", SYSTEMS[3].values)
    rows = compare_systems([*SYSTEMS, twin], SETTINGS, seed=0)["differences"]
    against_bm25 = {
        row["system"]: row
        for row in rows
        if (row["reference"], row["metric"]) == ("bm25", "nDCG@10")
    }
    assert against_bm25["hce"]["low"] > 0
    assert against_bm25["hce"]["p_holm"] < 0.05
    assert [against_bm25["twin"][key] for key in ("difference", "low", "high", "p_holm")] == [
        0,
        0,
        0,
        1,
    ]


def test_order_of_systems_and_metrics_does_not_matter():
    one = canonical_json(compare_systems(SYSTEMS, SETTINGS, seed=0))
    assert one == canonical_json(compare_systems(SYSTEMS[::-1], SETTINGS, seed=0))
    swapped = SystemScores("bm25", "test", SYSTEMS[3].values[["hit@1", "nDCG@10"]])
    one, other = (
        compare_systems([SYSTEMS[2], bm25], SETTINGS, seed=0) for bm25 in (SYSTEMS[3], swapped)
    )
    assert one["systems"]["zero_shot"] == other["systems"]["zero_shot"]
    by_metric = itemgetter("metric")
    assert sorted(one["differences"], key=by_metric) == sorted(other["differences"], key=by_metric)


def test_another_system_changes_only_holms_correction():
    few = compare_systems(SYSTEMS[:4], SETTINGS, seed=0)
    many = compare_systems(SYSTEMS, SETTINGS, seed=0)
    assert few["systems"]["hce"] == many["systems"]["hce"]
    shared = [row for row in many["differences"] if row["system"] != "dsi"]
    keys = ("system", "reference", "metric", "difference", "low", "high", "p")
    assert [[row[key] for key in keys] for row in few["differences"]] == [
        [row[key] for key in keys] for row in shared
    ]


def trained(name, seeds):
    """A system that was trained `seeds` times."""
    runs = [system(name if i == 0 else f"{name}_seed{i}", 0.6, seed=i) for i in range(seeds)]
    return average_over_seeds(runs)[0]


@pytest.mark.parametrize(
    ("seeds", "over"), [(1, "queries"), (2, "queries"), (3, "queries and seeds")]
)
def test_intervals_are_over_seeds_from_three_trainings(seeds, over):
    hce = trained("hce", seeds)
    result = compare_systems([SYSTEMS[3], hce], SETTINGS, seed=0)

    cell = result["systems"]["hce"]["nDCG@10"]
    assert cell["over"] == over
    assert cell["trainings"] == seeds
    difference = result["differences"][0]
    assert difference["over"] == over
    assert difference["trainings"] == seeds
    baseline = result["systems"]["bm25"]["nDCG@10"]
    assert baseline["over"] == "queries"
    assert baseline["trainings"] == 0


def test_intervals_over_seeds_are_those_of_the_statistic():
    hce = trained("hce", 4)
    bm25 = SYSTEMS[3]
    result = compare_systems([bm25, hce], SETTINGS, seed=0)

    metrics = ["nDCG@10"]
    low, high = interval_over_seeds(hce.runs(metrics), None, 0.9)
    cell = result["systems"]["hce"]["nDCG@10"]
    assert [cell["low"], cell["high"]] == pytest.approx([low[0], high[0]], abs=1e-6)
    low, high = interval_over_seeds(hce.runs(metrics), bm25.runs(metrics), 0.9, lowest=-1.0)
    difference = result["differences"][0]
    assert [difference["low"], difference["high"]] == pytest.approx([low[0], high[0]], abs=1e-6)


def test_reference_trained_once_has_no_seed_interval():
    result = compare_systems([trained("contrastive", 1), trained("hce", 3)], SETTINGS, seed=0)

    assert result["differences"][0]["over"] == "queries"
    assert result["differences"][0]["trainings"] == 1


def test_few_queries_have_no_interval_over_seeds():
    runs = [system("hce" if i == 0 else f"hce_seed{i}", 0.6, seed=i, size=5) for i in range(3)]
    result = compare_systems(average_over_seeds(runs), SETTINGS, seed=0)

    assert result["systems"]["hce"]["nDCG@10"]["over"] == "queries"


def qrels(seen, unseen):
    rows = [("t0", "shared", "train"), ("d0", "tuned", "dev")]
    rows += [(f"s{i:02}", "shared" if i % 2 else "tuned", "test") for i in range(seen)]
    rows += [(f"s{i:02}", "only here", "test") for i in range(seen)]
    rows += [(f"u{i:02}", f"fresh{i}", "test") for i in range(unseen)]
    return pd.DataFrame(rows, columns=["query_id", "document_id", "split"])


def ids(table):
    return sorted(set(table.loc[table["split"] == "test", "query_id"]))


def test_one_shared_document_makes_a_query_seen():
    table = qrels(seen=26, unseen=21)
    groups = query_groups(
        table, "test", [query for query in ids(table) if query not in ("u00", "s00")]
    )
    assert groups == {
        "unseen": [f"u{i:02}" for i in range(1, 21)],
        "seen": [f"s{i:02}" for i in range(1, 26)],
    }


def test_small_query_groups_are_not_reported():
    for seen, unseen in [(25, 19), (19, 25), (40, 0), (0, 40)]:
        table = qrels(seen, unseen)
        assert query_groups(table, "test", ids(table)) == {}


def test_most_changed_queries_leave_out_draws():
    values = [
        pd.DataFrame({"hit@1": column}, list("abcd"))
        for column in ([0.9, 1.0, 0.2, 0.5], [0.4, 0.0, 0.3, 0.5])
    ]
    one, other = (
        SystemScores(name, "test", table) for name, table in zip("xy", values, strict=True)
    )
    assert most_changed_queries(one, other, "hit@1") == {
        "won": [("b", 1.0), ("a", 0.5)],
        "lost": [("c", -0.1)],
    }
    assert most_changed_queries(one, other, "hit@1", number=1)["won"] == [("b", 1.0)]
