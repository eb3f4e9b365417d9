"""The kinds of retrievers: what a kind consists of, and the registry that finds a kind by name.

A kind that is trained here is a package with a module `kind.py` that defines `KIND`, a
`RetrieverKind`. To add one, write such a package and add a line to `TRAINED_KINDS`. Nothing else in
the project compares the name of a kind.

The registry holds the names of modules and imports a module when its kind is needed. An import at
the top would be circular, because the modules of the kinds import this package. A module `kind.py`
imports slow libraries inside functions only, so that looking up a kind is fast.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from model_code.encoding.settings import EncoderSettings
from model_code.errors import FreshetError
from model_code.files import MANIFEST, read_json
from model_code.settings import Settings

if TYPE_CHECKING:
    from model_code.context import StageContext
    from model_code.retrieval.indexed import IndexedRetriever

# The module of each kind that is trained; its `KIND` is a `RetrieverKind`.
TRAINED_KINDS: dict[str, str] = {
    "dense": "model_code.dense.kind",
    "lexical": "model_code.lexical.kind",
    "dsi": "model_code.dsi.kind",
}

# The module of each kind that needs no training; its function `open_folders` opens a retriever.
UNTRAINED_KINDS: dict[str, str] = {
    "bm25": "model_code.retrieval.bm25",
    "headline": "model_code.retrieval.headline",
    "fused": "model_code.retrieval.fused",
}

# The kind of a retriever whose settings name none, and of the base encoder's index.
DEFAULT_KIND = "dense"

# Key in an index's manifest: the number format in which its passages were encoded.
PRECISION = "precision"


def accept_settings(training: Any, settings: Any) -> None:
    """Accept any settings: the default of `RetrieverKind.check_settings`.

    It is for kinds without rules about combinations of settings.
    """


def accept_output(context: StageContext) -> None:
    """Accept any output of training: the default of `RetrieverKind.check_trained`.

    It is for kinds that write only an encoder, which is checked for all kinds.
    """


@dataclass(frozen=True)
class RetrieverKind:
    """A type of retriever that is trained here: its functions and its properties.

    Attributes:
        name: Value of `kind` in params.yaml and in the manifests of indexes.
        description: One line for the reference of settings.
        train: Train a retriever, write the output of the training stage, and return its report.
            Arguments: the stage's context and the training tables.
        index: Index the corpus's passages with the encoder in `inputs["trained"]`, write `index/`,
            and return the stage's report. Argument: the stage's context.
        open_folders: Open a retriever. Arguments: the encoder's folder, the index's folder, and
            options for loading the encoder.
        check_index: Raise FreshetError if an index folder breaks the kind's contract. Arguments:
            the folder, its manifest, and the document of each passage.
        settings_group: Key of the kind's own group in a retriever's settings.
        settings_class: Class of the settings in that group.
        check_settings: Raise SettingsError if the kind cannot be trained with these settings.
            Arguments: a `TrainingSettings` and the kind's own group.
        check_trained: Raise FreshetError if the output of training breaks the kind's contract.
        one_row_per_document: Whether an index has one row per document instead of one per passage.
        learns_documents: Whether training learns a vector per document.
        shares_steps: Whether several processes can share the batches of one training step.
        loader: Class of sentence-transformers that loads the trained encoder.
        trust_remote_code: Whether `loader` must run code from the encoder's folder.
    """

    name: str
    description: str
    train: Callable[[StageContext, Any], dict[str, Any]]
    index: Callable[[StageContext], dict[str, Any]]
    open_folders: Callable[..., IndexedRetriever]
    check_index: Callable[[Path, Mapping[str, Any], Sequence[str]], None]
    settings_group: str
    settings_class: type[Settings]
    check_settings: Callable[[Any, Any], None] = accept_settings
    check_trained: Callable[[StageContext], None] = accept_output
    one_row_per_document: bool = False
    learns_documents: bool = False
    shares_steps: bool = False
    loader: str = "SentenceTransformer"
    trust_remote_code: bool = False


def trained_kind(name: str) -> RetrieverKind:
    """Import and return the trained kind with a name, which must be in `TRAINED_KINDS`."""
    kind: RetrieverKind = importlib.import_module(TRAINED_KINDS[name]).KIND
    return kind


def all_trained_kinds() -> list[RetrieverKind]:
    """Return every kind that is trained, in the registry's order."""
    return [trained_kind(name) for name in TRAINED_KINDS]


def open_retriever(
    encoder: Path, index: Path, settings: EncoderSettings | None = None, numpy: bool = False
) -> IndexedRetriever:
    """Open a retriever of any kind for search.

    Args:
        encoder: Folder of the trained encoder.
        index: Folder of its index, whose manifest names the kind.
        settings: Maximum length, precision and device. None uses the encoder's maximum length and
            the precision in which the index was encoded.
        numpy: Whether NumPy encodes queries where it can, so that PyTorch is not imported. PyTorch
            encodes many queries faster.

    Raises:
        FreshetError: If a folder is damaged, or the two do not belong together.
    """
    loading: dict[str, Any] = {"numpy": numpy}
    if settings is not None:
        loading["max_tokens"] = settings.max_tokens
        loading[PRECISION] = settings.precision
        loading["device"] = settings.device
    return open_folders(encoder, index, **loading)


def open_folders(encoder: Path, index: Path, **loading: Any) -> IndexedRetriever:
    """Open a retriever of any kind with explicit loading options; see `open_retriever`.

    Args:
        encoder: Folder of the trained encoder.
        index: Folder of its index.
        loading: Options for loading the encoder. If they have no precision, the precision of the
            index's manifest is used.

    Raises:
        FreshetError: If the index folder has no manifest.
    """
    # The manifest of an index names the kind of its retriever.
    path = index / MANIFEST
    if not path.is_file():
        raise FreshetError(
            f"{index} has no {MANIFEST}: it was not finished, or is no index; build it again"
        )
    manifest = read_json(path)

    options = {PRECISION: manifest.get(PRECISION, "auto")}
    options.update(loading)
    return _opener(manifest["kind"])(encoder, index, **options)


def _opener(kind: str) -> Callable[..., IndexedRetriever]:
    """Return the function that opens a retriever of a kind, whether the kind is trained or not."""
    if kind in TRAINED_KINDS:
        return trained_kind(kind).open_folders
    module: ModuleType = importlib.import_module(UNTRAINED_KINDS[kind])
    opener: Callable[..., IndexedRetriever] = module.open_folders
    return opener
