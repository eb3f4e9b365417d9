"""Read the known queries of a generation from its files, without opening the retriever.

A known query is a query that a document is known to answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from model_code.collection.generations.generation import (
    Generation,
    known_overrides,
    removed_by_segment,
    verify_checksums_on_error,
)
from model_code.collection.segments.documents import DOCUMENTS, read_columns, row_queries
from model_code.corpus.known_queries import KNOWN_QUERIES, CorpusQueries, drop_held_out
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


def live_known_queries(generation: Generation) -> dict[str, list[KnownQuery]]:
    """Return the known queries of the live documents of a generation, by ascending document id.

    The queries equal the result of `Searcher.known_queries`, in the order of `resolve_queries`.

    Raises:
        Damaged: If a file is damaged.
    """
    with verify_checksums_on_error(generation):
        build_file = generation.sibling(generation.base) / KNOWN_QUERIES
        build = CorpusQueries.load(build_file) if build_file.is_file() else CorpusQueries()
        overrides = known_overrides(generation)
        evidence: list[KnownQuery] = []
        for number, removed in removed_by_segment(generation).items():
            documents = generation.sibling(number) / DOCUMENTS
            own = row_queries(documents)
            if number == generation.base and build_file.is_file():
                own = build.by_document()
            (document_ids,) = read_columns(documents, "document_id")
            judged = {} if number == generation.base else _judged_queries(build, document_ids)
            for document_id in document_ids:
                if document_id in removed:
                    continue
                known = [*own.get(document_id, ()), *judged.get(document_id, ())]
                evidence.extend(overrides.get(document_id, known))
    return by_document(resolve_queries(drop_held_out(evidence, build.held_out)))


def _judged_queries(
    build: CorpusQueries, document_ids: Collection[str]
) -> Mapping[str, Sequence[KnownQuery]]:
    """Return the queries that judgements of a build assign to some documents, by document id."""
    ids = set(document_ids)
    judged: list[KnownQuery] = []
    for query in build.queries:
        if query.document_id in ids and query.source == QuerySource.QRELS:
            judged.append(query)
    return by_document(judged)
