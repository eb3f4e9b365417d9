"""The binary token index, which stores the tokens of each passage (SVDR, section 4.1).

A query consists of tokens and their weights. The score of a passage is the sum of the weights of
the query's tokens that the passage contains. A document is ranked by its best passage. The entries
of a passage depend neither on other passages nor on an encoder.

Passages are stored in blocks. The postings of a block are six memory-mapped arrays; see `postings`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from model_code.errors import FreshetError
from model_code.files import (
    read_manifest,
    verify_checksums,
    write_array,
    write_json,
    write_manifest,
)
from model_code.lexical.token_index.bags import Bags
from model_code.lexical.token_index.postings import (
    MAX_BLOCK_PASSAGES,
    PARTS,
    Packed,
    Postings,
    QueryBatch,
    Sparse,
    array_lengths,
    prepare_query,
)
from model_code.retrieval.id_map import IdMap, read_id_map
from model_code.retrieval.protocol import Ranking
from model_code.retrieval.top_k import top_k

# Version of the format of a token index, and the kind of folder in its manifest.
FORMAT = 1
KIND = "token"
DOCUMENT_IDS = "document_ids.json"
# Number of float64 scores that are computed at a time (1 MB). The queries of a batch share the
# decoding of postings, and their scores still fit into the CPU's cache.
MAX_SCORES_AT_ONCE = 2**17


class SparseIndex(ABC):
    """An index in which a score is a sum over a query's entries, and is never negative.

    A document is ranked by its best passage.

    Attributes:
        ids: Document id of each passage.
    """

    ids: IdMap

    @abstractmethod
    def scores(self, queries: Sequence[Sparse]) -> Iterator[np.ndarray]:
        """Yield the scores of all passages, (N,) float64, query by query."""

    @abstractmethod
    def scores_at(self, query: Sparse, passages: np.ndarray) -> np.ndarray:
        """Return the scores of the given passages, (p,) float64.

        Args:
            query: Entries and weights.
            passages: Numbers of the passages, (p,).
        """

    def search(
        self, queries: Sequence[Sparse], k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """Return the k best documents of each query, best first.

        Documents that share no entry with a query are left out.

        Args:
            queries: Entries and weights of each query.
            k: Number of documents.
            allowed: Documents to rank. None: all.

        Raises:
            FreshetError: If an allowed document is not in the index.
        """
        rows = None
        if allowed is not None:
            rows = self.ids.rows_of(allowed)

        rankings = []
        for scores in self.scores(queries):
            scores = scores.astype(np.float32)
            if rows is not None:
                scores = scores[rows]
            rankings.append(self.ids.best_documents(scores, k, rows))
        return rankings

    def rank(self, queries: Sequence[Sparse], candidates: Sequence[Iterable[str]]) -> list[Ranking]:
        """Rank all candidate documents of each query, best first, scored as `search` does.

        Candidates that share nothing with a query are ranked too, with score 0.

        Args:
            queries: Entries and weights of each query.
            candidates: The documents to rank for each query.

        Raises:
            FreshetError: If a candidate is not in the index.
        """
        rankings: list[Ranking] = []
        for query, documents in zip(queries, candidates, strict=True):
            rows = self.ids.rows_of(documents)
            if not len(rows):
                rankings.append([])
                continue
            scores = self.scores_at(query, rows).astype(np.float32)
            rankings.append(top_k(scores, self.ids.document_ids, len(rows), rows))
        return rankings

    def best_passage(self, query: Sparse, document_id: str) -> int:
        """Return the number of the document's best passage, counted from 0.

        Of several equally good passages, it is the first.
        """
        rows = self.ids.rows_of([document_id])
        scores = self.scores_at(query, rows).astype(np.float32)
        return int(np.argmax(scores))

    def _write(self, folder: Path, arrays: Mapping[str, np.ndarray], facts: dict[str, Any]) -> None:
        """Write the arrays, the document ids and the manifest. Equal indexes give equal bytes."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in arrays.items():
            write_array(folder / f"{name}.npy", array)
        write_json(folder / DOCUMENT_IDS, list(self.ids.document_ids), lines=False)

        all_facts = dict(facts)
        all_facts["documents"] = self.ids.documents
        all_facts["passages"] = len(self.ids)
        write_manifest(folder, FORMAT, all_facts)

    @staticmethod
    def _read(
        folder: Path, names: Sequence[str], check: bool
    ) -> tuple[dict[str, Any], dict[str, np.ndarray], IdMap]:
        """Read what `_write` wrote; arrays are memory-mapped.

        Args:
            folder: The folder.
            names: Names of the arrays.
            check: Whether to compare checksums, which reads every file once.

        Returns:
            The manifest, the arrays by name, and the document id of each passage.

        Raises:
            FreshetError: If a file does not match the manifest.
        """
        manifest = read_manifest(folder, FORMAT)
        if check:
            verify_checksums(folder, manifest)
        arrays = {}
        for name in names:
            arrays[name] = np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r"))
        return manifest, arrays, read_id_map(folder / DOCUMENT_IDS)


