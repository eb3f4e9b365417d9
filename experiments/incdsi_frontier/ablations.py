"""Measure single choices of IncDSI, as in Tables 2 to 4 of its paper, for `run.py --ablations`.

One choice is changed at a time. It is either beta, the weight of old documents in F-beta when
settings are chosen, or the number of queries of a new document. All other settings have the best
F-beta with beta 5 on the tuning split. Results are on test queries, after all documents were added
in their original order.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.incdsi_frontier.frontier import Found
from experiments.incdsi_frontier.gates import Difference
from experiments.incdsi_frontier.methods import Method, tried
from experiments.incdsi_frontier.protocol import Protocol
from experiments.incdsi_frontier.ranks import Quality
from experiments.incdsi_frontier.tuning import Trial, TrialBench, Way, f_beta

BETAS = (1.0, 3.0, 5.0, 10.0)
# Numbers of queries per new document. The case of all queries is measured as well.
QUERIES = (1, 2, 4)


@dataclass(frozen=True)
class Ablated:
    """Results of one choice.

    Attributes:
        choice: Name of the choice.
        found: Reciprocal ranks of the queries for old documents and for new ones.
        seconds: Seconds per added document.
    """

    choice: str
    found: Found
    seconds: float

    @property
    def qualities(self) -> tuple[Quality, Quality]:
        """Return the quality of old and of new documents."""
        old, new = self.found
        return Quality.of(old), Quality.of(new)

    def less(self, other: Ablated) -> tuple[Difference, Difference]:
        """Return the differences to another choice in MRR@10, for old and for new documents.

        The differences are paired over queries.
        """
        old, new = self.found
        other_old, other_new = other.found
        return Difference.of(old, other_old), Difference.of(new, other_new)


def ablations(protocol: Protocol, method: Method) -> dict[str, list[Ablated]]:
    """Measure all choices, grouped by the setting that changes.

    Args:
        protocol: Data and trials of the experiment.
        method: Method whose settings are chosen from its trials.
    """
    judge = protocol.arrivals.judge
    bench = protocol.bench
    trials = tried(method, bench, protocol.plan.trials, protocol.space.seed)

    settings_by_beta = {beta: _best_settings(trials, beta) for beta in BETAS}
    beta_rows = []
    for beta, settings in settings_by_beta.items():
        beta_rows.append(measure(judge, f"{beta:g}", settings))

    settings = settings_by_beta[bench.beta]
    query_rows = []
    for count in QUERIES:
        query_rows.append(measure(with_queries(judge, count), f"at most {count}", settings))
    query_rows.append(measure(judge, "all", settings))
    return {"beta": beta_rows, "queries per new document": query_rows}


def _best_settings(trials: Sequence[Trial], beta: float) -> Way:
    """Return the settings with the best F-beta."""
    best = max(trials, key=lambda trial: f_beta(trial.old, trial.new, beta))
    return best.settings


def with_queries(judge: TrialBench, count: int) -> TrialBench:
    """Return a bench whose new documents have only their first `count` queries each."""
    documents = [
        replace(document, queries=document.queries[:count]) for document in judge.split.documents
    ]
    return TrialBench(judge.state, replace(judge.split, documents=documents), judge.beta)


def measure(judge: TrialBench, choice: str, settings: Way) -> Ablated:
    """Add all new documents with some settings, and search for old and new ones."""
    start = time.perf_counter()
    added = judge.add(settings)
    seconds = (time.perf_counter() - start) / len(added)
    vectors = np.stack([placed.vector for placed in added])
    return Ablated(choice, judge.ranks.reciprocal_ranks(vectors), seconds)
