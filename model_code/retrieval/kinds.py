"""The table of kinds, and the one place that chooses between them.

A kind is a module of this package with three functions: `train(context, tables)` and
`index(context)`, which are what the stages of that name do and report, and `open_folders(encoder,
index, **loading)`, which returns an `IndexedRetriever`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from model_code.encoding.settings import EncoderSettings
from model_code.errors import FreshetError
from model_code.files import MANIFEST, read_json
from model_code.retrieval.base import IndexedRetriever

Kind = Literal["dense", "lexical", "dsi"]
KINDS: dict[Kind, str] = {
    "dense": "a vector per passage, or several with layers: contrastive, HCE, MLR",
    "lexical": "SVDR: weights over the vocabulary",
    "dsi": "a learned vector per document",
}
"""THE table of what is trained, in words: a kind is the module of this package that has its name.
"""

MODULES: dict[str, str] = {
    "dense": "model_code.dense.kind",
    "lexical": "model_code.lexical.kind",
    "dsi": "model_code.dsi.kind",
    "bm25": "model_code.retrieval.bm25",
    "fused": "model_code.retrieval.fused",
}
"""The module of each kind. Names, not imports: a kind stands above this package and is imported
when it is needed.
"""

PRECISION = "precision"  # in an index's manifest: the setting that its passages were encoded under


def module(kind: Kind | Literal["bm25", "fused"]) -> ModuleType:
    """The module of a kind, imported only when it is needed; those that are not trained have
    `open_folders` alone.
    """
    return importlib.import_module(MODULES[kind])


def open_retriever(
    encoder: Path, index: Path, settings: EncoderSettings | None = None
) -> IndexedRetriever:
    """The retriever whose trained encoder and index lie in these folders, of whatever kind they
    are.

    settings: maximum length, precision and device; None: the encoder's own length and the index's
    precision. FreshetError if the folders are damaged or do not belong together.
    """
    loading: dict[str, Any] = {"for_search": True}
    if settings is not None:
        loading |= {
            "max_tokens": settings.max_tokens,
            PRECISION: settings.precision,
            "device": settings.device,
        }
    return open_folders(encoder, index, **loading)


def open_folders(encoder: Path, index: Path, **loading: Any) -> IndexedRetriever:
    """`open_retriever`; loading: what the kind loads its encoder with, and the index's precision
    unless it says so.
    """
    path = index / MANIFEST
    if not path.is_file():
        raise FreshetError(
            f"{index} has no {MANIFEST}: it was not finished, or is no index; build it again"
        )
    facts = read_json(path)
    return module(facts["kind"]).open_folders(
        encoder, index, **{PRECISION: facts.get(PRECISION, "auto")} | loading
    )
