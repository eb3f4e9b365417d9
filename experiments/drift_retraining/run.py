"""Compare drift checks with real retrains: `python -m experiments.drift_retraining.run`.

A first retriever is trained on old documents. New documents arrive, and a share of them is from
another source. They are added with their encodings by the first retriever. A second retriever is
trained on all documents. A retrain is due if the second retriever finds the new documents better
(MRR@10). The queries for this are written by people and occur in neither training.

The table compares this with the drift check, which trains nothing. It shows how much worse new
documents are found than old ones, and for how many batches the drift check requests a retrain.
Batches are drawn repeatedly from the same new documents, so they are not independent.

Every second old document is known: both trainings use a query that was cut out of it, and its
written query. Both trainings have the same number of steps. The second training also uses the
cut-out queries of the new documents and, with `--queries`, the written queries of every second new
document. Documents whose written query is in no training are measured. The drift check compares new
documents with these.

The first row shows how far two trainings differ by chance: there, the second training repeats the
first one with another seed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.drift_batches import (
    CellCounts,
    StudyPlan,
    Triples,
    Vectors,
    calibrate,
    cut_queries,
    encode,
    judge,
    reciprocal_ranks,
    studies,
)
from benchmarks.encoding import BASE
from experiments.incdsi_frontier.tables import markdown
from model_code.errors import FreshetError
from model_code.evaluation.significance import bootstrap_interval
from model_code.settings import require
from model_code.training.settings import TrainingSettings

HEAD = (
    "shift",
    "measured",
    "added",
    "retrained",
    "gain",
    "due",
    "gain of old",
    "new below old",
    "called for",
)
SETTINGS: dict[str, Any] = {
    "batch_size": 32,
    "learning_rate": 2e-4,
    "hierarchy_weight": 0.0,
    "negatives_per_query": 0,
}
# Number of random orders in which the new documents are cut into batches.
BATCH_ORDERS = 4
# Rows of the documents whose written queries are trained on, and of those that are measured.
KNOWN = slice(0, None, 2)
OTHERS = slice(1, None, 2)
# A source without documents. Its second training repeats the first one with another seed.
AGAIN = "trained again"


class Shift(NamedTuple):
    """A kind of new documents.

    Attributes:
        source: Name of the source of the shifted documents.
        share: Share of the new documents that are shifted, from 0 to 1.
    """

    source: str
    share: float

    def __str__(self) -> str:
        """Return the name in the table."""
        if self.share > 0:
            return f"{self.share:.0%} {self.source}"
        return f"none {self.source}".rstrip()


@dataclass(frozen=True)
class RetrainingTrial:
    """Size of a trial.

    Attributes:
        old: Number of old documents.
        new: Number of new documents.
        steps: Steps of each training.
        queries: Whether to train on the written queries of every second new document.
        drift: Sizes of the batches that the drift check looks at.
    """

    old: int = 1500
    new: int = 300
    steps: int = 100
    queries: bool = False
    drift: StudyPlan = field(default_factory=StudyPlan)


class Ranks(NamedTuple):
    """Reciprocal ranks of the measured old documents (o,) and new documents (n,)."""

    old: np.ndarray
    new: np.ndarray


@dataclass
class Effect:
    """Results of one shift.

    Attributes:
        added: Ranks after the new documents were only added, one entry per seed.
        retrained: Ranks after a training on all documents, one entry per seed.
        batches: Results of the drift check.
    """

    added: list[Ranks] = field(default_factory=list)
    retrained: list[Ranks] = field(default_factory=list)
    batches: CellCounts = field(default_factory=CellCounts)

    def line(self, name: str) -> list[str]:
        """Return a row of the table, under `HEAD`."""
        added = _concatenate(self.added)
        retrained = _concatenate(self.retrained)
        new_gain, lower_end = _difference(retrained.new, added.new)
        old_gain, _ = _difference(retrained.old, added.old)
        loss = added.old.mean() - added.new.mean()

        # A retrain is due if the gain for new documents is significant, and positive for each seed.
        gains_with_each_seed = all(
            after.new.mean() > before.new.mean()
            for before, after in zip(self.added, self.retrained, strict=True)
        )
        is_due = lower_end > 0 and gains_with_each_seed
        verdict = "yes" if is_due else "no"
        return [
            name,
            str(len(added.new)),
            f"{added.new.mean():.3f}",
            f"{retrained.new.mean():.3f}",
            new_gain,
            verdict,
            old_gain,
            f"{loss:+.3f}",
            f"{sum(self.batches.retrain)} of {len(self.batches.retrain)}",
        ]


def _concatenate(ranks: Sequence[Ranks]) -> Ranks:
    """Join the ranks of all seeds."""
    return Ranks(
        old=np.concatenate([seed_ranks.old for seed_ranks in ranks]),
        new=np.concatenate([seed_ranks.new for seed_ranks in ranks]),
    )


class Champion:
    """A retriever that is trained on old documents, and the reference of the drift check.

    Args:
        home: Documents without a shift.
        trial: Size of the trial.
        base: Encoder that the training starts from.
        seed: Seed of the training and of the draws.

    Attributes:
        old: Old documents.
        fresh: Documents of the same source as the old ones, which may arrive as new documents.
        known: Old documents whose queries are trained on.
    """

    def __init__(self, home: Triples, trial: RetrainingTrial, base: str | Path, seed: int) -> None:
        self.trial = trial
        self.base = base
        self.seed = seed
        self.random = np.random.default_rng(seed)
        order = self.random.permutation(len(home))
        self.old = [home[i] for i in order[: trial.old]]
        self.fresh = [home[i] for i in order[trial.old :]]
        self.known = self.old[KNOWN]
        self.encoder = train(self.old, self.known, self.known, trial, base, seed)
        self.vectors = encode(self.encoder, self.old)
        # Documents whose queries were trained on are found too well to be a reference.
        reference_rows = np.arange(trial.old)[OTHERS]
        self.references = calibrate(self.vectors, trial.drift, reference_rows)

    def measure_arrivals(self, shift: Shift, away: Triples, effect: Effect) -> None:
        """Let new documents arrive, and measure adding, retraining and drift checks.

        Args:
            shift: Share of shifted documents.
            away: Documents from which the shifted ones are drawn.
            effect: Receives the results.
        """
        fresh = self._without_known_queries(self.fresh)
        away = self._without_known_queries(away)
        new = draw_arrivals(fresh, away, shift.share, self.trial.new, self.random)
        vectors = encode(self.encoder, new)
        effect.added.append(_measured_ranks(self.vectors, vectors, self.trial))
        for rows in _draw_batches(len(new), self.trial.drift.batch, self.random):
            judge(self.references, self.vectors.documents, vectors[rows], effect.batches)

        if shift.source == AGAIN:
            challenger = self._train_again()
        else:
            challenger = self._train_with(new)
        old_vectors = encode(challenger, self.old, with_cut_out=False)
        new_vectors = encode(challenger, new, with_cut_out=False)
        effect.retrained.append(_measured_ranks(old_vectors, new_vectors, self.trial))

    def _train_again(self) -> Any:
        """Train on the same documents with another seed."""
        return train(self.old, self.known, self.known, self.trial, self.base, self.seed + 1000)

    def _train_with(self, new: Triples) -> Any:
        """Train on old and new documents."""
        with_written_query = list(self.known)
        if self.trial.queries:
            with_written_query.extend(new[KNOWN])
        return train(
            documents=self.old + new,
            with_cut_query=self.known + new,
            with_written_query=with_written_query,
            trial=self.trial,
            base=self.base,
            seed=self.seed,
        )

    def _without_known_queries(self, documents: Triples) -> Triples:
        """Leave out documents whose written query is also the query of a known document."""
        known_queries = {query for _, _, query in self.known}
        return [document for document in documents if document[2] not in known_queries]


def draw_arrivals(
    fresh: Triples, away: Triples, share: float, size: int, random: np.random.Generator
) -> Triples:
    """Return documents that arrive, in random order.

    Args:
        fresh: Documents without a shift.
        away: Shifted documents.
        share: Share of shifted documents.
        size: Number of documents.
        random: Generator of the draws.

    Raises:
        FreshetError: If a source has too few documents.
    """
    shifted = round(share * size)
    if len(away) < shifted or len(fresh) < size - shifted:
        raise FreshetError(
            f"{size} new documents need as many; "
            f"a source has {len(away)}, the home {len(fresh)} left"
        )
    documents = [away[i] for i in random.permutation(len(away))[:shifted]]
    documents.extend(fresh[i] for i in random.permutation(len(fresh))[: size - shifted])
    return [documents[i] for i in random.permutation(size)]


def train(
    documents: Triples,
    with_cut_query: Triples,
    with_written_query: Triples,
    trial: RetrainingTrial,
    base: str | Path,
    seed: int,
) -> Any:
    """Train an encoder with cut-out queries and written queries of documents.

    Args:
        documents: All documents.
        with_cut_query: Documents whose cut-out queries are trained on.
        with_written_query: Documents whose written queries are trained on.
        trial: Size of the trial.
        base: Encoder that the training starts from.
        seed: Seed of the training.
    """
    from model_code.encoding.encoder import Encoder
    from model_code.training.data import Passages, TrainingData, make_pairs
    from model_code.training.trainer import Trainer

    max_tokens = trial.drift.max_tokens
    encoder = Encoder.load(base, max_tokens)
    texts = [text for text, _, _ in documents]
    rows = {text: row for row, text in enumerate(texts)}
    passages = Passages(texts, np.arange(len(texts)))
    written_pairs = [(query, [rows[text]]) for text, _, query in with_written_query]
    cut_pairs = [(query, [rows[text]]) for text, query, _ in with_cut_query]
    # Written queries count as judged ones, and cut-out queries as pseudo-queries.
    data = TrainingData(
        passages, make_pairs(passages, written_pairs), make_pairs(passages, cut_pairs)
    )
    settings = TrainingSettings(
        **SETTINGS,
        steps=trial.steps,
        query_max_tokens=max_tokens,
        document_max_tokens=max_tokens,
    )
    Trainer(encoder, data, settings, seed).fit()
    return encoder


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the trials, and print the table of each study after each seed."""
    options = _parser().parse_args(arguments)
    plan = StudyPlan()
    require(
        options.new >= plan.batch,
        f"--new is {options.new}, but drift judges batches of {plan.batch}",
    )
    trial = RetrainingTrial(
        old=options.old,
        new=options.new,
        steps=options.steps,
        queries=options.queries,
        drift=replace(plan, per_source=2 * options.new),
    )
    for study in studies(options.data, trial.drift):
        shifts: dict[Shift, Triples] = {Shift(AGAIN, 0.0): [], Shift("", 0.0): []}
        for source, pairs in study.elsewhere.items():
            documents = cut_queries(pairs)
            for share in options.shares:
                shifts[Shift(source, share)] = documents

        effects = {shift: Effect() for shift in shifts}
        home = cut_queries(study.home)
        for seed in range(options.seeds):
            champion = Champion(home, trial, options.base, seed)
            for shift, away in shifts.items():
                champion.measure_arrivals(shift, away, effects[shift])
            lines = [effect.line(str(shift)) for shift, effect in effects.items()]
            print(f"\n{study.name}, {seed + 1} of {options.seeds} seeds\n", flush=True)
            print(markdown(HEAD, lines), flush=True)


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--data", type=Path, help="a folder of data sets in BEIR layout, for more to arrive"
    )
    parser.add_argument("--base", default=BASE, help="the encoder that trainings start from")
    parser.add_argument(
        "--shares",
        type=float,
        nargs="+",
        default=[1.0],
        help="of the new documents that come from elsewhere",
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--queries",
        action="store_true",
        help="new documents come with queries; every other document's are learned",
    )
    for name in ("old", "new", "steps"):
        parser.add_argument(f"--{name}", type=int, default=getattr(RetrainingTrial, name))
    return parser


