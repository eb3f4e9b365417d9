"""Compressed postings of a block of up to 65,536 passages: which passages contain each token.

The list of a token's passages is stored in the shortest of three forms. The form and the size in
bytes follow from the length of the list. So neither forms nor the starts of lists are stored.

| form | bytes for n of N passages | content |
|---|---|---|
| raw | 2 n | the passages as 16-bit numbers |
| split | n + (n + N / 256) / 8 | low bytes as they are, high bytes in unary |
| bitmap | N / 8 | one bit per passage |

The split form is Elias-Fano coding (Elias, 1974, Efficient storage and retrieval by content and
address of static files, J. ACM 21(2)) with 8 low bits. This is within a tenth of a byte of the best
number of low bits, and numpy reads it without shifting.

All lists that a batch of queries needs are decoded together in a few numpy operations. A numpy call
per list would take longer than the decoding of most lists.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from model_code.errors import FreshetError
from model_code.lexical.token_index.bags import Bags

Sparse = tuple[np.ndarray, np.ndarray]
"""A sparse vector: different token ids (t,), and their non-negative weights (t,).

The token ids of a passage are in ascending order. The token ids of a query may be in any order.
"""


def prepare_query(query: Sparse) -> Sparse:
    """Sort a query's tokens, and round its weights so that their sums are exact in float64.

    Weights are rounded to multiples of 2^(e - 52), where their total is less than 2^e. Then float64
    represents every sum of weights exactly, and a sum does not depend on the order of addition. So
    a score depends neither on the division into blocks, nor on other queries of a batch, nor on the
    order of insertion. A weight changes by at most 2^(e - 53), about 2^-53 of the total.

    Args:
        query: Tokens and weights.

    Raises:
        FreshetError: If a weight is negative or not finite, or a token occurs twice.

    >>> prepare_query((np.array([9, 5]), np.array([1.0, 0.5])))[1].tolist()
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
    # Comparisons with NaN are false, so a query with a weight of NaN is not sound.
    is_sound = total < math.inf and weights.min(initial=0) >= 0
    if not is_sound:
        raise FreshetError("a query's weights must be finite and not negative; elu1p gives such")

    # The total is less than 2^exponent. All weights become multiples of the unit.
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
        tokens: Token ids, (t,) int64.
        weights: Weight of each token, (t,) float64.
        owners: Number of the query of each token, (t,) int64.
        size: Number of queries.
    """

    tokens: np.ndarray
    weights: np.ndarray
    owners: np.ndarray
    size: int

    @classmethod
    def of(cls, queries: Sequence[Sparse]) -> QueryBatch:
        """Combine one or more queries that `prepare_query` returned."""
        tokens = np.concatenate([tokens for tokens, _ in queries])
        weights = np.concatenate([weights for _, weights in queries])
        lengths = [len(tokens) for tokens, _ in queries]
        owners = np.repeat(np.arange(len(queries)), lengths)
        return cls(tokens, weights, owners, len(queries))


MAX_BLOCK_PASSAGES = 2**16
# The forms in which a list of passages is stored; see the module.
RAW = 0
SPLIT = 1
BITMAP = 2
PARTS = ("tokens", "counts", "raw", "low", "high", "bitmaps")
"""Names of the arrays of `Packed`. Each array is a file of the index."""


@dataclass(frozen=True)
class Packed:
    """The stored arrays of a block's postings.

    Lists of the same form are concatenated, in ascending order of their tokens. In `high` and
    `bitmaps` each list begins at a new byte.

    Attributes:
        passages: Number of passages N.
        tokens: Token ids of the block, ascending, (u,), uint16 or uint32.
        counts: Number of passages that contain each token, minus 1, so that 65,536 fits, (u,)
            uint16.
        raw: Passage numbers of all lists in the form raw, uint16.
        low: Low bytes of split lists, uint8.
        high: High bytes of split lists in unary, uint8.
        bitmaps: The bitmaps of all lists in the form bitmap, uint8.
    """

    passages: int
    tokens: np.ndarray
    counts: np.ndarray
    raw: np.ndarray
    low: np.ndarray
    high: np.ndarray
    bitmaps: np.ndarray


def choose_forms(counts: np.ndarray, passages: int) -> np.ndarray:
    """Return the form in which each list of passages is stored: RAW, SPLIT or BITMAP.

    It is the shortest of the three; among equally short ones, the smallest number.

    Args:
        counts: Number of passages in each list, (u,).
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
    """Return the size in bytes of the high part of split lists.

    It has one bit per posting of the list, and one bit per 256 passages of the block.

    Args:
        counts: Number of passages in each list, (u,).
        passages: Number of passages of the block.
    """
    high_values = math.ceil(passages / 256)
    bits = counts + high_values
    return (bits + 7) // 8


