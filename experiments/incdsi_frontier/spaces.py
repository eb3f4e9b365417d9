"""A collection with document vectors: encodings, or vectors that are learned as in atomic DSI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.incdsi_frontier.encoded import Encoded
from experiments.incdsi_frontier.learning import AnsweredQueries, learn
from model_code.dsi.fit import largest_safe_scale
from model_code.dsi.settings import DocumentVectorSettings
from model_code.incdsi.state import IncDsiState

# With these settings, document vectors are learned from random ones, as in the paper.
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
        learned: Settings for learning document vectors from train queries. None: they are the
            encodings.
        retrained: The same collection, encoded by an encoder that was trained on all its documents.
            None: there is no such encoder.
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
        """Return the vectors (b, H) of documents, as if they were the whole collection."""
        encodings = self.encoded.documents[list(rows)]
        if self.learned is None:
            return encodings
        start = encodings
        if self.learned == RANDOM:
            start = random_vectors(*encodings.shape, self.seed)
        train = self.answered_queries(rows, "train")
        dev = self.answered_queries(rows, "dev")
        return learn(start, train, dev, self.learned, self.seed)

    def answered_queries(self, rows: Sequence[int], split: str) -> AnsweredQueries:
        """Return the queries of `split` for the documents `rows`."""
        return AnsweredQueries(*self.encoded.answered_queries(rows, split))

    def encoding_scale(self, vectors: np.ndarray) -> float:
        """Return the factor by which the encodings of added documents are multiplied.

        It is 1 if the vectors of the old documents are encodings. Learned vectors have other
        lengths; the factor is then measured on dev queries.

        Args:
            vectors: Vectors (n, H) of the old documents.
        """
        if self.learned is None:
            return 1.0
        dev = self.answered_queries(self.old, "dev")
        relevant = [{target} for target in dev.targets.tolist()]
        # The factor is measured by treating every second old document as a new one.
        sample = np.array(self.old[::2])
        encodings = self.encoded.documents[sample]
        scale = largest_safe_scale(vectors, sample, encodings, dev.queries, relevant)
        return 1.0 if scale is None else scale

    def state(self) -> IncDsiState:
        """Return IncDSI's state of the old documents.

        The mean of its train queries represents a document; its encoding, if it has none.
        """
        mean_queries = np.stack([self.encoded.train_queries(row).mean(axis=0) for row in self.old])
        ids = self.encoded.pages.ids[: len(self.old)]
        return IncDsiState(self.vectors(self.old), mean_queries, ids)
