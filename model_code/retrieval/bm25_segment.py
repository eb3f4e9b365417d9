"""An immutable index of the terms of some documents' passages, as integers.

A BM25 index searches several segments together. It computes all statistics at query time, so a
segment holds none. Segments can be merged without the texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from model_code.files import read_json, read_manifest, verify_checksums, write_json, write_manifest
from model_code.mapped_tensors import map_tensors, write_tensors
from model_code.retrieval.id_map import IdMap, number_on_lookup, read_id_map
from model_code.text.terms import get_analyzer

# Version of the format on disk. It changes also if texts are split into terms differently.
FORMAT = 3
OTHER_FORMAT_REMEDY = (
    "build it again: freshet run, then freshet promote. Documents that were added since the build: "
    "freshet export --all with the version of Freshet that indexed them, then freshet import"
)
KIND = "bm25"
VOCABULARY = "vocabulary.json"
DOCUMENT_IDS = "document_ids.json"
POSTINGS = "postings.safetensors"

# Number of passages that are indexed at a time, which bounds the memory of a build. It is at most
# 65,536, so that rows of a block fit into 16 bits.
MAX_BLOCK_PASSAGES = 2**15


class _PostingBlock(NamedTuple):
    """The postings of some consecutive passages, in compact types.

    Attributes:
        terms: Numbers of the terms that occur, ascending, shape (t,), int32.
        counts: Number of passages that contain each of them, shape (t,), int64.
        rows: Passage of each posting within the block, ascending per term, shape (p,), uint16.
        frequencies: Occurrences of the term in that passage, shape (p,), as few bytes as possible.
        lengths: Number of terms of each passage, shape (n,), int32.
    """

    terms: np.ndarray
    counts: np.ndarray
    rows: np.ndarray
    frequencies: np.ndarray
    lengths: np.ndarray

    @classmethod
    def build(cls, passages: Sequence[Sequence[int]]) -> _PostingBlock:
        """Count how often each term occurs in each passage.

        Args:
            passages: Numbers of the terms of each of n passages, n at most 65,536.
        """
        lengths = np.fromiter(map(len, passages), np.int32, len(passages))
        terms = np.fromiter(chain.from_iterable(passages), np.int64, int(lengths.sum()))

        # Occurrences of a term in a passage have equal keys.
        occurrence_keys = terms * len(passages)
        occurrence_keys += np.repeat(np.arange(len(passages)), lengths)
        keys, frequencies = np.unique(occurrence_keys, return_counts=True)
        posting_terms, rows = np.divmod(keys, max(1, len(passages)))
        present_terms, counts = np.unique(posting_terms, return_counts=True)
        largest_frequency = int(frequencies.max(initial=0))
        return cls(
            present_terms.astype(np.int32),
            counts,
            rows.astype(np.uint16),
            frequencies.astype(np.min_scalar_type(largest_frequency)),
            lengths,
        )


@dataclass(frozen=True, eq=False)
class Bm25Segment:
    """An immutable index of the terms of some documents' passages.

    Equal passages in equal order give equal segments. A posting is a pair of a term and a passage
    that contains it. The postings of term t are the entries `starts[t]` to `starts[t + 1]` of
    `rows` and `frequencies`.

    Attributes:
        vocabulary: The T terms in ascending order.
        starts: Start of each term's postings, then the number of postings, shape (T + 1,), int64.
        rows: Passage of each posting, ascending per term, shape (P,), int32.
        frequencies: Occurrences of the term in that passage, shape (P,), int32.
        lengths: Number of terms of each passage, shape (n,), int32.
        ids: Document id of each of the n passages.
    """

    vocabulary: list[str]
    starts: np.ndarray
    rows: np.ndarray
    frequencies: np.ndarray
    lengths: np.ndarray
    ids: IdMap

    @classmethod
    def build(
        cls,
        texts: Sequence[str],
        document_ids: Sequence[str],
        language: str | None,
        block_passages: int = MAX_BLOCK_PASSAGES,
    ) -> Bm25Segment:
        """Index passages, block by block.

        The postings of a finished block take about 3 bytes each, and those of the segment 8. So
        the memory for all occurrences of terms is only needed for one block at a time.

        Args:
            texts: The passages.
            document_ids: Document of each passage.
            language: Language of the stemmer, see `TermAnalyzer`.
            block_passages: Number of passages of a block, at most `MAX_BLOCK_PASSAGES`. The result
                does not depend on it.
        """
        analyzer = get_analyzer(language)
        # A new term gets the next number. So terms are numbered in the order of their first
        # occurrence.
        numbers = number_on_lookup()
        blocks = []
        for start in range(0, len(texts), block_passages):
            passages = []
            for text in texts[start : start + block_passages]:
                passages.append(list(map(numbers.__getitem__, analyzer.analyze(text))))
            blocks.append(_PostingBlock.build(passages))

        # Postings need the terms sorted.
        vocabulary = sorted(numbers)
        sorted_number = np.empty(len(vocabulary), np.int64)
        sorted_number[[numbers[term] for term in vocabulary]] = np.arange(len(vocabulary))
        return cls._join_blocks(vocabulary, sorted_number, blocks, IdMap(document_ids))

    @classmethod
    def _join_blocks(
        cls,
        vocabulary: list[str],
        sorted_number: np.ndarray,
        blocks: list[_PostingBlock],
        ids: IdMap,
    ) -> Bm25Segment:
        """Join the postings of consecutive blocks of passages. The blocks are used up.

        Args:
            vocabulary: Terms in ascending order.
            sorted_number: Position in the vocabulary of each term number of the blocks, (T,).
            blocks: Postings of the blocks, in the order of their passages.
            ids: Document id of each passage.
        """
        lengths = [np.empty(0, np.int32)]
        posting_counts = np.zeros(len(vocabulary), np.int64)
        for block in blocks:
            lengths.append(block.lengths)
            posting_counts[sorted_number[block.terms]] += block.counts
        starts = np.concatenate([[0], np.cumsum(posting_counts)])

        rows = np.empty(int(starts[-1]), np.int32)
        frequencies = np.empty(int(starts[-1]), np.int32)
        # Where the next postings of each term go. The blocks ascend, and so do the rows of a term.
        next_positions = starts[:-1].copy()
        first_row = 0
        blocks.reverse()
        while blocks:
            block = blocks.pop()
            terms = sorted_number[block.terms]
            positions = join_ranges(next_positions[terms], block.counts)
            rows[positions] = block.rows
            rows[positions] += first_row
            frequencies[positions] = block.frequencies
            next_positions[terms] += block.counts
            first_row += len(block.lengths)
        return cls(vocabulary, starts, rows, frequencies, np.concatenate(lengths), ids)

    @classmethod
    def merge(cls, sources: Sequence[tuple[Bm25Segment, Sequence[str]]]) -> Bm25Segment:
        """Merge selected documents of several segments without reading their texts.

        The result equals the segment that `build` makes of the same passages in the same order.

        Args:
            sources: Segments, each with the ids of the documents to take from it.
        """
        # Collect, for each segment, the rows of the passages to take from it.
        selections = []
        merged_document_ids: list[str] = []
        terms: set[str] = set()
        for segment, document_ids in sources:
            rows = segment.ids.rows_of(document_ids)
            selections.append((segment, rows))
            merged_document_ids.extend(segment.ids.document_ids[row] for row in rows.tolist())
            terms.update(segment.vocabulary)
        vocabulary = sorted(terms)
        number_of = {term: number for number, term in enumerate(vocabulary)}

        key_parts = []
        frequency_parts = []
        first_row = 0
        for segment, rows in selections:
            # The row in the merged segment of each passage; -1 for a passage that is not selected.
            new_row = np.full(len(segment.ids), -1, np.int64)
            new_row[rows] = np.arange(first_row, first_row + len(rows))
            new_term = np.array([number_of[term] for term in segment.vocabulary], np.int64)

            posting_terms = np.repeat(new_term, np.diff(segment.starts))
            posting_rows = new_row[segment.rows]
            is_selected = posting_rows >= 0
            keys = posting_terms * len(merged_document_ids) + posting_rows
            key_parts.append(keys[is_selected])
            frequency_parts.append(segment.frequencies[is_selected])
            first_row += len(rows)

        keys = np.concatenate(key_parts)
        order = np.argsort(keys)
        frequencies = np.concatenate(frequency_parts)[order]
        lengths = np.concatenate([segment.lengths[rows] for segment, rows in selections])
        ids = IdMap(merged_document_ids)
        return cls._from_keys(vocabulary, keys[order], frequencies, lengths, ids)

    @classmethod
    def _from_keys(
        cls,
        vocabulary: list[str],
        keys: np.ndarray,
        frequencies: np.ndarray,
        lengths: np.ndarray,
        ids: IdMap,
    ) -> Bm25Segment:
        """Build a segment of n passages from postings that are encoded as integers.

        Terms without postings are left out of the vocabulary.

        Args:
            vocabulary: Terms in ascending order.
            keys: Key of each posting, ascending: (number of the term) * n + (row of the passage).
            frequencies: Occurrences of the term in the passage, for each key.
            lengths: Number of terms of each passage.
            ids: Document id of each passage.
        """
        terms, rows = np.divmod(keys, max(1, len(ids)))
        used_terms, posting_counts = np.unique(terms, return_counts=True)
        starts = np.concatenate([[0], np.cumsum(posting_counts)]).astype(np.int64)
        return cls(
            vocabulary=[vocabulary[term] for term in used_terms.tolist()],
            starts=starts,
            rows=rows.astype(np.int32),
            frequencies=frequencies.astype(np.int32),
            lengths=lengths.astype(np.int32),
            ids=ids,
        )

    @cached_property
    def term_numbers(self) -> dict[str, int]:
        """Position of each term in the vocabulary."""
        return {term: number for number, term in enumerate(self.vocabulary)}

    def postings(self, term: str) -> slice:
        """Return the slice of a term's postings. It is empty if no passage has the term."""
        number = self.term_numbers.get(term)
        if number is None:
            return slice(0, 0)
        return slice(int(self.starts[number]), int(self.starts[number + 1]))

    def term_frequencies(self, terms: Sequence[str], rows: np.ndarray) -> np.ndarray:
        """Return how often each of some terms occurs in the passage at the same position.

        Args:
            terms: The k terms, which may repeat.
            rows: Row of the passage in which each term is counted, shape (k,).

        Returns:
            Frequencies (k,), int32; 0 for a term that is not in the passage.
        """
        numbers = np.array([self.term_numbers.get(term, -1) for term in terms], np.int64)
        frequencies = np.zeros(len(numbers), np.int32)
        # Look at the terms that occur in the segment only, each with the range of its postings.
        known = np.flatnonzero(numbers >= 0)
        wanted_rows = rows[known]
        starts = self.starts[numbers[known]]
        ends = self.starts[numbers[known] + 1]

        # A binary search in the postings of all terms at once. The rows of a term ascend. In the
        # end, `lows` is the first posting of each term whose row is at least the wanted one.
        lows = starts
        highs = ends
        while (lows < highs).any():
            middles = (lows + highs) // 2
            is_before = np.zeros(len(lows), bool)
            is_open = lows < highs
            is_before[is_open] = self.rows[middles[is_open]] < wanted_rows[is_open]
            lows = np.where(is_before, middles + 1, lows)
            highs = np.where(is_before, highs, middles)

        # The row of this posting may be greater than the wanted one, or there may be none.
        inside = np.flatnonzero(lows < ends)
        found = inside[self.rows[lows[inside]] == wanted_rows[inside]]
        frequencies[known[found]] = self.frequencies[lows[found]]
        return frequencies

    def postings_of_terms(self, terms: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the postings of several different terms, one term after the other.

        Returns:
            Positions (p,) of the postings in `rows` and `frequencies`, and the position in `terms`
            of the term of each posting, (p,).
        """
        numbers = np.array([self.term_numbers.get(term, -1) for term in terms], np.int64)
        known = np.flatnonzero(numbers >= 0)
        first = self.starts[numbers[known]]
        sizes = self.starts[numbers[known] + 1] - first
        return join_ranges(first, sizes), np.repeat(known, sizes)

    def save(self, folder: Path, facts: dict[str, object]) -> None:
        """Write the segment to a folder. Equal segments give equal bytes.

        Args:
            folder: Folder to write to.
            facts: Entries to add to the manifest, such as the fingerprint.
        """
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {
            "starts": self.starts,
            "rows": self.rows,
            "frequencies": self.frequencies,
            "lengths": self.lengths,
        }
        write_tensors(arrays, folder / POSTINGS)
        write_json(folder / VOCABULARY, self.vocabulary, lines=False)
        write_json(folder / DOCUMENT_IDS, list(self.ids.document_ids), lines=False)

        manifest = {
            "kind": KIND,
            "passages": len(self.ids),
            "documents": self.ids.documents,
            **facts,
        }
        write_manifest(folder, FORMAT, manifest)

    @classmethod
    def load(cls, folder: Path) -> Bm25Segment:
        """Read a segment that `save` wrote.

        Raises:
            FreshetError: If a file does not match the manifest.
        """
        manifest = read_manifest(folder, FORMAT, other_format_remedy=OTHER_FORMAT_REMEDY)
        verify_checksums(folder, manifest)
        ids = read_id_map(folder / DOCUMENT_IDS)
        return cls(read_json(folder / VOCABULARY), **map_tensors(folder / POSTINGS), ids=ids)


def join_ranges(first: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the numbers of several ranges, one range after the other.

    >>> join_ranges(np.array([7, 3]), np.array([2, 3])).tolist()
    [7, 8, 3, 4, 5]

    Args:
        first: First number of each range, shape (r,).
        sizes: Number of numbers in each range, shape (r,).
    """
    offsets = np.cumsum(sizes) - sizes
    within = np.arange(sizes.sum()) - np.repeat(offsets, sizes)
    return np.repeat(first, sizes) + within
