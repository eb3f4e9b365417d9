"""How often drift alarms without cause, and how often it finds what harms, on batches of real documents.

Reference are docstrings of some packages; batches mix others of those packages with a growing share from elsewhere:
from neighbouring packages, and from a jargon that the encoder never saw, which are neighbouring docstrings and their
summaries with exchanged letters. Where `FRESHET_DATA` names a folder of data sets, also from its `tldr` and `scifact`,
and a second reference: tldr's early pages, with its latest ones as the shift. Each document comes with a query that
people wrote, its summary or a judged one, and gets one more that is cut out of its text. The peer is the customary rule
that a PSI over .2 calls for retraining.

Retraining is due where new documents lose at least `HARM` of mean reciprocal rank beside old ones, by the written
queries: with scores as spread as these it is the least that 100 documents of one query each can show with a chance
of .95. A row also says how often each kind of query alone called it harm. Old documents are scored among the reference
alone, where a report has them beside what arrived: harm looks a little larger here (by .008 for 100 docstrings).
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from model_code.benchmarks.encode import BASE
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.base import open_source
from model_code.drift.calibration import Calibration
from model_code.drift.ladder import decide
from model_code.drift.observations import Arrivals
from model_code.drift.quality import OldScores
from model_code.drift.reference import DriftReference
from model_code.drift.report import make_report
from model_code.drift.settings import DriftSettings
from model_code.errors import FreshetError
from model_code.files import replacing
from model_code.queries.inverse_cloze import InverseCloze
from model_code.queries.settings import PseudoQuerySettings

HOME, NEIGHBOURS, JARGON = ("stdlib", "numpy", "pandas"), ("scipy", "matplotlib"), ("sklearn",)
SETS, BY_DATE = ("tldr", "scifact"), "tldr"  # folders of FRESHET_DATA in BEIR layout
SHARES, HARM, LOSS, CUSTOMARY_PSI, MOST_FALSE = (0.1, 0.25, 0.5, 1.0), 0.15, 0.01, 0.2, 0.05
OTHER_LETTERS = str.maketrans("aeioubcdfghjklmnpqrstvwxyz", "eiouadfghjklmnpqrstvwxyzbc")
Pairs = list[tuple[str, str]]  # documents, each with a query that it answers


@dataclass(frozen=True, eq=False)
class Vectors:
    """Unit vectors (n, H) of documents, and for each of one query that was made from it and one that was written."""

    documents: np.ndarray
    made: np.ndarray
    asked: np.ndarray

    def __getitem__(self, rows: np.ndarray) -> Vectors:
        return Vectors(self.documents[rows], self.made[rows], self.asked[rows])


@dataclass
class Cell:
    """What became of batches of which a share came from elsewhere: per batch its harm, and who called for what.

    by_made, by_asked: whether queries of that kind called it harm.
    """

    harm: list[float] = field(default_factory=list)
    alarm: list[bool] = field(default_factory=list)
    retrain: list[bool] = field(default_factory=list)
    customary: list[bool] = field(default_factory=list)
    by_made: list[bool] = field(default_factory=list)
    by_asked: list[bool] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """How much is simulated: `splits` of the home documents, and `repeats` batches of each share and split.

    more_splits: for batches without a shift alone. False alarms are rare, and batches of one split are no independent
    draws: a share of .083 over 12 splits was one of .043 over 60 others.
    """

    reference: int = 1500
    batch: int = 100
    per_source: int = 300
    splits: int = 12
    more_splits: int = 48
    repeats: int = 4
    draws: int = 399
    max_tokens: int = 64


def rows(
    data: Path | None = None, base: str | Path = BASE, plan: Plan | None = None, output: Path | None = None
) -> list[dict[str, Any]]:
    """Of each shift the share of batches that were judged as they should be, with its 95 % interval.

    data: a folder of data sets; None: that of `FRESHET_DATA`, if it is set. output: where to leave the curves, as
    drift_curve.csv and .png; None: the folder of `FRESHET_BENCH_OUTPUT`, if it is set.
    """
    from model_code.encoding.encoder import Encoder

    plan = plan or Plan()
    data, output = data or _folder("FRESHET_DATA"), output or _folder("FRESHET_BENCH_OUTPUT")
    encoder = Encoder.load(base, plan.max_tokens, for_search=True)
    cells: dict[tuple[str, str, float], Cell] = {}
    for name, home, elsewhere in _studies(data, plan):
        vectors = {source: _encode(encoder, pairs) for source, pairs in elsewhere.items()}
        found = simulate(_encode(encoder, home), vectors, plan)
        cells |= {(name, *key): cell for key, cell in found.items()}
    if output:
        from model_code.benchmarks.drift_picture import draw

        write_curve(output / "drift_curve.csv", cells)
        draw(output / "drift_curve.png", output / "drift_curve.csv")
    return [_row(*key, cell) for key, cell in cells.items()]


def simulate(home: Vectors, elsewhere: Mapping[str, Vectors], plan: Plan) -> dict[tuple[str, float], Cell]:
    """Cells by source and share; ("none", 0) has batches of home documents that no other batch of their split has."""
    cells: dict[tuple[str, float], Cell] = {("none", 0.0): Cell()}
    for split in range(plan.splits + plan.more_splits):
        chance = np.random.default_rng(split)
        order = chance.permutation(len(home.documents))
        reference, fresh = home[np.sort(order[: plan.reference])], home[order[plan.reference :]]
        calibration = _calibrate(reference, plan)
        count = len(fresh.documents) // plan.batch
        for batch in np.arange(count * plan.batch).reshape(count, plan.batch):
            _judge(calibration, reference, fresh[batch], cells["none", 0.0])
        for source, vectors in elsewhere.items() if split < plan.splits else ():
            for share in SHARES:
                cell = cells.setdefault((source, share), Cell())
                for _ in range(plan.repeats):
                    _judge(calibration, reference, _mixed(fresh, vectors, share, plan.batch, chance), cell)
    return cells


def reciprocal_ranks(queries: np.ndarray, own: np.ndarray, others: np.ndarray, depth: int = 10) -> np.ndarray:
    """1 / rank of each query's `own` document (n, H) among `others`, which hold it; 0 past `depth`: (n,)."""
    scores = (queries * own).sum(axis=1)
    better = (queries @ others.T > scores[:, None] + 1e-6).sum(axis=1)
    return np.where(better < depth, 1 / (1 + better), 0.0)


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927), which at 0 and 1 does not shrink to a point.

    >>> [round(bound, 3) for bound in wilson(10, 10)]
    [0.722, 1.0]
    """
    z = 1.959964
    share, width = successes / trials, 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / width
    half = z / width * np.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    return max(0.0, float(middle - half)), min(1.0, float(middle + half))


def write_curve(path: Path, cells: Mapping[tuple[str, str, float], Cell]) -> None:
    """A CSV line per cell: alarms and retraining by the share of shifted documents, with 95 % intervals."""
    calls = [one.name for one in fields(Cell)]
    names = ("reference", "source", "share", "batches", *calls)
    intervals = ("alarm_low", "alarm_high", "retrain_low", "retrain_high")
    with replacing(path) as aside, aside.open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow((*names, *intervals))
        for key, cell in cells.items():
            means = [float(np.mean(values)) for values in astuple(cell)]
            bounds = [bound for calls in (cell.alarm, cell.retrain) for bound in wilson(sum(calls), len(calls))]
            writer.writerow((*key, len(cell.harm), *(f"{number:.4f}" for number in (*means, *bounds))))


def _row(study: str, source: str, share: float, cell: Cell) -> dict[str, Any]:
    """Without a shift no alarm is right; with one, retraining where it is due and not where nothing is lost.

    Between the two there is no goal: a loss that is real and too small for 100 documents to show may be found or not.
    """
    harm = float(np.mean(cell.harm))
    due = share > 0 and harm > LOSS
    calls = np.array(cell.alarm if share == 0 else cell.retrain)
    right, peer = (calls, np.array(cell.customary)) if due else (~calls, ~np.array(cell.customary))
    low, high = wilson(int(right.sum()), len(right))
    judged = "retrained" if due else "not retrained" if share else "no alarm"
    by = f"called by made queries {np.mean(cell.by_made):.2f}, by asked {np.mean(cell.by_asked):.2f}"
    shift = f"{share:.0%} {source}" if share else "no shift"
    shift += f", harm {harm:+.2f} ({by}), alarm {np.mean(cell.alarm):.2f}"
    what = f"{study}: {shift}: {judged}, of {len(right)} batches [{low:.3f}, {high:.3f}]"
    ours, theirs = float(right.mean()), float(peer.mean())
    found = {"what": what, "ours": ours, "peer": theirs, "ratio": ours / theirs if theirs else None}
    if due and harm < HARM:
        return found | {"goal": "-", "met": None}
    return found | {"goal": 1 - MOST_FALSE, "met": ours >= 1 - MOST_FALSE}


def _calibrate(reference: Vectors, plan: Plan) -> Calibration:
    from model_code.hierarchy.build import build_hierarchy
    from model_code.hierarchy.settings import HierarchySettings

    sizes = {"minimum_batch": plan.batch, "largest_batch": plan.batch, "reference_documents": plan.reference}
    settings = DriftSettings(**sizes, draws=plan.draws)
    hierarchy = build_hierarchy(reference.documents, HierarchySettings(max_iterations=20, device="cpu"), seed=0)
    made, asked = _found(reference, reference.documents)
    built = DriftReference.build(reference.documents, hierarchy, "", settings)
    return Calibration(built, settings, scores=OldScores(made, asked))


def _found(own: Vectors, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How well each of `own` is found among `documents` by its made query, and by its written one: (n,), (n,)."""
    made, asked = (reciprocal_ranks(queries, own.documents, documents) for queries in (own.made, own.asked))
    return made, asked