def _measured_ranks(old: Vectors, new: Vectors, trial: RetrainingTrial) -> Ranks:
    """Return the ranks of the documents whose written query is in no training.

    Args:
        old: Vectors of the old documents and their queries.
        new: Vectors of the new documents and their queries.
        trial: Whether the written queries of every second new document are trained on.
    """
    all_documents = np.concatenate([old.documents, new.documents])
    measured_old = old[OTHERS]
    measured_new = new[OTHERS] if trial.queries else new
    return Ranks(
        old=reciprocal_ranks(measured_old.asked, measured_old.documents, all_documents),
        new=reciprocal_ranks(measured_new.asked, measured_new.documents, all_documents),
    )


def _draw_batches(count: int, size: int, random: np.random.Generator) -> list[np.ndarray]:
    """Return the rows of whole batches, from `BATCH_ORDERS` orders of all documents.

    Args:
        count: Number of documents.
        size: Number of documents of a batch.
        random: Generator of the orders.
    """
    in_whole_batches = count - count % size
    batches: list[np.ndarray] = []
    for _ in range(BATCH_ORDERS):
        order = random.permutation(count)[:in_whole_batches]
        batches.extend(order.reshape(-1, size))
    return batches


def _difference(ours: np.ndarray, theirs: np.ndarray) -> tuple[str, float]:
    """Return the mean difference with its 95 % interval, and the interval's lower end."""
    change = ours - theirs
    lows, highs = bootstrap_interval(change[:, None], 2000, 0.95, seed=0)
    low = float(lows[0])
    return f"{change.mean():+.3f} [{low:+.3f}, {highs[0]:+.3f}]", low


if __name__ == "__main__":
    main()
