"""One batch of new documents beside a reference: how well it is found, and what the drift report calls for."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from benchmarks.drift_sources import Plan, Vectors
from model_code.drift.calibration import Calibration
from model_code.drift.ladder import decide
from model_code.drift.measures import OldScores
from model_code.drift.reference import DriftReference
from model_code.drift.report import Arrivals, make_report
from model_code.drift.settings import DriftSettings

CUSTOMARY_PSI = 0.2


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


def calibrate(old: Vectors, plan: Plan, rows: np.ndarray | None = None) -> Calibration:
    """What batches are compared with: all of `old`, or those of its `rows`, which are searched among all of it."""
    from model_code.hierarchy.build import build_hierarchy
    from model_code.hierarchy.settings import HierarchySettings

    sizes = {"minimum_batch": plan.batch, "largest_batch": plan.batch, "reference_documents": plan.reference}
    settings = DriftSettings(**sizes, draws=plan.draws)
    hierarchy = build_hierarchy(old.documents, HierarchySettings(max_iterations=20, device="cpu"), seed=0)
    made, asked = found(old if rows is None else old[rows], old.documents)
    built = DriftReference.build(old.documents, hierarchy, "", settings, rows)
    return Calibration(built, settings, scores=OldScores(made, asked))


def judge(calibration: Calibration, old: np.ndarray, batch: Vectors, cell: Cell) -> None:
    """Adds to `cell` what becomes of a batch that joins the old documents (n, H)."""
    made, asked = found(batch, np.concatenate([old, batch.documents]))
    report = make_report(calibration, [Arrivals(batch.documents, "", made, asked=asked)], added=len(made))
    tripped = {one.name for one in report.tripped} - {"growth"}
    cell.harm.append(-report.of("asked_quality")[0].value)
    cell.alarm.append(bool(tripped))
    cell.by_made.append("new_quality" in tripped)
    cell.by_asked.append("asked_quality" in tripped)
    cell.retrain.append(decide(report, (), calibration.settings).action == "retrain")
    topics = calibration.reference.topics, calibration.reference.place(batch.documents)[0]
    counts = (np.bincount(each, minlength=calibration.reference.topic_count) for each in topics)
    cell.customary.append(population_stability(*counts) > CUSTOMARY_PSI)


def population_stability(old: np.ndarray, new: np.ndarray) -> float:
    """The population stability index of counts (K,) and (K,), the peer's rule, at least 0.

    PSI = sum_t (q_t - p_t) ln(q_t / p_t): the two Kullback-Leibler divergences together, in nats; .5 is added to each
    count, as the PSI of an empty node would be infinite (Jeffreys' prior).
    """
    p, q = ((counts + 0.5) / (counts + 0.5).sum() for counts in (old, new))
    return float(((q - p) * np.log(q / p)).sum())


def found(own: Vectors, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How well each of `own` is found among `documents` by its made query, and by its written one: (n,), (n,)."""
    made, asked = (reciprocal_ranks(queries, own.documents, documents) for queries in (own.made, own.asked))
    return made, asked


def reciprocal_ranks(queries: np.ndarray, own: np.ndarray, others: np.ndarray, depth: int = 10) -> np.ndarray:
    """1 / rank of each query's `own` document (n, H) among `others`, which hold it; 0 past `depth`: (n,)."""
    scores = (queries * own).sum(axis=1)
    better = (queries @ others.T > scores[:, None] + 1e-6).sum(axis=1)
    return np.where(better < depth, 1 / (1 + better), 0.0)
