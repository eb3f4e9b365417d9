"""The kinds of retrievers, and the one place that chooses between them.

A kind is a module with three functions: `train(context, tables)` and `index(context)`, which are what the stages of
that name do and report, and `open_folders(encoder, index, **loading)`, which returns a `Retriever`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from model_code.encoding.settings import EncoderSettings
from model_code.errors import FreshetError
from model_code.files import read_json
from model_code.manifest import MANIFEST
from model_code.retriever import Retriever
from model_code.retrievers.settings import Kind

MODULES: dict[Kind, str] = {
    "dense": "model_code.retrievers.dense",
    "lexical": "model_code.retrievers.lexical",
    "dsi": "model_code.retrievers.dsi",
}
PRECISION = "precision"  # in an index's manifest: the setting that its passages were encoded under


def module(kind: Kind) -> ModuleType:
    """The module of a kind; imported only when it is needed."""
    return importlib.import_module(MODULES[kind])


def open_retriever(encoder: Path, index: Path, settings: EncoderSettings | None = None) -> Retriever:
    """The retriever whose trained encoder and index lie in these folders, of whatever kind they are.

    settings: maximum length, precision and device; None: the encoder's own length and the index's precision.
    FreshetError if the folders are damaged or do not belong together.
    """
    path = index / MANIFEST
    if not path.is_file():
        raise FreshetError(f"{index} has no {MANIFEST}: it was not finished, or is no index; build it again")
    facts = read_json(path)
    loading: dict[str, Any] = {"for_search": True, PRECISION: facts.get(PRECISION, "auto")}
    if settings is not None:
        loading |= {"max_tokens": settings.max_tokens, "precision": settings.precision, "device": settings.device}
    return module(facts["kind"]).open_folders(encoder, index, **loading)
