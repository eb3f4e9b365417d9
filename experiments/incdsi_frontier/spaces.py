"""Vectors that additions are measured in: encodings, or learned ones as in atomic DSI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.incdsi_frontier.encoded import Encoded
from experiments.incdsi_frontier.learning import Asking, learn
from model_code.dsi.fit import largest_safe_scale
from model_code.dsi.settings import DocumentVectorSettings
from model_code.incdsi.state import IncDsiState

# Starts from random vectors, as published.
RANDOM = DocumentVectorSettings(learning_rate=5e-3, epochs=12.0)
LEARNED: Mapping[str, DocumentVectorSettings] = {
    "dsi": DocumentVectorSettings(),
    "dsi_random_start": RANDOM,
}


def random_vectors(count: int, dimension: int, seed: int) -> np.ndarray:
    """Return vectors (count, H) float32, uniform in +-1/sqrt(H) (IncDSI, section 3)."""
    bound = dimension**-0.5
    vectors = np.random.default_rng(seed).uniform(-bound, bound, (count, dimension))
    return vectors.astype(np.float32)


@dataclass(frozen=True, eq=False)
class Space:
    """A collection under one encoder, with encodings or learned vectors.

    Attributes:
        encoded: The collection under the encoder.
        learned: Settings of learning from train queries; None uses the encodings.
        retrained: The same collection under an encoder trained on all its documents; None keeps
            the encoder.
        seed: Seed of the random start and of the training.
    """

    encoded: Encoded
    learned: DocumentVectorSettings | None = None
    retrained: Encoded | None = None
    seed: int = 0

    @property
    def old(self) -> list[int]:
        """Rows of the old documents."""
        return list(range(self.encoded.pages.old))

    def vectors(self, rows: Sequence[int]) -> np.ndarray:
        """Return V (b, H) of the documents `rows` as if they were the whole collection."""
        encodings = self.encoded.documents[list(rows)]
        if self.learned is None:
            return encodings
        start = encodings
        if self.learned == RANDOM:
            start = random_vectors(*encodings.shape, self.seed)
        train = self.asking(rows, "train")
        dev = self.asking(rows, "dev")
        return learn(start, train, dev, self.learned, self.seed)

    def asking(self, rows: Sequence[int], split: str) -> Asking:
        """Return the queries of `split` for the documents `rows`."""
        return Asking(*self.encoded.asking(rows, split))

    def encoding_scale(self, vectors: np.ndarray) -> float:
        """Return the factor on encodings of added documents that training V (n, H) measures.

        It is 1 where V are encodings.
        """
        if self.learned is None:
            return 1.0
        dev = self.asking(self.old, "dev")
        relevant = [{target} for target in dev.targets.tolist()]
        # Every second old document stands for the documents that will be added.
        sample = np.array(self.old[::2])
        encodings = self.encoded.documents[sample]
        scale = largest_safe_scale(vectors, sample, encodings, dev.queries, relevant)
        return 1.0 if scale is None else scale

    def state(self) -> IncDsiState:
        """Return the old documents, each represented by the mean of its train queries.

        A document without train queries represents itself.
        """
        mean_queries = np.stack([self.encoded.asks(row).mean(axis=0) for row in self.old])
        ids = self.encoded.pages.ids[: len(self.old)]
        return IncDsiState(self.vectors(self.old), mean_queries, ids)
