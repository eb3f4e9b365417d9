"""The drift reference of a live build: made from its base when it is first asked for, and kept with its calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from model_code.drift.calibration import SMALLEST_SHARE, Calibration
from model_code.drift.measures import OldScores
from model_code.drift.reference import FORMAT, DriftReference
from model_code.drift.report import Arrivals
from model_code.files import canonical_json, hash_text
from model_code.live.searcher import Searcher
from model_code.live.trained import trained_documents
from model_code.manifest import MANIFEST
from orchestration.parameters import Parameters
from orchestration.project import Project
from orchestration.watching.eligible import by_date, eligible
from orchestration.watching.quality import old_scores
from orchestration.watching.queries import has_queries, queries_of_build, query_vectors, some
from orchestration.watching.questions import old_questions
from orchestration.watching.vectors import first_rows, passage_vectors


def calibration_of(
    project: Project,
    searcher: Searcher,
    settings: Parameters,
    arrivals: Sequence[Arrivals],
    arrived: Mapping[str, frozenset[str]],
) -> Calibration:
    """The calibration of the live build for a report on `arrivals`, from `.freshet/drift`; that folder may be deleted
    at any time.

    Of queries, and with scores of old documents, only where the arrivals have them, as these take a while. arrived: see
    `old_scores`.
    """
    with_queries = arrivals[-1].queries is not None
    folder = _folder(project, searcher, settings, with_queries)
    kept = folder / "reference"
    if not (kept / MANIFEST).is_file():
        queries = _queries(project, searcher, settings) if with_queries else None
        build_reference(project, searcher, settings, folder, queries).save(kept)
    reference = DriftReference.load(kept)
    made, asked = reference.questions.made, reference.questions.asked
    scores = OldScores(
        old_scores(searcher, made if _enough(settings, [one.quality for one in arrivals]) else (), arrived),
        old_scores(searcher, asked if _enough(settings, [one.asked for one in arrivals]) else (), arrived),
    )
    return Calibration(reference, settings.drift, folder / "nulls", scores)


def build_reference(
    project: Project, searcher: Searcher, settings: Parameters, folder: Path, queries: np.ndarray | None = None
) -> DriftReference:
    """A reference of documents that the retriever was trained with, and of the hierarchy that is searched now.

    queries: vectors of those of the build. Growth counts from the documents that the retriever was trained on, which a
    base that was clustered anew outnumbers.
    """
    base, chosen = searcher.base, settings.drift
    documents, note = eligible(project, searcher.generation, SMALLEST_SHARE * chosen.largest_batch)
    return DriftReference.build(
        passage_vectors(base),
        base.tree,
        searcher.generation.fingerprint,
        chosen,
        _rows(project, searcher, documents, in_order=chosen.batches == "in_order"),
        trained=len(trained_documents(searcher.generation)),
        queries=queries,
        questions=old_questions(project, searcher, settings, documents, folder),
        note=note,
    )


def _rows(project: Project, searcher: Searcher, documents: set[str], in_order: bool) -> np.ndarray:
    """The rows of the base that the first passages of `documents` are, ascending or by date: (n,)."""
    ids = searcher.base.rows.document_ids
    row_of = {ids[row]: row for row in first_rows(ids).tolist() if ids[row] in documents}
    ordered = by_date(project, searcher.generation, row_of) if in_order else row_of
    return np.array([row_of[one] for one in ordered], np.int64)


def _queries(project: Project, searcher: Searcher, settings: Parameters) -> np.ndarray:
    chosen = settings.drift
    texts = queries_of_build(project, searcher.generation, SMALLEST_SHARE * chosen.minimum_batch)
    return query_vectors(searcher.base, some(texts, chosen.reference_documents, chosen.seed))


def _enough(settings: Parameters, scores: Sequence[np.ndarray | None]) -> bool:
    """Whether there are scores of so many new documents that a report compares them with those of old ones."""
    return sum(len(one) for one in scores if one is not None) >= settings.drift.minimum_batch


def _folder(project: Project, searcher: Searcher, settings: Parameters, with_queries: bool) -> Path:
    """One folder per build and settings: the base never changes under its number and fingerprint.

    A reference that was made while the corpus's queries were not there is no reference for later: it protects none.
    """
    generation = searcher.generation
    facts = {"base": generation.base, "fingerprint": generation.fingerprint, "settings": repr(settings.drift)}
    facts |= {"format": FORMAT, "queries": repr(settings.pseudo_queries), "judged": has_queries(project.artifacts)}
    facts |= {"logged": True} if with_queries else {}
    return project.state / "drift" / f"{generation.retriever}-{hash_text(canonical_json(facts))[:16]}"
