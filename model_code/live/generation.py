"""A generation of a live collection: an immutable folder with all that a search needs, described by its manifest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_code.hierarchy.tree import DOCUMENT_IDS
from model_code.index.manifest import read_manifest, verify

FORMAT = 2
ENCODER, INDEX, DOCUMENTS, HIERARCHY = "encoder", "index", "documents.parquet", "hierarchy"
PASSAGES = f"{HIERARCHY}/{DOCUMENT_IDS}"


@dataclass(frozen=True)
class Generation:
    """One generation, whose `folder` is never written to again.

    `manifest` states format, retriever, parent (the number of the generation that was current before, or None), the
    encoder's fingerprint, the counts `documents` and `passages`, `provenance` (what its maker said of where it comes
    from) and a checksum per file.
    """

    folder: Path
    manifest: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Generation:
        """Read the manifest; FreshetError if `folder` is no finished generation of this format."""
        return cls(folder, read_manifest(folder, FORMAT))

    @property
    def number(self) -> int:
        """The generation's number within its collection: 0, 1, 2, ..."""
        return int(self.folder.name)

    @property
    def retriever(self) -> str:
        """The name of the retriever that the generation serves."""
        return self.manifest["retriever"]

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the encoder that made the vectors, and that queries must be encoded with."""
        return self.manifest["fingerprint"]

    def verify(self) -> None:
        """Compare every file with its checksum; FreshetError names the first that differs."""
        verify(self.folder, self.manifest)
