"""Metrics by the names the literature gives them ("nDCG@10", "R@100", "MRR@10", "MAP", "hit@1"), per query."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_code.evaluation import measures
from model_code.evaluation.gains import Gains, Qrels, Run, judge
from model_code.settings import require

MEASURES: dict[str, Callable[[Gains, Any], np.ndarray]] = {
    "nDCG": measures.ndcg,
    "R": measures.recall,
    "MRR": measures.reciprocal_rank,
    "MAP": measures.average_precision,
    "hit": measures.hit,
}
WHOLE_RUN = {"MAP"}  # measures that take no cutoff


@dataclass(frozen=True)
class Metric:
    """A measure and its cutoff: the number of ranks it looks at, None for the whole run."""

    measure: str
    cutoff: int | None = None

    @classmethod
    def parse(cls, name: str) -> Metric:
        """Read a metric's name.

        >>> Metric.parse("nDCG@10")
        Metric(measure='nDCG', cutoff=10)
        >>> Metric.parse("ndcg")
        Traceback (most recent call last):
        model_code.errors.SettingsError: 'ndcg' is not a metric; write one of nDCG@k, R@k, MRR@k, MAP, hit@k with k >= 1
        """
        match = re.fullmatch(r"(?P<measure>[A-Za-z]+)(@(?P<cutoff>[1-9]\d*))?", name)
        measure, cutoff = (match["measure"], match["cutoff"]) if match else (None, None)
        known = measure in MEASURES and (cutoff is None) == (measure in WHOLE_RUN)
        shapes = ", ".join(key if key in WHOLE_RUN else f"{key}@k" for key in MEASURES)
        require(known, f"{name!r} is not a metric; write one of {shapes} with k >= 1")
        return cls(str(measure), int(cutoff) if cutoff else None)

    def __str__(self) -> str:
        """The name that `parse` reads."""
        return self.measure if self.cutoff is None else f"{self.measure}@{self.cutoff}"

    def scores(self, gains: Gains) -> np.ndarray:
        """This metric for each query, (Q,), in [0, 1]."""
        return MEASURES[self.measure](gains, self.cutoff)


def evaluate_run(run: Run, qrels: Qrels, metrics: Sequence[str]) -> dict[str, dict[str, float]]:
    """Score a run per metric and query id, over all queries of `qrels`; one without a ranking scores 0.

    Equal to trec_eval with `-c` on the files that `run_files` writes.

    >>> evaluate_run({"q": [("a", 9.0), ("b", 8.0)]}, {"q": {"b": 1}}, ["MRR@10", "hit@1"])
    {'MRR@10': {'q': 0.5}, 'hit@1': {'q': 0.0}}
    """
    gains = judge(run, qrels)
    scores = {name: Metric.parse(name).scores(gains).tolist() for name in metrics}
    return {name: dict(zip(gains.query_ids, values, strict=True)) for name, values in scores.items()}
