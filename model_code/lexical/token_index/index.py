"""The binary token index: which passages hold which tokens, and nothing else (SVDR, section 4.1).

A query is a weight for each of some tokens, a passage scores the weights of those it holds, and a
document ranks by its best passage. No number in the index depends on another passage or on an
encoder.

Passages lie in blocks of postings, six arrays that are memory-mapped; nothing says where a list
begins: the number of its postings decides its form, and with that its length.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from model_code.errors import FreshetError
from model_code.files import (
    atomic_write,
    read_json,
    read_manifest,
    verify_checksums,
    write_json,
    write_manifest,
)
from model_code.lexical.token_index.bags import Bags
from model_code.lexical.token_index.postings import (
    BLOCK,
    PARTS,
    Packed,
    Postings,
    QueryBatch,
    Sparse,
    exact,
    lengths,
)
from model_code.retrieval.id_map import IdMap
from model_code.retrieval.protocol import Ranking
from model_code.retrieval.top_k import top_k

FORMAT, KIND = 1, "token"
DOCUMENT_IDS = "document_ids.json"
# scores computed at once, 1 MB: enough queries to share a decoding, few enough to stay near the CPU
CELLS = 2**17


class SparseIndex(ABC):
    """Passages of documents that score a sum over a query's entries, never below 0; a document
    ranks by its best.
    """

    ids: IdMap

    @abstractmethod
    def scores(self, queries: Sequence[Sparse]) -> Iterator[np.ndarray]:
        """Of each query in turn the score of each passage, (N,) float64."""

    @abstractmethod
    def scores_at(self, query: Sparse, passages: np.ndarray) -> np.ndarray:
        """The scores of some `passages` (p,) alone, (p,) float64."""

    def search(
        self, queries: Sequence[Sparse], k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """The k best documents for each query, best first; of `allowed` documents only, unless
        None.

        Documents that share nothing with a query are left out. FreshetError if an allowed one is
        unknown.
        """
        rows = None if allowed is None else self.ids.rows_of(allowed)
        every = (scores.astype(np.float32) for scores in self.scores(queries))
        return [
            self.ids.best_documents(scores if rows is None else scores[rows], k, rows)
            for scores in every
        ]

    def rank(self, queries: Sequence[Sparse], candidates: Sequence[Iterable[str]]) -> list[Ranking]:
        """For each query all of its candidate documents, best first, scored as `search` does, 0
        included.

        FreshetError if a candidate is unknown.
        """
        rankings = []
        for query, documents in zip(queries, candidates, strict=True):
            rows = self.ids.rows_of(documents)
            scores = self.scores_at(query, rows).astype(np.float32)
            rankings.append(
                top_k(scores, self.ids.document_ids, len(rows), rows) if len(rows) else []
            )
        return rankings

    def best_passage(self, query: Sparse, document_id: str) -> int:
        """Which of the document's passages (0, 1, ...) scores best; the first of equals."""
        return int(
            np.argmax(self.scores_at(query, self.ids.rows_of([document_id])).astype(np.float32))
        )

    def _write(self, folder: Path, arrays: Mapping[str, np.ndarray], facts: dict[str, Any]) -> None:
        """Write the arrays, the document ids and the manifest: equal indexes, equal bytes."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in arrays.items():
            with atomic_write(folder / f"{name}.npy") as aside, aside.open("wb") as stream:
                np.save(stream, array)
        write_json(folder / DOCUMENT_IDS, self.ids.document_ids, lines=False)
        write_manifest(
            folder, FORMAT, facts | {"documents": self.ids.documents, "passages": len(self.ids)}
        )

    @staticmethod
    def _read(
        folder: Path, names: Sequence[str], check: bool
    ) -> tuple[dict[str, Any], dict[str, np.ndarray], IdMap]:
        """What `_write` wrote, arrays memory-mapped; FreshetError if a file is not what the
        manifest says.

        check: compare checksums, which reads every file once.
        """
        manifest = read_manifest(folder, FORMAT)
        if check:
            verify_checksums(folder, manifest)
        arrays = {
            name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in names
        }
        return manifest, arrays, IdMap(read_json(folder / DOCUMENT_IDS))


class TokenIndex(SparseIndex):
    """The bags of n passages, and the document of each. Immutable.

    A score is the sum of a query's weights without rounding (see `exact`), rounded to float32. It
    depends on nothing but the query and the passage.

    >>> index = TokenIndex.build([[5, 9], [9]], ["a", "b"])
    >>> index.search([(np.array([5, 9]), np.array([1.0, 0.5]))], k=2)
    [[('a', 1.5), ('b', 0.5)]]
    """

    def __init__(self, blocks: Sequence[Postings], ids: IdMap) -> None:
        self.blocks, self.ids = list(blocks), ids
        self._starts = list(accumulate((block.passages for block in blocks), initial=0))

    @classmethod
    def build(
        cls, bags: Bags | Iterable[Sequence[int] | np.ndarray], document_ids: Sequence[str]
    ) -> TokenIndex:
        """Index `bags` (`TokenBags` makes them), number i a passage of `document_ids[i]`."""
        bags = bags if isinstance(bags, Bags) else Bags.of(bags)
        if len(bags) != len(document_ids):
            raise FreshetError(f"{len(bags)} bags do not fit {len(document_ids)} passages")
        blocks = [Postings.build(bags.slice(i, i + BLOCK)) for i in range(0, len(bags), BLOCK)]
        return cls(blocks, IdMap(document_ids))

    @property
    def postings(self) -> int:
        """How many tokens all passages hold together."""
        return sum(map(len, self.blocks))

    def scores(self, queries: Sequence[Sparse]) -> Iterator[np.ndarray]:
        """See `SparseIndex.scores`; without rounding, see `exact`."""
        prepared = [exact(query) for query in queries]
        group = max(1, CELLS // max(1, self._starts[-1]))
        for first in range(0, len(prepared), group):
            batch = QueryBatch.of(prepared[first : first + group])
            sums = [block.sums(batch) for block in self.blocks] or [np.zeros((batch.size, 0))]
            yield from sums[0] if len(sums) == 1 else np.concatenate(sums, axis=1)  # (group, n)

    def scores_at(self, query: Sparse, passages: np.ndarray) -> np.ndarray:
        """See `SparseIndex.scores_at`."""
        batch, scores = QueryBatch.of([exact(query)]), np.empty(len(passages))
        for start, block in zip(self._starts, self.blocks, strict=False):
            inside = (passages >= start) & (passages < start + block.passages)
            scores[inside] = block.sums_at(batch, passages[inside] - start)[0]
        return scores

    def matches(self, query: Sparse, document_id: str) -> list[tuple[int, float]]:
        """The query's tokens that the document's best passage holds, with their weights, the
        heaviest first.
        """
        (tokens, weights), rows = exact(query), self.ids.rows_of([document_id])
        mask = np.isin(tokens, self.bag(int(rows[self.best_passage(query, document_id)])))
        matches = zip(tokens[mask].tolist(), weights[mask].tolist(), strict=True)
        return sorted(matches, key=lambda match: (-match[1], match[0]))

    def bag(self, passage: int) -> np.ndarray:
        """The tokens of one passage, ascending. Reads its whole block: for people who look, not for
        searches.
        """
        number = int(np.searchsorted(self._starts, passage, side="right")) - 1
        tokens, passages = self.blocks[number].pairs()
        return np.sort(tokens[passages == passage - self._starts[number]])

    def save(self, folder: Path) -> None:
        """Write the folder that `load` reads."""
        empty = Packed(
            0, *(np.empty(0, np.uint16) for _ in "123"), *(np.empty(0, np.uint8) for _ in "123")
        )
        packed = [block.packed for block in self.blocks] or [empty]
        arrays = {
            part: np.concatenate([getattr(block, part) for block in packed]) for part in PARTS
        }
        sizes = [len(block.packed.tokens) for block in self.blocks]
        self._write(
            folder, arrays, {"kind": KIND, "postings": self.postings, "tokens_per_block": sizes}
        )

    @classmethod
    def load(cls, folder: Path, check: bool = True) -> TokenIndex:
        """See `SparseIndex._read`."""
        manifest, arrays, ids = cls._read(folder, PARTS, check)
        blocks, places = [], dict.fromkeys(PARTS, 0)
        for number, tokens in enumerate(manifest["tokens_per_block"]):
            size = min(BLOCK, manifest["passages"] - number * BLOCK)
            counts = (
                arrays["counts"][places["counts"] : places["counts"] + tokens].astype(np.int64) + 1
            )
            ends = {part: places[part] + length for part, length in lengths(counts, size).items()}
            blocks.append(
                Postings(Packed(size, *(arrays[part][places[part] : ends[part]] for part in PARTS)))
            )
            places = ends
        return cls(blocks, ids)
