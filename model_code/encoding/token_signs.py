"""Late interaction over signs: of every token's vector is kept which of its numbers are positive, a
bit for each.

Tokens here are words, see `Encoder.encode_with_tokens`.

A query's score of a passage is, as in ColBERT (Khattab and Zaharia, 2020, eq. 3), the mean over its
tokens of their similarity to the passage's nearest token; that of two tokens is 1 - 2 d / b, where
they differ in d of b bits, those that fill up whole words of 64 among them. It hangs on whole
numbers alone, and so is the same to the bit in whatever company a passage is scored. A token of
all-MiniLM-L6-v2 takes 48 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from model_code.errors import FreshetError
from model_code.files import atomic_write

SIGNS_FILE, STARTS_FILE = "token_signs.npy", "token_starts.npy"
BITS_PER_WORD = 64  # bits that are compared at once
# pairs of tokens that are compared at a time, so that they stay in the processor's cache
AT_ONCE = 2**16


@dataclass(frozen=True, eq=False)
class TokenSigns:
    """bits (t, W) uint64, a row for each token, text after text; where each of n texts begins in
    them, and t (n + 1).

    >>> own = TokenSigns.of([pack_signs(np.array([[0.5, -0.1], [0.2, 0.3]])), pack_signs(np.array([[-1.0, -1.0]]))])
    >>> own[:1].similarities(own).tolist() == [1, 1 - 1.5 * 2 / BITS_PER_WORD]
    True
    """

    bits: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, texts: Sequence[np.ndarray]) -> Self:
        """Those of texts whose tokens have these `signs` (t, W)."""
        bits = np.concatenate(texts) if texts else np.empty((0, 1), np.uint64)
        return cls(bits, np.cumsum([0, *map(len, texts)]))

    def __len__(self) -> int:
        """N."""
        return len(self.starts) - 1

    def __getitem__(self, rows: np.ndarray | slice) -> Self:
        """Those of some texts (r,), in their order."""
        first = self.starts[:-1][rows]
        sizes = self.starts[1:][rows] - first
        starts = np.concatenate([[0], np.cumsum(sizes)])
        return type(self)(
            self.bits[np.repeat(first - starts[:-1], sizes) + np.arange(starts[-1])], starts
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Self | None]) -> Self | None:
        """Those of one or several, one after the other; None of such as have none, FreshetError if
        only some have.
        """
        present = [part for part in parts if part is not None]
        if not present:
            return None
        if len(present) < len(parts):
            raise FreshetError(
                "some passages have tokens and others have none; build the index again"
            )
        sizes = np.concatenate([np.diff(part.starts) for part in present])
        return cls(
            np.concatenate([part.bits for part in present]), np.concatenate([[0], np.cumsum(sizes)])
        )

    def similarities(self, texts: Self) -> np.ndarray:
        """MaxSim (n,) float64 of these tokens, which are a query's, with each of n texts.

        A token that is 0 stands for none: a query of such alone is similar to nothing, 0.
        """
        bits = self.bits[self.bits.any(axis=1)]
        if not len(texts) or not len(bits):
            return np.zeros(len(texts))
        words, nearest = np.ascontiguousarray(texts.bits.T), np.zeros(len(texts), np.int64)
        step = max(1, AT_ONCE // len(texts.bits))
        for start in range(0, len(bits), step):
            each = zip(words, bits[start : start + step].T, strict=True)
            differing = sum(
                np.bitwise_count(word ^ column[:, None]).astype(np.uint16) for word, column in each
            )
            nearest += np.minimum.reduceat(differing, texts.starts[:-1], axis=1).sum(
                axis=0, dtype=np.int64
            )
        return 1 - 2 * nearest / (BITS_PER_WORD * bits.size)

    def save(self, folder: Path) -> None:
        """Write them into the folder."""
        for name, array in ((SIGNS_FILE, self.bits), (STARTS_FILE, self.starts)):
            with atomic_write(folder / name) as aside, aside.open("wb") as stream:
                np.save(stream, array)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what `save` wrote, bits memory-mapped."""
        return cls(
            np.asarray(np.load(folder / SIGNS_FILE, mmap_mode="r")), np.load(folder / STARTS_FILE)
        )


def pack_signs(vectors: np.ndarray) -> np.ndarray:
    """Which numbers of vectors (t, H) are positive, (t, W) uint64; bits beyond H are 0. Of none,
    one that is 0.
    """
    bits = (
        np.packbits(vectors > 0, axis=1)
        if len(vectors)
        else np.zeros((1, -(-vectors.shape[1] // 8)), np.uint8)
    )
    return np.pad(bits, ((0, 0), (0, -bits.shape[1] % (BITS_PER_WORD // 8)))).view(np.uint64)
