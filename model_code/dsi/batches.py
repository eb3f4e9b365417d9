"""From pairs to what the loss over document ids reads: query vectors or tokens, and numbers of documents.

No document is ever encoded. A frozen encoder encodes each query once; the means stand for their documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from model_code.encoding.batching import Buckets
from model_code.encoding.encoder import Encoder
from model_code.progress import Progress, silent
from model_code.scale.encoding import encode_resumably
from model_code.training.collator import Collator
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


class DocumentBatch(NamedTuple):
    """B queries and their documents as tensors."""

    queries: Buckets  # tokenised; if the encoder is frozen one part, their vectors (B, H)
    documents: Tensor  # (B,) int64
    known: Tensor  # (2, m) int64: rows of the batch, and documents known to answer them
    paths: Tensor | None  # (B, M) int64: ancestors of each pair's passage; None without a hierarchy loss
    excluded: list[Tensor | None] | None  # per level None or (B, K_t) bool: nodes above other relevant passages


class DocumentCollator(Collator):
    """Makes batch after batch; equal numbers give equal batches, whatever was made before."""

    def __init__(self, *arguments: Any, query_vectors: QueryVectors | None = None, **more: Any) -> None:
        """query_vectors: those of a frozen encoder, looked up instead of tokenised; the rest is `Collator`'s."""
        super().__init__(*arguments, **more)
        self.query_vectors = query_vectors

    def __call__(self, number: int, pairs: np.ndarray) -> DocumentBatch:  # type: ignore[override]
        """Batch `number` of the run, made of `pairs` (B,)."""
        every, passages = self.data.pairs, self.data.passages
        own = every.passages[pairs]
        relevant = [every.relevant[pair] for pair in pairs]
        return DocumentBatch(
            queries=self._queries(pairs),
            documents=torch.from_numpy(passages.documents[own]),
            known=torch.from_numpy(known_pairs(relevant)),
            paths=None if self.ancestors is None else self.ancestors.of(own),
            excluded=None if self.ancestors is None else self.ancestors.excluded(list(map(passages.of_all, relevant))),
        )

    def _queries(self, pairs: np.ndarray) -> Buckets:
        if self.query_vectors is not None:
            return Buckets([torch.from_numpy(self.query_vectors.of(pairs))], torch.arange(len(pairs)))  # type: ignore[list-item]
        texts = [self.data.pairs.queries[pair] for pair in pairs]
        return self.query_features(texts)


def known_pairs(relevant: Sequence[frozenset[int]]) -> np.ndarray:
    """The rows and documents of a batch's relevant documents: (2, m) int64.

    >>> known_pairs([frozenset([3]), frozenset([2, 1])]).tolist()
    [[0, 1, 1], [3, 1, 2]]
    """
    return np.array([(row, document) for row, known in enumerate(relevant) for document in sorted(known)]).T