class TokenIndex(SparseIndex):
    """An immutable index of the tokens of n passages, with the document of each passage.

    A score is the exact sum of a query's weights (see `prepare_query`), rounded to float32. So it
    depends on the query and the passage only.

    >>> index = TokenIndex.build([[5, 9], [9]], ["a", "b"])
    >>> index.search([(np.array([5, 9]), np.array([1.0, 0.5]))], k=2)
    [[('a', 1.5), ('b', 0.5)]]
    """

    def __init__(self, blocks: Sequence[Postings], ids: IdMap) -> None:
        """Combine blocks of passages. Passages are numbered through all blocks."""
        self.blocks = list(blocks)
        self.ids = ids
        # Number of each block's first passage, followed by the number of all passages.
        self._starts = list(accumulate((block.passages for block in blocks), initial=0))

    @classmethod
    def build(
        cls,
        bags: Bags | Iterable[Sequence[int] | np.ndarray],
        document_ids: Sequence[str] | IdMap,
    ) -> TokenIndex:
        """Index passages.

        Args:
            bags: The tokens of each passage; `TokenBags` makes them.
            document_ids: The document of each passage. A map of another index of the same passages
                is shared, because making a map of many ids takes long.

        Raises:
            FreshetError: If the numbers differ.
        """
        if not isinstance(bags, Bags):
            bags = Bags.of(bags)
        if len(bags) != len(document_ids):
            raise FreshetError(f"{len(bags)} bags do not fit {len(document_ids)} passages")
        blocks = []
        for start in range(0, len(bags), MAX_BLOCK_PASSAGES):
            blocks.append(Postings.build(bags.slice(start, start + MAX_BLOCK_PASSAGES)))
        ids = document_ids if isinstance(document_ids, IdMap) else IdMap(document_ids)
        return cls(blocks, ids)

    @classmethod
    def from_texts(
        cls,
        find_tokens: Callable[[Sequence[str]], Bags],
        texts: Sequence[str],
        document_ids: Sequence[str],
    ) -> TokenIndex:
        """Tokenize and index passages, block by block.

        Only the tokens of one block are in memory at a time, besides the compressed postings. The
        result equals that of `build` for the tokens of all texts.

        Args:
            find_tokens: Function that returns the tokens of texts, such as a `TokenBags`.
            texts: The passages.
            document_ids: The document of each passage.

        Raises:
            FreshetError: If the numbers differ.
        """
        if len(texts) != len(document_ids):
            raise FreshetError(f"{len(texts)} texts do not fit {len(document_ids)} passages")
        blocks = []
        for start in range(0, len(texts), MAX_BLOCK_PASSAGES):
            bags = find_tokens(texts[start : start + MAX_BLOCK_PASSAGES])
            blocks.append(Postings.build(bags))
        return cls(blocks, IdMap(document_ids))

    @property
    def postings(self) -> int:
        """Number of pairs of a passage and a token that it contains."""
        return sum(len(block) for block in self.blocks)

    def scores(self, queries: Sequence[Sparse]) -> Iterator[np.ndarray]:
        """Yield the exact scores of all passages; see `SparseIndex.scores`."""
        prepared = [prepare_query(query) for query in queries]
        passage_count = self._starts[-1]
        batch_size = max(1, MAX_SCORES_AT_ONCE // max(1, passage_count))
        for first in range(0, len(prepared), batch_size):
            batch = QueryBatch.of(prepared[first : first + batch_size])
            if len(self.blocks) == 1:
                # Most indexes have one block, whose scores are yielded without a copy.
                yield from self.blocks[0].sums(batch)
                continue
            # The empty array is the result of an index without blocks.
            no_passages = np.zeros((batch.size, 0))
            sums = [block.sums(batch) for block in self.blocks]
            yield from np.concatenate([no_passages, *sums], axis=1)

    def scores_at(self, query: Sparse, passages: np.ndarray) -> np.ndarray:
        """Return the scores of the given passages; see `SparseIndex.scores_at`."""
        batch = QueryBatch.of([prepare_query(query)])
        scores = np.empty(len(passages))
        for number, block in enumerate(self.blocks):
            start = self._starts[number]
            in_block = (passages >= start) & (passages < start + block.passages)
            scores[in_block] = block.sums_at(batch, passages[in_block] - start)[0]
        return scores

    def matches(self, query: Sparse, document_id: str) -> list[tuple[int, float]]:
        """Return the query tokens in the document's best passage with weights, heaviest first."""
        best = self.best_passage(query, document_id)
        return self.matches_at(query, int(self.ids.rows_of([document_id])[best]))

    def matches_at(self, query: Sparse, passage: int) -> list[tuple[int, float]]:
        """Return the query tokens in a passage, with their weights, the largest weight first."""
        tokens, weights = prepare_query(query)
        is_match = self.contains(tokens, passage)
        matches = zip(tokens[is_match].tolist(), weights[is_match].tolist(), strict=True)
        return sorted(matches, key=lambda match: (-match[1], match[0]))

    def contains(self, tokens: np.ndarray, passage: int) -> np.ndarray:
        """Return whether a passage contains each of some tokens, (t,) bool.

        Args:
            tokens: Token ids, (t,).
            passage: Number of the passage.
        """
        block_number = int(np.searchsorted(self._starts, passage, side="right")) - 1
        row = passage - self._starts[block_number]
        return self.blocks[block_number].contains(tokens, row)

    def bags(self, passages: np.ndarray) -> list[np.ndarray]:
        """Return the ascending tokens of each of several passages.

        Passages are stored in compressed blocks. Each block is decoded once.

        Args:
            passages: Numbers of the passages, (p,).
        """
        bags: list[np.ndarray] = [np.empty(0, np.int64)] * len(passages)
        block_numbers = np.searchsorted(self._starts, passages, side="right") - 1
        for block_number in np.unique(block_numbers).tolist():
            block = self.blocks[block_number]
            places = np.flatnonzero(block_numbers == block_number)
            rows = passages[places] - self._starts[block_number]
            is_wanted = np.zeros(block.passages, dtype=bool)
            is_wanted[rows] = True

            # The token and the passage of each posting, ordered by passage, then by token.
            tokens, owners = block.pairs()
            is_kept = is_wanted[owners]
            tokens = tokens[is_kept]
            owners = owners[is_kept]
            tokens = tokens[np.lexsort((tokens, owners))]
            ends = np.cumsum(np.bincount(owners, minlength=block.passages))
            starts = np.concatenate([[0], ends])
            for place, row in zip(places.tolist(), rows.tolist(), strict=True):
                bags[place] = tokens[starts[row] : starts[row + 1]]
        return bags

    def save(self, folder: Path) -> None:
        """Write the index to a folder, from which `load` opens it."""
        arrays = {}
        for part in PARTS:
            block_arrays = [getattr(block.packed, part) for block in self.blocks]
            if block_arrays:
                arrays[part] = np.concatenate(block_arrays)
            else:
                # An empty index has no blocks, and is stored as empty arrays.
                item_type = np.uint16 if part in ("tokens", "counts", "raw") else np.uint8
                arrays[part] = np.empty(0, item_type)

        facts = {
            "kind": KIND,
            "postings": self.postings,
            "tokens_per_block": [len(block.packed.tokens) for block in self.blocks],
        }
        self._write(folder, arrays, facts)

    @classmethod
    def load(cls, folder: Path, check: bool = True) -> TokenIndex:
        """Open a folder that `save` wrote.

        The arrays of all blocks are stored one after the other. Their lengths are not stored,
        because they follow from the number of tokens and postings of each block.

        Args:
            folder: The folder.
            check: Whether to compare checksums, which reads every file once.

        Raises:
            FreshetError: If a file does not match the manifest.
        """
        manifest, arrays, ids = cls._read(folder, PARTS, check)
        blocks = []
        # For each array, where the next block starts in it.
        starts = dict.fromkeys(PARTS, 0)
        for number, token_count in enumerate(manifest["tokens_per_block"]):
            passages_left = manifest["passages"] - number * MAX_BLOCK_PASSAGES
            passages = min(MAX_BLOCK_PASSAGES, passages_left)
            first = starts["counts"]
            # Each count is stored minus 1, so that 65,536 fits into 16 bits.
            counts = arrays["counts"][first : first + token_count].astype(np.int64) + 1

            block_arrays = {}
            for part, length in array_lengths(counts, passages).items():
                end = starts[part] + length
                block_arrays[part] = arrays[part][starts[part] : end]
                starts[part] = end
            blocks.append(Postings(Packed(passages=passages, **block_arrays)))
        return cls(blocks, ids)
