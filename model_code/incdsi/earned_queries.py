"""Find the documents whose vectors must be solved again because users gave feedback.

IncDSI solves the vector of a document so that its queries find it. These queries come from the row
that added the document, and from thumbs up on hits. A query from thumbs up is called an earned
query. A thumb down takes a query away. So feedback can change the queries of a document after its
vector was solved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from model_code.collection.generations.searcher import Searcher
from model_code.collection.segments.segment import LoadedSegment
from model_code.collection.segments.solved import SolvedDocuments
from model_code.corpus.corpus_queries import drop_held_out, queries_of_row, query_hash
from model_code.text.documents import Change, Document, Remove
from model_code.text.known_queries import (
    KnownQuery,
    KnownQueryLimits,
    QuerySource,
    resolve_queries,
    select_queries,
)

# Largest number of documents that are solved again in one generation, a snapshot of the index. The
# other documents follow in later generations.
MAX_SOLVED_AGAIN = 256


@dataclass(frozen=True)
class SolvedQueries:
    """The queries that the vectors of a segment's documents are solved for.

    Attributes:
        hashes: Hashes of the queries of each solved document, by document id; see `query_hash`.
        with_earned_queries: Ids of the documents with queries that did not come with their rows.
    """

    hashes: Mapping[str, frozenset[str]]
    with_earned_queries: frozenset[str]

    @classmethod
    def read(cls, segment: LoadedSegment) -> SolvedQueries:
        """Read the queries from the records that the segment keeps of its solved documents."""
        hashes: dict[str, frozenset[str]] = {}
        with_earned_queries: set[str] = set()
        for document_id, solved in SolvedDocuments.load(segment.folder).documents.items():
            hashes[document_id] = frozenset(query_hash(query.text) for query in solved.queries)
            row_hashes: set[str] = set()
            for query in segment.known_queries.get(document_id, ()):
                if query.source == QuerySource.ROW:
                    row_hashes.add(query_hash(query.text))
            if not hashes[document_id] <= row_hashes:
                with_earned_queries.add(document_id)
        return cls(hashes, frozenset(with_earned_queries))


@dataclass(frozen=True)
class DocumentQueries:
    """The queries of a document with one vector, before feedback is taken into account.

    Attributes:
        evidence: Queries from its row and from judgements, with their weights.
        solved_for: Hashes of the queries that its vector is solved for. Empty if the document is
            searched by its encoding.
        is_of_build: Whether the retriever was built from the document. Such a document is searched
            by its encoding.
        trained_hashes: Hashes of the queries that the build trained the document for by feedback
            alone.
    """

    evidence: Sequence[KnownQuery]
    solved_for: frozenset[str] = frozenset()
    is_of_build: bool = False
    trained_hashes: frozenset[str] = frozenset()


def find_documents_to_solve(
    searcher: Searcher,
    feedback: Mapping[str, Sequence[KnownQuery]],
    limits: KnownQueryLimits,
    pending: Mapping[str, Change],
    solved_queries: Callable[[LoadedSegment], SolvedQueries],
    forgotten: frozenset[str] = frozenset(),
) -> dict[str, frozenset[str]]:
    """Find the documents whose vectors must be solved again for other queries.

    Args:
        searcher: Searcher of the current generation, without the pending changes.
        feedback: Evidence from thumbs, by document id. Queries that may not be known are left out.
        limits: Limits of the queries that a document may earn.
        pending: Last pending change of each document, by document id.
        solved_queries: Function that returns the queries that a segment's documents are solved for.
        forgotten: Hashes of the queries that a person asked to forget. Judgements of the build may
            still have them.

    Returns:
        Hashes of the queries to solve for, by document id. At most `MAX_SOLVED_AGAIN` documents
        are returned, the first ones by id.
    """
    # Documents without feedback are candidates too: the thumbs behind their earned queries may have
    # been withdrawn.
    candidates = set(feedback)
    for view in searcher.views[1:]:
        candidates.update(solved_queries(view.segment).with_earned_queries)

    found: dict[str, frozenset[str]] = {}
    for document_id in sorted(candidates):
        if len(found) == MAX_SOLVED_AGAIN:
            break
        change = pending.get(document_id)
        if isinstance(change, Document):
            queries = _queries_after_change(searcher, change)
        elif isinstance(change, Remove):
            queries = None
        else:
            queries = _current_queries(searcher, document_id, solved_queries)
        if queries is None:
            continue

        evidence = drop_held_out(queries.evidence, forgotten)
        evidence.extend(feedback.get(document_id, ()))
        hashes = select_queries_to_solve(
            evidence, limits, queries.is_of_build, queries.trained_hashes
        )
        if hashes != queries.solved_for:
            found[document_id] = hashes
    return found


def _queries_after_change(searcher: Searcher, document: Document) -> DocumentQueries | None:
    """Return the queries that a document will have after a pending change puts it.

    None if the document will have several vectors, so that it cannot be solved.
    """
    base = searcher.base
    passages = searcher.generation.text.passages(document.title, document.text)
    if len(passages) != 1 or base.dense.index.vectors_per_passage != 1:
        return None
    row_queries = drop_held_out(queries_of_row(document), base.build_queries.held_out)
    evidence = [*row_queries, *base.judged_queries(document.document_id)]
    solved_for = frozenset(query_hash(query.text) for query in row_queries)
    trained_hashes = base.trained_feedback(document.document_id)
    return DocumentQueries(evidence, solved_for, trained_hashes=trained_hashes)


def _current_queries(
    searcher: Searcher,
    document_id: str,
    solved_queries: Callable[[LoadedSegment], SolvedQueries],
) -> DocumentQueries | None:
    """Return the queries that a document has in the current generation of the index.

    None if the document is removed, or has several vectors, so that it cannot be solved.
    """
    base = searcher.base
    view = searcher.find_view(document_id)
    if view is None or not has_one_vector(view.segment, document_id):
        return None

    queries = view.segment.known_queries.get(document_id, ())
    evidence = drop_held_out(queries, base.build_queries.held_out)
    trained_hashes = base.trained_feedback(document_id)
    if view.segment is base:
        return DocumentQueries(evidence, is_of_build=True, trained_hashes=trained_hashes)
    solved_for = solved_queries(view.segment).hashes.get(document_id, frozenset())
    return DocumentQueries(evidence, solved_for, trained_hashes=trained_hashes)


def select_queries_to_solve(
    evidence: Sequence[KnownQuery],
    limits: KnownQueryLimits,
    is_of_build: bool = False,
    trained_hashes: Collection[str] = frozenset(),
) -> frozenset[str]:
    """Select the queries that the vector of a document should be solved for.

    - A document with earned queries is solved for these, for the queries of its row, and for its
      judged queries. So it does not lose one of its queries to another one. Judged and earned
      queries count only within the limits.
    - Any other document is solved for the queries of its row.
    - A document of the build without earned queries keeps its encoding, because the retriever was
      trained with its queries.
    - A query from thumbs that the retriever was trained on counts as a judged one.

    Args:
        evidence: All evidence for the document's queries, feedback included.
        limits: Limits of the queries that a document may earn.
        is_of_build: Whether the retriever was built from the document.
        trained_hashes: Hashes of the queries that the build trained the document for by feedback
            alone.

    Returns:
        Hashes of the queries; see `query_hash`. Empty if the document keeps its encoding.
    """
    sources: dict[str, set[QuerySource]] = {}
    for query in evidence:
        if query.weight > 0:
            sources.setdefault(query_hash(query.text), set()).add(query.source)
    known_hashes = {query_hash(query.text) for query in resolve_queries(evidence)}
    selected_hashes = {query_hash(query.text) for query in select_queries(evidence, limits)}

    row_hashes: set[str] = set()
    judged_hashes: set[str] = set()
    earned_hashes: set[str] = set()
    for text_hash in known_hashes:
        is_judged = QuerySource.QRELS in sources[text_hash] or text_hash in trained_hashes
        if QuerySource.ROW in sources[text_hash]:
            row_hashes.add(text_hash)
        elif text_hash in selected_hashes and is_judged:
            judged_hashes.add(text_hash)
        elif text_hash in selected_hashes:
            earned_hashes.add(text_hash)
    if earned_hashes:
        return frozenset(row_hashes | judged_hashes | earned_hashes)
    if is_of_build:
        return frozenset()
    return frozenset(row_hashes)


def has_one_vector(segment: LoadedSegment, document_id: str) -> bool:
    """Return whether a document has exactly one vector, so that the vector can be solved."""
    rows = segment.rows.rows_by_document[document_id]
    return len(rows) == 1 and segment.dense.index.vectors_per_passage == 1


def select_by_hash(texts: Sequence[str], hashes: Collection[str]) -> list[str]:
    """Return the query texts whose hash is among `hashes`, in the order of the texts.

    Texts that differ only in case or punctuation have the same hash. The first of them is returned.

    >>> from model_code.corpus.corpus_queries import query_hash
    >>> select_by_hash(["sort a list", "Sort a list?", "cut"], {query_hash("sort a list")})
    ['sort a list']
    """
    text_of_hash: dict[str, str] = {}
    for text in texts:
        text_hash = query_hash(text)
        if text_hash in hashes:
            text_of_hash.setdefault(text_hash, text)
    return list(text_of_hash.values())
