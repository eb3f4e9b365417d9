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

from experiments.incdsi_frontier.gates import Difference
from experiments.incdsi_frontier.methods import Method, try_settings
from experiments.incdsi_frontier.protocol import Protocol
from experiments.incdsi_frontier.ranks import Quality, ReciprocalRanks
from experiments.incdsi_frontier.tuning import AdditionEvaluator, AdditionSettings, Trial, f_beta

BETAS = (1.0, 3.0, 5.0, 10.0)
# Numbers of queries per new document. The case of all queries is measured as well.
QUERIES = (1, 2, 4)


@dataclass(frozen=True)
class AblationResult:
    """Results of one choice.

    Attributes:
        choice: Name of the choice.
        ranks: Reciprocal ranks of the queries for old documents and for new ones.
        seconds: Seconds per added document.
    """

    choice: str
    ranks: ReciprocalRanks
    seconds: float

    @property
    def qualities(self) -> tuple[Quality, Quality]:
        """Return the quality of old and of new documents."""
        return Quality.of(self.ranks.old), Quality.of(self.ranks.new)

    def difference_to(self, other: AblationResult) -> tuple[Difference, Difference]:
        """Return the differences to another choice in MRR@10, for old and for new documents.

        The differences are paired over queries.
        """
        old_difference = Difference.of(self.ranks.old, other.ranks.old)
        new_difference = Difference.of(self.ranks.new, other.ranks.new)
        return old_difference, new_difference


def measure_ablations(protocol: Protocol, method: Method) -> dict[str, list[AblationResult]]:
    """Measure all choices, grouped by the setting that changes.

    Args:
        protocol: Data and trials of the experiment.
        method: Method whose settings are chosen from its trials.
    """
    evaluator = protocol.arrivals.evaluator
    tuning = protocol.tuning
    trials = try_settings(method, tuning, protocol.plan.trials, protocol.space.seed)

    settings_by_beta = {beta: _best_settings(trials, beta) for beta in BETAS}
    beta_rows = []
    for beta, settings in settings_by_beta.items():
        beta_rows.append(measure(evaluator, f"{beta:g}", settings))

    settings = settings_by_beta[tuning.beta]
    query_rows = []
    for count in QUERIES:
        query_rows.append(measure(with_queries(evaluator, count), f"at most {count}", settings))
    query_rows.append(measure(evaluator, "all", settings))
    return {"beta": beta_rows, "queries per new document": query_rows}


def _best_settings(trials: Sequence[Trial], beta: float) -> AdditionSettings:
    """Return the settings with the best F-beta."""
    best = max(trials, key=lambda trial: f_beta(trial.old, trial.new, beta))
    return best.settings


def with_queries(evaluator: AdditionEvaluator, count: int) -> AdditionEvaluator:
    """Return an evaluator whose new documents have only their first `count` queries each."""
    documents = [
        replace(document, queries=document.queries[:count])
        for document in evaluator.split.documents
    ]
    return AdditionEvaluator(
        evaluator.state, replace(evaluator.split, documents=documents), evaluator.beta
    )


def measure(
    evaluator: AdditionEvaluator, choice: str, settings: AdditionSettings
) -> AblationResult:
    """Add all new documents with some settings, and search for old and new ones.

    Args:
        evaluator: Adds the documents of the test split, and evaluates its queries.
        choice: Name of the choice, for the result.
        settings: How the documents are added.
    """
    start = time.perf_counter()
    added = evaluator.add(settings)
    seconds = (time.perf_counter() - start) / len(added)
    vectors = np.stack([document.vector for document in added])
    return AblationResult(choice, evaluator.ranks.reciprocal_ranks(vectors), seconds)
