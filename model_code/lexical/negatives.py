"""In-training retrieval: negatives from a beta search with the encoder of that very step.

Token bags do not depend on the encoder, so the token index is never out of date and never built again (SVDR, section
4.2): there is no interval after which a corpus must be encoded anew, and nothing that a checkpoint must keep.
"""

from __future__ import annotations

import numpy as np

from model_code.hierarchy.tree import Hierarchy
from model_code.lexical.encoder import LexicalEncoder
from model_code.lexical.settings import LexicalSettings
from model_code.retriever import Ranking
from model_code.token_index.index import TokenIndex
from model_code.training.data import TrainingData
from model_code.training.negatives.base import Drawing, Negatives, sample
from model_code.training.settings import TrainingSettings


class TokenNegatives(Drawing):
    """Draws from the m passages that the present encoder ranks highest, once the run has come to step `first`.

    Dropped are passages known to answer the query and, as they may be answers that nobody judged, those that hold one
    of the strings that answer it. Of a query without such strings they are those that score above
    `in_training_margin` times the pair's own passage, and those in its leaf of the hierarchy, if there is one.
    """

    def __init__(
        self,
        before: Negatives,
        data: TrainingData,
        training: TrainingSettings,
        settings: LexicalSettings,
        tokens: TokenIndex,
        first: int,
    ) -> None:
        """before: where negatives come from until step `first`; tokens: passage i is its document "i"."""
        super().__init__(data, training)
        self.before, self.lexical, self.tokens, self.first = before, settings, tokens, first
        self.encoder: LexicalEncoder | None = None

    @property
    def outside_leaf(self) -> bool:
        """Always, once negatives come from this search; only a query with answers may be given its own from there."""
        return self.before.outside_leaf if self.encoder is None else True

    def needs_refresh(self, step: int) -> bool:
        """From step `first` on, every time: the encoder of that step is the one that searches."""
        return step >= self.first

    def refresh(self, encoder: LexicalEncoder, vectors: np.ndarray | None = None) -> None:  # type: ignore[override]
        """Search with `encoder`, as its weights are at every draw, from now on."""
        self.encoder = encoder

    def recluster(self, hierarchy: Hierarchy | None) -> None:
        """See `Negatives.recluster`."""
        super().recluster(hierarchy)
        self.before.recluster(hierarchy)

    def draw(self, pairs: np.ndarray, known: list[np.ndarray], rng: np.random.Generator) -> list[list[int]]:
        """See `Negatives.draw`."""
        if self.encoder is None or not self.settings.negatives_per_query:
            return self.before.draw(pairs, known, rng)
        own = self.data.pairs.passages[pairs]
        queries = self.encoder.encode_queries([self.data.pairs.queries[pair] for pair in pairs])
        most = self.lexical.in_training_negatives + max(map(len, known)) + len(own)  # m are left without those banned
        found = self.tokens.search(queries, most, self.tokens.fingerprint)
        positives = self.tokens.rank(queries, [[str(passage)] for passage in own.tolist()], self.tokens.fingerprint)
        batch = set(own.tolist())
        return [
            self._draw_from(ranking, positive[0][1], pair, batch.union(answers.tolist()), rng)
            for ranking, positive, pair, answers in zip(found, positives, pairs.tolist(), known, strict=True)
        ]

    def _draw_from(
        self, ranking: Ranking, positive: float, pair: int, banned: set[int], rng: np.random.Generator
    ) -> list[int]:
        holds = self._holds(pair)
        most = self.lexical.in_training_margin * positive if holds is None else np.inf
        candidates = [int(name) for name, score in ranking if score <= most and int(name) not in banned]
        candidates = candidates[: self.lexical.in_training_negatives]
        if holds is None and self.hierarchy is not None:
            leaves, passage = self.hierarchy.leaves, self.data.pairs.passages[pair]
            candidates = [other for other in candidates if leaves[other] != leaves[passage]]
        return sample(np.array(candidates, dtype=np.int64), self.settings.negatives_per_query, (), rng, holds)
