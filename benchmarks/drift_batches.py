"""Build batches of real documents, score how well they are found, and run drift checks on them.

Home documents are docstrings of some packages. Shifted documents are docstrings of neighbouring
packages, and a jargon that no encoder has seen: docstrings and their summaries with exchanged
letters. If there is a folder of data sets, its `tldr` and `scifact` are sources too. It also gives
a
second home: early pages of tldr, with its latest pages as the shift. Each document comes with a
query that people wrote, which is its summary or a judged query. It gets one more query that is cut
out of its text.
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
# Folders of data sets in BEIR layout. The documents of `BY_DATE` are in order of date.
SETS, BY_DATE = ("tldr", "scifact"), "tldr"
OTHER_LETTERS = str.maketrans("aeioubcdfghjklmnpqrstvwxyz", "eiouadfghjklmnpqrstvwxyzbc")
# Documents, each with a query that people wrote for it.
Pairs = list[tuple[str, str]]
# Documents, each with a query that was cut out of it, and the written query.
Triples = list[tuple[str, str, str]]


@dataclass(frozen=True, eq=False)
class Vectors:
    """Unit vectors (n, H) of documents, of one generated and of one written query per document.

    made: Has shape (0, H) if generated queries are left out.
    """

    documents: np.ndarray
    made: np.ndarray
    asked: np.ndarray

    def __getitem__(self, rows: np.ndarray | slice) -> Vectors:
        return Vectors(self.documents[rows], self.made[rows], self.asked[rows])


@dataclass(frozen=True)
class StudyPlan:
    """Size of a simulation: `splits` of home documents, `repeats` batches per share and split.

    more_splits: Splits for batches without a shift alone. False alarms are rare, and batches of one
    split are not independent draws: a share of .083 over 12 splits was .043 over 60 others.
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
    """Return the names of the references, their documents, and the shifted documents by source."""
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
        early = sets[BY_DATE][: 2 * plan.reference]
        yield f"early {BY_DATE}", early, {f"latest {BY_DATE}": sets[BY_DATE][-plan.per_source :]}


def with_made(pairs: Pairs) -> Triples:
    """Return the documents that are long enough to cut a query out of, with that query."""
    cloze = InverseCloze("short_cloze", QUERY_LENGTH_SPANS)
    return [
        (text, span, query) for text, query in pairs for span in cloze.spans(text, text, seed=0)[:1]
    ]


def encode(encoder: Any, triples: Triples, made: bool = True) -> Vectors:
    """Encode all documents with one encoder; `made=False` leaves out the cut-out queries."""
    documents, cut, asked = (list(texts) for texts in zip(*triples, strict=True))
    return Vectors(*(encoder.encode(texts) for texts in (documents, cut if made else [], asked)))


def mixed(
    home: Vectors, away: Vectors, share: float, size: int, chance: np.random.Generator
) -> Vectors:
    """Draw a random batch with a share of `away`; refuse sources that are too small."""
    shifted = round(share * size)
    if len(away.documents) < shifted or len(home.documents) < size - shifted:
        raise FreshetError(
            f"a batch of {size} needs as many documents; "
            f"a source has {len(away.documents)} with a query"
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
    """Remove the first paragraph of the text if it is the query."""
    first, _, others = text.partition("\n\n")
    return others if first.split() == query.split() else text


def _some(pairs: Pairs, plan: StudyPlan) -> Pairs:
    return [pairs[i] for i in np.random.default_rng(0).permutation(len(pairs))[: plan.per_source]]


def _in_jargon(text: str) -> str:
    return text.lower().translate(OTHER_LETTERS)


CUSTOMARY_PSI = 0.2


@dataclass
class CellCounts:
    """Results of batches with one share of shift: the harm of each batch and the alarms.

    by_made, by_asked: Whether queries of that kind reported harm.
    """

    harm: list[float] = field(default_factory=list)
    alarm: list[bool] = field(default_factory=list)
    retrain: list[bool] = field(default_factory=list)
    customary: list[bool] = field(default_factory=list)
    by_made: list[bool] = field(default_factory=list)
    by_asked: list[bool] = field(default_factory=list)


@dataclass(frozen=True)
class Compared:
    """Reference of the drift check and of the peer, which counts documents by nodes of the tree."""

    ours: Calibration
    tree: Hierarchy

    def topics(self, documents: np.ndarray) -> np.ndarray:
        """Count the documents below each node of the first level: (K,)."""
        return np.bincount(self.tree.place(documents)[:, 0], minlength=len(self.tree.centroids[0]))


def calibrate(old: Vectors, plan: StudyPlan, rows: np.ndarray | None = None) -> Compared:
    """Build the reference from all of `old` or from its `rows`.

    The rows are searched among all of `old`.
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
    """Add the result of a batch that joins the old documents (n, H) to `cell`."""
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
    """Return the population stability index of counts (K,) and (K,), at least 0.

    The peer's rule uses it. PSI = sum_t (q_t - p_t) ln(q_t / p_t), the sum of the two
    Kullback-Leibler divergences, in nats. .5 is added to each count, because the PSI of an empty
    node would be infinite (Jeffreys' prior).
    """
    p, q = ((counts + 0.5) / (counts + 0.5).sum() for counts in (old, new))
    return float(((q - p) * np.log(q / p)).sum())


def found(own: Vectors, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return reciprocal ranks (n,) of `own` by generated and by written query.

    They are ranks among `documents`.
    """
    made, asked = (
        reciprocal_ranks(queries, own.documents, documents) for queries in (own.made, own.asked)
    )
    return made, asked


def reciprocal_ranks(
    queries: np.ndarray, own: np.ndarray, others: np.ndarray, depth: int = 10
) -> np.ndarray:
    """Return 1 / rank of each query's `own` document (n, H) among `others`: (n,).

    `others` includes the document itself. The value is 0 beyond `depth`.
    """
    scores = (queries * own).sum(axis=1)
    better = (queries @ others.T > scores[:, None] + 1e-6).sum(axis=1)
    return np.where(better < depth, 1 / (1 + better), 0.0)
