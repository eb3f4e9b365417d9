"""Passages in a row, cut into blocks of postings: the part of a token index that knows no documents.

Passages are added as new small blocks, which merge as they pile up, so that n passages added one by one cost no more
than log n sorts of each. Deleted passages stay in their block, uncounted, until the blocks are packed anew. Saved, six
arrays are memory-mapped; nothing says where a list begins: the number of its postings decides its form, and with that
its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np

from model_code.files import replacing
from model_code.token_index.bags import Bags
from model_code.token_index.postings import BLOCK, PARTS, Packed, Postings, lengths
from model_code.token_index.queries import Query, QueryBatch

CELLS = 2**17  # scores computed at once, 1 MB: enough queries to share a decoding, few enough to stay near the CPU
FORMAT, KIND = 1, "token"


class Blocks:
    """An immutable row of n passages.

    blocks: all that is stored, m >= n passages.  rows: where each of the n passages is stored, (n,) ascending.
    """

    def __init__(self, blocks: Sequence[Postings], rows: np.ndarray | None = None) -> None:
        """rows: None for all that is stored."""
        self.blocks = list(blocks)
        self.starts = list(accumulate((block.passages for block in blocks), initial=0))
        self.rows = np.arange(self.starts[-1]) if rows is None else rows

    @classmethod
    def build(cls, bags: Bags) -> Blocks:
        """Full blocks, and a last one with what remains."""
        return cls([Postings.build(bags.slice(i, i + BLOCK)) for i in range(0, len(bags), BLOCK)])

    def __len__(self) -> int:
        """Number of passages n."""
        return len(self.rows)

    @property
    def holes(self) -> int:
        """Number of deleted passages that still are stored."""
        return self.starts[-1] - len(self)

    def added(self, bags: Bags) -> Blocks:
        """These passages and then those of `bags`."""
        blocks = [*self.blocks, *Blocks.build(bags).blocks]
        while len(blocks) > 1 and _should_merge(*blocks[-2:]):
            blocks[-2:] = [_merged(*blocks[-2:])]
        new = self.starts[-1] + np.arange(len(bags))
        return Blocks(blocks, np.concatenate([self.rows, new]))

    def without(self, passages: np.ndarray) -> Blocks:
        """These passages but for `passages` (p,); packed anew once more than half of what is stored is deleted."""
        left = Blocks(self.blocks, np.delete(self.rows, passages))
        return left.packed() if left.holes > len(left) else left

    def packed(self) -> Blocks:
        """The same passages as `build` lays them out: the same bytes, however they came to be here."""
        sizes = [block.passages for block in self.blocks]
        if not self.holes and all(size == BLOCK for size in sizes[:-1]):
            return self
        return Blocks([self._repacked(i, min(i + BLOCK, len(self))) for i in range(0, len(self), BLOCK)])

    def counts(self, tokens: np.ndarray) -> np.ndarray:
        """In how many of the passages each of `tokens` (t,) different ones is, (t,) int64."""
        if not self.holes:
            return sum((block.counts(tokens) for block in self.blocks), start=np.zeros(len(tokens), np.int64))
        held, _ = self.pairs(tokens)
        order, counts = tokens.argsort(), np.zeros(len(tokens), np.int64)
        counts[order] = np.bincount(tokens[order].searchsorted(held), minlength=len(tokens))
        return counts

    def postings(self) -> int:
        """How many postings the passages have."""
        return len(self.pairs()[0]) if self.holes else sum(map(len, self.blocks))

    def pairs(self, tokens: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """All postings of `tokens` (different ones; None: all): (token, passage) as two arrays, in no order."""
        numbers = self._numbers(0, len(self))
        parts = [(np.empty(0, np.int64), np.empty(0, np.int64))]
        for start, block in zip(self.starts, self.blocks, strict=False):
            held, stored = block.pairs(tokens)
            passages = numbers[start + stored]
            parts.append((held[passages >= 0], passages[passages >= 0]))
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def scores(self, queries: Sequence[Query]) -> Iterator[np.ndarray]:
        """Of each query in turn the score of each passage, (n,) float64 and exact: see `Query`."""
        group = max(1, CELLS // max(1, self.starts[-1]))
        for first in range(0, len(queries), group):
            batch = QueryBatch.of(queries[first : first + group])
            sums = [block.sums(batch) for block in self.blocks] or [np.zeros((batch.size, 0))]
            stored = sums[0] if len(sums) == 1 else np.concatenate(sums, axis=1)  # (group, m)
            yield from stored[:, self.rows] if self.holes else stored

    def scores_at(self, query: Query, passages: np.ndarray) -> np.ndarray:
        """The scores of some `passages` (p,) alone, (p,) float64."""
        rows, batch = self.rows[passages], QueryBatch.of([query])
        scores = np.empty(len(rows))
        for start, block in zip(self.starts, self.blocks, strict=False):
            inside = (rows >= start) & (rows < start + block.passages)
            scores[inside] = block.sums_at(batch, rows[inside] - start)[0]
        return scores

    def bag(self, passage: int) -> np.ndarray:
        """The tokens of one passage, ascending. Reads its whole block: for people who look, not for searches."""
        row = int(self.rows[passage])
        number = int(np.searchsorted(self.starts, row, side="right")) - 1
        tokens, passages = self.blocks[number].pairs()
        return np.sort(tokens[passages == row - self.starts[number]])

    def save(self, folder: Path) -> list[int]:
        """Write the arrays of `packed` blocks, a file each; returns how many different tokens each block has."""
        empty = Packed(0, *(np.empty(0, np.uint16) for _ in "123"), *(np.empty(0, np.uint8) for _ in "123"))
        packed = [block.packed for block in self.blocks] or [empty]
        for part in PARTS:
            with replacing(folder / f"{part}.npy") as aside, aside.open("wb") as stream:
                np.save(stream, np.concatenate([getattr(block, part) for block in packed]))
        return [len(block.packed.tokens) for block in self.blocks]

    @classmethod
    def load(cls, folder: Path, passages: int, tokens_per_block: Sequence[int]) -> Blocks:
        """Read what `save` wrote of so many passages, memory-mapped."""
        arrays = {part: np.asarray(np.load(folder / f"{part}.npy", mmap_mode="r")) for part in PARTS}
        blocks, places = [], dict.fromkeys(PARTS, 0)
        for number, tokens in enumerate(tokens_per_block):
            size = min(BLOCK, passages - number * BLOCK)
            counts = arrays["counts"][places["counts"] : places["counts"] + tokens].astype(np.int64) + 1
            ends = {part: places[part] + length for part, length in lengths(counts, size).items()}
            blocks.append(Postings(Packed(size, *(arrays[part][places[part] : ends[part]] for part in PARTS))))
            places = ends
        return cls(blocks)

    def _numbers(self, first: int, last: int) -> np.ndarray:
        """For each stored passage its number less `first` if that is below `last`, else -1, (m,) int64."""
        numbers = np.full(self.starts[-1], -1)
        numbers[self.rows[first:last]] = np.arange(last - first)
        return numbers

    def _repacked(self, first: int, last: int) -> Postings:
        numbers, parts = self._numbers(first, last), []
        for start, block in zip(self.starts, self.blocks, strict=False):
            renumbered = numbers[start : start + block.passages]
            if (renumbered >= 0).any():
                tokens, stored = block.pairs()
                kept = renumbered[stored] >= 0
                parts.append((tokens[kept], renumbered[stored[kept]]))
        return Postings.of_pairs(*map(np.concatenate, zip(*parts, strict=True)), last - first)


def _should_merge(before: Postings, last: Postings) -> bool:
    return before.passages + last.passages <= BLOCK and before.passages <= 2 * last.passages


def _merged(before: Postings, last: Postings) -> Postings:
    (tokens, passages), (more, other) = before.pairs(), last.pairs()
    passages = np.concatenate([passages, other + before.passages])
    return Postings.of_pairs(np.concatenate([tokens, more]), passages, before.passages + last.passages)
