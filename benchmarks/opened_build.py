"""Open a build's live collection without a log, as benches and tests begin."""

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
) -> Generation:
    """Make a finished build the current generation of `retriever` under `root`/live, and
    `retriever` the default one.

    See `add_build`; a build that was opened before gets its newest generation again, with what was
    added to it. Without a log this is all that opening is.
    """
    collection = GenerationStore(root / LIVE, retriever)
    parts = BuildArtifacts(encoder, index, documents, hierarchy)

    def newest(copies: Sequence[Generation]) -> Generation | None:
        """The current one, else the last; None of none."""
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
