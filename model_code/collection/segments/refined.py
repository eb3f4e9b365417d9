"""Records of the documents of a segment that belongs to a DSI retriever.

A document is called refined if IncDSI solved its vector, so that it is not the plain encoding. See
`solved` for the records of other retrievers.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from model_code.files import read_json, write_array, write_json

# Files of a segment with the statuses of its documents, and with the query vector that stands for
# each document with one vector.
REFINED = "refined.json"
REPRESENTATIVES = "refined.npy"


@dataclass(frozen=True, eq=False)
class RefinedDocuments:
    """The documents of a segment: whether IncDSI solved their vectors, and their queries.

    Attributes:
        statuses: Name of a `Status` for each document of the segment, by document id.
        queries: Representative query z (H,) float32 of each document with one vector, by document
            id. It is the mean of the vectors of texts that should find the document.
    """

    statuses: dict[str, str] = field(default_factory=dict)
    queries: dict[str, np.ndarray] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write the records of refined documents to a segment's folder.

        Equal records give equal bytes.

        No file is written if there are no records.
        """
        if not self.statuses:
            return
        write_json(folder / REFINED, {"documents": list(self.queries), "statuses": self.statuses})
        rows = np.array(list(self.queries.values()), np.float32)
        write_array(folder / REPRESENTATIVES, rows)

    @classmethod
    def load(cls, folder: Path) -> RefinedDocuments:
        """Read the records of refined documents from a segment's folder, if it has any."""
        if not (folder / REFINED).is_file():
            return cls()
        content = read_json(folder / REFINED)
        rows = np.load(folder / REPRESENTATIVES, mmap_mode="r")
        queries = dict(zip(content["documents"], rows, strict=True))
        return cls(content["statuses"], queries)

    @classmethod
    def join(cls, segments: Sequence[tuple[Path, Container[str]]]) -> RefinedDocuments:
        """Read and join the records of several segments, for the segment that they are merged to.

        Args:
            segments: Folder of each segment, and the documents whose records are kept.
        """
        statuses: dict[str, str] = {}
        queries: dict[str, np.ndarray] = {}
        for folder, kept in segments:
            refined = cls.load(folder)
            for document_id, status in refined.statuses.items():
                if document_id in kept:
                    statuses[document_id] = status
            for document_id, query in refined.queries.items():
                if document_id in kept:
                    queries[document_id] = query
        return cls(statuses, queries)
