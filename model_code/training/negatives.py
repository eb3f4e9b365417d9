"""Extra negative documents for each training query: siblings in the hierarchy, or from the top of a
ranking.

Ranked are passages that BM25 puts high for the query although they are not known to answer it.
Ranks are counted among the passages of documents that are not known to answer the query: rank 0 is
the best of those. Of equal scores the passage with the lower number ranks first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from functools import cache, cached_property
from itertools import islice

import numpy as np

from model_code.errors import FreshetError
from model_code.hierarchy.tree import Hierarchy
from model_code.retrieval.bm25_index import Bm25Index
from model_code.training.data import ContainsAnswer, TrainingData
from model_code.training.settings import TrainingSettings

# candidates that are drawn in addition where each may hold an answer, so that hardly ever too few
# are left
EXTRA_CANDIDATES = 256


class NegativeSampler(ABC):
    """Drawing of extra passages for the pairs of a batch; a query for which too few are left gets
    fewer.
    """

    def __init__(
        self, data: TrainingData, settings: TrainingSettings, hierarchy: Hierarchy | None = None
    ) -> None:
        """hierarchy: needed if the settings draw siblings; `recluster` may give it, too."""
        self.data, self.settings, self.hierarchy = data, settings, hierarchy

    def draw(
        self, pairs: np.ndarray, relevant: list[np.ndarray], rng: np.random.Generator
    ) -> list[list[int]]:
        """The extra passages of each pair: different ones, each as likely as another, none in the
        batch or known to answer the query. Nor does any hold one of the strings that answer the
        query, where the data names such.

        pairs: (B,) numbers of training pairs; relevant: for each the passages of all documents that
        answer its query. Equal arguments give equal draws, until the next `recluster`.
        """
        if not self.settings.negatives_per_query:
            return [[] for _ in pairs]
        batch = set(self.data.pairs.passages[pairs].tolist())
        return [
            self._draw_one(int(pair), batch.union(passages.tolist()), rng)
            for pair, passages in zip(pairs, relevant, strict=True)
        ]

    @abstractmethod
    def _draw_one(self, pair: int, banned: set[int], rng: np.random.Generator) -> list[int]:
        """The extra passages of one pair, none of them `banned`."""

    def recluster(self, hierarchy: Hierarchy | None) -> None:
        """Read leaves and siblings from this tree from now on."""
        self.hierarchy = hierarchy

    def _holds(self, pair: int) -> ContainsAnswer | None:
        """Whether a passage holds an answer of the pair's query; None if the data names none."""
        return self.data.answers.of(self.data.pairs.queries[pair])


def sample_passages(
    candidates: np.ndarray,
    count: int,
    banned: Collection[int],
    rng: np.random.Generator,
    holds: ContainsAnswer | None = None,
) -> list[int]:
    """Up to `count` of the candidates, none of them banned: enough are drawn for all banned ones to
    be among them.

    holds: whether a candidate holds an answer, and so is no negative; asked of no more candidates
    than it takes.
    """
    most = count + len(banned) + (0 if holds is None else EXTRA_CANDIDATES)
    drawn = rng.choice(candidates, min(len(candidates), most), replace=False)
    negatives = (
        key for key in drawn.tolist() if key not in banned and (holds is None or not holds(key))
    )
    return list(islice(negatives, count))


class SiblingNegatives(NegativeSampler):
    """Passages from below the ancestors of the query's own passage: siblings in the hierarchy (HCE,
    equation 6).

    HCE's equation 6 has, for each tree level t from M + 1 to the documents' own, one sample of the
    documents that share the positive's ancestor at level t - 1. Here the extra documents are dealt
    over those ancestors, the deepest first, and all stand in one contrastive loss. A small cluster
    gives what it has.
    """

    def _draw_one(self, pair: int, banned: set[int], rng: np.random.Generator) -> list[int]:
        if self.hierarchy is None:
            raise FreshetError(
                "siblings are drawn from a hierarchy, and there is none; set negatives to another kind"
            )
        tree, drawn = self.hierarchy, []
        levels = range(
            tree.depth, min(self.settings.hierarchy_levels or tree.depth, tree.depth) - 1, -1
        )
        path, holds = tree.path(int(self.data.pairs.passages[pair])), self._holds(pair)
        for turn in range(self.settings.negatives_per_query):
            level = levels[turn % len(levels)]
            drawn += sample_passages(
                tree.documents_under(level, path[level - 1]), 1, banned.union(drawn), rng, holds
            )
        return drawn


class Bm25Negatives(NegativeSampler):
    """The first `negatives_depth` ranks by BM25 as it comes, over the very texts that the encoder
    sees.

    Not by the group `bm25`: whoever tunes the search by words trains no encoder anew.

    A query is ranked when its pair is first drawn for, so that a short run on large data ranks what
    it uses only. Passages that share no term with the query are no candidates.
    """

    def _draw_one(self, pair: int, banned: set[int], rng: np.random.Generator) -> list[int]:
        return sample_passages(
            self.candidates(pair), self.settings.negatives_per_query, banned, rng, self._holds(pair)
        )

    @cached_property
    def candidates(self) -> Callable[[int], np.ndarray]:
        """The passages that may be drawn for a pair, (n,) int64; each pair's are kept."""
        return cache(self._rank)

    def _rank(self, pair: int) -> np.ndarray:
        pairs, passages = self.data.pairs, self.data.passages
        scores = self._index.scores(pairs.queries[pair])
        unknown = np.setdiff1d(np.flatnonzero(scores > 0), passages.of_all(pairs.relevant[pair]))
        return unknown[np.argsort(-scores[unknown], kind="stable")[: self.settings.negatives_depth]]

    @cached_property
    def _index(self) -> Bm25Index:
        texts = self.data.passages.texts
        return Bm25Index.build(
            texts, [str(document) for document in self.data.passages.documents.tolist()]
        )


def make_negative_sampler(
    data: TrainingData, settings: TrainingSettings, hierarchy: Hierarchy | None = None
) -> NegativeSampler:
    """What `settings.negatives` names; hierarchy: needed where the settings draw siblings."""
    kinds = {"siblings": SiblingNegatives, "bm25": Bm25Negatives}
    return kinds[settings.negatives](data, settings, hierarchy)
