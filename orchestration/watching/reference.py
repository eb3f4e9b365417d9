"""The drift reference of a live build: made from its base when it is first asked for, and kept with its calibration."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from model_code.drift.calibration import Calibration
from model_code.drift.draws import SMALLEST_SHARE
from model_code.drift.reference import FORMAT, DriftReference
from model_code.files import canonical_json, hash_text
from model_code.index.manifest import MANIFEST
from model_code.live.documents import read_columns
from model_code.live.searcher import Searcher
from model_code.live.trained import trained_documents
from orchestration.parameters import Parameters
from orchestration.project import Project
from orchestration.watching.eligible import by_date, eligible
from orchestration.watching.protected import protected_queries
from orchestration.watching.quality import asked_scores, document_scores, questions_for
from orchestration.watching.queries import judged_queries, queries_of_build, query_vectors, some
from orchestration.watching.vectors import first_rows, passage_vectors

SCORED = 600  # old documents whose queries are searched once, as the measure of what new ones should reach


def calibration_of(
    project: Project, searcher: Searcher, settings: Parameters, with_queries: bool = False
) -> Calibration:
    """The calibration of the live build, from `.freshet/drift`; that folder may be deleted at any time.

    with_queries: also of queries, which take a while to encode.
    """
    folder = _folder(project, searcher, settings, with_queries)
    reference = folder / "reference"
    if not (reference / MANIFEST).is_file():
        queries = _queries(project, searcher, settings) if with_queries else None
        build_reference(project, searcher, settings, folder, queries).save(reference)
    return Calibration(DriftReference.load(reference), settings.drift, folder / "nulls")


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
        quality=_quality(searcher, settings, documents, folder),
        asked=_asked(project, searcher, settings),
        queries=queries,
        protected=protected_queries(project, searcher, chosen.seed),
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


def _quality(searcher: Searcher, settings: Parameters, documents: set[str], folder: Path) -> np.ndarray:
    ids, texts = read_columns(searcher.base.documents, "document_id", "text")
    alive = set(searcher.views[0].document_ids()) & documents
    known = {one: text for one, text in zip(ids, texts, strict=True) if one in alive}
    sample = {one: known[one] for one in some(known, SCORED, settings.drift.seed)}
    scores = document_scores(searcher, sample, settings.pseudo_queries, settings.drift.seed, folder)
    return np.array(list(scores.values()), np.float32)


def _asked(project: Project, searcher: Searcher, settings: Parameters) -> np.ndarray:
    """Old documents by the corpus's own queries, where it has any; those of the splits dev and test, as training moves
    queries, and of documents that the retriever was trained with and that are live as they were."""
    alive = set(searcher.views[0].document_ids()) & trained_documents(searcher.generation)
    found = [judged_queries(project.artifacts, split) for split in ("dev", "test")]
    real = [judgements for judgements in found if judgements and judgements.source == "qrels"]
    questions = [one for judgements in real for one in questions_for(judgements, alive)]
    chosen = set(some({one.document_id for one in questions}, SCORED, settings.drift.seed))
    scores = asked_scores(searcher, [one for one in questions if one.document_id in chosen])
    return np.array([scores[one] for one in sorted(scores)], np.float32)


def _folder(project: Project, searcher: Searcher, settings: Parameters, with_queries: bool) -> Path:
    """One folder per build and settings: the base never changes under its number and fingerprint."""
    generation = searcher.generation
    facts = {"base": generation.base, "fingerprint": generation.fingerprint, "settings": repr(settings.drift)}
    facts |= {"format": FORMAT, "queries": repr(settings.pseudo_queries)}
    facts |= {"logged": True} if with_queries else {}
    return project.state / "drift" / f"{generation.retriever}-{hash_text(canonical_json(facts))[:16]}"
