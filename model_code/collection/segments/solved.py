"""Files of a segment about the documents whose vectors were solved for the queries they bring."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from model_code.files import atomic_write, read_json, write_json

SOLVED, QUERY_VECTORS = "solved.json", "solved.npy"


@dataclass(frozen=True)
class SolvedQuery:
    """A query that a solved document brings.

    Attributes:
        text: The query.
        own_score: Score of the document for it, after its vector was solved.
        highest_bm25: Largest BM25 score of any document for it, by which shares are divided.
        rank_before: Rank of the document with its encoding, from 1.
        rank_after: Rank of the document with its solved vector, from 1.
        limit: Score that the solution asked the document to reach.
    """

    text: str
    own_score: float
    highest_bm25: float
    rank_before: int
    rank_after: int
    limit: float


@dataclass(frozen=True)
class Member:
    """A known query of an older document that the solution took into account.

    Attributes:
        document_id: The older document.
        text: The known query.
        limit: Largest inner product with the query's vector that is not charged, margin apart.
    """

    document_id: str
    text: str
    limit: float


@dataclass(frozen=True, eq=False)
class SolvedDocument:
    """How the vector of a document was solved.

    Attributes:
        document_id: The document.
        status: Name of its status; see `model_code.drift.statuses.Status`.
        queries: The queries that it brings.
        vectors: Vector of each query, shape (m, H), float32.
        members: Known queries of older documents in the solution.
        old_outranked_before: Number of known queries for which the encoding outranks their own
            document.
        old_outranked_after: The same number for the solved vector.
    """

    document_id: str
    status: str
    queries: tuple[SolvedQuery, ...]
    vectors: np.ndarray
    members: tuple[Member, ...] = ()
    old_outranked_before: int = 0
    old_outranked_after: int = 0


@dataclass(frozen=True, eq=False)
class SolvedDocuments:
    """The solved documents of a segment, by document id."""

    documents: dict[str, SolvedDocument] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write the files, if any document was solved; equal values give equal bytes."""
        if not self.documents:
            return
        rows: list[dict[str, Any]] = []
        for document in self.documents.values():
            row = {
                "document_id": document.document_id,
                "status": document.status,
                "queries": [asdict(query) for query in document.queries],
                "members": [asdict(member) for member in document.members],
                "old_outranked_before": document.old_outranked_before,
                "old_outranked_after": document.old_outranked_after,
            }
            rows.append(row)
        write_json(folder / SOLVED, rows)
        vectors = np.concatenate([document.vectors for document in self.documents.values()])
        with atomic_write(folder / QUERY_VECTORS) as path, path.open("wb") as stream:
            np.save(stream, vectors)

    @classmethod
    def load(cls, folder: Path) -> SolvedDocuments:
        """Read what `save` wrote; the result is empty if no document was solved."""
        if not (folder / SOLVED).is_file():
            return cls()
        vectors = np.load(folder / QUERY_VECTORS, mmap_mode="r")
        documents: dict[str, SolvedDocument] = {}
        first = 0
        for row in read_json(folder / SOLVED):
            queries = tuple(SolvedQuery(**query) for query in row.pop("queries"))
            members = tuple(Member(**member) for member in row.pop("members"))
            last = first + len(queries)
            document = SolvedDocument(
                queries=queries, members=members, vectors=vectors[first:last], **row
            )
            documents[document.document_id] = document
            first = last
        return cls(documents)

    @classmethod
    def join(cls, segments: Sequence[tuple[Path, Container[str]]]) -> SolvedDocuments:
        """Join the solved documents of several segments.

        Args:
            segments: Folder of each segment, and its documents that are kept.
        """
        documents: dict[str, SolvedDocument] = {}
        for folder, kept in segments:
            for document_id, document in cls.load(folder).documents.items():
                if document_id in kept:
                    documents[document_id] = document
        return cls(documents)


@dataclass(frozen=True)
class SolvedSummary:
    """What IncDSI did for a set of documents.

    Attributes:
        documents: Number of solved documents.
        queries: Number of queries that they bring.
        answered_before: Queries whose document ranks among the first ten with its encoding.
        answered_after: Queries whose document ranks among the first ten with its solved vector.
        old_outranked_before: Known queries of older documents that the encodings outrank.
        old_outranked_after: Known queries of older documents that the solved vectors outrank.
    """

    documents: int = 0
    queries: int = 0
    answered_before: int = 0
    answered_after: int = 0
    old_outranked_before: int = 0
    old_outranked_after: int = 0

    @classmethod
    def of(cls, documents: Sequence[SolvedDocument], k: int = 10) -> SolvedSummary:
        """Sum up solved documents.

        Args:
            documents: The documents.
            k: Largest rank at which a query counts as answered.
        """
        queries = [query for document in documents for query in document.queries]
        return cls(
            documents=len(documents),
            queries=len(queries),
            answered_before=sum(query.rank_before <= k for query in queries),
            answered_after=sum(query.rank_after <= k for query in queries),
            old_outranked_before=sum(document.old_outranked_before for document in documents),
            old_outranked_after=sum(document.old_outranked_after for document in documents),
        )

    def sentence(self) -> str:
        """Return the summary as one sentence.

        >>> SolvedSummary(2, 5, 3, 5, 0, 1).sentence().split(". ")[0]
        'IncDSI refined 2 documents: 5 of their 5 queries find them, 3 before'
        """
        documents = "1 document" if self.documents == 1 else f"{self.documents} documents"
        outranked = self.old_outranked_after
        known = "1 known query" if outranked == 1 else f"{outranked} known queries"
        return (
            f"IncDSI refined {documents}: {self.answered_after} of their {self.queries} queries "
            f"find them, {self.answered_before} before. They outrank {known} of older documents, "
            f"{self.old_outranked_before} before."
        )
