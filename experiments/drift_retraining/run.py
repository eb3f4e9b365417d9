"""Compare drift checks with real retrains: `python -m experiments.drift_retraining.run`.

A retriever is trained on old documents. New documents arrive, of which a share is from another
source, and are added by their encodings. Another retriever is trained on all documents. A retrain
is due if it finds the new documents better (MRR@10). The queries for this are written by people and
occur in neither training.

The table compares that with the drift check, which trains nothing. It shows how much worse new
documents are found than old ones, and for how many batches the drift check requests a retrain.
Batches are drawn repeatedly from the new documents and are not independent draws.

Every second old document is known: both trainings use a query that was cut out of it, and its
written query. The second training has as many steps. It also uses the cut-out queries of the new
documents and, with `--queries`, the written queries of every second one. Documents whose written
query is in no training are measured, and the drift check compares with them. The first row shows
how far two
trainings differ by chance: the second training repeats the first with another seed.
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
    encode,
    judge,
    reciprocal_ranks,
    studies,
    with_made,
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
# Orders in which new documents are cut into batches.
ROUNDS = 4
# Documents whose written queries are trained on, and documents that are measured.
KNOWN, OTHERS = slice(0, None, 2), slice(1, None, 2)
# Source without documents, for a second training on the same ones.
AGAIN = "trained again"


class Shift(NamedTuple):
    """New documents with a share from `source`."""

    source: str
    share: float

    def __str__(self) -> str:
        """Return the name in the table."""
        return f"{self.share:.0%} {self.source}" if self.share else f"none {self.source}".rstrip()


@dataclass(frozen=True)
class RetrainingTrial:
    """Numbers of old and new documents, and steps of training.

    drift: Plan of the batches that the drift check judges.
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
    """Results with new documents added and with a retriever trained on all, one entry per seed."""

    added: list[Ranks] = field(default_factory=list)
    retrained: list[Ranks] = field(default_factory=list)
    batches: CellCounts = field(default_factory=CellCounts)

    def line(self, name: str) -> list[str]:
        """Return a row of the table, under `HEAD`."""
        added, retrained = (
            Ranks(*map(np.concatenate, zip(*each, strict=True)))
            for each in (self.added, self.retrained)
        )
        gain, low = _difference(retrained.new, added.new)
        each = [
            after.new.mean() > before.new.mean()
            for before, after in zip(self.added, self.retrained, strict=True)
        ]
        found = [f"{ranks.new.mean():.3f}" for ranks in (added, retrained)]
        of_old, _ = _difference(retrained.old, added.old)
        below = f"{added.old.mean() - added.new.mean():+.3f}"
        calls = f"{sum(self.batches.retrain)} of {len(self.batches.retrain)}"
        return [
            name,
            str(len(added.new)),
            *found,
            gain,
            "yes" if low > 0 and all(each) else "no",
            of_old,
            below,
            calls,
        ]


class Champion:
    """Retriever that was trained on old documents, and the reference of the drift check.

    old: Documents (o).
    fresh: Others of the same home that may still arrive.
    """

    def __init__(self, home: Triples, trial: RetrainingTrial, base: str | Path, seed: int) -> None:
        self.trial, self.base, self.seed = trial, base, seed
        self.chance = np.random.default_rng(seed)
        order = self.chance.permutation(len(home))
        self.old, self.fresh = (
            [home[i] for i in order[: trial.old]],
            [home[i] for i in order[trial.old :]],
        )
        self.known = self.old[KNOWN]
        self.encoder = train(self.old, self.known, self.known, trial, base, seed)
        self.vectors = encode(self.encoder, self.old)
        self.calibration = calibrate(self.vectors, trial.drift, np.arange(trial.old)[OTHERS])

    def meets(self, shift: Shift, away: Triples, effect: Effect) -> None:
        """Add the results of new documents, with a share from `away`, to `effect`."""
        fresh, away = self._not_asked(self.fresh), self._not_asked(away)
        new = arriving(fresh, away, shift.share, self.trial.new, self.chance)
        vectors = encode(self.encoder, new)
        effect.added.append(_ranks(self.vectors, vectors, self.trial))
        for rows in _batches(len(new), self.trial.drift.batch, self.chance):
            judge(self.calibration, self.vectors.documents, vectors[rows], effect.batches)
        challenger = self._again() if shift.source == AGAIN else self._with(new)
        sides = (encode(challenger, documents, made=False) for documents in (self.old, new))
        effect.retrained.append(_ranks(*sides, self.trial))

    def _again(self) -> Any:
        return train(self.old, self.known, self.known, self.trial, self.base, self.seed + 1000)

    def _with(self, new: Triples) -> Any:
        written = self.known + (new[KNOWN] if self.trial.queries else [])
        return train(self.old + new, self.known + new, written, self.trial, self.base, self.seed)

    def _not_asked(self, documents: Triples) -> Triples:
        """Return the documents whose written query does not belong to a known document."""
        asked = {query for _, _, query in self.known}
        return [one for one in documents if one[2] not in asked]


