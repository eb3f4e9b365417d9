"""Open a build's live collection without a ledger, for benchmarks and tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from model_code.collection.generations.build import BuildArtifacts, add_build
from model_code.collection.generations.generation import Generation
from model_code.collection.generations.generation_store import (
    LIVE,
    GenerationStore,
    set_default_retriever,
)
from model_code.collection.ledger.events import LedgerCursor
from model_code.text.passages import TextRules

# Position before the first event of any ledger.
NO_EVENTS = LedgerCursor()


def open_generation_zero(
    root: Path,
    retriever: str,
    *,
    encoder: Path,
    index: Path,
    documents: Path,
    hierarchy: Path,
    provenance: Mapping[str, Any],
    text: TextRules | None = None,
    cursor: LedgerCursor = NO_EVENTS,
    known_queries: Path | None = None,
) -> Generation:
    """Make a finished build the current generation of `retriever`, and `retriever` the default one.

    The live folder is `root`/live. If the build was opened before, its newest generation becomes
    the current one again, with the documents that were added to it.

    Args:
        root: Folder of the project.
        retriever: Name of the retriever.
        encoder: Folder of the build's encoder.
        index: Folder of the build's index.
        documents: Parquet file of the build's documents.
        hierarchy: Folder of the build's hierarchy.
        provenance: Where the build comes from, for the manifest.
        text: Rules that cut documents into passages.
        cursor: Ledger position that the build includes.
        known_queries: File of the build's known queries.

    Returns:
        The generation that is now current.
    """
    store = GenerationStore(root / LIVE, retriever)
    artifacts = BuildArtifacts(encoder, index, documents, hierarchy, known_queries)

    def choose_copy(copies: Sequence[Generation]) -> Generation | None:
        """Return the current generation, else the last copy; None without copies."""
        for generation in reversed(copies):
            if generation.number == store.current_number():
                return generation
        return copies[-1] if copies else None

    generation = add_build(store, artifacts, provenance, text, cursor, choose_copy)
    current_number = store.current_number()
    if current_number is not None and generation.number < current_number:
        generation = store.publish_again(generation, generation.cursor, {})
    store.set_current(generation)
    set_default_retriever(root / LIVE, retriever)
    return generation
