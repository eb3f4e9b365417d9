"""Which documents a live retriever was trained on, and which came later."""

from __future__ import annotations

from model_code.files import read_json
from model_code.live.documents import read_columns
from model_code.live.generation import DOCUMENTS, Generation
from model_code.live.removed import removed_by_part

TRAINED = "trained.json"  # in a base that an earlier Freshet clustered anew, which holds documents that were added too


def trained_documents(generation: Generation) -> set[str]:
    """The documents of the build that was opened: its retriever was trained with them, and knows no others."""
    base = generation.sibling(generation.base)
    if (base / TRAINED).is_file():
        return set(read_json(base / TRAINED))
    return set(read_columns(base / DOCUMENTS, "document_id")[0])


def added_since_training(generation: Generation) -> set[str]:
    """The documents that the generation finds and that its retriever was not trained on."""
    found: set[str] = set()
    for number, gone in removed_by_part(generation).items():
        (ids,) = read_columns(generation.sibling(number) / DOCUMENTS, "document_id")
        found |= set(ids) - gone
    return found - trained_documents(generation)
