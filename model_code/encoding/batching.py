"""Token sequences sorted by length and cut into parts of about equal cost, so that hardly anything is padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Features = dict[str, Tensor]


def token_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield lists of row numbers, longest rows first; rows x longest row <= `batch_tokens`, but one row at least.

    >>> list(token_batches([2, 5, 3, 2], batch_tokens=6))
    [[1], [2, 0], [3]]
    """
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    start = 0
    while start < len(order):
        size = max(1, batch_tokens // max(1, lengths[order[start]]))
        yield order[start : start + size]
        start += size


def pad(sequences: Sequence[Sequence[int]], padding: int) -> dict[str, Tensor]:
    """Right-pad token ids to the longest: `input_ids` and `attention_mask`, both (B, T) int64.

    >>> pad([[5, 6], [7]], padding=0)["input_ids"].tolist()
    [[5, 6], [7, 0]]
    """
    longest = max(map(len, sequences), default=0)
    ids = torch.tensor([[*row, *[padding] * (longest - len(row))] for row in sequences], dtype=torch.int64)
    lengths = torch.tensor([len(row) for row in sequences])
    mask = (torch.arange(longest) < lengths[:, None]).long()
    return {"input_ids": ids.reshape(len(sequences), longest), "attention_mask": mask}


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
