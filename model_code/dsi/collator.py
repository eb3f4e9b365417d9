"""From the numbers of a batch's pairs to what the loss over document ids reads: no document is ever encoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from model_code.dsi.queries import QueryVectors
from model_code.encoding.batching import Buckets, bucketed
from model_code.training.collator import Collator


class DocumentBatch(NamedTuple):
    """B queries and their documents as tensors."""

    queries: Buckets  # tokenised; if the encoder is frozen one part, their vectors (B, H)
    documents: Tensor  # (B,) int64
    known: Tensor  # (2, m) int64: rows of the batch, and documents known to answer them
    paths: Tensor | None  # (B, M) int64: ancestors of each pair's passage; None without a hierarchy loss
    excluded: list[Tensor | None] | None  # per level None or (B, K_t) bool: nodes above other relevant passages


class DocumentCollator(Collator):
    """Makes batch after batch; equal numbers give equal batches, whatever was made before."""

    def __init__(self, *arguments: Any, query_vectors: QueryVectors | None = None) -> None:
        """query_vectors: those of a frozen encoder, looked up instead of tokenised; the rest is `Collator`'s."""
        super().__init__(*arguments)
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
        return bucketed(self.tokenize(texts, self.settings.query_max_tokens), self.batch_tokens)


def known_pairs(relevant: Sequence[frozenset[int]]) -> np.ndarray:
    """The rows and documents of a batch's relevant documents: (2, m) int64.

    >>> known_pairs([frozenset([3]), frozenset([2, 1])]).tolist()
    [[0, 1, 1], [3, 1, 2]]
    """
    return np.array([(row, document) for row, known in enumerate(relevant) for document in sorted(known)]).T
