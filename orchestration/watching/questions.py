"""The queries for old documents that a drift reference keeps, drawn when it is made."""

from __future__ import annotations

from pathlib import Path

from model_code.drift.reference import Question, Questions
from model_code.live.documents import read_columns
from model_code.live.searcher import Searcher
from model_code.live.trained import trained_documents
from orchestration.parameters import Parameters
from orchestration.project import Project
from orchestration.watching.protected import protected_queries
from orchestration.watching.quality import made_questions, questions_for
from orchestration.watching.queries import judged_queries, some

SCORED = 600  # old documents whose queries every report searches, as the measure of what new ones should reach


def old_questions(
    project: Project, searcher: Searcher, settings: Parameters, documents: set[str], folder: Path
) -> Questions:
    """Those made from some of `documents`, those that the corpus has, and those that additions must not harm."""
    return Questions(
        tuple(_made(searcher, settings, documents, folder)),
        tuple(_asked(project, searcher, settings)),
        tuple(protected_queries(project, searcher, settings.drift.seed)),
    )


def _made(searcher: Searcher, settings: Parameters, documents: set[str], folder: Path) -> list[Question]:
    """The pseudo-queries of some of the old documents."""
    ids, texts = read_columns(searcher.base.documents, "document_id", "text")
    alive = set(searcher.views[0].document_ids()) & documents
    known = {one: text for one, text in zip(ids, texts, strict=True) if one in alive}
    sample = {one: known[one] for one in some(known, SCORED, settings.drift.seed)}
    return made_questions(sample, settings.pseudo_queries, settings.drift.seed, folder)


def _asked(project: Project, searcher: Searcher, settings: Parameters) -> list[Question]:
    """The corpus's own queries for some of the old documents, where it has any; those of the splits dev and test, as
    training moves queries, and for documents that the retriever was trained with and that are live as they were."""
    alive = set(searcher.views[0].document_ids()) & trained_documents(searcher.generation)
    found = [judged_queries(project.artifacts, split) for split in ("dev", "test")]
    real = [judgements for judgements in found if judgements and judgements.source == "qrels"]
    questions = [one for judgements in real for one in questions_for(judgements, alive)]
    chosen = set(some({one.document_id for one in questions}, SCORED, settings.drift.seed))
    return [one for one in questions if one.document_id in chosen]
