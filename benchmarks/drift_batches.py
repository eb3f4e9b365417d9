"""Batches of real documents beside a reference: where they come from, how well each is found, what
drift calls for.

Home are docstrings of some packages. From elsewhere come neighbouring packages, and a jargon that
no encoder ever saw: docstrings and their summaries with exchanged letters. Where there is a folder
of data sets, also its `tldr` and `scifact`, and a second home: tldr's early pages, with its latest
ones from elsewhere. Each document comes with a query that people wrote, its summary or a judged
one, and gets one more that is cut out of its text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.base import open_source
from model_code.drift.calibration import Calibration
from model_code.drift.measures import Arrivals, OldScores
from model_code.drift.reference import DriftReference
from model_code.drift.report import make_report
from model_code.drift.settings import DriftSettings
from model_code.errors import FreshetError
from model_code.hierarchy.tree import Hierarchy
from model_code.queries.pseudo_queries import InverseCloze
from model_code.queries.settings import QUERY_LENGTH_SPANS
from orchestration.freshness.policy import decide

HOME, NEIGHBOURS, JARGON = ("stdlib", "numpy", "pandas"), ("scipy", "matplotlib"), ("sklearn",)
SETS, BY_DATE = ("tldr", "scifact"), "tldr"  # folders of data sets in BEIR layout
OTHER_LETTERS = str.maketrans("aeioubcdfghjklmnpqrstvwxyz", "eiouadfghjklmnpqrstvwxyzbc")
Pairs = list[tuple[str, str]]  # documents, each with a query that people wrote for it
# documents, each with a query that was cut out of it, and the written one
Triples = list[tuple[str, str, str]]


@dataclass(frozen=True, eq=False)
class Vectors:
    """Unit vectors (n, H) of documents, and for each of one query that was made from it and one
    that was written.

    made: (0, H) where nobody asks for them.
    """

    documents: np.ndarray
    made: np.ndarray
    asked: np.ndarray

    def __getitem__(self, rows: np.ndarray | slice) -> Vectors:
        return Vectors(self.documents[rows], self.made[rows], self.asked[rows])


@dataclass(frozen=True)
class StudyPlan:
    """How much is simulated: `splits` of the home documents, and `repeats` batches of each share
    and split.

    more_splits: for batches without a shift alone. False alarms are rare, and batches of one split
    are no independent draws: a share of .083 over 12 splits was one of .043 over 60 others.
    """

    reference: int = 1500
    batch: int = 100
    per_source: int = 300
    splits: int = 12
    more_splits: int = 48
    repeats: int = 4
    draws: int = 399
    max_tokens: int = 64


def studies(data: Path | None, plan: StudyPlan) -> Iterator[tuple[str, Pairs, dict[str, Pairs]]]:
    """Names of references, their documents, and by name those from elsewhere."""
    elsewhere = {name: _some(_docstrings((name,)), plan) for name in NEIGHBOURS}
    plain = _some(_docstrings(JARGON), plan)
    elsewhere["jargon"] = [(_in_jargon(text), _in_jargon(query)) for text, query in plain]
    sets = (
        {name: _read(CorpusSettings(source="beir", path=name), data) for name in SETS}
        if data
        else {}
    )
    elsewhere |= {name: _some(pairs, plan) for name, pairs in sets.items()}
    yield "docstrings", _docstrings(HOME), elsewhere
    if BY_DATE in sets:
        early = sets[BY_DATE][: 2 * plan.reference]  # in order of date
        yield f"early {BY_DATE}", early, {f"latest {BY_DATE}": sets[BY_DATE][-plan.per_source :]}


def with_made(pairs: Pairs) -> Triples:
    """The documents that are long enough to cut a query out of, with it."""
    cloze = InverseCloze("short_cloze", QUERY_LENGTH_SPANS)
    return [
        (text, span, query) for text, query in pairs for span in cloze.spans(text, text, seed=0)[:1]
    ]


def encode(encoder: Any, triples: Triples, made: bool = True) -> Vectors:
    """One encoder gives them all. made: False leaves out the queries that were cut out."""
    documents, cut, asked = (list(texts) for texts in zip(*triples, strict=True))
    return Vectors(*(encoder.encode(texts) for texts in (documents, cut if made else [], asked)))


def mixed(
    home: Vectors, away: Vectors, share: float, size: int, chance: np.random.Generator
) -> Vectors:
    """A batch of which a share is from `away`, drawn by chance; refuses sources that are too small."""
    shifted = round(share * size)
    if len(away.documents) < shifted or len(home.documents) < size - shifted:
        raise FreshetError(
            f"a batch of {size} needs as many documents; a source has {len(away.documents)} with a query"
        )
    counted = ((away, shifted), (home, size - shifted))
    parts = [one[chance.permutation(len(one.documents))[:count]] for one, count in counted]
    return Vectors(
        *(
            np.concatenate(one)
            for one in zip(*((one.documents, one.made, one.asked) for one in parts), strict=True)
        )
    )


def _docstrings(packages: tuple[str, ...]) -> Pairs:
    return _read(CorpusSettings(source="installed_packages", packages=packages), Path())


def _read(settings: CorpusSettings, root: Path) -> Pairs:
    source = open_source(settings, root)
    queries = {line.values["id"]: line.values["text"] for line in source.rows("queries")}
    asked = {
        line.values["document_id"]: queries[line.values["query_id"]]
        for line in source.rows("qrels")
    }
    documents = (line.values for line in source.rows("documents"))
    chosen = [one for one in documents if one["id"] in asked]
    return [
        (f"{one['title']} {_without(one['text'], asked[one['id']])}", asked[one["id"]])
        for one in chosen
    ]


def _without(text: str, query: str) -> str:
    """The text without a first paragraph that is the query."""
    first, _, others = text.partition("\n\n")
    return others if first.split() == query.split() else text


def _some(pairs: Pairs, plan: StudyPlan) -> Pairs:
    return [pairs[i] for i in np.random.default_rng(0).permutation(len(pairs))[: plan.per_source]]


def _in_jargon(text: str) -> str:
    return text.lower().translate(OTHER_LETTERS)


CUSTOMARY_PSI = 0.2


@dataclass
class CellCounts:
    """What became of batches of which a share came from elsewhere: per batch its harm, and who
    called for what.

    by_made, by_asked: whether queries of that kind called it harm.
    """

    harm: list[float] = field(default_factory=list)
    alarm: list[bool] = field(default_factory=list)
    retrain: list[bool] = field(default_factory=list)
    customary: list[bool] = field(default_factory=list)
    by_made: list[bool] = field(default_factory=list)
    by_asked: list[bool] = field(default_factory=list)


@dataclass(frozen=True)
class Compared:
    """What batches are compared with: by ours, and the tree whose nodes the peer counts documents
    by.
    """

    ours: Calibration
    tree: Hierarchy

    def topics(self, documents: np.ndarray) -> np.ndarray:
        """How many documents lie below each node of the first level: (K,)."""
        return np.bincount(self.tree.place(documents)[:, 0], minlength=len(self.tree.centroids[0]))


def calibrate(old: Vectors, plan: StudyPlan, rows: np.ndarray | None = None) -> Compared:
    """What batches are compared with: all of `old`, or those of its `rows`, which are searched
    among all of it.
    """
    from model_code.hierarchy.build import build_hierarchy
    from model_code.hierarchy.settings import HierarchySettings

    sizes = {
        "minimum_batch": plan.batch,
        "largest_batch": plan.batch,
        "reference_documents": plan.reference,
    }
    settings = DriftSettings(**sizes, draws=plan.draws)
    hierarchy = build_hierarchy(
        old.documents, HierarchySettings(max_iterations=20, device="cpu"), seed=0
    )
    made, asked = found(old if rows is None else old[rows], old.documents)
    built = DriftReference.build(old.documents, "", settings, rows)
    return Compared(Calibration(built, settings, scores=OldScores(made, asked)), hierarchy)


def judge(compared: Compared, old: np.ndarray, batch: Vectors, cell: CellCounts) -> None:
    """Adds to `cell` what becomes of a batch that joins the old documents (n, H)."""
    made, asked = found(batch, np.concatenate([old, batch.documents]))
    calibration = compared.ours
    report = make_report(
        calibration, [Arrivals(batch.documents, "", made, asked=asked)], added=len(made)
    )
    exceeded = {one.name for one in report.exceeded} - {"growth"}
    cell.harm.append(-report.of("asked_quality")[0].value)
    cell.alarm.append(bool(exceeded))
    cell.by_made.append("new_quality" in exceeded)
    cell.by_asked.append("asked_quality" in exceeded)
    cell.retrain.append(decide(report, (), calibration.settings).action == "retrain")
    counts = compared.topics(calibration.reference.vectors), compared.topics(batch.documents)
    cell.customary.append(population_stability(*counts) > CUSTOMARY_PSI)


def population_stability(old: np.ndarray, new: np.ndarray) -> float:
    """The population stability index of counts (K,) and (K,), the peer's rule, at least 0.

    PSI = sum_t (q_t - p_t) ln(q_t / p_t): the two Kullback-Leibler divergences together, in nats;
    .5 is added to each count, as the PSI of an empty node would be infinite (Jeffreys' prior).
    """
    p, q = ((counts + 0.5) / (counts + 0.5).sum() for counts in (old, new))
    return float(((q - p) * np.log(q / p)).sum())


def found(own: Vectors, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How well each of `own` is found among `documents` by its made query, and by its written one:
    (n,), (n,).
    """
    made, asked = (
        reciprocal_ranks(queries, own.documents, documents) for queries in (own.made, own.asked)
    )
    return made, asked


def reciprocal_ranks(
    queries: np.ndarray, own: np.ndarray, others: np.ndarray, depth: int = 10
) -> np.ndarray:
    """1 / rank of each query's `own` document (n, H) among `others`, which hold it; 0 past `depth`:
    (n,).
    """
    scores = (queries * own).sum(axis=1)
    better = (queries @ others.T > scores[:, None] + 1e-6).sum(axis=1)
    return np.where(better < depth, 1 / (1 + better), 0.0)
