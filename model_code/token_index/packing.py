"""How postings are stored: each list in the shortest of three forms, which its length alone decides.

| form | bytes for n of N passages | what it is |
|---|---|---|
| raw | 2 n | the passages as 16-bit numbers |
| split | n + (n + N / 256) / 8 | low bytes as they are, high bytes in unary: Elias-Fano with 8 low bits |
| bitmap | N / 8 | one bit per passage |

Elias (1974), Efficient storage and retrieval by content and address of static files, J. ACM 21(2). Fixed at 8 low bits
it is within a tenth of a byte of the best width, and numpy reads it without shifting bits about.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BLOCK = 2**16  # most passages of one block
RAW, SPLIT, BITMAP = range(3)
PARTS = ("tokens", "counts", "raw", "low", "high", "bitmaps")


@dataclass(frozen=True)
class Packed:
    """`tokens` (u,) ascending, and `counts` (u,) uint16, in how many of the passages each is, less 1.

    raw (uint16), low, high, bitmaps (uint8): the lists of each form in a row, tokens ascending; `high` and `bitmaps`
    begin each list at a new byte.
    """

    passages: int
    tokens: np.ndarray
    counts: np.ndarray
    raw: np.ndarray
    low: np.ndarray
    high: np.ndarray
    bitmaps: np.ndarray

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays together."""
        return sum(getattr(self, part).nbytes for part in PARTS)


def forms(counts: np.ndarray, passages: int) -> np.ndarray:
    """The shortest form for lists of `counts` (u,) passages out of `passages`, the first of equals, (u,) int64.

    >>> forms(np.array([1, 10, 300]), passages=2000).tolist() == [RAW, SPLIT, BITMAP]
    True
    """
    bitmap = np.full_like(counts, -(-passages // 8))
    return np.argmin([2 * counts, counts + high_bytes(counts, passages), bitmap], axis=0)


def high_bytes(counts: np.ndarray, passages: int) -> np.ndarray:
    """Bytes that the high halves of split lists take: a bit per posting and one per 256 passages."""
    return (counts + -(-passages // 256) + 7) // 8


def places(counts: np.ndarray, forms_of: np.ndarray, passages: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each list begins in the array of its form (`bitmaps`: which bitmap), and where in `high` if it is split."""
    starts, high_starts = np.zeros_like(counts), np.zeros_like(counts)
    for form, sizes in ((RAW, counts), (SPLIT, counts), (BITMAP, np.ones_like(counts))):
        of_form = forms_of == form
        starts[of_form] = _before(sizes[of_form])
    split = forms_of == SPLIT
    high_starts[split] = _before(high_bytes(counts[split], passages))
    return starts, high_starts


def pack(tokens: np.ndarray, passages: np.ndarray, count: int) -> Packed:
    """Pack distinct pairs of `tokens` and `passages` (p,), sorted by token and then by passage, of `count` passages."""
    first = np.flatnonzero(np.diff(tokens, prepend=-1))  # of each token
    counts = np.diff(first, append=len(tokens))
    forms_of = forms(counts, count)
    starts, high_starts = places(counts, forms_of, count)
    form = np.repeat(forms_of, counts)  # (p,)
    split, bitmap = passages[form == SPLIT], passages[form == BITMAP]
    ranks = (np.arange(len(tokens)) - np.repeat(first, counts))[form == SPLIT]
    high = np.zeros(8 * int(high_bytes(counts[forms_of == SPLIT], count).sum()), dtype=bool)
    high[8 * np.repeat(high_starts, counts)[form == SPLIT] + (split >> 8) + ranks] = True
    bitmaps = np.zeros((int((forms_of == BITMAP).sum()), count), dtype=bool)
    bitmaps[np.repeat(starts, counts)[form == BITMAP], bitmap] = True
    distinct = tokens[first]
    return Packed(
        count,
        distinct.astype(np.uint32 if len(distinct) and distinct[-1] >= 2**16 else np.uint16),
        (counts - 1).astype(np.uint16),
        passages[form == RAW].astype(np.uint16),
        (split & 255).astype(np.uint8),
        np.packbits(high),
        np.packbits(bitmaps, axis=1).ravel(),
    )


def _before(sizes: np.ndarray) -> np.ndarray:
    """The sum of all sizes before each."""
    return np.cumsum(sizes) - sizes