def _bitmap_bytes(passages: int) -> int:
    """Return the size in bytes of a bitmap with one bit per passage."""
    return math.ceil(passages / 8)


def array_lengths(counts: np.ndarray, passages: int) -> dict[str, int]:
    """Return the length of each array of a block.

    Args:
        counts: Number of passages that contain each token, (u,).
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
    """Return the start of each list in the arrays of `Packed`.

    Args:
        counts: Number of passages in each list, (u,).
        forms: Form of each list, (u,).
        passages: Number of passages of the block.

    Returns:
        Two arrays of shape (u,). The first has a raw list's start in `raw`, a split list's start in
        `low`, or the number of a bitmap in `bitmaps`. The second has a split list's start in `high`
        in bytes, and 0 for other lists.
    """
    starts = np.zeros_like(counts)
    one_per_list = np.ones_like(counts)
    for form, sizes in ((RAW, counts), (SPLIT, counts), (BITMAP, one_per_list)):
        has_form = forms == form
        starts[has_form] = _sums_before(sizes[has_form])

    high_starts = np.zeros_like(counts)
    is_split = forms == SPLIT
    high_starts[is_split] = _sums_before(high_bytes(counts[is_split], passages))
    return starts, high_starts


def pack(tokens: np.ndarray, passages: np.ndarray, count: int) -> Packed:
    """Pack postings.

    Args:
        tokens: Token of each posting, (p,).
        passages: Passage of each posting, (p,). Postings are distinct, and sorted by token, then by
            passage.
        count: Number of passages of the block.
    """
    # The list of each of u distinct tokens: its start among the postings, its length and its form.
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
    high_size = int(high_bytes(counts[forms == SPLIT], count).sum())
    high_bits = np.zeros(8 * high_size, dtype=bool)
    high_bits[first_bits + (split_passages >> 8) + ranks] = True

    # One row per bitmap, one column per passage.
    in_bitmap = form_of_posting == BITMAP
    bitmap_count = int((forms == BITMAP).sum())
    bitmap_bits = np.zeros((bitmap_count, count), dtype=bool)
    bitmap_rows = np.repeat(starts, counts)[in_bitmap]
    bitmap_bits[bitmap_rows, passages[in_bitmap]] = True

    needs_32_bits = len(distinct_tokens) > 0 and distinct_tokens[-1] >= 2**16
    token_type = np.uint32 if needs_32_bits else np.uint16
    return Packed(
        passages=count,
        tokens=distinct_tokens.astype(token_type),
        counts=(counts - 1).astype(np.uint16),
        raw=passages[form_of_posting == RAW].astype(np.uint16),
        low=(split_passages & 255).astype(np.uint8),
        high=np.packbits(high_bits),
        bitmaps=np.packbits(bitmap_bits, axis=1).ravel(),
    )


def _sums_before(sizes: np.ndarray) -> np.ndarray:
    """Return, for each size, the sum of all sizes before it: the starts of consecutive blocks."""
    return np.cumsum(sizes) - sizes


class _PartialSums(NamedTuple):
    """Scores of q queries in which some tokens are still missing, and these b tokens.

    A query scores a passage by the sum of the weights of its tokens that the passage contains. The
    passages of a rare token are stored as a list of numbers. Those of a frequent token are stored
    as a bitmap with one bit per passage. The sums here cover the tokens with lists. Bitmaps are
    left to the caller, who may need only some passages and reads only their bits.

    Attributes:
        sums: Score of each passage by the tokens with lists alone, (q, N).
        bitmap_weights: Weight in each query of each token with a bitmap, (q, b).
        bitmap_slots: Position of each of these b tokens among the block's tokens, (b,).
    """

    sums: np.ndarray
    bitmap_weights: np.ndarray
    bitmap_slots: np.ndarray


class Postings:
    """The postings of a block of passages, which sum the weights of queries.

    They are read from the arrays of `Packed`, which may be memory-mapped. A block is immutable. A
    slot is the position of a token among the block's tokens.

    >>> postings = Postings.build(Bags.of([[5, 9], [9], [2, 5, 5]]))
    >>> tokens, weights = np.array([5, 9, 9]), np.array([1.0, 10.0, 3.0])
    >>> postings.sums(QueryBatch(tokens, weights, owners=np.array([0, 0, 1]), size=2)).tolist()
    [[11.0, 10.0, 1.0], [3.0, 3.0, 0.0]]
    """

    def __init__(self, packed: Packed) -> None:
        """Prepare the search of stored postings.

        A slot is the position of a token among the u tokens of the block. Each of the arrays here
        has an item per slot.
        """
        self.packed = packed
        self.passages = packed.passages
        # Tokens of the slots, (u + 1,). The last entry is not a token of any query, so that
        # `searchsorted` always returns a valid slot.
        self._tokens = np.append(packed.tokens.astype(np.int64), np.iinfo(np.int64).max)
        self._counts = packed.counts.astype(np.int64) + 1
        self._forms = choose_forms(self._counts, self.passages)
        self._starts, self._high_starts = list_starts(self._counts, self._forms, self.passages)
        self._is_bitmap = np.append(self._forms == BITMAP, False)
        self._bitmaps = packed.bitmaps.reshape(-1, _bitmap_bytes(self.passages))
        # Cache of decoded lists by slot. Lists are only added, so threads may share it.
        self._decoded: dict[int, np.ndarray] = {}

    @classmethod
    def build(cls, bags: Bags) -> Postings:
        """Build the postings of 1 to `MAX_BLOCK_PASSAGES` passages.

        A key combines token and passage, so that one sort orders the postings by both. The keys are
        32-bit numbers if token ids fit into 16 bits, which sorts faster.
        """
        needs_64_bits = len(bags.tokens) > 0 and bags.tokens.max() >= 2**16
        key_type = np.uint64 if needs_64_bits else np.uint32
        keys = (bags.tokens.astype(key_type) << 16) | bags.passages.astype(np.uint32)
        keys.sort()

        # Keep each key once: a passage may list a token several times. The keys are sorted.
        is_new = np.ones(len(keys), bool)
        is_new[1:] = keys[1:] != keys[:-1]
        keys = keys[is_new]
        # The lowest 16 bits of a key are the passage, and the others are the token.
        tokens = (keys >> 16).astype(np.int64)
        passages = (keys & (MAX_BLOCK_PASSAGES - 1)).astype(np.int64)
        return cls(pack(tokens, passages, len(bags)))

    def __len__(self) -> int:
        """Return the number of postings."""
        return int(self._counts.sum())

    def sums(self, batch: QueryBatch) -> np.ndarray:
        """Score all passages: sum the weights of each query's tokens that the passage contains.

        Returns:
            Sums, (q, N) float64.
        """
        sums, weights, slots = self._sums_of_lists(batch)
        if len(slots):
            # Tokens of many passages have a bitmap in place of a list, with a bit per passage.
            bitmaps = self._bitmaps[self._starts[slots]]
            bits = np.unpackbits(bitmaps, axis=1, count=self.passages)
            sums += weights @ bits
        return sums

    def sums_at(self, batch: QueryBatch, passages: np.ndarray) -> np.ndarray:
        """Return the columns of `sums` for some passages, (q, p) float64.

        It is faster than `sums`, because it reads only these passages' bits of the bitmaps.

        Args:
            batch: The queries.
            passages: Numbers of the passages, (p,).
        """
        sums, weights, slots = self._sums_of_lists(batch)
        sums = sums[:, passages]
        if len(slots):
            # Eight passages share a byte. The first of them has the highest bit.
            octets = self._bitmaps[self._starts[slots, None], passages >> 3]
            bits = octets >> (7 - (passages & 7)) & 1
            sums += weights @ bits
        return sums

    def contains(self, tokens: np.ndarray, passage: int) -> np.ndarray:
        """Return whether a passage contains each of some tokens, (t,) bool.

        It reads the lists and bitmaps of these tokens only.

        Args:
            tokens: Token ids, (t,).
            passage: Number of the passage.
        """
        slots = self._tokens.searchsorted(tokens)
        is_present = self._tokens[slots] == tokens
        has_bitmap = is_present & self._is_bitmap[slots]
        has_list = is_present & ~has_bitmap

        is_contained = np.zeros(len(tokens), dtype=bool)
        # Eight passages share a byte. The first of them has the highest bit.
        octets = self._bitmaps[self._starts[slots[has_bitmap]], passage >> 3]
        is_contained[has_bitmap] = octets >> (7 - (passage & 7)) & 1
        lists = self._decoded_lists(slots[has_list].tolist())
        is_contained[has_list] = [passage in passages for passages in lists]
        return is_contained

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all postings as an array of tokens and one of passages, in no particular order."""
        raw_slots = np.flatnonzero(self._forms == RAW)
        split_slots = np.flatnonzero(self._forms == SPLIT)
        bitmap_slots = np.flatnonzero(self._forms == BITMAP)

        bitmaps = self._bitmaps[self._starts[bitmap_slots]]
        bits = np.unpackbits(bitmaps, axis=1, count=self.passages)
        bitmap_rows, bitmap_passages = np.nonzero(bits)

        list_slots = np.concatenate([raw_slots, split_slots])
        slots_of_lists = np.repeat(list_slots, self._counts[list_slots])
        list_passages = self._decode_lists(raw_slots, split_slots)

        slots = np.concatenate([slots_of_lists, bitmap_slots[bitmap_rows]])
        passages = np.concatenate([list_passages, bitmap_passages])
        return self._tokens[slots], passages

    def _sums_of_lists(self, batch: QueryBatch) -> _PartialSums:
        """Sum the weights of the tokens whose passages are stored as lists, not as bitmaps.

        The passages of a token are stored as a list of numbers, in the form raw or split. Those of
        a frequent token are stored as a bitmap. Query tokens with bitmaps are returned, because the
        caller adds them.
        """
        # A slot is a token's position among the block's tokens. A query token that the block lacks
        # gets a slot with another token, and is ignored.
        slots = self._tokens.searchsorted(batch.tokens)
        is_present = self._tokens[slots] == batch.tokens
        has_bitmap = is_present & self._is_bitmap[slots]
        has_list = is_present & ~has_bitmap

        sums = self._sum_lists(batch, slots, has_list.nonzero()[0])
        bitmap_weights, bitmap_slots = _weight_matrix(batch, slots, has_bitmap.nonzero()[0])
        return _PartialSums(sums, bitmap_weights, bitmap_slots)

    def _sum_lists(self, batch: QueryBatch, slots: np.ndarray, selected: np.ndarray) -> np.ndarray:
        """Sum the weights of selected query tokens, for each query and each of their passages.

        Args:
            batch: Queries with t tokens.
            slots: Position of each query token among the block's tokens, (t,).
            selected: Positions in the batch of the tokens to sum. Each has a list of passages.

        Returns:
            Sums, (q, N) float64.
        """
        lists = self._decoded_lists(slots[selected].tolist())
        lengths = self._counts[slots[selected]]
        passages = np.concatenate([np.empty(0, np.uint16), *lists])

        # The sums are added up in a flat array, in which passage p of query i is cell i * N + p.
        # The multiplication is left out for a single query, whose row starts at cell 0.
        cells = passages
        if batch.size > 1:
            row_starts = batch.owners[selected] * self.passages
            cells = passages + np.repeat(row_starts, lengths)

        cell_count = batch.size * self.passages
        if len(cells):
            weights = np.repeat(batch.weights[selected], lengths)
            sums = np.bincount(cells, weights, cell_count)
        else:
            sums = np.zeros(cell_count)
        return sums.reshape(batch.size, self.passages)

    def _decoded_lists(self, slots: list[int]) -> list[np.ndarray]:
        """Return the passages of raw and split lists, uint16 each.

        Decoded lists are cached, which takes at most 2 bytes per posting.

        Args:
            slots: Position of each list's token among the block's tokens.
        """
        # Decode each list once, even if several queries of the batch have its token.
        distinct_slots = dict.fromkeys(slots)
        missing = np.array(
            [slot for slot in distinct_slots if slot not in self._decoded], dtype=np.int64
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
        """Return the passages of raw lists, then of split lists, int64.

        Args:
            raw: Slot of each raw list: the position of its token among the block's tokens.
            split: Slot of each split list.
        """
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
        """Return 256 times the high byte of each posting of split lists, int64.

        In the unary code, bit i + h of a list is set if its i-th high byte is h.

        Args:
            slots: Position of each list's token among the block's tokens.
        """
        counts = self._counts[slots]
        starts = self._high_starts[slots]
        sizes = high_bytes(counts, self.passages)
        octets = _concat_slices(self.packed.high, starts, starts + sizes)

        # A set bit is at (first bit of its list) + i + h. Its number among all set bits is (number
        # of its list's first posting) + i. The difference of the two gives h. The operations are in
        # place, because this step takes the most time of a search.
        high = np.unpackbits(octets).nonzero()[0]
        first_bits = 8 * _sums_before(sizes)
        first_postings = _sums_before(counts)
        high -= np.arange(len(high))
        high -= np.repeat(first_bits - first_postings, counts)
        high <<= 8
        return high


def _weight_matrix(
    batch: QueryBatch, slots: np.ndarray, selected: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights of selected tokens of a batch as a matrix of queries and tokens.

    The matrix has a row per query and a column per different token. Queries of a batch may share
    tokens, which then share a column. The tokens of a single query are distinct already.

    Args:
        batch: Queries with t tokens.
        slots: Position of each token among the block's tokens, its slot, (t,).
        selected: Positions of the selected tokens, (n,).

    Returns:
        Weights, (q, b), and the slot of each column, (b,).
    """
    if batch.size == 1 or not len(selected):
        return batch.weights[selected].reshape(batch.size, len(selected)), slots[selected]
    distinct, columns = np.unique(slots[selected], return_inverse=True)
    weights = np.zeros((batch.size, len(distinct)))
    weights[batch.owners[selected], columns] = batch.weights[selected]
    return weights, distinct


def _concat_slices(values: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return values[starts[0]:ends[0]], values[starts[1]:ends[1]], ... as one array."""
    # Lists of Python numbers are faster to loop over than arrays.
    bounds = zip(starts.tolist(), ends.tolist(), strict=True)
    parts = [values[start:end] for start, end in bounds]
    if not parts:
        return values[:0]
    return np.concatenate(parts)
