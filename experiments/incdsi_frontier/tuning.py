"""Try settings for adding documents on a tuning split, and evaluate old and new documents."""

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


class AdditionSettings(IncDsiSettings):
    """Settings for adding a document: a prior vector, and whether IncDSI solves the vector.

    IncDSI's objective penalises the distance to the prior. The prior is 0, the document's encoding,
    or a mix of the encoding with the mean of the document's queries. If `refine` is false, the
    prior is the vector of the document.
    """

    refine: bool = True
    prior: Literal["zero", "encoder", "mixed"] = "zero"
    query_share: float = Field(
        0.5, ge=0, le=1, description="with prior mixed: the mean query's share"
    )
    prior_scale: float = Field(1.0, gt=0, description="factor on the prior")

    def with_prior(self, document: NewDocument) -> NewDocument:
        """Return the document with the prior in place of its encoding.

        IncDSI pulls the vector of a document to its encoding, and to 0 if it has none.
        """
        if self.prior == "zero":
            return replace(document, encoding=None)

        share = self.query_share if self.prior == "mixed" else 0.0
        query = mean_query(document.queries)
        if share == 1.0:
            # A document may have no encoding then.
            prior = query
        else:
            prior = (1 - share) * np.asarray(document.encoding, np.float64) + share * query
        return replace(document, encoding=self.prior_scale * prior)

    @property
    def solver_settings(self) -> IncDsiSettings:
        """Return the settings that the solver reads."""
        return IncDsiSettings(**{name: getattr(self, name) for name in IncDsiSettings.model_fields})


@dataclass(frozen=True)
class AddedDocument:
    """An added document: its id, its vector (H) float32, and the status of its addition."""

    id: str
    vector: np.ndarray
    status: Status


