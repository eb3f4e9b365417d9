"""Test scores: only equal queries and metrics are paired, and seeds are averaged per query."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from model_code.errors import FreshetError
from model_code.evaluation.scores import SystemScores, average_over_seeds, check_comparable


def scores(system, values=(1.0, 0.0, 0.5), ids=("q1", "q2", "q3"), split="test", metric="hit@1"):
    return SystemScores(system, split, pd.DataFrame({metric: values}, index=list(ids)))


@pytest.mark.parametrize(
    ("incomparable", "message"),
    [
        (scores("b", ids=("q1", "q2", "q4")), "different queries .2 are not shared, such as 'q3'"),
        (scores("b", (1.0,), ids=("q1",)), "different queries"),
        (scores("b", split="dev"), "different splits, test and dev"),
        (scores("b", metric="MAP"), "do not share the metrics MAP, hit@1"),
    ],
)
def test_incomparable_scores_are_refused(incomparable, message):
    with pytest.raises(FreshetError, match=message):
        check_comparable([scores("a"), incomparable])


def test_seeds_are_averaged_per_query():
    runs = [
        scores("hce"),
        scores("hce_seed1", (0.0, 0.0, 1.0)),
        scores("hce_seed2", (0.5, 0.0, 0.0)),
    ]

    (average,) = average_over_seeds(runs)

    assert average.system == "hce"
    assert average.values["hit@1"].tolist() == [0.5, 0.0, 0.5]


def test_single_run_is_its_own_average():
    runs = [scores("hce"), scores("hce_seed1", (0.0, 0.0, 1.0)), scores("mlr")]

    _, average = average_over_seeds(runs)

    assert average.system == "mlr"
    assert average.values.equals(scores("mlr").values)


def test_seeds_with_different_queries_are_refused():
    with pytest.raises(FreshetError, match="different queries"):
        average_over_seeds([scores("a"), scores("a_seed1", ids=("q1", "q2", "q9"))])


def test_scores_are_restricted_to_known_queries():
    restricted = scores("a").restrict_to(["q3", "q1", "unknown"])

    assert restricted.values.index.tolist() == ["q1", "q3"]
    assert replace(restricted, values=None) == replace(scores("a"), values=None)
