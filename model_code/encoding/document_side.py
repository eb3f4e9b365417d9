"""The documents' side of an encoder: which layers represent a document, and encoding without knowing which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from model_code.encoding.encoder import Encoder
from model_code.encoding.layer_settings import LayerSettings
from model_code.encoding.layers import Layers
from model_code.errors import FreshetError
from model_code.progress import Progress, silent


@dataclass(frozen=True)
class DocumentSide:
    """`encode` gives the vectors that passages are indexed by, where the encoder's own gives those of queries."""

    encoder: Encoder

    @property
    def dimension(self) -> int:
        """Number of components H of a vector."""
        return self.encoder.dimension

    def encode(self, texts: Sequence[str], progress: Progress = silent) -> np.ndarray:
        """`Encoder.encode_documents`: (n * v, H), v = `Encoder.vectors_per_passage` rows for each text."""
        return self.encoder.encode_documents(texts, progress)


def encode_passages(encoder: Any, texts: Sequence[str]) -> np.ndarray:
    """One vector (n, H) per text, as queries are encoded, or by the documents' side if queries have one of their own.

    encoder: an `Encoder`, or anything that encodes. Of several layers' vectors it is the last layer's.
    """
    if getattr(encoder, "query_encoder", None) is None:
        return encoder.encode(texts)
    vectors, each = encoder.encode_documents(texts), encoder.vectors_per_passage
    return np.ascontiguousarray(vectors[each - 1 :: each])


SAMPLE = 256  # texts that the layers' scales are measured on


def represent_documents(encoder: Encoder, settings: LayerSettings, texts: Sequence[str]) -> None:
    """Have `encoder` index documents by the layers that `settings` ask for; SettingsError if it has no such layer.

    Self-contrastive pooling uses its layers in training only: what it searches is an ordinary encoder. texts: the
    corpus's passages, of which some tell how the layers' norms differ.
    """
    encoder.layers = None
    numbers = _indexed(encoder, settings)
    if len(numbers) == 1:
        return
    scales = None if settings.pooling == "multi_vector" else layer_scales(encoder, numbers, texts)
    encoder.layers = Layers(numbers, settings.pooling, scales).to(encoder.device)


def require_represented(encoder: Encoder, settings: LayerSettings) -> None:
    """FreshetError unless `represent_documents` has prepared `encoder` for these settings."""
    found = (encoder.depth,) if encoder.layers is None else encoder.layers.numbers
    if found != _indexed(encoder, settings) or (encoder.layers and encoder.layers.pooling != settings.pooling):
        raise FreshetError(
            f"the encoder indexes documents by layers {list(found)}, which are not those of {settings}; "
            "call represent_documents(encoder, layers, texts) first"
        )


def _indexed(encoder: Encoder, settings: LayerSettings) -> tuple[int, ...]:
    """The layers that documents are searched by."""
    numbers = settings.chosen(encoder.depth)
    return (encoder.depth,) if settings.pooling == "self_contrastive" else numbers


def layer_scales(encoder: Encoder, numbers: Sequence[int], texts: Sequence[str]) -> torch.Tensor:
    """Mean norm of each layer's pooled vectors, (m,), over at most `SAMPLE` texts spread evenly."""
    sample = texts[:: max(1, -(-len(texts) // SAMPLE))]
    with torch.no_grad():
        norms = [encoder.pooled_layers(encoder.tokenize([text]), numbers).norm(dim=-1) for text in sample]
    return torch.cat(norms).mean(dim=0).cpu()
