"""Protected queries: do additions push old documents down? Dev queries, searched among old documents and among all."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from model_code.drift.measures import Paired, crowding, reciprocal_ranks
from model_code.drift.reference import DriftReference, ProtectedQuery, Question
from model_code.live.searcher import Searcher
from model_code.live.trained import trained_documents
from orchestration.project import Project
from orchestration.watching.quality import first_ranks
from orchestration.watching.queries import judged_queries, some

PROTECTED = 300  # queries, searched again for every report
DEPTH = 100  # of both searches: what a growing collection costs depends on ranks beyond those that count, too


def protected_queries(project: Project, searcher: Searcher, seed: int) -> list[ProtectedQuery]:
    """At most PROTECTED of the build's dev queries (the corpus's own, else held-out pseudo-queries) for documents that
    the retriever was trained with, ranked as the build was opened: among these documents and no others.

    Not test queries: the gate judges a retrain by those, and what called for it must not have looked at them.
    None where the project has no corpus.
    """
    trained, judgements = trained_documents(searcher.generation), judged_queries(project.artifacts, "dev")
    if judgements is None:
        return []
    answers = {query: found for query, known in judgements.qrels.items() if (found := trained & known.keys())}
    asked = [_question(judgements.queries[one], answers[one]) for one in some(answers, PROTECTED, seed)]
    held = set(searcher.base.rows.document_ids)  # more than was trained with, where it was clustered anew
    search = partial(searcher.base.retriever.search, allowed=None if held <= trained else held & trained)
    ranks = first_ranks(search, asked, DEPTH).tolist()
    return [ProtectedQuery(one.text, tuple(sorted(one.answers)), rank) for one, rank in zip(asked, ranks, strict=True)]


def protected_scores(searcher: Searcher, reference: DriftReference, arrived: Mapping[str, frozenset[str]]) -> Paired:
    """The scores at the opening and now of the queries whose answers are live as they were, (q,) each, and what the
    growth of the collection since then costs them if what came is like what was there.

    arrived: by a query that documents came with, those documents, which answer it as well.
    """
    old, live = searcher.views[0], sum(view.documents for view in searcher.views)
    kept = [one for one in reference.questions.protected if all(answer in old for answer in one.answers)]
    asked = [_question(one.text, {*one.answers, *arrived.get(one.text, ())}) for one in kept]
    ranks = np.array([one.rank for one in kept], np.int64)
    before, after = reciprocal_ranks(ranks), reciprocal_ranks(first_ranks(searcher.retriever.search, asked, DEPTH))
    return Paired(before, after, crowding(ranks, reference.trained / max(reference.trained, live)))


def _question(text: str, answers: set[str]) -> Question:
    return Question(min(answers), text, frozenset(answers))
