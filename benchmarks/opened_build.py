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

NOWHERE = LedgerCursor()


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
    cursor: LedgerCursor = NOWHERE,
    known_queries: Path | None = None,
) -> Generation:
    """Make a finished build the current generation of `retriever`, and `retriever` the default one.

    The live folder is `root`/live. See `add_build`. A build that was opened before gets its newest
    generation again, with its additions.
    """
    collection = GenerationStore(root / LIVE, retriever)
    parts = BuildArtifacts(encoder, index, documents, hierarchy, known_queries)

    def newest(copies: Sequence[Generation]) -> Generation | None:
        """Return the current generation, else the last copy; None without copies."""
        current = [
            generation for generation in copies if generation.number == collection.current_number()
        ]
        return (current or copies or [None])[-1]

    generation = add_build(collection, parts, provenance, text, cursor, newest)
    before = collection.current_number()
    if before is not None and generation.number < before:
        generation = collection.publish_again(generation, generation.cursor, {})
    collection.set_current(generation)
    set_default_retriever(root / LIVE, retriever)
    return generation
