"""Forget a query: it is no longer a known query of any document, and its text is deleted.

A query can be personal data. Documents may know it from feedback, from their rows, or from
judgements.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from model_code.collection.erase import (
    all_indexes,
    delete_drift_references,
    erase_from_solver_caches,
    erase_generations,
    find_damaged_copies,
)
from model_code.collection.generations.generation import Generation
from model_code.collection.generations.refinements import documents_solved_with
from model_code.collection.index.live_index import FORGOTTEN_SOURCE, LiveIndex
from model_code.collection.query_copies import find_query_copies
from model_code.collection.segments.documents import DOCUMENTS, read_columns
from model_code.collection.segments.known_overrides import KNOWN_OVERRIDES, load_overrides
from model_code.collection.segments.solved import SolvedDocuments
from model_code.corpus.corpus_queries import KNOWN_QUERIES, CorpusQueries, query_hash
from model_code.errors import FreshetError
from model_code.settings import require
from model_code.text.documents import Document

SOURCE = "freshet forget"


@dataclass
class ForgetReport:
    """The changes that forgetting a query made.

    Attributes:
        opinions: Number of thumbs and clicks on the query that were deleted.
        documents: Ids of the documents that had it as a known query, ascending.
        rewritten: Ids of the documents whose rows contained the query. They were written again
            without it.
        solved_again: Ids of the documents whose vectors IncDSI had solved with the query. They were
            solved again. A document occurs once for each retriever.
        remains: Files that still contain the text, each with what to do about it.
    """

    opinions: int = 0
    documents: list[str] = field(default_factory=list)
    rewritten: list[str] = field(default_factory=list)
    solved_again: list[str] = field(default_factory=list)
    remains: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return how many documents, vectors and opinions changed, as one line."""
        if not self.documents and not self.solved_again and not self.opinions:
            return (
                "no document knew the query, and nobody gave an opinion on it; from now on, no "
                "document can come to know it"
            )
        return (
            f"forgotten: {len(self.documents):,} documents knew the query, "
            f"{len(self.rewritten):,} of them from their row, "
            f"{len(self.solved_again):,} vectors were solved again, "
            f"and {self.opinions:,} opinions were deleted"
        )


def forget_query(index: LiveIndex, text: str) -> ForgetReport:
    """Remove a query from the known queries of all documents, and delete its text.

    Queries are compared by their normalised texts, so that case and punctuation do not matter. The
    ledger keeps a hash of the query. So later feedback and rows cannot make it a known query again.

    Args:
        index: Live index of any retriever. The query is forgotten in all retrievers.
        text: Text of the query.

    Raises:
        SettingsError: If the text is empty.
        FreshetError: If the text remains in some file. All other texts are deleted then. The
            message names each file and what to do about it. Afterwards the same call can be
            repeated.
    """
    require(bool(text.strip()), "the query is empty; name the query to forget")
    forgotten = query_hash(text)
    index.apply()
    report = ForgetReport()
    knowing_ids: set[str] = set()
    for query in index.builder.searcher.known_queries():
        if query_hash(query.text) == forgotten:
            knowing_ids.add(query.document_id)
    report.documents = sorted(knowing_ids)

    documents = _documents_with_row_query(index, forgotten)
    report.rewritten = [document.document_id for document in documents]
    report.opinions = index.ledger.forget_query(text)
    index.record(documents, SOURCE)

    for live_index in all_indexes(index):
        live_index.apply()
        live_index.update_known_queries()
        # Vectors that IncDSI solved with the query are solved again without it.
        solved = documents_solved_with(live_index.generation, texts=[text])
        live_index.solve_again(solved, FORGOTTEN_SOURCE, {forgotten})
        report.solved_again.extend(solved)
        numbers = erase_generations(
            live_index, lambda generation: _holds_query(generation, forgotten)
        )
        report.remains.extend(_remaining_generations(live_index, numbers))
    index.ledger.erase_query(text)
    delete_drift_references(index)
    # The caches of IncDSI are last, because solving vectors again uses them.
    erase_from_solver_caches(index, forgotten=frozenset([forgotten]))
    report.remains.extend(find_query_copies(index, text))
    report.remains.extend(find_damaged_copies(index))

    if report.remains:
        raise FreshetError(
            "forgotten, and it finds nothing; but its text remains: " + "; ".join(report.remains)
        )
    return report


def _documents_with_row_query(index: LiveIndex, forgotten: str) -> list[Document]:
    """Return the live documents that arrived with a query in their rows, without this query.

    Args:
        index: The live index.
        forgotten: Hash of the query.
    """
    searcher = index.builder.searcher
    ids: list[str] = []
    for view in searcher.views:
        columns = read_columns(view.segment.documents, "document_id", "queries")
        for document_id, queries in zip(*columns, strict=True):
            if document_id in view and _has_query(json.loads(queries), forgotten):
                ids.append(document_id)

    documents: list[Document] = []
    for _, document in sorted(searcher.documents(ids).items()):
        kept = tuple(query for query in document.queries if query_hash(query) != forgotten)
        documents.append(replace(document, queries=kept))
    return documents


def _holds_query(generation: Generation, forgotten: str) -> bool:
    """Return whether the folder of a generation contains a query, given the query's hash.

    A generation is a snapshot of the index. Its folder has documents and known queries, which can
    contain the text.
    """
    documents = generation.folder / DOCUMENTS
    if documents.is_file():
        (query_lists,) = read_columns(documents, "queries")
        if any(_has_query(json.loads(queries), forgotten) for queries in query_lists):
            return True

    texts: list[str] = []
    for solved in SolvedDocuments.load(generation.folder).documents.values():
        texts.extend(query.text for query in solved.queries)
        texts.extend(member.text for member in solved.members)
    if (generation.folder / KNOWN_QUERIES).is_file():
        known = CorpusQueries.load(generation.folder / KNOWN_QUERIES)
        texts.extend(query.text for query in known.queries)
    if (generation.folder / KNOWN_OVERRIDES).is_file():
        for evidence in load_overrides(generation.folder).values():
            texts.extend(query.text for query in evidence)
    return _has_query(texts, forgotten)


def _has_query(texts: Sequence[str], forgotten: str) -> bool:
    """Return whether a query with a given hash is among some texts."""
    return any(query_hash(text) == forgotten for text in texts)


def _remaining_generations(index: LiveIndex, numbers: Sequence[int]) -> Iterator[str]:
    """Yield a message for each generation that contains the query and could not be deleted.

    Args:
        index: Live index of the retriever.
        numbers: Numbers of the generations.
    """
    for number in numbers:
        reason = "which is read just now: do the same again later"
        if number in index.generation.needs:
            reason = (
                "the build that is searched: take the query out of the corpus's source, and build "
                "again"
            )
        yield f"generation {number} of {index.retriever}, {reason}"
