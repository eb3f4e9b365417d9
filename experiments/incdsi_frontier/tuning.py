"""Try ways of adding documents on a tuning split, and score old and new documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from experiments.incdsi_frontier.ranks import CachedRanks, Quality
from model_code.drift.statuses import Status
from model_code.incdsi.adder import IncDsiAdder, NewDocument, mean_query
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.state import IncDsiState
from model_code.settings import Field, require

if TYPE_CHECKING:
    import optuna


class Way(IncDsiSettings):
    """A way of adding: the prior that a vector is pulled to, with or without IncDSI.

    Without `refine` the prior itself is the vector.
    """

    refine: bool = True
    prior: Literal["zero", "encoder", "mixed"] = "zero"
    query_share: float = Field(
        0.5, ge=0, le=1, description="with prior mixed: the mean query's share"
    )
    prior_scale: float = Field(1.0, gt=0, description="factor on the prior")

    def pulled(self, document: NewDocument) -> NewDocument:
        """Return the document with this prior instead of its encoding."""
        share = self.query_share if self.prior == "mixed" else 0.0
        if self.prior == "zero":
            return replace(document, encoding=None)
        query = mean_query(document.queries)
        plain = (
            query
            if share == 1.0
            else (1 - share) * np.asarray(document.encoding, np.float64) + share * query
        )
        return replace(document, encoding=self.prior_scale * plain)

    @property
    def incdsi(self) -> IncDsiSettings:
        """Return the settings that the solver reads."""
        return IncDsiSettings(**{name: getattr(self, name) for name in IncDsiSettings.model_fields})


@dataclass(frozen=True)
class Placed:
    """An added document: its vector (H) float32, and its `Status`."""

    id: str
    vector: np.ndarray
    status: Status


@dataclass(frozen=True)
class Range:
    """Numbers between `low` and `high`; with `log`, uniform in their logarithm."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        """Check the bounds."""
        require(
            self.low < self.high and (self.low > 0 or not self.log),
            f"a range from {self.low} to {self.high} is empty, or touches 0 on a logarithmic scale",
        )


@dataclass(frozen=True)
class Choice:
    """One of `options`."""

    options: tuple[Any, ...]


Space = dict[str, Range | Choice]
"""What may vary, by the name of the setting."""

PUBLISHED: Space = {
    "lambda1": Range(0.05, 0.95),
    "gamma1": Range(0.0, 4.0),
    "gamma2": Range(0.0, 4.0),
    "lambda2": Range(1e-10, 1e-3, log=True),
}
"""The paper's four knobs, margins in standard deviations of the scores instead of BERT's logits."""

WIDE: Space = PUBLISHED | {
    "lambda1": Range(0.05, 0.99),
    "lambda2": Range(1e-8, 10.0, log=True),
    "prior": Choice(("encoder", "mixed", "zero")),
    "prior_scale": Range(0.5, 1.5),
    "query_share": Range(0.0, 1.0),
}
"""Besides, where the vector is pulled to."""


def open_study(seed: int, objectives: int = 1) -> optuna.Study:
    """Return a study in memory that maximises `objectives` numbers by TPE.

    Equal seeds and scores give equal trials.
    """
    import optuna

    loudness = optuna.logging.get_verbosity()
    # Without this, optuna logs a line for each study.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        sampler = optuna.samplers.TPESampler(seed=seed)
        return optuna.create_study(directions=["maximize"] * objectives, sampler=sampler)
    finally:
        optuna.logging.set_verbosity(loudness)


def suggest(trial: optuna.Trial, space: Space) -> dict[str, Any]:
    """Return the values of `space`, by name, for `trial` to try."""
    return {name: _suggest_one(trial, name, dimension) for name, dimension in space.items()}


def _suggest_one(trial: optuna.Trial, name: str, dimension: Range | Choice) -> Any:
    if isinstance(dimension, Choice):
        return trial.suggest_categorical(name, dimension.options)
    return trial.suggest_float(name, dimension.low, dimension.high, log=dimension.log)


@dataclass(frozen=True)
class Split:
    """Documents to add on trial, and queries that none of them was made from.

    documents: As many as will be added later, if possible, because the loss of old documents grows
    with their number.
    old_queries: Queries (m, H) for the old documents `old_targets` (m ids).
    new_queries: Queries (k, H) for `new_targets` (k ids).
    """

    documents: Sequence[NewDocument]
    old_queries: np.ndarray
    old_targets: Sequence[str]
    new_queries: np.ndarray
    new_targets: Sequence[str]


@dataclass(frozen=True)
class Trial:
    """Result of one way of adding: MRR@10 of `old` and `new` documents, and their F-beta `score`.

    statuses: Number of documents with each `Status`, by name.
    """

    name: str
    settings: Way
    old: float
    new: float
    score: float
    statuses: dict[str, int]


class TrialBench:
    """Add the documents of `split` to copies of `state`, which does not change.

    before: Quality of the old documents before any addition.
    """

    def __init__(self, state: IncDsiState, split: Split, beta: float = 5.0) -> None:
        require(
            len(split.documents) > 0 and len(split.old_queries) > 0 and len(split.new_queries) > 0,
            "a split needs documents to add, queries for them, and queries for old documents",
        )
        self.state, self.split, self.beta = deepcopy(state), split, beta
        self._known: dict[Way, Trial] = {}
        number = {document.id: i for i, document in enumerate(split.documents)}
        self.ranks = CachedRanks(
            state.vectors.view,
            split.old_queries,
            [state.row(key) for key in split.old_targets],
            split.new_queries,
            [number[key] for key in split.new_targets],
        )
        self.before = Quality.of(
            self.ranks.reciprocal_ranks(np.zeros((0, state.vectors.view.shape[1]), np.float32))[0]
        )

    def add(self, settings: Way, order: Sequence[int] | None = None) -> list[Placed]:
        """Add all documents, in their order or in the order of their numbers `order`."""
        documents = self.split.documents
        chosen = documents if order is None else [documents[number] for number in order]
        pulled = [settings.pulled(document) for document in chosen]
        if not settings.refine:
            return [
                Placed(one.id, one.prior.astype(np.float32), Status.NOT_REFINED) for one in pulled
            ]
        added = IncDsiAdder(deepcopy(self.state), settings.incdsi).add_batch(pulled)
        return [Placed(one.id, one.vector, one.status) for one in added]

    def trial(self, name: str, settings: Way) -> Trial:
        """Add all documents, and search for all; equal settings are tried only once."""
        if settings not in self._known:
            self._known[settings] = self._trial(settings)
        return replace(self._known[settings], name=name)

    def _trial(self, settings: Way) -> Trial:
        added = self.add(settings)
        ranks = self.ranks.reciprocal_ranks(np.stack([document.vector for document in added]))
        old, new = (float(values.mean()) for values in ranks)
        statuses = dict(sorted(Counter(document.status.name for document in added).items()))
        return Trial("", settings, old, new, f_beta(old, new, self.beta), statuses)


def f_beta(old: float, new: float, beta: float = 5.0) -> float:
    """Return (1 + beta^2) new old / (beta^2 new + old) (IncDSI, 4.1).

    Old documents weigh beta times as much as new ones.

    >>> f_beta(.5, .5), f_beta(.5, 0.)
    (0.5, 0.0)
    """
    return (1 + beta**2) * new * old / (beta**2 * new + old) if new and old else 0.0
