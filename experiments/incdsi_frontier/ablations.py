"""Measure IncDSI's own choices (its Tables 2 to 4), for `run.py --ablations`.

One choice changes at a time: the weight of old documents in the choice of settings (beta), or the
number of queries of a new document. The other settings have the best F-beta with beta 5 on the
tuning split. Results are on test queries, with all documents added in their own order.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from experiments.incdsi_frontier.frontier import Found
from experiments.incdsi_frontier.gates import Difference
from experiments.incdsi_frontier.methods import Method, tried
from experiments.incdsi_frontier.protocol import Protocol
from experiments.incdsi_frontier.ranks import Quality
from experiments.incdsi_frontier.tuning import TrialBench, Way, f_beta

BETAS = (1.0, 3.0, 5.0, 10.0)
# Numbers of queries per new document, besides all.
QUERIES = (1, 2, 4)


@dataclass(frozen=True)
class Ablated:
    """One `choice`: reciprocal ranks of old and of new queries, and seconds per added document."""

    choice: str
    found: Found
    seconds: float

    @property
    def qualities(self) -> tuple[Quality, Quality]:
        """Return the quality of old and of new documents."""
        old, new = self.found
        return Quality.of(old), Quality.of(new)

    def less(self, other: Ablated) -> tuple[Difference, Difference]:
        """Return MRR@10 less that of `other`, of old and new documents, paired over queries."""
        (old, new), (old_before, new_before) = self.found, other.found
        return Difference.of(old, old_before), Difference.of(new, new_before)


def ablations(protocol: Protocol, method: Method) -> dict[str, list[Ablated]]:
    """Measure each choice, by the setting that changes.

    Settings come from the trials of `protocol` for `method`.
    """
    plan, judge, bench = protocol.plan, protocol.arrivals.judge, protocol.bench
    trials = tried(method, bench, plan.trials, protocol.space.seed)
    by_beta = {
        beta: max(trials, key=lambda one: f_beta(one.old, one.new, beta)).settings for beta in BETAS
    }
    chosen = by_beta[bench.beta]
    return {
        "beta": [measure(judge, f"{beta:g}", settings) for beta, settings in by_beta.items()],
        "queries per new document": [
            *(measure(with_queries(judge, count), f"at most {count}", chosen) for count in QUERIES),
            measure(judge, "all", chosen),
        ],
    }


def with_queries(judge: TrialBench, count: int) -> TrialBench:
    """Return the split with documents made from their first `count` queries each."""
    documents = [replace(one, queries=one.queries[:count]) for one in judge.split.documents]
    return TrialBench(judge.state, replace(judge.split, documents=documents), judge.beta)


def measure(judge: TrialBench, choice: str, settings: Way) -> Ablated:
    """Add all documents of `judge` with `settings`, and search for all of them."""
    start = time.perf_counter()
    added = judge.add(settings)
    seconds = (time.perf_counter() - start) / len(added)
    return Ablated(
        choice, judge.ranks.reciprocal_ranks(np.stack([one.vector for one in added])), seconds
    )
