"""Passages that are embedded when a query needs them: re-ranking without an index of embeddings."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from model_code.errors import FingerprintMismatch
from model_code.files import read_json, write_json
from model_code.index.id_map import IdMap
from model_code.index.top_k import top_k
from model_code.lexical.encoder import LexicalEncoder
from model_code.lexical.vocabulary import Sparse
from model_code.manifest import read_manifest, seal
from model_code.retriever import Ranking

FORMAT, KIND = 1, "lexical_passages"
TEXTS = "passages.json"


class PassagesOnTheFly:
    """Ranks candidates as an `EmbeddingIndex` of the same passages would, from their texts.

    The last `cache` embeddings are kept, the longest unused of them given up first; threads may share one.
    """

    def __init__(
        self, texts: Sequence[str], ids: IdMap, encoder: LexicalEncoder, cache: int, precision: str = "float16"
    ) -> None:
        self.texts, self.ids, self.encoder, self.size, self.precision = texts, ids, encoder, cache, precision
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
            while len(self._cache) > self.size:
                self._cache.popitem(last=False)
        return [known[passage] for passage in passages]

    @staticmethod
    def save(folder: Path, texts: Sequence[str], document_ids: Sequence[str], fingerprint: str) -> None:
        """Write the texts and the document of each."""
        folder.mkdir(parents=True)
        write_json(folder / TEXTS, {"document_ids": list(document_ids), "texts": list(texts)})
        seal(folder, FORMAT, {"kind": KIND, "fingerprint": fingerprint, "passages": len(texts)})

    @classmethod
    def load(cls, folder: Path, encoder: LexicalEncoder, cache: int, precision: str) -> PassagesOnTheFly:
        """Read what `save` wrote; FingerprintMismatch if it was for another encoder."""
        manifest, table = read_manifest(folder, FORMAT), read_json(folder / TEXTS)
        passages = cls(table["texts"], IdMap(table["document_ids"]), encoder, cache, precision)
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
