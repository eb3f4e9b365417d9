"""The dev metric of document vectors: as any retriever's, but what is ranked are the rows of V."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from model_code.progress import Progress, silent
from model_code.training.dev_evaluation import DevEvaluator, TextEncoder


class EncodedOnce:
    """An encoder that does not learn: the same texts are encoded only once."""

    def __init__(self, encoder: TextEncoder) -> None:
        self.encoder, self.known = encoder, dict[tuple[str, ...], np.ndarray]()

    def encode(self, texts: Sequence[str], progress: Progress = silent) -> np.ndarray:
        """Vectors (n, H) of n texts."""
        key = tuple(texts)
        if key not in self.known:
            self.known[key] = self.encoder.encode(texts, progress)
        return self.known[key]


class DocumentDev:
    """Stands for a `DevEvaluator` in a `Trainer`: every passage has its document's row of `vectors` (n, H)."""

    def __init__(self, evaluator: DevEvaluator, vectors: Tensor, frozen: TextEncoder | None = None) -> None:
        """frozen: the query encoder, if it does not learn; its dev queries are then encoded only once."""
        self.evaluator, self.vectors, self.metric = evaluator, vectors, evaluator.metric
        self.frozen = None if frozen is None else EncodedOnce(frozen)

    def encode_passages(self, encoder: TextEncoder) -> np.ndarray:
        """The vectors as they are now, of the ranked passages: (P, H)."""
        documents = self.evaluator.passages.documents[self.evaluator.rows]
        return self.vectors.detach().cpu().numpy()[documents]

    def score(self, encoder: TextEncoder, vectors: np.ndarray) -> float:
        """The mean metric, given the vectors of the ranked passages."""
        return self.evaluator.score(self.frozen or encoder, vectors)
