"""The search engines to which documents can be copied.

Each engine needs a library that is not installed by default. It is imported when the engine is
opened.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from model_code.collection.handover.passages import EncodedDocument

EngineName = Literal["qdrant", "lancedb", "opensearch"]


class Engine(Protocol):
    """A collection of documents in another search engine."""

    def exists(self) -> bool:
        """Return whether the collection exists."""

    def create(self, dimension: int) -> None:
        """Create the collection without documents. An existing collection is deleted.

        Args:
            dimension: Dimension of the vectors.
        """

    def write(self, documents: Sequence[EncodedDocument]) -> None:
        """Write documents with their passages. Earlier versions of the documents are deleted."""

    def delete(self, document_ids: Collection[str]) -> None:
        """Delete documents. Ids that are not in the collection are ignored."""

    def finish(self) -> None:
        """Make all changes permanent, and close the engine."""


def open_engine(engine: EngineName, target: str, name: str, change_set: int) -> Engine:
    """Open a collection of an engine.

    Args:
        engine: Name of the engine.
        target: Address or folder of the engine.
        name: Name of the collection, the table or the index.
        change_set: Number of earlier hand-overs to this collection. Engines that write files put it
            into the file names.

    Raises:
        FreshetError: If the engine's library is not installed, or the engine does not answer.
    """
    if engine == "qdrant":
        from model_code.collection.handover.qdrant import QdrantEngine

        return QdrantEngine(target, name)
    if engine == "lancedb":
        from model_code.collection.handover.lance import LanceEngine

        return LanceEngine(target, name)

    from model_code.collection.handover.opensearch import OpenSearchFiles

    return OpenSearchFiles(target, name, change_set)
