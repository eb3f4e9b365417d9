"""Bags of tokens: which tokens each of n passages holds, flat in two arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from model_code.errors import FreshetError

MOST_TOKENS = 2**31  # token ids below it leave 32 bits of a 63-bit key for the passage


@dataclass(frozen=True)
class Bags:
    """`tokens` (m,) int64: those of passage 0, of passage 1, ...; `lengths` (n,) int64: how many each has.

    A token may stand several times in a passage, which means the same as once: the bags are binary.
    """

    tokens: np.ndarray
    lengths: np.ndarray

    def __post_init__(self) -> None:
        """Refuse arrays that do not fit each other."""
        if self.lengths.sum() != len(self.tokens):
            raise FreshetError(f"{len(self.tokens)} tokens do not fit lengths that add up to {self.lengths.sum()}")
        if len(self.tokens) and not 0 <= self.tokens.min() <= self.tokens.max() < MOST_TOKENS:
            raise FreshetError(f"token ids must lie between 0 and {MOST_TOKENS - 1}; the tokenizer gave others")

    @classmethod
    def of(cls, bags: Iterable[Sequence[int] | np.ndarray]) -> Bags:
        """From one sequence of token ids per passage.

        >>> Bags.of([[7, 3], [], [3]]).lengths.tolist()
        [2, 0, 1]
        """
        arrays = [np.asarray(bag, dtype=np.int64) for bag in bags]
        tokens = np.concatenate([np.empty(0, np.int64), *arrays])
        return cls(tokens, np.fromiter(map(len, arrays), np.int64, len(arrays)))

    @classmethod
    def joined(cls, parts: Sequence[Bags]) -> Bags:
        """The passages of all `parts`, in order."""
        empty = cls.of([])
        tokens = np.concatenate([part.tokens for part in (empty, *parts)])
        return cls(tokens, np.concatenate([part.lengths for part in (empty, *parts)]))

    def __len__(self) -> int:
        """Number of passages."""
        return len(self.lengths)

    @property
    def passages(self) -> np.ndarray:
        """The passage of each of `tokens`, (m,) int64."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def slice(self, start: int, end: int) -> Bags:
        """The passages from `start` up to `end`, numbered from 0."""
        first, last = self.lengths[:start].sum(), self.lengths[:end].sum()
        return Bags(self.tokens[first:last], self.lengths[start:end])
