"""Guards the table of results: the main metric first, and the intervals called what they are."""

from __future__ import annotations

import re

import pytest

from orchestration.cli.tables import results_table, shown_metrics


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
