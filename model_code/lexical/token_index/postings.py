"""Postings of up to 65,536 passages: for each token the passages that hold it, compressed, and sums
of weights by them.

Each list is stored in the shortest of three forms, which its length alone decides.

| form | bytes for n of N passages | what it is |
|---|---|---|
| raw | 2 n | the passages as 16-bit numbers |
| split | n + (n + N / 256) / 8 | low bytes as they are, high bytes in unary: Elias-Fano with 8 low bits |
| bitmap | N / 8 | one bit per passage |

Elias (1974), Efficient storage and retrieval by content and address of static files, J. ACM 21(2).
Fixed at 8 low bits it is within a tenth of a byte of the best width, and numpy reads it without
shifting bits about.

All lists of a batch of queries are decoded together in a handful of vector operations, as one call
of numpy per list would cost more than most lists do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model_code.errors import FreshetError
from model_code.lexical.token_index.bags import Bags

Sparse = tuple[np.ndarray, np.ndarray]
"""A text as different token ids (t,), ascending where it is no query, and their weights (t,), none
negative.
"""


def exact(query: Sparse) -> Sparse:
    """The query with ascending tokens, and weights whose sums are exact; FreshetError if one is
    negative or not finite, or a token stands twice.

    They become whole multiples of 2^(e - 52), where all of them together are less than 2^e. So
    every sum of them is a float64 without rounding, and cannot depend on the order of addition: not
    on how passages are divided into blocks, what else is in a batch, or the order of insertion. A
    weight moves by at most 2^-53 of the sum.

    >>> exact((np.array([9, 5]), np.array([1.0, 0.5])))[1].tolist()
    [0.5, 1.0]
    """
    tokens, weights = np.asarray(query[0]), np.asarray(query[1])
    if not (tokens[1:] > tokens[:-1]).all():
        order = tokens.argsort()
        tokens, weights = tokens[order], weights[order]
        if (tokens[1:] == tokens[:-1]).any():
            raise FreshetError("a query names a token twice; add up its weights first")
    weights = weights.astype(np.float64)
    total = float(weights.sum())
    if not (total < math.inf and weights.min(initial=0) >= 0):
        raise FreshetError("a query's weights must be finite and not negative; elu1p gives such")
    unit = 2.0 ** (math.frexp(total)[1] - 52)
    weights /= unit
    np.rint(weights, out=weights)
    weights *= unit
    return tokens.astype(np.int64), weights


@dataclass(frozen=True)
class QueryBatch:
    """`size` queries in a row: `tokens` (t,), `weights` (t,), and `owners` (t,), the number of each
    one's query.
    """

    tokens: np.ndarray
    weights: np.ndarray
    owners: np.ndarray
    size: int

    @classmethod
    def of(cls, queries: Sequence[Sparse]) -> QueryBatch:
        """All tokens of at least one query that `exact` gave."""
        tokens, weights = (np.concatenate(arrays) for arrays in zip(*queries, strict=True))
        owners = np.repeat(np.arange(len(queries)), [len(ids) for ids, _ in queries])
        return cls(tokens, weights, owners, len(queries))


BLOCK = 2**16  # most passages of one block
RAW, SPLIT, BITMAP = range(3)
PARTS = ("tokens", "counts", "raw", "low", "high", "bitmaps")


@dataclass(frozen=True)
class Packed:
    """`tokens` (u,) ascending, and `counts` (u,) uint16, in how many of the passages each is, less
    1.

    raw (uint16), low, high, bitmaps (uint8): the lists of each form in a row, tokens ascending;
    `high` and `bitmaps` begin each list at a new byte.
    """

    passages: int
    tokens: np.ndarray
    counts: np.ndarray
    raw: np.ndarray
    low: np.ndarray
    high: np.ndarray
    bitmaps: np.ndarray


def forms(counts: np.ndarray, passages: int) -> np.ndarray:
    """The shortest form for lists of `counts` (u,) passages out of `passages`, the first of equals,
    (u,) int64.

    >>> forms(np.array([1, 10, 300]), passages=2000).tolist() == [RAW, SPLIT, BITMAP]
    True
    """
    bitmap = np.full_like(counts, -(-passages // 8))
    return np.argmin([2 * counts, counts + high_bytes(counts, passages), bitmap], axis=0)


def high_bytes(counts: np.ndarray, passages: int) -> np.ndarray:
    """Bytes that the high halves of split lists take: a bit per posting and one per 256 passages."""
    return (counts + -(-passages // 256) + 7) // 8


def lengths(counts: np.ndarray, passages: int) -> dict[str, int]:
    """The length of each array of a block whose tokens are in `counts` (u,) of its passages."""
    forms_of = forms(counts, passages)
    raw, split = counts[forms_of == RAW], counts[forms_of == SPLIT]
    bitmaps = int((forms_of == BITMAP).sum()) * -(-passages // 8)
    sizes = (
        len(counts),
        len(counts),
        raw.sum(),
        split.sum(),
        high_bytes(split, passages).sum(),
        bitmaps,
    )
    return dict(zip(PARTS, map(int, sizes), strict=True))


def places(
    counts: np.ndarray, forms_of: np.ndarray, passages: int
) -> tuple[np.ndarray, np.ndarray]:
    """Where each list begins in the array of its form (`bitmaps`: which bitmap), and where in
    `high` if it is split.
    """
    starts, high_starts = np.zeros_like(counts), np.zeros_like(counts)
    for form, sizes in ((RAW, counts), (SPLIT, counts), (BITMAP, np.ones_like(counts))):
        of_form = forms_of == form
        starts[of_form] = _before(sizes[of_form])
    split = forms_of == SPLIT
    high_starts[split] = _before(high_bytes(counts[split], passages))
    return starts, high_starts


def pack(tokens: np.ndarray, passages: np.ndarray, count: int) -> Packed:
    """Pack distinct pairs of `tokens` and `passages` (p,), sorted by token and then by passage, of
    `count` passages.
    """
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


class Postings:
    """The postings of a block of passages, read from `Packed` arrays, which may be memory-mapped.
    Immutable.

    >>> postings = Postings.build(Bags.of([[5, 9], [9], [2, 5, 5]]))
    >>> postings.sums(QueryBatch(np.array([5, 9, 9]), np.array([1.0, 10.0, 3.0]), np.array([0, 0, 1]), size=2)).tolist()
    [[11.0, 10.0, 1.0], [3.0, 3.0, 0.0]]
    """

    def __init__(self, packed: Packed) -> None:
        self.packed, self.passages = packed, packed.passages
        # (u + 1,), ends the search
        self._table = np.append(packed.tokens.astype(np.int64), np.iinfo(np.int64).max)
        self._counts = packed.counts.astype(np.int64) + 1  # (u,)
        self._forms = forms(self._counts, self.passages)  # (u,)
        # (u,), (u,)
        self._starts, self._high_starts = places(self._counts, self._forms, self.passages)
        self._is_bitmap = np.append(self._forms == BITMAP, False)  # (u + 1,)
        self._kept: dict[int, np.ndarray] = {}  # only grows, so threads may share it
        self._bitmaps = packed.bitmaps.reshape(-1, -(-self.passages // 8))

    @classmethod
    def build(cls, bags: Bags) -> Postings:
        """Of 1 to `BLOCK` passages. One sort of 32-bit numbers does it where token ids have 16
        bits.
        """
        tokens, passages = bags.tokens, bags.passages
        wide = len(tokens) > 0 and tokens.max() >= 2**16
        keys = (tokens.astype(np.uint64 if wide else np.uint32) << 16) | passages.astype(np.uint32)
        keys.sort()
        keys = keys[np.concatenate([np.ones(min(1, len(keys)), bool), keys[1:] != keys[:-1]])]
        return cls(
            pack((keys >> 16).astype(np.int64), (keys & (BLOCK - 1)).astype(np.int64), len(bags))
        )

    def __len__(self) -> int:
        """Number of postings."""
        return int(self._counts.sum())

    def sums(self, batch: QueryBatch) -> np.ndarray:
        """For each of `batch`'s q queries and each passage the sum of the weights of held tokens,
        (q, N) float64.
        """
        sums, weights, slots = self._sums_of_lists(batch)
        if len(slots):
            sums += weights @ np.unpackbits(
                self._bitmaps[self._starts[slots]], axis=1, count=self.passages
            )
        return sums

    def sums_at(self, batch: QueryBatch, passages: np.ndarray) -> np.ndarray:
        """`sums` at some `passages` (p,), (q, p): of the longest lists, the bitmaps, it reads only
        their bits.
        """
        sums, weights, slots = self._sums_of_lists(batch)
        sums = sums[:, passages]
        if len(slots):
            octets = self._bitmaps[self._starts[slots, None], passages >> 3]  # (b, p)
            sums += weights @ (octets >> (7 - (passages & 7)) & 1)
        return sums

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """All postings: (token, passage) as two arrays, in no order."""
        raw, split, bitmap = (np.flatnonzero(self._forms == form) for form in (RAW, SPLIT, BITMAP))
        row, passages = np.nonzero(
            np.unpackbits(self._bitmaps[self._starts[bitmap]], axis=1, count=self.passages)
        )
        listed = np.concatenate([raw, split])
        holders = np.concatenate([np.repeat(listed, self._counts[listed]), bitmap[row]])
        return self._table[holders], np.concatenate([self._lists(raw, split), passages])

    def _sums_of_lists(self, batch: QueryBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`sums` over raw and split lists; for the others the weights (q, b) and slots (b,) of
        their bitmaps.
        """
        slots = self._table.searchsorted(batch.tokens)
        present = self._table[slots] == batch.tokens
        bitmap = self._is_bitmap[slots] & present
        listed = (present & ~bitmap).nonzero()[0]
        lists = self._kept_lists(slots[listed].tolist())
        counts = self._counts[slots[listed]]
        cells = np.concatenate([np.empty(0, np.uint16), *lists])
        if batch.size > 1:
            cells = cells + np.repeat(batch.owners[listed] * self.passages, counts)
        size = batch.size * self.passages
        sums = (
            np.bincount(cells, np.repeat(batch.weights[listed], counts), size)
            if len(cells)
            else np.zeros(size)
        )
        return sums.reshape(batch.size, self.passages), *_matrix(batch, slots, bitmap.nonzero()[0])

    def _kept_lists(self, slots: list[int]) -> list[np.ndarray]:
        """The passages of raw and split lists, uint16 each. What was decoded is kept: at most 2
        bytes per posting.
        """
        missing = np.array(
            [slot for slot in dict.fromkeys(slots) if slot not in self._kept], dtype=np.int64
        )
        if len(missing):
            raw, split = (missing[self._forms[missing] == form] for form in (RAW, SPLIT))
            ends = np.cumsum(self._counts[np.concatenate([raw, split])])[:-1]
            decoded = np.split(self._lists(raw, split).astype(np.uint16), ends)
            self._kept.update(zip(np.concatenate([raw, split]).tolist(), decoded, strict=True))
        return [self._kept[slot] for slot in slots]

    def _lists(self, raw: np.ndarray, split: np.ndarray) -> np.ndarray:
        """The passages of the raw lists at slots `raw`, then of the split ones at `split`, in a
        row, int64.
        """
        starts, ends = self._starts[raw], self._starts[raw] + self._counts[raw]
        passages = _runs(self.packed.raw, starts, ends).astype(np.int64)
        if not len(split):
            return passages
        starts, ends = self._starts[split], self._starts[split] + self._counts[split]
        high = self._high(split)
        high |= _runs(self.packed.low, starts, ends)
        return np.concatenate([passages, high]) if len(passages) else high

    def _high(self, slots: np.ndarray) -> np.ndarray:
        """The high bytes of split lists, shifted into place. Bit i + h of a list is set if its i-th
        high byte is h.
        """
        counts, starts = self._counts[slots], self._high_starts[slots]
        sizes = high_bytes(counts, self.passages)
        high = np.unpackbits(_runs(self.packed.high, starts, starts + sizes)).nonzero()[0]
        first_bit, first = 8 * (sizes.cumsum() - sizes), counts.cumsum() - counts
        high -= np.arange(len(high))
        high -= np.repeat(first_bit - first, counts)
        high <<= 8
        return high


def _matrix(
    batch: QueryBatch, slots: np.ndarray, chosen: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The `chosen` tokens as a matrix of weights (q, b), and the different slots (b,) that its
    columns stand for.
    """
    if batch.size == 1 or not len(chosen):
        return batch.weights[chosen].reshape(batch.size, len(chosen)), slots[chosen]
    distinct, columns = np.unique(slots[chosen], return_inverse=True)
    weights = np.zeros((batch.size, len(distinct)))
    weights[batch.owners[chosen], columns] = batch.weights[chosen]
    return weights, distinct


def _runs(values: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """values[starts[0]:ends[0]], values[starts[1]:ends[1]], ... in a row."""
    parts = [values[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return np.concatenate(parts) if parts else values[:0]
