"""Guards the results: the main metric first, intervals called what they are, and means over a retriever's seeds."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from model_code.errors import FreshetError
from model_code.evaluation.comparison import compare_systems
from model_code.evaluation.scores import SystemScores, mean_over_seeds
from model_code.evaluation.settings import EvaluationSettings
from model_code.files import write_json
from orchestration.cli.tables import results_table, shown_metrics
from orchestration.pipeline.results import by_system, load_reported


def comparison(main_metric: str, *metrics: str, confidence: float = 0.95) -> dict:
    cell = {"value": 0.5, "low": 0.4, "high": 0.6, "queries": 9}
    facts = {"split": "test", "source": "qrels", "queries": 9}
    return facts | {
        "main_metric": main_metric, "confidence": confidence, "systems": {"bm25": dict.fromkeys(metrics, cell)},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("main_metric", "metrics", "shown"),
    [
        ("nDCG@10", ["MAP", "R@100", "hit@1", "nDCG@10"], ["nDCG@10", "hit@1", "R@100"]),
        ("MAP", ["MAP", "hit@1", "nDCG@10"], ["MAP", "nDCG@10", "hit@1"]),
        ("MRR@5", ["MRR@5"], ["MRR@5"]),
    ],
)
def test_the_main_metric_is_shown_first_and_the_usual_ones_follow(main_metric, metrics, shown):
    assert shown_metrics(comparison(main_metric, *metrics)) == shown


@pytest.mark.parametrize(("confidence", "written"), [(0.95, "95 %"), (0.9, "90 %"), (0.975, "97.5 %")])
def test_the_header_states_the_confidence_of_the_intervals(confidence, written):
    header, row, _ = results_table(comparison("MAP", "MAP", "hit@1", confidence=confidence)).splitlines()
    assert re.split(" {2,}", header) == ["system", f"MAP [{written} interval]", f"hit@1 [{written} interval]"]
    assert row.endswith("0.500 [0.400, 0.600]")


SETTINGS = EvaluationSettings(metrics=("nDCG@10", "hit@1"), bootstrap_samples=100, permutations=100)


def scores(system, value):
    values = pd.DataFrame({"nDCG@10": [value, 1.0], "hit@1": [0.0, 1.0]}, index=["q1", "q2"])
    return SystemScores(system, "qrels", "test", values)


RUNS = [
    scores(name, value)
    for name, value in {"bm25": 0.0, "hce": 0.2, "hce_seed1": 0.4, "hce.rrf": 0.3, "hce_seed1.rrf": 0.9}.items()
]


def test_seeds_of_a_system_and_of_a_variant_are_averaged_apart():
    groups = by_system(RUNS)
    assert {name: len(runs) for name, runs in groups.items()} == {"bm25": 1, "hce": 2, "hce.rrf": 2}
    mean = mean_over_seeds(groups["hce.rrf"], "hce.rrf")
    assert mean.values["nDCG@10"].tolist() == pytest.approx([0.6, 1.0])


def test_the_table_lists_variants_after_all_systems():
    averaged = [mean_over_seeds(runs, system) for system, runs in by_system(RUNS).items()]
    facts = {"main_metric": "nDCG@10", "confidence": 0.95, "seeds": {"hce": 2, "hce.rrf": 2}}
    comparison = compare_systems([*averaged, scores("mlr", 0.5)], SETTINGS, 0) | facts
    comparison["systems"] = dict(sorted(comparison["systems"].items()))  # as a JSON file has them
    names = [line.split("  ")[0] for line in results_table(comparison).splitlines()[1:-1]]
    assert names == ["bm25", "hce (2 seeds)", "mlr", "hce.rrf (2 seeds)"]


def written(folder, **queries: int):
    """An evaluation folder with so many judged queries of each split, all of hit@1 .5."""
    folder.mkdir(parents=True)
    write_json(folder / "metrics.json", {"system": folder.name, "source": "qrels"})
    rows = [(f"q{i}", split, "hit@1", 0.5) for split, count in queries.items() for i in range(count)]
    pd.DataFrame(rows, columns=["query_id", "split", "metric", "value"]).to_parquet(folder / "scores.parquet")
    return folder


@pytest.mark.parametrize(("queries", "split"), [({"dev": 1, "test": 2}, "test"), ({"dev": 1}, "dev")])
def test_the_split_is_the_one_that_the_comparison_reports(tmp_path, queries, split):
    (scores,) = load_reported([written(tmp_path / "bm25", **queries)])
    assert (scores.split, scores.queries) == (split, queries[split])


def test_before_a_build_the_system_and_the_remedy_are_named(tmp_path):
    folders = [written(tmp_path / "bm25", test=1), tmp_path / "hce"]
    with pytest.raises(FreshetError, match="no results of hce yet: run `freshet run`"):
        load_reported(folders)
    with pytest.raises(FreshetError, match="no judged dev or test queries"):
        load_reported([written(tmp_path / "zero_shot")])
