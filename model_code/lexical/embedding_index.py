"""Passages' learned weights E(p): an inverted index of them, or passages that are embedded when a query needs them.

For each vocabulary entry the index holds the passages that have weight there, ascending, and the weights: three flat
arrays, memory-mapped. A query adds up the lists of its own entries; nothing else is read. A score is the float64 sum
over the query's entries, in ascending order, of query weight times stored weight, rounded to float32: the same for any
batch and order of insertion.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np

from model_code.errors import FreshetError
from model_code.files import read_json, replacing, write_json, write_text
from model_code.index.id_map import IdMap
from model_code.lexical.encoder import LexicalEncoder
from model_code.manifest import read_manifest, seal, verify
from model_code.retriever import Ranking
from model_code.token_index.index import SparseIndex
from model_code.token_index.queries import Sparse

FORMAT, KIND, KIND_OF_TEXTS = 1, "lexical_embeddings", "lexical_passages"
ARRAYS, DOCUMENT_IDS, TEXTS = ("starts", "passages", "weights"), "document_ids.json", "passages.json"
PRECISION = "float16"  # of stored weights: three digits
CACHE = 4096  # passages' embeddings that are kept where they are made when a query needs them


class EmbeddingIndex(SparseIndex):
    """starts: (V + 1,) int64; passages: (n,) int32 and weights: (n,) float16, entry after entry.

    >>> embedding = (np.array([0, 2]), np.array([1.0, 3.0], np.float32))
    >>> index = EmbeddingIndex.build([embedding], ["a"], size=4)
    >>> index.search([(np.array([2, 3]), np.array([0.5, 9.0], np.float32))], k=1)
    [[('a', 1.5)]]
    """

    def __init__(self, starts: np.ndarray, passages: np.ndarray, weights: np.ndarray, ids: IdMap) -> None:
        self.starts, self.passages, self.weights, self.ids = starts, passages, weights, ids

    @classmethod
    def build(cls, embeddings: Sequence[Sparse], document_ids: Sequence[str], size: int) -> EmbeddingIndex:
        """Index the embeddings of passages, number i of document `document_ids[i]`, over `size` vocabulary entries."""
        if len(embeddings) != len(document_ids):
            raise FreshetError(f"{len(embeddings)} embeddings do not fit {len(document_ids)} passages")
        entries = np.concatenate([*(ids for ids, _ in embeddings), np.empty(0, np.int64)])
        weights = np.concatenate([*(values for _, values in embeddings), np.empty(0, np.float32)]).astype(np.float32)
        passages = np.repeat(np.arange(len(embeddings), dtype=np.int32), [len(ids) for ids, _ in embeddings])
        _require_sound(entries, weights, size)
        order = np.argsort(entries, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(entries, minlength=size))]).astype(np.int64)
        return cls(starts, passages[order], weights[order].astype(PRECISION), IdMap(document_ids))

    @property
    def size(self) -> int:
        """Number of vocabulary entries."""
        return len(self.starts) - 1

    def scores(self, queries: Sequence[Sparse]) -> Iterator[np.ndarray]:
        """See `SparseIndex.scores`."""
        for query in queries:
            scores = np.zeros(len(self.ids))
            for entry, weight in zip(*query, strict=True):
                postings = slice(self.starts[entry], self.starts[entry + 1])
                scores[self.passages[postings]] += float(weight) * self.weights[postings].astype(np.float64)
            yield scores

    def scores_at(self, query: Sparse, passages: np.ndarray) -> np.ndarray:
        """See `SparseIndex.scores_at`."""
        return next(self.scores([query]))[passages]

    def matches(self, query: Sparse, document_id: str) -> list[tuple[int, float]]:
        """What each of the query's entries adds to the document's best passage, where it adds any; heaviest first."""
        passage = int(self.ids.rows_of([document_id])[self.best_passage(query, document_id)])
        pairs = zip(query[0].tolist(), query[1].tolist(), strict=True)
        parts = [(entry, weight * self._weight(entry, passage)) for entry, weight in pairs]
        return sorted((part for part in parts if part[1] > 0), key=lambda match: (-match[1], match[0]))

    def embeddings(self, passages: np.ndarray) -> Iterator[Sparse]:
        """E(p) of some passages, read back from the lists of entries."""
        entries = np.repeat(np.arange(self.size), np.diff(self.starts))
        order = np.lexsort((entries, self.passages))
        ends = np.cumsum(np.bincount(self.passages, minlength=len(self.ids)))
        for row in passages.tolist():
            places = order[ends[row - 1] if row else 0 : ends[row]]
            yield entries[places], self.weights[places].astype(np.float32)

    def save(self, folder: Path) -> None:
        """Write the arrays, the document ids and the manifest: equal indexes, equal bytes."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in ARRAYS:
            with replacing(folder / f"{name}.npy") as aside, aside.open("wb") as stream:
                np.save(stream, getattr(self, name))
        ids = json.dumps(self.ids.document_ids, ensure_ascii=False, separators=(",", ":"))
        write_text(folder / DOCUMENT_IDS, ids)
        facts = {"kind": KIND, "entries": self.size, "weights": len(self.weights)}
        seal(folder, FORMAT, facts | {"passages": len(self.ids), "documents": self.ids.documents})

    @classmethod
    def load(cls, folder: Path, check: bool = True) -> EmbeddingIndex:
        """Read what `save` wrote, arrays memory-mapped; FreshetError if a file is not what the manifest says."""
        manifest = read_manifest(folder, FORMAT)
        if check:
            verify(folder, manifest)
        arrays = [np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in ARRAYS]
        return cls(*arrays, IdMap(read_json(folder / DOCUMENT_IDS)))

    def _weight(self, entry: int, passage: int) -> float:
        start, end = self.starts[entry], self.starts[entry + 1]
        place = start + np.searchsorted(self.passages[start:end], passage)
        return float(self.weights[place]) if place < end and self.passages[place] == passage else 0.0


