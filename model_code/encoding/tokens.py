"""Token ids of texts, and their division into batches. PyTorch is not needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

TRUNCATION = {"direction": "right", "strategy": "longest_first", "stride": 0}


def token_ids(tokenizer: Any, texts: Sequence[str], max_tokens: int) -> list[list[int]]:
    """Return the token ids of each text, special ones included.

    The tokenizer's settings are changed only if necessary, because a change waits until no other
    thread uses the tokenizer.

    Args:
        tokenizer: A tokenizer with a `backend_tokenizer`.
        texts: The texts.
        max_tokens: Longer texts are cut to so many tokens.
    """
    backend = tokenizer.backend_tokenizer
    truncation = dict(TRUNCATION, max_length=max_tokens)
    if backend.padding is not None:
        backend.no_padding()
    if backend.truncation != truncation:
        backend.enable_truncation(**truncation)
    return [encoding.ids for encoding in backend.encode_batch_fast(list(texts))]


def token_batches(
    lengths: Sequence[int], batch_tokens: int, even: bool = False
) -> Iterator[list[int]]:
    """Divide rows of tokens into batches, and yield the row numbers of each, longest rows first.

    Args:
        lengths: Number of tokens of each row.
        batch_tokens: Largest number of tokens per batch, padding included. A batch holds at least
            one row.
        even: Whether all rows of a batch must have the same length, so that nothing is padded.

    >>> list(token_batches([2, 5, 3, 2], batch_tokens=6))
    [[1], [2, 0], [3]]
    >>> list(token_batches([2, 5, 3, 2], batch_tokens=6, even=True))
    [[1], [2], [0, 3]]
    """
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    start = 0
    while start < len(order):
        # All rows of the batch are padded to its first row, which is the longest.
        longest = lengths[order[start]]
        row_count = max(1, batch_tokens // max(1, longest))
        rows = order[start : start + row_count]
        if even:
            rows = [row for row in rows if lengths[row] == longest]
        yield rows
        start += len(rows)
