"""What IncDSI did for the documents of a generation."""

from __future__ import annotations

from collections.abc import Collection

from model_code.collection.generations.generation import (
    Generation,
    removed_by_segment,
    verify_checksums_on_error,
)
from model_code.collection.segments.refined import RefinedDocuments
from model_code.collection.segments.solved import SolvedDocument, SolvedDocuments, SolvedSummary
from model_code.corpus.known_queries import query_hash


def solved_documents(generation: Generation) -> list[SolvedDocument]:
    """Return the documents solved for their queries that can be found, oldest segment first.

    Raises:
        Damaged: If a file of the solved documents is damaged.
    """
    removed = removed_by_segment(generation)
    found: list[SolvedDocument] = []
    for number in generation.segments:
        with verify_checksums_on_error(generation):
            solved = SolvedDocuments.load(generation.sibling(number))
        for document_id, document in solved.documents.items():
            if document_id not in removed[number]:
                found.append(document)
    return found


def refinement_statuses(generation: Generation) -> dict[str, str]:
    """Return the name of the `Status` of each refined document that can be found, by id.

    Raises:
        Damaged: If a file of the refined documents is damaged.
    """
    removed = removed_by_segment(generation)
    found: dict[str, str] = {}
    for number in generation.segments:
        with verify_checksums_on_error(generation):
            refined = RefinedDocuments.load(generation.sibling(number))
        for document_id, status in refined.statuses.items():
            if document_id not in removed[number]:
                found[document_id] = status
    for document in solved_documents(generation):
        found[document.document_id] = document.status
    return found


def summarize_refinements(
    generation: Generation, document_ids: Collection[str] | None = None
) -> SolvedSummary | None:
    """Sum up what IncDSI did for documents that can be found; None if it solved none of them.

    Args:
        generation: The generation.
        document_ids: The documents; None means all of them.
    """
    documents = solved_documents(generation)
    if document_ids is not None:
        wanted = set(document_ids)
        documents = [document for document in documents if document.document_id in wanted]
    return SolvedSummary.of(documents) if documents else None


def documents_solved_with(
    generation: Generation,
    document_ids: Collection[str] = (),
    texts: Collection[str] = (),
    hashes: Collection[str] = (),
) -> list[str]:
    """Return the documents whose vectors depend on known queries, ascending.

    Args:
        generation: The generation.
        document_ids: Documents with all their known queries.
        texts: Known queries of any documents, whatever their case and punctuation.
        hashes: The same by hash; see `query_hash`.
    """
    owners = set(document_ids)
    wanted = {query_hash(text) for text in texts}.union(hashes)
    if not owners and not wanted:
        return []
    dependent: list[str] = []
    for document in solved_documents(generation):
        depends = any(query_hash(query.text) in wanted for query in document.queries)
        for member in document.members:
            depends |= member.document_id in owners or query_hash(member.text) in wanted
        if depends:
            dependent.append(document.document_id)
    return sorted(dependent)
