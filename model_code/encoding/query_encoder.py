"""Encode queries for search without PyTorch, and load the encoder of a search.

A search needs an encoder for its queries only. If the encoder is a published BERT and the machine
has no GPU, NumPy encodes them; see `numpy_bert`. PyTorch encodes documents in all cases, and the
queries for which IncDSI solves. It is imported when the first of them is encoded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from model_code.encoding.base_models import (
    Prompts,
    compute_fingerprint,
    describe_vectors,
)
from model_code.encoding.bert_files import POSITION_IDS, WEIGHTS_FILE, PlainTokenizer
from model_code.encoding.numpy_bert import NumpyBert, load_numpy_bert
from model_code.encoding.settings import Pooling, Precision
from model_code.encoding.shared_encoders import resolve_encoder, share_encoder
from model_code.encoding.token_signs import TokenSigns
from model_code.encoding.tokens import token_batches, token_ids
from model_code.encoding.word_states import WordStates
from model_code.mapped_tensors import map_tensors
from model_code.progress import Progress, no_progress

if TYPE_CHECKING:
    from model_code.encoding.encoder import Encoder

# Files that exist where a GPU's driver is loaded: NVIDIA's, that of WSL, and AMD's.
GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")

# Largest number of tokens that are encoded at once. Their states then fit into the cache.
BATCH_TOKENS = 256


class SearchEncoder(Protocol):
    """The interface of the encoder of a dense retriever: an `Encoder` or a `QueryEncoder`."""

    dimension: int

    @property
    def pytorch(self) -> Encoder:
        """The encoder in PyTorch, which is faster for many texts."""

    def encode_queries(self, texts: Sequence[str], progress: Progress = ...) -> np.ndarray:
        """Return the unit vectors (n, H) of queries."""

    def encode_queries_with_signs(
        self, texts: Sequence[str], progress: Progress = ...
    ) -> tuple[np.ndarray, TokenSigns]:
        """Return the vectors (n, H) of queries, and the signs of their words' vectors."""

    def encode_documents(self, texts: Sequence[str], progress: Progress = ...) -> np.ndarray:
        """Return the vectors (n * v, H) of documents, v rows per text."""

    def encode_documents_by_last_layer(
        self, texts: Sequence[str], progress: Progress = ...
    ) -> np.ndarray:
        """Return the vectors (n, H) of documents by the last layer only."""

    def encode_documents_with_signs(
        self, texts: Sequence[str], progress: Progress = ...
    ) -> tuple[np.ndarray, TokenSigns]:
        """Return the vectors (n, H) of documents, and the signs of their words' vectors."""

    def document_token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids that the encoder reads of documents."""

    def fingerprint(self) -> str:
        """Return the SHA-256 of everything that influences the vectors."""

    def release_weights(self) -> None:
        """Let the kernel take back weights that queries do not need."""


class QueryEncoder:
    """Encodes queries with NumPy, and loads an `Encoder` of PyTorch to encode documents.

    Attributes:
        dimension: Number of dimensions H of a vector.
        max_tokens: Longer texts are cut to so many tokens.
        prompts: Texts put before queries and documents.
    """

    def __init__(
        self,
        folder: Path,
        model: NumpyBert,
        pooling: Pooling,
        max_tokens: int,
        prompts: Prompts,
        layers: tuple[int, ...],
        load_encoder: Callable[[], Encoder],
    ) -> None:
        """Combine the parts of an encoder; `load_query_encoder` reads them.

        Args:
            folder: Folder of the transformer and its tokenizer.
            model: The transformer.
            pooling: How token vectors become one vector.
            max_tokens: Longer texts are cut to so many tokens.
            prompts: Texts put before queries and documents.
            layers: Layers that documents are indexed by. Empty: the last layer only.
            load_encoder: Loads the same encoder with PyTorch.
        """
        self.dimension = model.width
        self.max_tokens = max_tokens
        self.prompts = prompts
        self._folder = folder
        self._model = model
        self._pooling: Pooling = pooling
        self._layers = layers
        self._load_encoder = load_encoder
        self._tokenizer = PlainTokenizer(folder)
        self._word_states = WordStates(self._tokenizer)

    def encode_queries(self, texts: Sequence[str], progress: Progress = no_progress) -> np.ndarray:
        """Encode queries.

        Texts that are encoded together influence only the last bits of each other's vectors.

        Args:
            texts: Query texts.
            progress: Called with the number of finished texts after each batch.

        Returns:
            Unit vectors (n, H), float32.
        """
        vectors = np.empty((len(texts), self.dimension), np.float32)

        def store(number: int, states: np.ndarray, ids: Sequence[int]) -> None:
            vectors[number] = self._to_unit_vector(states)

        self._encode_each(self.prompts.to_queries(texts), store, progress)
        return vectors

    def encode_queries_with_signs(
        self, texts: Sequence[str], progress: Progress = no_progress
    ) -> tuple[np.ndarray, TokenSigns]:
        """Return the vectors of queries, and the signs of their words' vectors.

        The signs are those of `Encoder.encode_queries_with_signs`.
        """
        vectors = np.empty((len(texts), self.dimension), np.float32)
        signs_by_text: dict[int, np.ndarray] = {}
        (prompt_ids,) = self._token_ids([self.prompts.query])

        def store(number: int, states: np.ndarray, ids: Sequence[int]) -> None:
            vectors[number] = self._to_unit_vector(states)
            signs_by_text[number] = self._word_states.signs(
                states, ids, prompt_ids, repeats_words=True
            )

        self._encode_each(self.prompts.to_queries(texts), store, progress)
        return vectors, TokenSigns.of([signs_by_text[number] for number in range(len(texts))])

    def encode_documents(
        self, texts: Sequence[str], progress: Progress = no_progress
    ) -> np.ndarray:
        """Encode documents with PyTorch; see `Encoder.encode_documents`."""
        return self.pytorch.encode_documents(texts, progress)

    def encode_documents_by_last_layer(
        self, texts: Sequence[str], progress: Progress = no_progress
    ) -> np.ndarray:
        """Encode documents with PyTorch; see `Encoder.encode_documents_by_last_layer`."""
        return self.pytorch.encode_documents_by_last_layer(texts, progress)

    def encode_documents_with_signs(
        self, texts: Sequence[str], progress: Progress = no_progress
    ) -> tuple[np.ndarray, TokenSigns]:
        """Encode documents with PyTorch; see `Encoder.encode_documents_with_signs`."""
        return self.pytorch.encode_documents_with_signs(texts, progress)

    def document_token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids that the encoder reads of documents, prompt and limit included."""
        return self._token_ids(self.prompts.to_documents(texts))

    @cached_property
    def pytorch(self) -> Encoder:
        """The same encoder in PyTorch."""
        return self._load_encoder()

    def fingerprint(self) -> str:
        """Return the fingerprint of the same `Encoder`."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        # The weights are mapped again, so that the pages that are read here are given back.
        weights = map_tensors(self._folder / WEIGHTS_FILE)
        weights.pop(POSITION_IDS, None)
        # An `Encoder` is a PyTorch module with the transformer as its part `backbone`.
        named_weights = [(f"backbone.{name}", weights[name]) for name in sorted(weights)]
        return compute_fingerprint(
            named_weights,
            self._tokenizer,
            describe_vectors(self._pooling, self._layers, self.prompts),
            self.max_tokens,
        )

    def release_weights(self) -> None:
        """Do nothing, because weights that queries do not need are mapped."""

    def _token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        return token_ids(self._tokenizer, texts, self.max_tokens)

    def _encode_each(
        self,
        texts: Sequence[str],
        store: Callable[[int, np.ndarray, Sequence[int]], None],
        progress: Progress,
    ) -> None:
        """Encode texts in batches, and call a function with the result of each text.

        Args:
            texts: The texts, with their prompt.
            store: Receives the number of a text, its states (t, H), and its token ids.
            progress: Called with the number of finished texts after each batch.
        """
        ids = self._token_ids(texts)
        done = 0
        for rows in token_batches([len(text_ids) for text_ids in ids], BATCH_TOKENS):
            batch = [ids[row] for row in rows]
            states = self._model.last_states(batch)
            for row, text_states in zip(rows, states, strict=True):
                store(row, text_states, ids[row])
            done += len(rows)
            progress(done, len(texts), "texts")

    def _to_unit_vector(self, states: np.ndarray) -> np.ndarray:
        """Return the unit vector (H,) of a text with states (t, H)."""
        pooled = states[0] if self._pooling == "cls" else states.mean(axis=0)
        return pooled / np.linalg.norm(pooled)


def load_search_encoder(
    source: str | Path,
    numpy: bool = False,
    max_tokens: int | None = None,
    precision: Precision = "auto",
    device: str = "auto",
) -> SearchEncoder:
    """Load an encoder that will not be trained.

    Args:
        source: A folder, or the name of a model; see `Encoder.load`.
        numpy: Whether NumPy encodes queries if it can. Otherwise PyTorch does.
        max_tokens: Length limit. None: the folder's limit.
        precision: Precision in which PyTorch computes. NumPy computes in float32.
        device: Device on which PyTorch computes; see `pick_device`.
    """

    def load_encoder() -> Encoder:
        from model_code.encoding.encoder import Encoder

        return Encoder.load(source, max_tokens, precision=precision, device=device, for_search=True)

    if numpy and (device == "cpu" or (device == "auto" and not has_gpu_driver())):
        query_encoder = load_query_encoder(source, max_tokens, load_encoder)
        if query_encoder is not None:
            return query_encoder
    return load_encoder()


def load_query_encoder(
    source: str | Path, max_tokens: int | None, load_encoder: Callable[[], Encoder]
) -> QueryEncoder | None:
    """Load an encoder of queries that needs no PyTorch.

    Args:
        source: A folder, or the name of a model; see `Encoder.load`.
        max_tokens: Length limit. None: the folder's limit.
        load_encoder: Loads the same encoder with PyTorch.

    Returns:
        The encoder. Searches with the same packaged base encoder share it. None if NumPy cannot
        encode: the transformer is not a published BERT in float32, or its vectors are projected.
    """
    layout, pooling, prompts, limit, reference = resolve_encoder(source, max_tokens)
    if limit is None or layout.projections:
        return None

    model = load_numpy_bert(layout.transformer, limit)
    if model is None:
        return None

    def load() -> Any:
        return QueryEncoder(
            layout.transformer, model, pooling, limit, prompts, layout.layers, load_encoder
        )

    if reference is None:
        encoder: QueryEncoder = load()
        return encoder
    shared: QueryEncoder = share_encoder((QueryEncoder, reference, limit), load)
    return shared


def has_gpu_driver() -> bool:
    """Return whether PyTorch may find a GPU here. Only its import would tell for certain."""
    if sys.platform == "win32":
        return (Path("C:/Windows/System32") / "nvcuda.dll").is_file()
    return any(Path(device).exists() for device in GPU_DEVICES)
