"""Read the known queries of a generation from its files, without opening the retriever.

A known query is a query that a document is known to answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from model_code.collection.generations.generation import (
    Generation,
    known_overrides,
    removed_by_segment,
    verify_checksums_on_error,
)
from model_code.collection.segments.documents import (
    DOCUMENTS,
    added_segment_queries,
    read_columns,
    row_queries,
    select_judged,
)
from model_code.corpus.corpus_queries import KNOWN_QUERIES, CorpusQueries, drop_held_out
from model_code.text.known_queries import KnownQuery, QuerySource, by_document, resolve_queries


@dataclass(frozen=True)
class ShownQueries:
    """The known queries of one document that may be shown.

    Attributes:
        queries: Queries whose texts may be shown.
        hidden: Number of further queries. Users typed their texts, which can be personal data.
    """

    queries: tuple[KnownQuery, ...] = ()
    hidden: int = 0

    @classmethod
    def select(cls, queries: Iterable[KnownQuery], show_all: bool) -> ShownQueries:
        """Select the queries that may be shown, and count the others.

        Args:
            queries: Known queries of one document.
            show_all: Whether texts that users typed may be shown, too; see the setting
                `known_queries.show`.
        """
        shown: list[KnownQuery] = []
        hidden = 0
        for query in queries:
            if show_all or query.is_public:
                shown.append(query)
            else:
                hidden += 1
        return cls(tuple(shown), hidden)


def live_known_queries(
    generation: Generation, with_feedback: bool = True
) -> dict[str, list[KnownQuery]]:
    """Return the known queries of the live documents of a generation, by ascending document id.

    With feedback, the queries equal the result of `Searcher.known_queries`, in the order of
    `resolve_queries`.

    Args:
        generation: The generation.
        with_feedback: Whether feedback counts as evidence.

    Raises:
        Damaged: If a file is damaged.
    """
    with verify_checksums_on_error(generation):
        build_file = generation.sibling(generation.base) / KNOWN_QUERIES
        build_evidence = None
        held_out: frozenset[str] = frozenset()
        if build_file.is_file():
            build = CorpusQueries.load(build_file)
            build_evidence = build.by_document()
            held_out = build.held_out

        overrides = known_overrides(generation)
        evidence: list[KnownQuery] = []
        for number, removed in removed_by_segment(generation).items():
            documents = generation.sibling(number) / DOCUMENTS
            (document_ids,) = read_columns(documents, "document_id")
            is_base = number == generation.base
            indexed = _indexed_queries(documents, document_ids, build_evidence, is_base)
            for document_id in document_ids:
                if document_id not in removed:
                    indexed_evidence = indexed.get(document_id, ())
                    evidence.extend(overrides.get(document_id, indexed_evidence))
    if not with_feedback:
        evidence = [query for query in evidence if query.source != QuerySource.FEEDBACK]
    return by_document(resolve_queries(drop_held_out(evidence, held_out)))


def documents_with_known_queries(
    generation: Generation, held_out: frozenset[str], with_feedback: bool = True
) -> frozenset[str]:
    """Return the ids of the live documents that have known queries in an evaluation.

    Args:
        generation: The generation that is evaluated.
        held_out: Hashes of the queries of the evaluation, which it searches without; see
            `query_hash`.
        with_feedback: Whether the evaluation searches with queries from feedback; see
            `Searcher.segments_without`.

    Raises:
        Damaged: If a file is damaged.
    """
    found: set[str] = set()
    for document_id, queries in live_known_queries(generation, with_feedback).items():
        if drop_held_out(queries, held_out):
            found.add(document_id)
    return frozenset(found)


def _indexed_queries(
    documents: Path,
    document_ids: Collection[str],
    build_evidence: dict[str, list[KnownQuery]] | None,
    is_base: bool,
) -> dict[str, list[KnownQuery]]:
    """Return the known queries of a segment from the time when it was written, by document id.

    Args:
        documents: Documents file of the segment.
        document_ids: Ids of all documents in the file.
        build_evidence: Known queries of the build, by document id. None if the build has no file
            of them.
        is_base: Whether the segment holds the documents of the build.
    """
    if build_evidence is None:
        return row_queries(documents)
    if is_base:
        return build_evidence

    def judged_queries(document_id: str) -> list[KnownQuery]:
        """Return the queries that judgements of the build assign to a document."""
        return select_judged(build_evidence.get(document_id, ()))

    return added_segment_queries(documents, document_ids, judged_queries)
