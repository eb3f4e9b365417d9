"""Records of the documents of a segment whose vectors IncDSI solved for their queries.

IncDSI finds a vector for a new document, so that the document is found by its queries, and older
documents keep their queries. Such a document is called solved.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from model_code.files import read_json, write_array, write_json

# Files of a segment with the records, and with the vectors of all their queries.
SOLVED = "solved.json"
QUERY_VECTORS = "solved.npy"

# A query finds its document if the document has at most this rank.
MAX_FOUND_RANK = 10


@dataclass(frozen=True)
class SolvedQuery:
    """A query that the vector of a document was solved for.

    Attributes:
        text: Text of the query.
        own_score: Fused score of the document for the query, with its solved vector.
        highest_bm25: Largest BM25 score of any document for the query. The fused score divides BM25
            scores by it.
        rank_before: Rank of the document with its encoding, from 1.
        rank_after: Rank of the document with its solved vector, from 1.
        limit: Fused score that the document should reach. It is the score of the best other
            document, plus a margin that the solver asks for.
    """

    text: str
    own_score: float
    highest_bm25: float
    rank_before: int
    rank_after: int
    limit: float


@dataclass(frozen=True)
class Member:
    """A constraint of a solved vector: a known query that an older document should keep.

    Attributes:
        document_id: Id of the older document.
        text: Text of the known query.
        limit: Largest inner product of the solved vector and the query's vector with which the
            older document still ranks higher.
    """

    document_id: str
    text: str
    limit: float


@dataclass(frozen=True, eq=False)
class SolvedDocument:
    """The record of a document whose vector was solved.

    Attributes:
        document_id: Id of the document.
        status: Name of a `model_code.drift.statuses.Status`.
        queries: The m queries that the vector was solved for.
        vectors: Vectors of these queries, shape (m, H), float32.
        members: Constraints that the solver took into account.
        old_outranked_before: Number of known queries of older documents for which this document
            would rank higher with its encoding.
        old_outranked_after: Number of known queries of older documents for which this document
            ranks higher with its solved vector.
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
    """The records of the documents in a segment whose vectors IncDSI solved.

    Attributes:
        documents: Records by document id.
    """

    documents: dict[str, SolvedDocument] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write the records of solved documents to a segment's folder.

        Equal records give equal bytes.

        No file is written if there are no records.
        """
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
        write_array(folder / QUERY_VECTORS, vectors)

    @classmethod
    def load(cls, folder: Path) -> SolvedDocuments:
        """Read the records from the folder of a segment. They are empty if there is no file."""
        if not (folder / SOLVED).is_file():
            return cls()
        # The vectors of all queries of all documents, in the order of the records.
        vectors = np.load(folder / QUERY_VECTORS, mmap_mode="r")
        documents: dict[str, SolvedDocument] = {}
        start = 0
        for row in read_json(folder / SOLVED):
            queries = tuple(SolvedQuery(**query) for query in row.pop("queries"))
            members = tuple(Member(**member) for member in row.pop("members"))
            end = start + len(queries)
            document = SolvedDocument(
                queries=queries, members=members, vectors=vectors[start:end], **row
            )
            documents[document.document_id] = document
            start = end
        return cls(documents)

    @classmethod
    def join(cls, segments: Sequence[tuple[Path, Container[str]]]) -> SolvedDocuments:
        """Read and join the records of several segments, for the segment that they are merged to.

        Args:
            segments: Folder of each segment, and the documents whose records are kept.
        """
        documents: dict[str, SolvedDocument] = {}
        for folder, kept in segments:
            for document_id, document in cls.load(folder).documents.items():
                if document_id in kept:
                    documents[document_id] = document
        return cls(documents)


@dataclass(frozen=True)
class SolvedSummary:
    """Counts that show the effect of IncDSI on a set of solved documents.

    Attributes:
        documents: Number of solved documents.
        queries: Number of their queries.
        answered_before: Number of queries whose document ranks high enough with its encoding.
        answered_after: Number of queries whose document ranks high enough with its solved vector.
        old_outranked_before: Number of known queries of older documents for which a document would
            rank higher with its encoding.
        old_outranked_after: Number of known queries of older documents for which a document ranks
            higher with its solved vector.
    """

    documents: int = 0
    queries: int = 0
    answered_before: int = 0
    answered_after: int = 0
    old_outranked_before: int = 0
    old_outranked_after: int = 0

    @classmethod
    def of(cls, documents: Sequence[SolvedDocument], k: int = MAX_FOUND_RANK) -> SolvedSummary:
        """Count the queries of solved documents.

        Args:
            documents: Records of the documents.
            k: A query counts as answered if its document has at most this rank.
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
        """Return how many queries find their documents before and after IncDSI, as sentences.

        >>> print(SolvedSummary(2, 5, 3, 5, 0, 1).sentence().replace(". ", ".\\n"))
        IncDSI refined 2 documents.
        Queries that find their document: 5 of 5 (before: 3).
        Known queries of older documents that find a refined document first: 1 (before: 0).
        """
        documents = "1 document" if self.documents == 1 else f"{self.documents:,} documents"
        return (
            f"IncDSI refined {documents}. Queries that find their document: "
            f"{self.answered_after:,} of {self.queries:,} (before: {self.answered_before:,}). "
            "Known queries of older documents that find a refined document first: "
            f"{self.old_outranked_after:,} (before: {self.old_outranked_before:,})."
        )


def solved_ids(folder: Path) -> frozenset[str]:
    """Return the ids of the documents of a segment whose vectors IncDSI solved.

    Args:
        folder: Folder of the segment.
    """
    if not (folder / SOLVED).is_file():
        return frozenset()
    return frozenset(row["document_id"] for row in read_json(folder / SOLVED))
