"""Compressed postings of up to 65,536 passages: which passages contain each token.

Each list of passages is stored in the shortest of three forms. The length of the list alone decides
which one it is, so nothing else has to be stored.

| form | bytes for n of N passages | content |
|---|---|---|
| raw | 2 n | the passages as 16-bit numbers |
| split | n + (n + N / 256) / 8 | low bytes as they are, high bytes in unary |
| bitmap | N / 8 | one bit per passage |

The split form is Elias-Fano coding (Elias, 1974, Efficient storage and retrieval by content and
address of static files, J. ACM 21(2)) with 8 low bits. This is within a tenth of a byte of the best
number of low bits, and numpy reads it without shifting.

All lists of a batch of queries are decoded together in a few vector operations. One call of numpy
per list would take longer than decoding most lists.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model_code.errors import FreshetError
from model_code.lexical.token_index.bags import Bags

Sparse = tuple[np.ndarray, np.ndarray]
"""A text as different token ids (t,), and their non-negative weights (t,).

The ids of passages ascend. Those of queries need not.
"""


def exact(query: Sparse) -> Sparse:
    """Return a query with ascending tokens, and with weights whose sums are exact.

    Weights become whole multiples of 2^(e - 52), where their total is less than 2^e. Then every sum
    of them is a float64 without rounding. It does not depend on the order of addition: not on how
    passages are divided into blocks, not on other queries of a batch, and not on the order of
    insertion. A weight moves by at most 2^-53 of the total.

    Args:
        query: Tokens and weights.

    Raises:
        FreshetError: If a weight is negative or not finite, or a token occurs twice.

    >>> exact((np.array([9, 5]), np.array([1.0, 0.5])))[1].tolist()
    [0.5, 1.0]
    """
    tokens = np.asarray(query[0])
    weights = np.asarray(query[1])
    is_ascending = (tokens[1:] > tokens[:-1]).all()
    if not is_ascending:
        order = tokens.argsort()
        tokens = tokens[order]
        weights = weights[order]
        if (tokens[1:] == tokens[:-1]).any():
            raise FreshetError("a query names a token twice; add up its weights first")

    weights = weights.astype(np.float64)
    total = float(weights.sum())
    is_sound = total < math.inf and weights.min(initial=0) >= 0
    if not is_sound:
        raise FreshetError("a query's weights must be finite and not negative; elu1p gives such")

    _, exponent = math.frexp(total)
    unit = 2.0 ** (exponent - 52)
    weights /= unit
    np.rint(weights, out=weights)
    weights *= unit
    return tokens.astype(np.int64), weights


@dataclass(frozen=True)
class QueryBatch:
    """The tokens of several queries, one query after the other.

    Attributes:
        tokens: (t,) int64.
        weights: (t,) float64.
        owners: (t,) int64, the query of each token.
        size: Number of queries.
    """

    tokens: np.ndarray
    weights: np.ndarray
    owners: np.ndarray
    size: int

    @classmethod
    def of(cls, queries: Sequence[Sparse]) -> QueryBatch:
        """Combine at least one query that `exact` returned."""
        tokens = np.concatenate([tokens for tokens, _ in queries])
        weights = np.concatenate([weights for _, weights in queries])
        lengths = [len(tokens) for tokens, _ in queries]
        owners = np.repeat(np.arange(len(queries)), lengths)
        return cls(tokens, weights, owners, len(queries))


MAX_BLOCK_PASSAGES = 2**16
RAW = 0
SPLIT = 1
BITMAP = 2
PARTS = ("tokens", "counts", "raw", "low", "high", "bitmaps")
"""The arrays of `Packed`, each of which is a file of the index."""


@dataclass(frozen=True)
class Packed:
    """The postings of a block, as they are stored.

    The lists of each form follow each other, in ascending order of their tokens. In `high` and
    `bitmaps` each list begins at a new byte.

    Attributes:
        passages: Number of passages N.
        tokens: (u,), ascending, uint16 or uint32.
        counts: (u,) uint16, the number of passages that contain each token, less 1.
        raw: Raw lists, uint16.
        low: Low bytes of split lists, uint8.
        high: High bytes of split lists in unary, uint8.
        bitmaps: Bitmaps, uint8.
    """

    passages: int
    tokens: np.ndarray
    counts: np.ndarray
    raw: np.ndarray
    low: np.ndarray
    high: np.ndarray
    bitmaps: np.ndarray


def choose_forms(counts: np.ndarray, passages: int) -> np.ndarray:
    """Return the shortest form of each list, the first of equally short ones.

    Args:
        counts: (u,), the number of passages in each list.
        passages: Number of passages of the block.

    Returns:
        Forms, (u,) int64.

    >>> choose_forms(np.array([1, 10, 300]), passages=2000).tolist() == [RAW, SPLIT, BITMAP]
    True
    """
    raw_bytes = 2 * counts
    split_bytes = counts + high_bytes(counts, passages)
    bitmap_bytes = np.full_like(counts, _bitmap_bytes(passages))
    return np.argmin([raw_bytes, split_bytes, bitmap_bytes], axis=0)


def high_bytes(counts: np.ndarray, passages: int) -> np.ndarray:
    """Return the bytes of split lists' high halves: a bit per posting and one per 256 passages."""
    high_values = -(-passages // 256)
    return (counts + high_values + 7) // 8


def _bitmap_bytes(passages: int) -> int:
    return -(-passages // 8)


def array_lengths(counts: np.ndarray, passages: int) -> dict[str, int]:
    """Return the length of each array of a block.

    Args:
        counts: (u,), the number of passages that contain each token.
        passages: Number of passages of the block.

    Returns:
        Lengths, by the names in `PARTS`.
    """
    forms = choose_forms(counts, passages)
    raw_counts = counts[forms == RAW]
    split_counts = counts[forms == SPLIT]
    bitmap_count = int((forms == BITMAP).sum())
    return {
        "tokens": len(counts),
        "counts": len(counts),
        "raw": int(raw_counts.sum()),
        "low": int(split_counts.sum()),
        "high": int(high_bytes(split_counts, passages).sum()),
        "bitmaps": bitmap_count * _bitmap_bytes(passages),
    }


def list_starts(
    counts: np.ndarray, forms: np.ndarray, passages: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return where each list begins in the array of its form, and where split lists do in `high`.

    Args:
        counts: (u,), the number of passages in each list.
        forms: (u,), the form of each list.
        passages: Number of passages of the block.

    Returns:
        Starts, (u,), which are numbers of bitmaps for that form, and starts in `high`, (u,).
    """
    starts = np.zeros_like(counts)
    for form, sizes in ((RAW, counts), (SPLIT, counts), (BITMAP, np.ones_like(counts))):
        has_form = forms == form
        starts[has_form] = _sums_before(sizes[has_form])

    high_starts = np.zeros_like(counts)
    is_split = forms == SPLIT
    high_starts[is_split] = _sums_before(high_bytes(counts[is_split], passages))
    return starts, high_starts


def pack(tokens: np.ndarray, passages: np.ndarray, count: int) -> Packed:
    """Pack postings.

    Args:
        tokens: (p,), the token of each posting.
        passages: (p,), its passage. Pairs are distinct and sorted by token, then by passage.
        count: Number of passages of the block.
    """
    first_of_token = np.flatnonzero(np.diff(tokens, prepend=-1))
    distinct_tokens = tokens[first_of_token]
    counts = np.diff(first_of_token, append=len(tokens))
    forms = choose_forms(counts, count)
    starts, high_starts = list_starts(counts, forms, count)
    form_of_posting = np.repeat(forms, counts)

    # High bytes in unary: bit i + h of a list is set if its i-th high byte is h.
    in_split = form_of_posting == SPLIT
    split_passages = passages[in_split]
    ranks = (np.arange(len(tokens)) - np.repeat(first_of_token, counts))[in_split]
    first_bits = 8 * np.repeat(high_starts, counts)[in_split]
    high = np.zeros(8 * int(high_bytes(counts[forms == SPLIT], count).sum()), dtype=bool)
    high[first_bits + (split_passages >> 8) + ranks] = True

    in_bitmap = form_of_posting == BITMAP
    bitmaps = np.zeros((int((forms == BITMAP).sum()), count), dtype=bool)
    bitmaps[np.repeat(starts, counts)[in_bitmap], passages[in_bitmap]] = True

    needs_32_bits = len(distinct_tokens) > 0 and distinct_tokens[-1] >= 2**16
    return Packed(
        passages=count,
        tokens=distinct_tokens.astype(np.uint32 if needs_32_bits else np.uint16),
        counts=(counts - 1).astype(np.uint16),
        raw=passages[form_of_posting == RAW].astype(np.uint16),
        low=(split_passages & 255).astype(np.uint8),
        high=np.packbits(high),
        bitmaps=np.packbits(bitmaps, axis=1).ravel(),
    )


def _sums_before(sizes: np.ndarray) -> np.ndarray:
    """Return the sum of all sizes before each size."""
    return np.cumsum(sizes) - sizes


class Postings:
    """The postings of a block of passages, read from `Packed` arrays, which may be memory-mapped.

    A block does not change. A slot is the position of a token among the block's tokens.

    >>> postings = Postings.build(Bags.of([[5, 9], [9], [2, 5, 5]]))
    >>> tokens, weights = np.array([5, 9, 9]), np.array([1.0, 10.0, 3.0])
    >>> postings.sums(QueryBatch(tokens, weights, owners=np.array([0, 0, 1]), size=2)).tolist()
    [[11.0, 10.0, 1.0], [3.0, 3.0, 0.0]]
    """

    def __init__(self, packed: Packed) -> None:
        """Prepare the search of stored postings."""
        self.packed = packed
        self.passages = packed.passages
        # (u + 1,): a last entry that no query contains, so that every search finds a slot.
        self._tokens = np.append(packed.tokens.astype(np.int64), np.iinfo(np.int64).max)
        self._counts = packed.counts.astype(np.int64) + 1
        self._forms = choose_forms(self._counts, self.passages)
        self._starts, self._high_starts = list_starts(self._counts, self._forms, self.passages)
        self._is_bitmap = np.append(self._forms == BITMAP, False)
        self._bitmaps = packed.bitmaps.reshape(-1, _bitmap_bytes(self.passages))
        # Decoded lists. It only grows, so threads may share it.
        self._decoded: dict[int, np.ndarray] = {}

    @classmethod
    def build(cls, bags: Bags) -> Postings:
        """Build the postings of 1 to `MAX_BLOCK_PASSAGES` passages.

        One sort of keys suffices: 32-bit numbers if token ids have 16 bits.
        """
        needs_64_bits = len(bags.tokens) > 0 and bags.tokens.max() >= 2**16
        key_type = np.uint64 if needs_64_bits else np.uint32
        keys = (bags.tokens.astype(key_type) << 16) | bags.passages.astype(np.uint32)
        keys.sort()

        is_new = np.ones(len(keys), bool)
        is_new[1:] = keys[1:] != keys[:-1]
        keys = keys[is_new]
        tokens = (keys >> 16).astype(np.int64)
        passages = (keys & (MAX_BLOCK_PASSAGES - 1)).astype(np.int64)
        return cls(pack(tokens, passages, len(bags)))

    def __len__(self) -> int:
        """Return the number of postings."""
        return int(self._counts.sum())

    def sums(self, batch: QueryBatch) -> np.ndarray:
        """Add up, for each query and passage, the weights of the tokens that the passage contains.

        Returns:
            Sums, (q, N) float64.
        """
        sums, weights, slots = self._sums_of_lists(batch)
        if len(slots):
            bitmaps = self._bitmaps[self._starts[slots]]
            sums += weights @ np.unpackbits(bitmaps, axis=1, count=self.passages)
        return sums

    def sums_at(self, batch: QueryBatch, passages: np.ndarray) -> np.ndarray:
        """Return `sums` at some passages (p,): (q, p) float64.

        Of the longest lists, the bitmaps, only the bits of these passages are read.
        """
        sums, weights, slots = self._sums_of_lists(batch)
        sums = sums[:, passages]
        if len(slots):
            octets = self._bitmaps[self._starts[slots, None], passages >> 3]
            bits = octets >> (7 - (passages & 7)) & 1
            sums += weights @ bits
        return sums

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all postings as two arrays, the tokens and the passages, in no order."""
        raw = np.flatnonzero(self._forms == RAW)
        split = np.flatnonzero(self._forms == SPLIT)
        bitmap = np.flatnonzero(self._forms == BITMAP)

        bitmaps = self._bitmaps[self._starts[bitmap]]
        bitmap_row, bitmap_passages = np.nonzero(
            np.unpackbits(bitmaps, axis=1, count=self.passages)
        )
        lists = np.concatenate([raw, split])
        slots = np.concatenate([np.repeat(lists, self._counts[lists]), bitmap[bitmap_row]])
        passages = np.concatenate([self._decode_lists(raw, split), bitmap_passages])
        return self._tokens[slots], passages

    def _sums_of_lists(self, batch: QueryBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return `sums` over raw and split lists, and what is needed to add the bitmaps.

        Returns:
            Sums, (q, N), and the weights, (q, b), and slots, (b,), of the bitmaps.
        """
        slots = self._tokens.searchsorted(batch.tokens)
        is_present = self._tokens[slots] == batch.tokens
        is_bitmap = self._is_bitmap[slots] & is_present
        in_lists = (is_present & ~is_bitmap).nonzero()[0]

        lists = self._decoded_lists(slots[in_lists].tolist())
        counts = self._counts[slots[in_lists]]
        cells = np.concatenate([np.empty(0, np.uint16), *lists])
        if batch.size > 1:
            # Cell numbers of the matrix of sums, row by row.
            cells = cells + np.repeat(batch.owners[in_lists] * self.passages, counts)

        cell_count = batch.size * self.passages
        if len(cells):
            weights = np.repeat(batch.weights[in_lists], counts)
            sums = np.bincount(cells, weights, cell_count)
        else:
            sums = np.zeros(cell_count)
        bitmap_weights, bitmap_slots = _weight_matrix(batch, slots, is_bitmap.nonzero()[0])
        return sums.reshape(batch.size, self.passages), bitmap_weights, bitmap_slots

    def _decoded_lists(self, slots: list[int]) -> list[np.ndarray]:
        """Return the passages of raw and split lists, uint16 each.

        Decoded lists are kept, which takes at most 2 bytes per posting.
        """
        missing = np.array(
            [slot for slot in dict.fromkeys(slots) if slot not in self._decoded], dtype=np.int64
        )
        if len(missing):
            raw = missing[self._forms[missing] == RAW]
            split = missing[self._forms[missing] == SPLIT]
            decoded_slots = np.concatenate([raw, split])
            ends = np.cumsum(self._counts[decoded_slots])[:-1]
            lists = np.split(self._decode_lists(raw, split).astype(np.uint16), ends)
            self._decoded.update(zip(decoded_slots.tolist(), lists, strict=True))
        return [self._decoded[slot] for slot in slots]

    def _decode_lists(self, raw: np.ndarray, split: np.ndarray) -> np.ndarray:
        """Return the passages of raw lists, then of split lists, given by their slots: int64."""
        raw_starts = self._starts[raw]
        passages = _concat_slices(self.packed.raw, raw_starts, raw_starts + self._counts[raw])
        passages = passages.astype(np.int64)
        if not len(split):
            return passages

        split_starts = self._starts[split]
        low = _concat_slices(self.packed.low, split_starts, split_starts + self._counts[split])
        split_passages = self._decode_high(split)
        split_passages |= low
        if not len(passages):
            return split_passages
        return np.concatenate([passages, split_passages])

    def _decode_high(self, slots: np.ndarray) -> np.ndarray:
        """Return the high bytes of split lists, shifted into place: int64.

        Bit i + h of a list is set if its i-th high byte is h.
        """
        counts = self._counts[slots]
        starts = self._high_starts[slots]
        sizes = high_bytes(counts, self.passages)
        octets = _concat_slices(self.packed.high, starts, starts + sizes)

        # In place, since this is the hottest step: the positions of set bits become high bytes.
        high = np.unpackbits(octets).nonzero()[0]
        first_bits = 8 * _sums_before(sizes)
        first_ranks = _sums_before(counts)
        high -= np.arange(len(high))
        high -= np.repeat(first_bits - first_ranks, counts)
        high <<= 8
        return high


def _weight_matrix(
    batch: QueryBatch, slots: np.ndarray, selected: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights of selected tokens of a batch as a matrix of queries and slots.

    Args:
        batch: Queries with t tokens.
        slots: (t,), the slot of each token.
        selected: (n,), positions among the t tokens.

    Returns:
        Weights, (q, b), and the different slots of the columns, (b,).
    """
    if batch.size == 1 or not len(selected):
        return batch.weights[selected].reshape(batch.size, len(selected)), slots[selected]
    distinct, columns = np.unique(slots[selected], return_inverse=True)
    weights = np.zeros((batch.size, len(distinct)))
    weights[batch.owners[selected], columns] = batch.weights[selected]
    return weights, distinct


def _concat_slices(values: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return values[starts[0]:ends[0]], values[starts[1]:ends[1]], ... as one array."""
    parts = [values[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    if not parts:
        return values[:0]
    return np.concatenate(parts)
