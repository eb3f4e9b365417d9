"""Whether a retrain was due, by retraining: `python -m model_code.benchmarks.drift_retraining`.

A retriever is trained on old documents. Others arrive, of which a share is from elsewhere, and are added by their
encodings; beside that, another retriever is trained on all. A retrain is due where it finds the new documents better,
by queries that people wrote and neither training saw. The table sets that beside what drift says, which trains
nothing: how much worse new documents are found than old ones, and for how many batches of them the ladder calls for a
retrain.

Both trainings take as many steps, of queries cut out of all their documents and of written queries of every other old
document; with `--queries`, the second has written ones of every other new document, too. What is measured are the
written queries of the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from model_code.benchmarks.drift_batches import Cell, calibrate, judge, reciprocal_ranks
from model_code.benchmarks.drift_sources import Plan, Triples, Vectors, encode, studies, with_made
from model_code.benchmarks.encode import BASE
from model_code.benchmarks.incdsi_tables import markdown
from model_code.errors import FreshetError
from model_code.evaluation.significance import bootstrap_interval
from model_code.training.settings import TrainingSettings

HEAD = ("shift", "documents", "added", "retrained", "gain", "due", "gain of old", "new below old", "called for")
SETTINGS: dict[str, Any] = {"batch_size": 32, "learning_rate": 2e-4, "hierarchy_weight": 0.0, "negatives_per_query": 0}
ROUNDS = 4  # orders in which new documents are cut into batches
OTHERS = slice(1, None, 2)  # every other document is learned with its written query, these are measured


class Shift(NamedTuple):
    """New documents of which a share is from `source`."""

    source: str
    share: float

    def __str__(self) -> str:
        """As the table names it."""
        return f"{self.share:.0%} {self.source}" if self.share else "none"


@dataclass(frozen=True)
class Trial:
    """How much is trained and measured. queries: see above. drift: of the batches that the ladder judges."""

    old: int = 1500
    new: int = 300
    steps: int = 100
    queries: bool = False
    drift: Plan = field(default_factory=Plan)


class Ranks(NamedTuple):
    """Reciprocal ranks of the old and of the new documents that are measured: (o,) and (n,)."""

    old: np.ndarray
    new: np.ndarray


@dataclass
class Effect:
    """What is found where new documents are added, and where a retriever is trained on all; an entry per seed."""

    added: list[Ranks] = field(default_factory=list)
    retrained: list[Ranks] = field(default_factory=list)
    batches: Cell = field(default_factory=Cell)

    def line(self, name: str) -> list[str]:
        """A row of the table, under `HEAD`."""
        added, retrained = (
            Ranks(*map(np.concatenate, zip(*each, strict=True))) for each in (self.added, self.retrained)
        )
        gain, low = _difference(retrained.new, added.new)
        found = [f"{ranks.new.mean():.3f}" for ranks in (added, retrained)]
        of_old, below = _difference(retrained.old, added.old)[0], f"{added.old.mean() - added.new.mean():+.3f}"
        calls = f"{sum(self.batches.retrain)} of {len(self.batches.retrain)}"
        return [name, str(len(added.new)), *found, gain, "yes" if low > 0 else "no", of_old, below, calls]


def measure(
    home: Triples,
    shifts: Mapping[Shift, Triples],
    effects: Mapping[Shift, Effect],
    trial: Trial,
    base: str | Path,
    seed: int,
) -> None:
    """Adds to `effects` what one seed gives, with its own order of documents and its own trainings.

    shifts: the documents from elsewhere, by what they are mixed to.
    """
    chance = np.random.default_rng(seed)
    order = chance.permutation(len(home))
    old, fresh = [home[i] for i in order[: trial.old]], [home[i] for i in order[trial.old :]]
    champion = train(old, old[::2], trial, base, seed)
    known = encode(champion, old)
    calibration = calibrate(known[OTHERS], trial.drift, known.documents)
    for shift, away in shifts.items():
        new = arriving(fresh, away, shift.share, trial.new, chance)
        vectors = encode(champion, new)
        effects[shift].added.append(_ranks(known, vectors, trial))
        for rows in _batches(len(new), trial.drift.batch, chance):
            judge(calibration, known.documents, vectors[rows], effects[shift].batches)
        challenger = train(old + new, old[::2] + (new[::2] if trial.queries else []), trial, base, seed)
        sides = (encode(challenger, documents, made=False) for documents in (old, new))
        effects[shift].retrained.append(_ranks(*sides, trial))


def arriving(fresh: Triples, away: Triples, share: float, size: int, chance: np.random.Generator) -> Triples:
    """`size` documents in a random order, of which a share is from `away`."""
    shifted = round(share * size)
    if len(away) < shifted or len(fresh) < size - shifted:
        raise FreshetError(f"{size} new documents need as many; a source has {len(away)}, the home {len(fresh)} left")
    drawn = [away[i] for i in chance.permutation(len(away))[:shifted]]
    drawn += [fresh[i] for i in chance.permutation(len(fresh))[: size - shifted]]
    return [drawn[i] for i in chance.permutation(size)]


def train(documents: Triples, written: Triples, trial: Trial, base: str | Path, seed: int) -> Any:
    """An encoder that learned the cut-out queries of `documents`, and the written ones of those in `written`."""
    from model_code.encoding.encoder import Encoder
    from model_code.training.data import Passages, TrainingData, make_pairs
    from model_code.training.trainer import Trainer

    most = trial.drift.max_tokens
    encoder = Encoder.load(base, most)
    rows = {text: row for row, (text, _, _) in enumerate(documents)}
    passages = Passages([text for text, _, _ in documents], np.arange(len(documents)))
    asked = make_pairs(passages, [(query, [rows[text]]) for text, _, query in written])
    made = make_pairs(passages, [(query, [rows[text]]) for text, query, _ in documents])
    settings = TrainingSettings(**SETTINGS, steps=trial.steps, query_max_tokens=most, document_max_tokens=most)
    Trainer(encoder, TrainingData(passages, asked, made), settings, seed).fit()
    return encoder


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table of each home after each seed."""
    given = _parser().parse_args(arguments)
    trial = Trial(given.old, given.new, given.steps, given.queries, replace(Plan(), per_source=2 * given.new))
    for name, home, elsewhere in studies(given.data, trial.drift):
        shifts: dict[Shift, Triples] = {Shift("", 0.0): []}
        shifts |= {Shift(source, share): with_made(elsewhere[source]) for source in elsewhere for share in given.shares}
        effects = {shift: Effect() for shift in shifts}
        for seed in range(given.seeds):
            measure(with_made(home), shifts, effects, trial, given.base, seed)
            print(f"\n{name}, {seed + 1} of {given.seeds} seeds\n", flush=True)
            print(markdown(HEAD, [effect.line(str(shift)) for shift, effect in effects.items()]), flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--data", type=Path, help="a folder of data sets in BEIR layout, for more to arrive")
    add("--base", default=BASE, help="the encoder that trainings start from")
    add("--shares", type=float, nargs="+", default=[1.0], help="of the new documents that come from elsewhere")
    add("--seeds", type=int, default=3)
    add("--queries", action="store_true", help="new documents come with queries; every other document's are learned")
    for name in ("old", "new", "steps"):
        add(f"--{name}", type=int, default=getattr(Trial, name))
    return parser


def _ranks(old: Vectors, new: Vectors, trial: Trial) -> Ranks:
    everything = np.concatenate([old.documents, new.documents])
    measured = old[OTHERS], new[OTHERS if trial.queries else slice(None)]
    return Ranks(*(reciprocal_ranks(one.asked, one.documents, everything) for one in measured))


def _batches(count: int, size: int, chance: np.random.Generator) -> list[np.ndarray]:
    """Rows of whole batches, out of `ROUNDS` orders of them all."""
    most = count - count % size
    return [rows for _ in range(ROUNDS) for rows in chance.permutation(count)[:most].reshape(-1, size)]


def _difference(ours: np.ndarray, theirs: np.ndarray) -> tuple[str, float]:
    """The mean difference with its 95 % interval, and the interval's lower end."""
    change = ours - theirs
    low, high = (float(bound[0]) for bound in bootstrap_interval(change[:, None], 2000, 0.95, seed=0))
    return f"{change.mean():+.3f} [{low:+.3f}, {high:+.3f}]", low


if __name__ == "__main__":
    main()