def arriving(
    fresh: Triples, away: Triples, share: float, size: int, chance: np.random.Generator
) -> Triples:
    """Return `size` documents in random order, with a share from `away`."""
    shifted = round(share * size)
    if len(away) < shifted or len(fresh) < size - shifted:
        raise FreshetError(
            f"{size} new documents need as many; "
            f"a source has {len(away)}, the home {len(fresh)} left"
        )
    drawn = [away[i] for i in chance.permutation(len(away))[:shifted]]
    drawn += [fresh[i] for i in chance.permutation(len(fresh))[: size - shifted]]
    return [drawn[i] for i in chance.permutation(size)]


def train(
    documents: Triples,
    cut: Triples,
    written: Triples,
    trial: RetrainingTrial,
    base: str | Path,
    seed: int,
) -> Any:
    """Train an encoder on the cut-out queries of `cut` and the written queries of `written`.

    All queries search among `documents`.
    """
    from model_code.encoding.encoder import Encoder
    from model_code.training.data import Passages, TrainingData, make_pairs
    from model_code.training.trainer import Trainer

    most = trial.drift.max_tokens
    encoder = Encoder.load(base, most)
    rows = {text: row for row, (text, _, _) in enumerate(documents)}
    passages = Passages([text for text, _, _ in documents], np.arange(len(documents)))
    asked = make_pairs(passages, [(query, [rows[text]]) for text, _, query in written])
    made = make_pairs(passages, [(query, [rows[text]]) for text, query, _ in cut])
    settings = TrainingSettings(
        **SETTINGS, steps=trial.steps, query_max_tokens=most, document_max_tokens=most
    )
    Trainer(encoder, TrainingData(passages, asked, made), settings, seed).fit()
    return encoder


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of each home after each seed."""
    given = _parser().parse_args(arguments)
    require(
        given.new >= StudyPlan().batch,
        f"--new is {given.new}, but drift judges batches of {StudyPlan().batch}",
    )
    trial = RetrainingTrial(
        given.old,
        given.new,
        given.steps,
        given.queries,
        replace(StudyPlan(), per_source=2 * given.new),
    )
    for name, home, elsewhere in studies(given.data, trial.drift):
        shifts: dict[Shift, Triples] = {Shift(AGAIN, 0.0): [], Shift("", 0.0): []}
        shifts |= {
            Shift(source, share): with_made(elsewhere[source])
            for source in elsewhere
            for share in given.shares
        }
        effects, triples = {shift: Effect() for shift in shifts}, with_made(home)
        for seed in range(given.seeds):
            champion = Champion(triples, trial, given.base, seed)
            for shift, away in shifts.items():
                champion.meets(shift, away, effects[shift])
            print(f"\n{name}, {seed + 1} of {given.seeds} seeds\n", flush=True)
            print(
                markdown(HEAD, [effect.line(str(shift)) for shift, effect in effects.items()]),
                flush=True,
            )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--data", type=Path, help="a folder of data sets in BEIR layout, for more to arrive")
    add("--base", default=BASE, help="the encoder that trainings start from")
    add(
        "--shares",
        type=float,
        nargs="+",
        default=[1.0],
        help="of the new documents that come from elsewhere",
    )
    add("--seeds", type=int, default=3)
    add(
        "--queries",
        action="store_true",
        help="new documents come with queries; every other document's are learned",
    )
    for name in ("old", "new", "steps"):
        add(f"--{name}", type=int, default=getattr(RetrainingTrial, name))
    return parser


def _ranks(old: Vectors, new: Vectors, trial: RetrainingTrial) -> Ranks:
    everything = np.concatenate([old.documents, new.documents])
    measured = old[OTHERS], new[OTHERS if trial.queries else slice(None)]
    return Ranks(*(reciprocal_ranks(one.asked, one.documents, everything) for one in measured))


def _batches(count: int, size: int, chance: np.random.Generator) -> list[np.ndarray]:
    """Return the rows of whole batches, from `ROUNDS` orders of all documents."""
    most = count - count % size
    return [
        rows for _ in range(ROUNDS) for rows in chance.permutation(count)[:most].reshape(-1, size)
    ]


def _difference(ours: np.ndarray, theirs: np.ndarray) -> tuple[str, float]:
    """Return the mean difference with its 95 % interval, and the interval's lower end."""
    change = ours - theirs
    low, high = (
        float(bound[0]) for bound in bootstrap_interval(change[:, None], 2000, 0.95, seed=0)
    )
    return f"{change.mean():+.3f} [{low:+.3f}, {high:+.3f}]", low


if __name__ == "__main__":
    main()
