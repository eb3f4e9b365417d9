"""The vectors of the training queries: what a frozen encoder trains V on, and what each document is represented by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model_code.encoding.encoder import Encoder
from model_code.progress import Progress, silent
from model_code.scale.encoding import encode_resumably
from model_code.training.data import Pairs


@dataclass(frozen=True, eq=False)
class QueryVectors:
    """Each different query text of P pairs, encoded once."""

    vectors: np.ndarray  # (U, H) float32
    rows: np.ndarray  # (P,) int64: which of them is each pair's

    @classmethod
    def encode(cls, pairs: Pairs, encoder: Encoder, folder: Path, progress: Progress = silent) -> QueryVectors:
        """Encode the queries of `pairs`, shard by shard in `folder`, which belongs to this encoder and these pairs."""
        number = {text: number for number, text in enumerate(dict.fromkeys(pairs.queries))}
        rows = np.fromiter((number[text] for text in pairs.queries), dtype=np.int64, count=len(pairs))
        return cls(encode_resumably(encoder, list(number), folder, progress), rows)

    def of(self, pairs: np.ndarray) -> np.ndarray:
        """The query vectors of some pairs, given by number: (B, H)."""
        return self.vectors[self.rows[pairs]]

    def means(self, documents: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The mean query vector of each of `count` documents, (count, H) float32, and its number of queries, (count,).

        documents: (P,), the document of each pair. A document without queries has mean 0 and number 0.

        >>> queries = QueryVectors(np.array([[1., 0.], [0., 1.]]), rows=np.array([0, 1, 0]))
        >>> means, counts = queries.means(documents=np.array([2, 2, 0]), count=3)
        >>> means.tolist(), counts.tolist()
        ([[1.0, 0.0], [0.0, 0.0], [0.5, 0.5]], [1, 0, 2])
        """
        counts = np.bincount(documents, minlength=count)
        means = np.zeros((count, self.vectors.shape[1]), dtype=np.float32)
        order = np.argsort(documents, kind="stable")
        present = np.flatnonzero(counts)
        starts = np.concatenate([[0], np.cumsum(counts[present])[:-1]]).astype(np.int64)
        sums = np.add.reduceat(self.of(order), starts, axis=0, dtype=np.float64)
        means[present] = sums / counts[present, None]
        return means, counts
