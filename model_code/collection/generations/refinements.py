"""Read the records about documents of a generation whose vectors IncDSI solved.

IncDSI solves the vector of a document so that the document is found by its queries.
"""

from __future__ import annotations

from collections.abc import Collection

from model_code.collection.generations.generation import (
    Generation,
    removed_by_segment,
    verify_checksums_on_error,
)
from model_code.collection.segments.refined import RefinedDocuments
from model_code.collection.segments.solved import SolvedDocument, SolvedDocuments, SolvedSummary
from model_code.corpus.corpus_queries import query_hash


def solved_documents(generation: Generation) -> list[SolvedDocument]:
    """Return the records of all live documents whose vectors IncDSI solved for their queries.

    Records of older segments come first.

    Raises:
        Damaged: If a file of records is damaged.
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
    """Return the outcome of IncDSI for each live document that it treated, by document id.

    The outcome is the name of a `Status`. It tells whether the vector meets all constraints: its
    queries find the document, and older documents keep their queries.

    Raises:
        Damaged: If a file of records is damaged.
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
    """Count how many queries find their document before and after IncDSI solved its vector.

    Args:
        generation: The generation.
        document_ids: Ids of the documents to count. None means all live documents.

    Returns:
        The counts. None if none of the documents was solved.
    """
    documents = solved_documents(generation)
    if document_ids is not None:
        wanted = set(document_ids)
        documents = [document for document in documents if document.document_id in wanted]
    if not documents:
        return None
    return SolvedSummary.of(documents)


def documents_solved_with(
    generation: Generation,
    document_ids: Collection[str] = (),
    texts: Collection[str] = (),
    hashes: Collection[str] = (),
) -> list[str]:
    """Return the documents whose vectors IncDSI computed with the help of given queries.

    Such a vector must not be used any more if one of the queries is erased, or is a test query.
    IncDSI computes the vector of a new document from two kinds of queries:

    - queries of the new document, which should find it;
    - constraints: queries of older documents, for which the new one must not rank higher.

    Args:
        generation: The generation.
        document_ids: Ids of older documents. All queries of these documents are meant.
        texts: Texts of further queries. Case and punctuation do not matter.
        hashes: Hashes of further queries whose texts are not known here; see `query_hash`.

    Returns:
        Document ids, ascending.
    """
    owners = set(document_ids)
    wanted = {query_hash(text) for text in texts}.union(hashes)
    if not owners and not wanted:
        return []
    dependent: list[str] = []
    for document in solved_documents(generation):
        is_solved_for = any(query_hash(query.text) in wanted for query in document.queries)
        is_constrained = False
        for member in document.members:
            if member.document_id in owners or query_hash(member.text) in wanted:
                is_constrained = True
        if is_solved_for or is_constrained:
            dependent.append(document.document_id)
    return sorted(dependent)