def _require_sound(entries: np.ndarray, weights: np.ndarray, size: int) -> None:
    largest = float(np.finfo(PRECISION).max)
    if not np.isfinite(weights).all() or (len(weights) and float(np.abs(weights).max()) > largest):
        raise FreshetError(f"weights are not finite in {PRECISION}; the encoder diverged: train it again")
    if len(entries) and int(entries.max()) >= size:
        raise FreshetError(f"entry {int(entries.max())} is outside the vocabulary of {size} entries")


class PassagesOnTheFly:
    """Ranks candidates as an `EmbeddingIndex` of the same passages would, from their texts.

    Some embeddings are kept; threads may share one.
    """

    def __init__(self, texts: Sequence[str], ids: IdMap, encoder: LexicalEncoder) -> None:
        self.texts, self.ids, self.encoder = texts, ids, encoder
        self._known: dict[int, Sparse] = {}

    def rank(self, queries: Sequence[Sparse], candidates: Sequence[Collection[str]]) -> list[Ranking]:
        """For each query all of its candidate documents, best first."""
        pairs = zip(queries, candidates, strict=True)
        return [self._index(documents).rank([query], [documents])[0] for query, documents in pairs]

    def best_passage(self, query: Sparse, document_id: str) -> int:
        """See `SparseIndex.best_passage`."""
        return self._index([document_id]).best_passage(query, document_id)

    def matches(self, query: Sparse, document_id: str) -> list[tuple[int, float]]:
        """See `EmbeddingIndex.matches`."""
        return self._index([document_id]).matches(query, document_id)

    def _index(self, documents: Collection[str]) -> EmbeddingIndex:
        rows = self.ids.rows_of(documents).tolist()
        names = [self.ids.document_ids[row] for row in rows]
        return EmbeddingIndex.build(self._embeddings(rows), names, self.encoder.vocabulary_size)

    def _embeddings(self, rows: Sequence[int]) -> list[Sparse]:
        if len(self._known) > CACHE:
            self._known = {}
        known = self._known  # another thread may begin anew meanwhile
        missing = [row for row in rows if row not in known]
        known.update(zip(missing, self.encoder.encode([self.texts[row] for row in missing]), strict=True))
        return [known[row] for row in rows]

    def save(self, folder: Path) -> None:
        """Write the texts and the document of each."""
        folder.mkdir(parents=True)
        write_json(folder / TEXTS, {"document_ids": self.ids.document_ids, "texts": list(self.texts)})
        seal(folder, FORMAT, {"kind": KIND_OF_TEXTS, "passages": len(self.texts)})

    @classmethod
    def load(cls, folder: Path, encoder: LexicalEncoder) -> PassagesOnTheFly:
        """Read what `save` wrote."""
        table = read_json(folder / TEXTS)
        return cls(table["texts"], IdMap(table["document_ids"]), encoder)