def _judge(calibration: Calibration, reference: Vectors, batch: Vectors, cell: Cell) -> None:
    made, asked = _found(batch, np.concatenate([reference.documents, batch.documents]))
    report = make_report(calibration, [Arrivals(batch.documents, "", made, asked=asked)], added=len(made))
    tripped = {one.name for one in report.tripped} - {"growth"}
    cell.harm.append(-report.of("asked_quality")[0].value)
    cell.alarm.append(bool(tripped))
    cell.by_made.append("new_quality" in tripped)
    cell.by_asked.append("asked_quality" in tripped)
    cell.retrain.append(decide(report, (), calibration.settings).action == "retrain")
    cell.customary.append(report.of("topics")[0].detail["population_stability"] > CUSTOMARY_PSI)


def _mixed(home: Vectors, away: Vectors, share: float, size: int, chance: np.random.Generator) -> Vectors:
    shifted = round(share * size)
    if len(away.documents) < shifted or len(home.documents) < size - shifted:
        raise FreshetError(
            f"a batch of {size} needs as many documents; a source has {len(away.documents)} with a query"
        )
    counted = ((away, shifted), (home, size - shifted))
    parts = [one[chance.permutation(len(one.documents))[:count]] for one, count in counted]
    return Vectors(
        *(np.concatenate(one) for one in zip(*((one.documents, one.made, one.asked) for one in parts), strict=True))
    )


