"""Token sequences sorted by length and cut into batches of about equal cost, so that hardly anything is padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch


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


def pad(sequences: Sequence[Sequence[int]], padding: int) -> dict[str, torch.Tensor]:
    """Right-pad token ids to the longest: `input_ids` and `attention_mask`, both (B, T) int64.

    >>> pad([[5, 6], [7]], padding=0)["input_ids"].tolist()
    [[5, 6], [7, 0]]
    """
    longest = max(map(len, sequences), default=0)
    ids = torch.tensor([[*row, *[padding] * (longest - len(row))] for row in sequences], dtype=torch.int64)
    lengths = torch.tensor([len(row) for row in sequences])
    mask = (torch.arange(longest) < lengths[:, None]).long()
    return {"input_ids": ids.reshape(len(sequences), longest), "attention_mask": mask}
