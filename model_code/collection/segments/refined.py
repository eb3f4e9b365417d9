"""Files of a segment about its refined documents, whose vectors IncDSI has solved."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from model_code.files import atomic_write, read_json, write_json

REFINED, REPRESENTATIVES = "refined.json", "refined.npy"


@dataclass(frozen=True, eq=False)
class RefinedDocuments:
    """The refined documents of a segment, in their order.

    Attributes:
        statuses: Name of the refinement status of each document, by document id.
        queries: Representative query z (H,) float32 of each document with one vector, by document
            id: the mean of the query vectors that should find the document.
    """

    statuses: dict[str, str] = field(default_factory=dict)
    queries: dict[str, np.ndarray] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write the files, if any document was refined; equal values give equal bytes."""
        if not self.statuses:
            return
        write_json(folder / REFINED, {"documents": list(self.queries), "statuses": self.statuses})
        rows = np.array(list(self.queries.values()), np.float32)
        with atomic_write(folder / REPRESENTATIVES) as path, path.open("wb") as stream:
            np.save(stream, rows)

    @classmethod
    def load(cls, folder: Path) -> RefinedDocuments:
        """Read what `save` wrote; the result is empty if no document was refined."""
        if not (folder / REFINED).is_file():
            return cls()
        content = read_json(folder / REFINED)
        rows = np.load(folder / REPRESENTATIVES, mmap_mode="r")
        queries = dict(zip(content["documents"], rows, strict=True))
        return cls(content["statuses"], queries)

    @classmethod
    def join(cls, segments: Sequence[tuple[Path, Container[str]]]) -> RefinedDocuments:
        """Join the refined documents of several segments.

        Args:
            segments: Folder of each segment, and its documents that are kept.
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
