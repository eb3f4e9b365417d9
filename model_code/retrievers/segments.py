"""What a kind of retriever does for a live collection, beyond searching one index: segments of documents added later.

A kind's module of segments has five functions, of which a kind that cannot be refined lacks the last:

| function | does |
|---|---|
| `write(retriever, folder, new)` | index new passages, encoded by the retriever's encoder, in `folder` |
| `reopen(retriever, folder)` | the retriever of another such folder that shares the encoder |
| `merge(parts, folder)` | index the named documents of several retrievers as they are: nothing is encoded |
| `passage_vectors(retriever, document_ids)` | a vector (n, D) for each of its n passages, for the hierarchy |
| `encodings(retriever, new)` | the document of each row, and the encoder's vectors (n, H): what `refine` is given |
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from model_code.retrievers.settings import Kind

Refine = Callable[[Sequence[str], "np.ndarray", Sequence["np.ndarray"]], "np.ndarray"]
"""(document of each row, the encoder's vectors (n, H), each row's query vectors (m, H)) -> the vectors to index (n, H).

m is 0 for a document that came without queries."""

MODULES: dict[Kind, str] = {
    "dense": "model_code.retrievers.dense_segments",
    "lexical": "model_code.retrievers.lexical_segments",
    "dsi": "model_code.retrievers.dsi_segments",
}


@dataclass(frozen=True)
class NewPassages:
    """Passages to index: their texts, the document of each, and the queries that documents came with.

    The passages of a document follow each other. refine: changes the vectors of kinds that have a dense one.
    """

    texts: Sequence[str]
    document_ids: Sequence[str]
    queries: Mapping[str, Sequence[str]] = field(default_factory=dict)
    refine: Refine | None = None


def segments(kind: Kind) -> ModuleType:
    """The module of a kind; imported only when it is needed."""
    return importlib.import_module(MODULES[kind])
