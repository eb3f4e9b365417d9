"""Documents that earned queries by thumbs, and are solved for them.

A document brings the queries of its row, and earns queries by thumbs up. A thumb down takes a query
away. So the queries that a vector should be solved for can change after it was solved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from model_code.collection.generations.searcher import Searcher
from model_code.collection.segments.segment import LoadedSegment
from model_code.collection.segments.solved import SolvedDocuments
from model_code.corpus.known_queries import drop_held_out, queries_of_row, query_hash
from model_code.text.documents import Change, Document, Remove
from model_code.text.known_queries import (
    KnownQuery,
    KnownQueryLimits,
    QuerySource,
    resolve_queries,
    select_queries,
)

# Documents that feedback solves again in one generation. The others follow in later ones.
MAX_SOLVED_AGAIN = 256


@dataclass(frozen=True)
class SolvedQueries:
    """The queries that the documents of a segment are solved for.

    Attributes:
        hashes: Hashes of the queries, by document id; see `query_hash`.
        with_earned_queries: Documents that are solved for queries which their rows lack.
    """

    hashes: Mapping[str, frozenset[str]]
    with_earned_queries: frozenset[str]

    @classmethod
    def read(cls, segment: LoadedSegment) -> SolvedQueries:
        """Read the solved documents of a segment."""
        hashes: dict[str, frozenset[str]] = {}
        with_earned_queries: set[str] = set()
        for document_id, solved in SolvedDocuments.load(segment.folder).documents.items():
            hashes[document_id] = frozenset(query_hash(query.text) for query in solved.queries)
            brought: set[str] = set()
            for query in segment.known_queries.get(document_id, ()):
                if query.source == QuerySource.ROW:
                    brought.add(query_hash(query.text))
            if not hashes[document_id] <= brought:
                with_earned_queries.add(document_id)
        return cls(hashes, frozenset(with_earned_queries))


@dataclass(frozen=True)
class SolverState:
    """What is known about a document that can be solved, without feedback.

    Attributes:
        evidence: Evidence for its queries.
        solved_for: Hashes of the queries that its vector is solved for.
        is_of_build: Whether it belongs to a build, and has its encoding.
    """

    evidence: Sequence[KnownQuery]
    solved_for: frozenset[str] = frozenset()
    is_of_build: bool = False


def find_documents_to_solve(
    searcher: Searcher,
    feedback: Mapping[str, Sequence[KnownQuery]],
    limits: KnownQueryLimits,
    pending: Mapping[str, Change],
    solved_queries: Callable[[LoadedSegment], SolvedQueries],
) -> dict[str, frozenset[str]]:
    """Return the documents whose vectors should be solved for other queries than they are.

    These earned queries by thumbs, or lost queries by them, since their vectors were solved.

    Args:
        searcher: Searcher of the generation before the pending changes.
        feedback: Evidence of thumbs by document id, without queries that may not be known.
        limits: Limits of the queries that a document may earn.
        pending: Last pending change of each document, by document id.
        solved_queries: Returns the queries that the documents of a segment are solved for.

    Returns:
        Hashes of the queries to solve for, by document id. There are at most `MAX_SOLVED_AGAIN`
        documents, the first by id.
    """
    # A document is also looked at if the thumbs that it was solved for were withdrawn.
    candidates = set(feedback)
    for view in searcher.views[1:]:
        candidates.update(solved_queries(view.segment).with_earned_queries)

    found: dict[str, frozenset[str]] = {}
    for document_id in sorted(candidates):
        if len(found) == MAX_SOLVED_AGAIN:
            break
        change = pending.get(document_id)
        if isinstance(change, Document):
            state = _state_after(searcher, change)
        elif isinstance(change, Remove):
            state = None
        else:
            state = _present_state(searcher, document_id, solved_queries)
        if state is None:
            continue
        evidence = [*state.evidence, *feedback.get(document_id, ())]
        queries = queries_to_solve_for(evidence, limits, state.is_of_build)
        if queries != state.solved_for:
            found[document_id] = queries
    return found


def _state_after(searcher: Searcher, document: Document) -> SolverState | None:
    """Return how a document is solved once it was put; None if it cannot be solved."""
    base = searcher.base
    passages = searcher.generation.text.passages(document.title, document.text)
    if len(passages) != 1 or base.dense.index.vectors_per_passage != 1:
        return None
    brought = drop_held_out(queries_of_row(document), base.build_queries.held_out)
    evidence = [*brought, *base.judged_queries(document.document_id)]
    return SolverState(evidence, frozenset(query_hash(query.text) for query in brought))


def _present_state(
    searcher: Searcher,
    document_id: str,
    solved_queries: Callable[[LoadedSegment], SolvedQueries],
) -> SolverState | None:
    """Return how a document is solved now; None if it is gone or cannot be solved."""
    base = searcher.base
    owner = next((view for view in searcher.views if document_id in view), None)
    if owner is None or not has_one_vector(owner.segment, document_id):
        return None
    own_queries = owner.segment.known_queries.get(document_id, ())
    evidence = drop_held_out(own_queries, base.build_queries.held_out)
    if owner.segment is base:
        return SolverState(evidence, is_of_build=True)
    solved_for = solved_queries(owner.segment).hashes.get(document_id, frozenset())
    return SolverState(evidence, solved_for)


def queries_to_solve_for(
    evidence: Sequence[KnownQuery], limits: KnownQueryLimits, is_of_build: bool = False
) -> frozenset[str]:
    """Return the hashes of the queries that a document's vector should be solved for.

    A document that earned queries by thumbs is solved for these, for the queries of its row and for
    its judged queries, so that none of them pays for another. Judged and earned queries count
    within the limits of known queries. Any other document is solved for the queries of its row, or
    keeps its encoding if it belongs to a build, which was trained with these queries.

    Args:
        evidence: All evidence for the document's queries.
        limits: Limits of the queries that a document may earn.
        is_of_build: Whether the document belongs to a build.
    """
    sources: dict[str, set[QuerySource]] = {}
    for query in evidence:
        if query.weight > 0:
            sources.setdefault(query_hash(query.text), set()).add(query.source)
    known = {query_hash(query.text) for query in resolve_queries(evidence)}
    selected = {query_hash(query.text) for query in select_queries(evidence, limits)}

    brought: set[str] = set()
    judged: set[str] = set()
    earned: set[str] = set()
    for text_hash in known:
        if QuerySource.ROW in sources[text_hash]:
            brought.add(text_hash)
        elif text_hash in selected and QuerySource.QRELS in sources[text_hash]:
            judged.add(text_hash)
        elif text_hash in selected:
            earned.add(text_hash)
    if earned:
        return frozenset(brought | judged | earned)
    return frozenset() if is_of_build else frozenset(brought)


def has_one_vector(segment: LoadedSegment, document_id: str) -> bool:
    """Return whether a document has exactly one vector, which can be solved."""
    rows = segment.rows.rows_by_document[document_id]
    return len(rows) == 1 and segment.dense.index.vectors_per_passage == 1


def select_by_hash(texts: Sequence[str], hashes: Collection[str]) -> list[str]:
    """Return the first text for each of some hashes, in the order of the texts.

    >>> from model_code.corpus.known_queries import query_hash
    >>> select_by_hash(["sort a list", "Sort a list?", "cut"], {query_hash("sort a list")})
    ['sort a list']
    """
    chosen: dict[str, str] = {}
    for text in texts:
        text_hash = query_hash(text)
        if text_hash in hashes:
            chosen.setdefault(text_hash, text)
    return list(chosen.values())