def _studies(data: Path | None, plan: Plan) -> Iterator[tuple[str, Pairs, dict[str, Pairs]]]:
    """Names of references, their documents, and by name those from elsewhere."""
    elsewhere = {name: _some(_docstrings((name,)), plan) for name in NEIGHBOURS}
    plain = _some(_docstrings(JARGON), plan)
    elsewhere["jargon"] = [(_in_jargon(text), _in_jargon(query)) for text, query in plain]
    sets = {name: _read(CorpusSettings(source="beir", path=name), data) for name in SETS} if data else {}
    elsewhere |= {name: _some(pairs, plan) for name, pairs in sets.items()}
    yield "docstrings", _docstrings(HOME), elsewhere
    if BY_DATE in sets:
        early = sets[BY_DATE][: 2 * plan.reference]  # in order of date
        yield f"early {BY_DATE}", early, {f"latest {BY_DATE}": sets[BY_DATE][-plan.per_source :]}


def _docstrings(packages: tuple[str, ...]) -> Pairs:
    return _read(CorpusSettings(source="installed_packages", packages=packages), Path())


def _read(settings: CorpusSettings, root: Path) -> Pairs:
    source = open_source(settings, root)
    queries = {line.values["id"]: line.values["text"] for line in source.rows("queries")}
    asked = {line.values["document_id"]: queries[line.values["query_id"]] for line in source.rows("qrels")}
    documents = (line.values for line in source.rows("documents"))
    return [(f"{one['title']} {one['text']}", asked[one["id"]]) for one in documents if one["id"] in asked]


def _some(pairs: Pairs, plan: Plan) -> Pairs:
    return [pairs[i] for i in np.random.default_rng(0).permutation(len(pairs))[: plan.per_source]]


def _in_jargon(text: str) -> str:
    return text.lower().translate(OTHER_LETTERS)


def _encode(encoder: Any, pairs: Pairs) -> Vectors:
    """Texts too short to cut a query out of are left out."""
    cloze = InverseCloze("short_cloze", PseudoQuerySettings().short_cloze)
    made = [(text, span, query) for text, query in pairs for span in cloze.spans(text, text, seed=0)[:1]]
    return Vectors(*(encoder.encode(list(texts)) for texts in zip(*made, strict=True)))


def _folder(variable: str) -> Path | None:
    return Path(os.environ[variable]) if os.environ.get(variable) else None
