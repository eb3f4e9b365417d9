"""Measure what was added since the last report, decide what it calls for, and keep both in the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from model_code.drift.ladder import Decision, Past, decide
from model_code.drift.observations import Arrivals
from model_code.drift.rendering import report_dict, report_text
from model_code.drift.report import Report, make_report
from model_code.errors import FreshetError
from model_code.live.documents import read_documents
from model_code.live.searcher import Searcher
from model_code.live.trained import added_since_training
from orchestration import parameters
from orchestration.additions import statuses_of
from orchestration.freshness_steps import FAILED, PROMOTED, RECLUSTER, REFUSED, RETRAIN
from orchestration.ledgers import existing_ledger
from orchestration.parameters import Parameters
from orchestration.project import Project
from orchestration.watching.quality import document_scores
from orchestration.watching.reference import calibration_of
from orchestration.watching.vectors import document_vectors

if TYPE_CHECKING:
    from model_code.ledger.ledger import Ledger

Batch = tuple[int, int]  # first and last event


@dataclass(frozen=True)
class Watched:
    """A report and what it calls for; `batch`: the first and the last event that are new since the report before."""

    report: Report
    decision: Decision
    batch: Batch

    @property
    def tripped(self) -> tuple[str, ...]:
        """The measures beyond their thresholds."""
        return tuple(one.label for one in self.report.tripped)

    @property
    def text(self) -> str:
        """Every value beside its threshold, and the decision."""
        return report_text(self.report, self.decision)


def watch(project: Project, record: bool = True) -> Watched | None:
    """Measure, decide, keep both; None if fewer than `drift.minimum_batch` documents were added since the last report.

    record=False: a dry run, kept nowhere, of however few documents; None if there is none.
    """
    settings, searcher = parameters.load(project.params_file), Searcher.open(project.live)
    ledger = existing_ledger(project, searcher.generation.retriever)
    if ledger is None:
        return None
    batches = _batches(ledger, settings.drift.window, searcher.generation.watermark)
    arrivals = [_arrivals(project, ledger, searcher, settings, batch) for batch in batches]
    least = settings.drift.minimum_batch if record else 1
    if not arrivals or len(arrivals[-1].vectors) < least:
        return None
    added = len(added_since_training(searcher.generation))
    report = make_report(calibration_of(project, searcher, settings), arrivals, added)
    decision = decide(report, past(ledger), settings.drift, dry_run=not record)
    watched = Watched(report, decision, batches[-1])
    if record:
        ledger.record_drift(report_dict(report, decision), watched.batch)
        ledger.record_decision(decision.action, "; ".join(decision.reasons), {"batch": list(watched.batch)})
    return watched


def past(ledger: Ledger) -> list[Past]:
    """What was decided for earlier batches and whether it was done, oldest first, as the cooldown counts them."""
    history: list[Past] = []
    for decision in reversed(ledger.last_decisions(200)):
        kind = decision["kind"]
        if kind in ("add", RECLUSTER, RETRAIN) and "batch" in decision["details"]:
            history.append(Past(kind, carried_out=kind != RETRAIN))
        elif kind in (PROMOTED, REFUSED, FAILED) and history and history[-1].action == RETRAIN:
            history[-1] = Past(RETRAIN, carried_out=kind != FAILED)
    return history


def _batches(ledger: Ledger, window: int, watermark: int) -> list[Batch]:
    """The batches of the last reports, oldest first, and what came after them up to the generation's watermark."""
    reported = [(one["first_event"], one["last_event"]) for one in reversed(ledger.last_drift(window))]
    first = reported[-1][1] + 1 if reported else 1
    return [*reported, (first, watermark)] if first <= watermark else []


def _arrivals(project: Project, ledger: Ledger, searcher: Searcher, settings: Parameters, batch: Batch) -> Arrivals:
    """The documents of a batch that are still live as they arrived then, each in the order of its event."""
    put = [one.document_id for one in ledger.between(*batch) if one.kind == "put" and one.state in ("live", "absorbed")]
    vectors, texts = _vectors_and_texts(searcher, put)
    folder = project.state / "drift" / "queries"
    scores = document_scores(searcher, texts, settings.pseudo_queries, settings.drift.seed, folder) if texts else {}
    quality = np.array(list(scores.values()), np.float32)
    told = statuses_of(project, searcher.generation)
    statuses = tuple(told[one] for one in put if one in told)
    return Arrivals(vectors, searcher.generation.fingerprint, quality if len(quality) else None, statuses)


def _vectors_and_texts(searcher: Searcher, document_ids: Sequence[str]) -> tuple[np.ndarray, dict[str, str]]:
    found: list[np.ndarray] = []
    texts: dict[str, str] = {}
    for view in searcher.views:
        own = [one for one in document_ids if one in view]
        if own:
            found.append(document_vectors(view.part, own))
            texts |= {one: row["text"] for one, row in read_documents(view.part.documents, own).items()}
    width = document_vectors(searcher.base, searcher.base.rows.document_ids[:1]).shape[1]
    return (np.concatenate(found) if found else np.zeros((0, width), np.float32)), dict(sorted(texts.items()))


def required(watched: Watched | None) -> Watched:
    """The report; FreshetError if there is none because nothing was added."""
    if watched is None:
        raise FreshetError(
            "fewer than drift.minimum_batch documents were added since the last report, so nothing is measured yet; "
            "--explain measures however few there are"
        )
    return watched


def as_dict(watched: Watched) -> dict[str, Any]:
    """Report, decision and batch as plain values."""
    return report_dict(watched.report, watched.decision) | {"batch": list(watched.batch)}