@dataclass(frozen=True)
class Range:
    """A setting with values from `low` to `high`, drawn on a logarithmic scale if `log` is true."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        """Check the bounds."""
        is_empty = self.low >= self.high
        touches_zero = self.log and self.low <= 0
        require(
            not is_empty and not touches_zero,
            f"a range from {self.low} to {self.high} is empty, or touches 0 on a logarithmic scale",
        )


@dataclass(frozen=True)
class Choice:
    """A setting whose value is one of `options`."""

    options: tuple[Any, ...]


SearchSpace = dict[str, Range | Choice]
"""Settings whose values are searched, by name."""

PUBLISHED: SearchSpace = {
    "lambda1": Range(0.05, 0.95),
    "gamma1": Range(0.0, 4.0),
    "gamma2": Range(0.0, 4.0),
    "lambda2": Range(1e-10, 1e-3, log=True),
}
"""The paper's four knobs, margins in standard deviations of the scores instead of BERT's logits."""

WIDE: SearchSpace = {
    **PUBLISHED,
    "lambda1": Range(0.05, 0.99),
    "lambda2": Range(1e-8, 10.0, log=True),
    "prior": Choice(("encoder", "mixed", "zero")),
    "prior_scale": Range(0.5, 1.5),
    "query_share": Range(0.0, 1.0),
}
"""The same knobs in wider ranges, and the prior that the vector is pulled to."""


def open_study(seed: int, objectives: int = 1) -> optuna.Study:
    """Return an optuna study in memory, which suggests settings by TPE.

    Equal seeds and scores give equal suggestions.

    Args:
        seed: Random seed.
        objectives: Number of scores that are maximised.
    """
    import optuna

    verbosity = optuna.logging.get_verbosity()
    # Without this, optuna logs a line for each study.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        sampler = optuna.samplers.TPESampler(seed=seed)
        return optuna.create_study(directions=["maximize"] * objectives, sampler=sampler)
    finally:
        optuna.logging.set_verbosity(verbosity)


def suggest(trial: optuna.Trial, space: SearchSpace) -> dict[str, Any]:
    """Return the values of the settings in `space` that a trial suggests, by name."""
    return {name: _suggest_one(trial, name, dimension) for name, dimension in space.items()}


def _suggest_one(trial: optuna.Trial, name: str, dimension: Range | Choice) -> Any:
    if isinstance(dimension, Choice):
        return trial.suggest_categorical(name, dimension.options)
    return trial.suggest_float(name, dimension.low, dimension.high, log=dimension.log)


@dataclass(frozen=True)
class Split:
    """Documents to add, and queries to evaluate old and new documents.

    The vectors of documents are not computed from these queries.

    Attributes:
        documents: The new documents. For tuning, their number should be close to that of the
            documents that will be added later, because the loss of old documents grows with it.
        old_queries: Vectors (m, H) of the queries for old documents.
        old_targets: Id of the document that answers each of them (m).
        new_queries: Vectors (k, H) of the queries for the new documents.
        new_targets: Id of the document that answers each of them (k).
    """

    documents: Sequence[NewDocument]
    old_queries: np.ndarray
    old_targets: Sequence[str]
    new_queries: np.ndarray
    new_targets: Sequence[str]


@dataclass(frozen=True)
class Trial:
    """Result of adding documents with some settings.

    Attributes:
        name: Name of the trial.
        settings: The settings.
        old: MRR@10 of old documents.
        new: MRR@10 of new documents.
        score: F-beta of `old` and `new`.
        statuses: Number of documents with each `Status`, by name.
    """

    name: str
    settings: AdditionSettings
    old: float
    new: float
    score: float
    statuses: dict[str, int]


class AdditionEvaluator:
    """Adds the documents of a split with given settings, and evaluates its queries.

    Args:
        state: IncDSI's state of the old documents. Each trial adds to a copy of it.
        split: Documents to add, and queries.
        beta: Weight of old documents in the F-beta of a trial.

    Attributes:
        before: Quality of the old documents before any addition.
    """

    def __init__(self, state: IncDsiState, split: Split, beta: float = 5.0) -> None:
        counts = (len(split.documents), len(split.old_queries), len(split.new_queries))
        require(
            min(counts) > 0,
            "a split needs documents to add, queries for them, and queries for old documents",
        )
        self.state = deepcopy(state)
        self.split = split
        self.beta = beta
        self._known: dict[AdditionSettings, Trial] = {}

        numbers = {document.id: number for number, document in enumerate(split.documents)}
        self.ranks = CachedRanks(
            state.vectors.view,
            split.old_queries,
            [state.row(document_id) for document_id in split.old_targets],
            split.new_queries,
            [numbers[document_id] for document_id in split.new_targets],
        )
        no_vectors = np.zeros((0, state.vectors.view.shape[1]), np.float32)
        old_ranks, _ = self.ranks.reciprocal_ranks(no_vectors)
        self.before = Quality.of(old_ranks)

    def add(
        self, settings: AdditionSettings, order: Sequence[int] | None = None
    ) -> list[AddedDocument]:
        """Add documents to a copy of the state.

        Args:
            settings: How they are added.
            order: Numbers of the documents to add, in their order. None: all in the given order.
        """
        documents = self.split.documents
        if order is not None:
            documents = [documents[number] for number in order]
        documents_with_prior = [settings.with_prior(document) for document in documents]

        if not settings.refine:
            results = []
            for document in documents_with_prior:
                vector = document.prior.astype(np.float32)
                results.append(AddedDocument(document.id, vector, Status.NOT_REFINED))
            return results

        adder = IncDsiAdder(deepcopy(self.state), settings.solver_settings)
        return [
            AddedDocument(added.id, added.vector, added.status)
            for added in adder.add_batch(documents_with_prior)
        ]

    def trial(self, name: str, settings: AdditionSettings) -> Trial:
        """Add all documents and evaluate the search. The result for equal settings is kept."""
        if settings not in self._known:
            self._known[settings] = self._add_and_search(settings)
        return replace(self._known[settings], name=name)

    def _add_and_search(self, settings: AdditionSettings) -> Trial:
        """Add all documents, search for all queries, and return the result without a name."""
        added = self.add(settings)
        vectors = np.stack([document.vector for document in added])
        old_ranks, new_ranks = self.ranks.reciprocal_ranks(vectors)
        old = float(old_ranks.mean())
        new = float(new_ranks.mean())
        counts = Counter(document.status.name for document in added)
        score = f_beta(old, new, self.beta)
        return Trial("", settings, old, new, score, dict(sorted(counts.items())))


def f_beta(old: float, new: float, beta: float = 5.0) -> float:
    """Combine the quality of old and new documents: F-beta of section 4.1 of IncDSI's paper.

    F-beta = (1 + beta^2) new old / (beta^2 new + old). Old documents weigh beta times as much as
    new ones.

    >>> f_beta(.5, .5), f_beta(.5, 0.)
    (0.5, 0.0)
    """
    if new == 0 or old == 0:
        return 0.0
    return (1 + beta**2) * new * old / (beta**2 * new + old)
