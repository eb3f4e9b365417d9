"""Passages' learned weights E(p): an inverted index of them, or passages that are embedded when a query needs them.

For each vocabulary entry the index holds the passages that have weight there, ascending, and the weights: three flat
arrays, memory-mapped. A query adds up the lists of its own entries; nothing else is read. A score is the float64 sum
over the query's entries, in ascending order, of query weight times stored weight, rounded to float32: the same for any
batch and order of insertion.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np

from model_code.errors import FingerprintMismatch, FreshetError
from model_code.files import read_json, replacing, write_json, write_text
from model_code.index.id_map import IdMap
from model_code.index.top_k import top_k
from model_code.lexical.encoder import LexicalEncoder
from model_code.manifest import read_manifest, seal, verify
from model_code.retriever import Ranking
from model_code.token_index.queries import Sparse

FORMAT, KIND, KIND_OF_TEXTS = 1, "lexical_embeddings", "lexical_passages"
ARRAYS, DOCUMENT_IDS, TEXTS = ("starts", "passages", "weights"), "document_ids.json", "passages.json"
PRECISION = "float16"  # of stored weights: three digits
CACHE = 4096  # passages' embeddings that are kept where they are made when a query needs them


class EmbeddingIndex:
    """starts: (V + 1,) int64; passages: (n,) int32 and weights: (n,) float16 or float32, entry after entry.

    Every method that takes embeddings takes their encoder's fingerprint too, and refuses another one's.

    >>> embedding = (np.array([0, 2]), np.array([1.0, 3.0], np.float32))
    >>> index = EmbeddingIndex.build([embedding], ["a"], size=4, fingerprint="f")
    >>> index.search([(np.array([2, 3]), np.array([0.5, 9.0], np.float32))], k=1, fingerprint="f")
    [[('a', 1.5)]]
    """

    def __init__(
        self, starts: np.ndarray, passages: np.ndarray, weights: np.ndarray, ids: IdMap, fingerprint: str
    ) -> None:
        self.starts, self.passages, self.weights = starts, passages, weights
        self.ids, self.fingerprint = ids, fingerprint

    @classmethod
    def build(
        cls,
        embeddings: Sequence[Sparse],
        document_ids: Sequence[str],
        size: int,
        fingerprint: str,
        precision: str = PRECISION,
    ) -> EmbeddingIndex:
        """Index the embeddings of passages, number i of document `document_ids[i]`, over `size` vocabulary entries."""
        if len(embeddings) != len(document_ids):
            raise FreshetError(f"{len(embeddings)} embeddings do not fit {len(document_ids)} passages")
        entries = np.concatenate([*(ids for ids, _ in embeddings), np.empty(0, np.int64)])
        weights = np.concatenate([*(values for _, values in embeddings), np.empty(0, np.float32)]).astype(np.float32)
        passages = np.repeat(np.arange(len(embeddings), dtype=np.int32), [len(ids) for ids, _ in embeddings])
        _require_sound(entries, weights, size, precision)
        order = np.argsort(entries, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(entries, minlength=size))]).astype(np.int64)
        return cls(starts, passages[order], weights[order].astype(precision), IdMap(document_ids), fingerprint)

    @property
    def size(self) -> int:
        """Number of vocabulary entries."""
        return len(self.starts) - 1

    def search(
        self, queries: Sequence[Sparse], k: int, fingerprint: str, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """The k best documents for each query, best first; of `allowed` only, unless None.

        Documents that share no entry with a query are left out. FreshetError if an allowed one is unknown.
        """
        self._require(fingerprint)
        rows = None if allowed is None else self.ids.rows_of(allowed)
        rankings = []
        for query in queries:
            scores = self.scores(query)
            hits = np.flatnonzero(scores > 0) if rows is None else rows[scores[rows] > 0]
            rankings.append(self._rank(scores, hits, k) if len(hits) else [])
        return rankings

    def rank(self, queries: Sequence[Sparse], candidates: Sequence[Iterable[str]], fingerprint: str) -> list[Ranking]:
        """For each query all of its candidate documents, best first, scored as `search` does."""
        self._require(fingerprint)
        rankings = []
        for query, documents in zip(queries, candidates, strict=True):
            rows = self.ids.rows_of(documents)
            rankings.append(self._rank(self.scores(query), rows, len(rows)) if len(rows) else [])
        return rankings

    def scores(self, query: Sparse) -> np.ndarray:
        """The score of every passage: (N,) float64."""
        scores = np.zeros(len(self.ids))
        for entry, weight in zip(*query, strict=True):
            postings = slice(self.starts[entry], self.starts[entry + 1])
            scores[self.passages[postings]] += float(weight) * self.weights[postings].astype(np.float64)
        return scores

    def scores_at(self, query: Sparse, passages: np.ndarray) -> np.ndarray:
        """The scores of some passages: (r,) float64."""
        return self.scores(query)[passages]

    def parts(self, query: Sparse, passage: int) -> np.ndarray:
        """What each entry of the query adds to a passage's score: (n,) float64."""
        pairs = zip(query[0].tolist(), query[1].tolist(), strict=True)
        return np.array([weight * self._weight(entry, passage) for entry, weight in pairs], dtype=np.float64)

    def save(self, folder: Path) -> None:
        """Write the arrays, the document ids and the manifest: equal indexes, equal bytes."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in ARRAYS:
            with replacing(folder / f"{name}.npy") as aside, aside.open("wb") as stream:
                np.save(stream, getattr(self, name))
        ids = json.dumps(self.ids.document_ids, ensure_ascii=False, separators=(",", ":"))
        write_text(folder / DOCUMENT_IDS, ids)
        facts = {"kind": KIND, "fingerprint": self.fingerprint, "entries": self.size}
        facts |= {"passages": len(self.ids), "documents": self.ids.documents, "weights": len(self.weights)}
        seal(folder, FORMAT, facts)

    @classmethod
    def load(cls, folder: Path, check: bool = True) -> EmbeddingIndex:
        """Read what `save` wrote, arrays memory-mapped; FreshetError if a file is not what the manifest says."""
        manifest = read_manifest(folder, FORMAT)
        if check:
            verify(folder, manifest)
        arrays = [np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in ARRAYS]
        return cls(*arrays, IdMap(read_json(folder / DOCUMENT_IDS)), manifest["fingerprint"])

    def _rank(self, scores: np.ndarray, rows: np.ndarray, k: int) -> Ranking:
        names = [self.ids.document_ids[row] for row in rows.tolist()]
        return top_k(scores[rows].astype(np.float32), names, k)

    def _weight(self, entry: int, passage: int) -> float:
        start, end = self.starts[entry], self.starts[entry + 1]
        place = start + np.searchsorted(self.passages[start:end], passage)
        return float(self.weights[place]) if place < end and self.passages[place] == passage else 0.0

    def _require(self, fingerprint: str) -> None:
        if fingerprint != self.fingerprint:
            raise FingerprintMismatch(
                f"the embeddings were made by encoder {self.fingerprint[:12]}, these come from {fingerprint[:12]}; "
                "build the index again with that encoder, or encode with the index's own"
            )


def _require_sound(entries: np.ndarray, weights: np.ndarray, size: int, precision: str) -> None:
    largest = float(np.finfo(precision).max)
    if not np.isfinite(weights).all() or (len(weights) and float(np.abs(weights).max()) > largest):
        raise FreshetError(f"weights are not finite in {precision}; the encoder diverged: train it again")
    if len(entries) and int(entries.max()) >= size:
        raise FreshetError(f"entry {int(entries.max())} is outside the vocabulary of {size} entries")


class PassagesOnTheFly:
    """Ranks candidates as an `EmbeddingIndex` of the same passages would, from their texts.

    The last `CACHE` embeddings are kept, the longest unused of them given up first; threads may share one.
    """

    def __init__(self, texts: Sequence[str], ids: IdMap, encoder: LexicalEncoder, precision: str = PRECISION) -> None:
        self.texts, self.ids, self.encoder, self.precision = texts, ids, encoder, precision
        self.fingerprint = encoder.fingerprint()
        self._cache: OrderedDict[int, Sparse] = OrderedDict()
        self._lock = threading.Lock()

    def rank(self, queries: Sequence[Sparse], candidates: Sequence[Iterable[str]], fingerprint: str) -> list[Ranking]:
        """For each query all of its candidate documents, best first."""
        if fingerprint != self.fingerprint:
            raise FingerprintMismatch(
                f"passages are embedded by encoder {self.fingerprint[:12]}, the queries by {fingerprint[:12]}"
            )
        rankings = []
        for query, documents in zip(queries, candidates, strict=True):
            rows = self.ids.rows_of(documents)
            names = [self.ids.document_ids[row] for row in rows.tolist()]
            rankings.append(
                top_k(self.scores_at(query, rows).astype(np.float32), names, len(rows)) if len(rows) else []
            )
        return rankings

    def scores_at(self, query: Sparse, passages: np.ndarray) -> np.ndarray:
        """The scores of some passages: (r,) float64."""
        return np.array([_parts(query, embedding).sum() for embedding in self.embeddings(passages.tolist())])

    def parts(self, query: Sparse, passage: int) -> np.ndarray:
        """What each entry of the query adds to a passage's score: (n,) float64."""
        return _parts(query, self.embeddings([passage])[0])

    def embeddings(self, passages: Sequence[int]) -> list[Sparse]:
        """E(p) of some passages, from the cache as far as it has them."""
        with self._lock:
            known = {passage: self._cache[passage] for passage in passages if passage in self._cache}
            missing = [passage for passage in dict.fromkeys(passages) if passage not in known]
        for passage, (ids, weights) in zip(
            missing, self.encoder.encode([self.texts[passage] for passage in missing]), strict=True
        ):
            known[passage] = ids, weights.astype(self.precision)
        with self._lock:
            for passage in dict.fromkeys(passages):
                self._cache[passage] = known[passage]
                self._cache.move_to_end(passage)
            while len(self._cache) > CACHE:
                self._cache.popitem(last=False)
        return [known[passage] for passage in passages]

    @staticmethod
    def save(folder: Path, texts: Sequence[str], document_ids: Sequence[str], fingerprint: str) -> None:
        """Write the texts and the document of each."""
        folder.mkdir(parents=True)
        write_json(folder / TEXTS, {"document_ids": list(document_ids), "texts": list(texts)})
        seal(folder, FORMAT, {"kind": KIND_OF_TEXTS, "fingerprint": fingerprint, "passages": len(texts)})

    @classmethod
    def load(cls, folder: Path, encoder: LexicalEncoder, precision: str) -> PassagesOnTheFly:
        """Read what `save` wrote; FingerprintMismatch if it was for another encoder."""
        manifest, table = read_manifest(folder, FORMAT), read_json(folder / TEXTS)
        passages = cls(table["texts"], IdMap(table["document_ids"]), encoder, precision)
        if manifest["fingerprint"] != passages.fingerprint:
            raise FingerprintMismatch(
                f"{folder} belongs to encoder {manifest['fingerprint'][:12]}, not to {passages.fingerprint[:12]}; "
                "build the index again"
            )
        return passages


def _parts(query: Sparse, embedding: Sparse) -> np.ndarray:
    ids, weights = embedding
    places = np.searchsorted(ids, query[0]).clip(max=max(0, len(ids) - 1))
    if not len(ids):
        return np.zeros(len(query[0]))
    shared = ids[places] == query[0]
    return np.where(shared, query[1].astype(np.float64) * weights[places].astype(np.float64), 0.0)
