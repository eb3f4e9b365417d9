"""The texts of a batch in length-sorted parts, each padded to its own longest: less is spent on padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from model_code.encoding.batching import token_batches

Features = dict[str, Tensor]


class Buckets(NamedTuple):
    """n tokenised texts as a few padded parts; `rows` (n,): where each text's vector is once the parts are encoded."""

    parts: list[Features]
    rows: Tensor


def bucketed(features: Features, batch_tokens: int) -> Buckets:
    """Split padded features into parts of at most `batch_tokens` tokens, padding included, of texts of like length.

    >>> mask = torch.tensor([[1, 0, 0], [1, 1, 1], [1, 1, 0]])
    >>> buckets = bucketed({"attention_mask": mask}, batch_tokens=4)
    >>> [part["attention_mask"].tolist() for part in buckets.parts], buckets.rows.tolist()
    ([[[1, 1, 1]], [[1, 1], [1, 0]]], [2, 0, 1])
    """
    lengths = features["attention_mask"].sum(dim=1).tolist()
    groups = list(token_batches(lengths, batch_tokens))
    parts = [{name: value[group, : lengths[group[0]]] for name, value in features.items()} for group in groups]
    return Buckets(parts, torch.tensor([row for group in groups for row in group]).argsort())


def encode(encoder: Callable[[Features], Tensor], texts: Buckets) -> Tensor:
    """The vectors (n, H) of the texts, in their own order."""
    return torch.cat([encoder(part) for part in texts.parts])[texts.rows]
