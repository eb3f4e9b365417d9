"""The engines that documents can be handed over to, by name.

An engine is opened for one collection of documents. Its library is an extra, and is imported when
the engine is opened.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from model_code.collection.handover.passages import EncodedDocument

EngineName = Literal["qdrant", "lancedb", "opensearch"]


class Engine(Protocol):
    """One collection of documents in another engine."""

    def exists(self) -> bool:
        """Return whether the collection exists."""

    def create(self, dimension: int) -> None:
        """Create the collection without documents. An existing one is deleted.

        Args:
            dimension: Number of components of a vector.
        """

    def write(self, documents: Sequence[EncodedDocument]) -> None:
        """Write documents. Earlier passages of the same documents are deleted."""

    def delete(self, document_ids: Collection[str]) -> None:
        """Delete documents. Ids that the collection does not hold are left out."""

    def finish(self) -> None:
        """Make everything that was written permanent, and close the engine."""


def open_engine(engine: EngineName, target: str, name: str, change_set: int) -> Engine:
    """Open a collection of an engine.

    Args:
        engine: Name of the engine.
        target: Address or folder of the engine.
        name: Name of the collection, the table or the index.
        change_set: Number of earlier hand-overs to this collection. Engines that write files use
            it in their names.

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
