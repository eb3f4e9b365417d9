"""The measures of one set of arriving documents, each beside its null distribution at that number of documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_code.drift.calibration import Calibration
from model_code.drift.classifier import contrasted, domain_auc
from model_code.drift.draws import most_measured, some
from model_code.drift.fit import mean_difference
from model_code.drift.measured import Observation, Scope
from model_code.drift.quality import new_quality
from model_code.drift.shares import observe_conflicts, refined
from model_code.drift.topics import DIVERGENCES, counts_of, most_moved
from model_code.errors import FingerprintMismatch, FreshetError

OF_QUERIES = ("query_auc", "query_mmd")
NOT_GIVEN, NOT_REFINED = "nothing of the kind was given", "no addition was refined by IncDSI"


@dataclass(frozen=True, eq=False)
class Arrivals:
    """What arrived: m documents, and optionally scores of k and of a of them, one per document, and l logged queries.

    fingerprint: of the encoder of both. statuses: names of model_code.incdsi.documents.Status, of what was refined.
    Queries must differ from each other: one asked often would look like drift. no_queries, no_statuses: why there are
    none.
    """

    vectors: np.ndarray  # (m, H) float32, unit norm
    fingerprint: str
    quality: np.ndarray | None = None  # (k,) mean score over a document's held-out pseudo-queries
    asked: np.ndarray | None = None  # (a,) the same over the queries that it arrived with
    statuses: tuple[str, ...] = ()
    queries: np.ndarray | None = None  # (l, H) float32, unit norm
    no_queries: str = NOT_GIVEN
    no_statuses: str = NOT_REFINED


@dataclass(frozen=True)
class Unmeasured:
    """A measure that this report does not have, and why."""

    name: str
    why: str
    scope: Scope = "batch"


def observe(calibration: Calibration, arrivals: Arrivals, scope: Scope) -> Iterator[Observation | Unmeasured]:
    """Every measure of `arrivals`, or the reason why it cannot be taken. Raises FingerprintMismatch for vectors of
    another encoder, and FreshetError for arrays that do not fit or hold what is no number."""
    _check(calibration, arrivals)
    reference, scores = calibration.reference, calibration.scores
    parts = [
        (("domain_auc", "mmd", "topics", "fit"), arrivals.vectors, reference.vectors, _of_documents),
        (("new_quality",), arrivals.quality, scores.made, _of_quality),
        (("asked_quality",), arrivals.asked, scores.asked, _of_asked),
        (OF_QUERIES, arrivals.queries, reference.queries, _of_queries),
    ]
    for names, given, compared, measure in parts:
        why = _why_not(calibration, given, compared)
        if why:
            why = arrivals.no_queries if given is None and names is OF_QUERIES else why
            yield from (Unmeasured(name, why, scope) for name in names)
            continue
        size = most_measured(len(compared), calibration.settings.largest_batch)
        yield from measure(calibration, some(given.reshape(len(given), -1), size, calibration.settings.seed), scope)
    yield _conflicts(calibration, arrivals, scope)


def _why_not(calibration: Calibration, given: np.ndarray | None, compared: np.ndarray) -> str | None:
    least, largest = calibration.settings.minimum_batch, calibration.settings.largest_batch
    if given is None:
        return NOT_GIVEN
    if len(given) < least:
        return f"{len(given)} are fewer than drift.minimum_batch = {least}"
    if most_measured(len(compared), largest) < least:
        few = f"the reference has {len(compared)}, fewer than 3 x drift.minimum_batch = {3 * least}"
        half = f", and keeps half of the corpus at most: {6 * least} documents are needed"
        return few + half * (compared is calibration.reference.vectors)
    return None


def _of_documents(calibration: Calibration, vectors: np.ndarray, scope: Scope) -> Iterator[Observation]:
    yield from _of_vectors(calibration, ("domain_auc", "mmd"), vectors, scope)
    reference, chosen = calibration.reference, calibration.settings
    topics, cosines = reference.place(vectors)
    old, new = (counts_of(nodes, reference.topic_count) for nodes in (reference.topics, topics))
    detail: dict[str, Any] = {"nodes": reference.topic_count, "moved": most_moved(old, new)}
    detail |= {name: float(divergence(old, new)) for name, divergence in DIVERGENCES.items()}
    value = detail[chosen.topic_divergence]
    yield Observation("topics", value, calibration.null("topics", len(vectors)), "high", scope, detail)
    detail = {"old": float(reference.cosines.mean()), "new": float(cosines.mean())}
    value = mean_difference(reference.cosines, cosines)
    yield Observation("fit", value, calibration.null("fit", len(vectors)), "low", scope, detail)


def _of_queries(calibration: Calibration, vectors: np.ndarray, scope: Scope) -> Iterator[Observation]:
    return _of_vectors(calibration, OF_QUERIES, vectors, scope)


def _of_vectors(
    calibration: Calibration, names: tuple[str, str], new: np.ndarray, scope: Scope
) -> Iterator[Observation]:
    chosen, of_queries = calibration.settings, names[0] == "query_auc"
    old = calibration.reference.queries if of_queries else calibration.reference.vectors
    rest = min(len(old) - len(new), chosen.classifier_contrast)  # as many as the null's batches are told from
    found = (domain_auc(contrasted(old, rest, chosen.seed), new, chosen.seed), calibration.mmd(new, of_queries))
    for name, value in zip(names, found, strict=True):
        yield Observation(name, value, calibration.null(name, len(new)), "high", scope, {"measured": len(new)})


def _of_quality(calibration: Calibration, scores: np.ndarray, scope: Scope) -> Iterator[Observation]:
    null = calibration.null("new_quality", len(scores))
    yield new_quality(calibration.scores.made, scores[:, 0], null, calibration.settings.quality_margin, scope)


def _of_asked(calibration: Calibration, scores: np.ndarray, scope: Scope) -> Iterator[Observation]:
    null, margin = calibration.null("asked_quality", len(scores)), calibration.settings.quality_margin
    yield new_quality(calibration.scores.asked, scores[:, 0], null, margin, scope, "asked_quality")


def _conflicts(calibration: Calibration, arrivals: Arrivals, scope: Scope) -> Observation | Unmeasured:
    if not refined(arrivals.statuses):
        return Unmeasured("conflicts", arrivals.no_statuses, scope)
    chosen = calibration.settings
    return observe_conflicts(arrivals.statuses, chosen.conflict_limit, chosen.draws, chosen.seed, scope)


def _check(calibration: Calibration, arrivals: Arrivals) -> None:
    reference = calibration.reference
    if arrivals.fingerprint != reference.fingerprint:
        raise FingerprintMismatch(
            f"the documents were encoded by {arrivals.fingerprint[:12]}, the drift reference by "
            f"{reference.fingerprint[:12]}: build the reference of the retriever that is live"
        )
    width = reference.vectors.shape[1]
    for what, vectors in (("documents", arrivals.vectors), ("queries", arrivals.queries)):
        if vectors is not None and (vectors.ndim != 2 or vectors.shape[1] != width or not np.isfinite(vectors).all()):
            raise FreshetError(
                f"vectors of {what} must be finite and (n, {width}), not {vectors.shape}; encode them again"
            )
    if any(scores is not None and not np.isfinite(scores).all() for scores in (arrivals.quality, arrivals.asked)):
        raise FreshetError("a document's score is not a number: leave out documents without held-out queries")
