"""Extra negative passages for training queries: siblings in the hierarchy, or high BM25 ranks.

A sibling negative shares a node of the hierarchy with the relevant passage. A BM25 negative is a
passage that BM25 ranks high for the query. Passages of documents that are known to answer the query
are removed before ranks are counted. Passages with equal scores are ordered by number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from functools import cache, cached_property

import numpy as np

from model_code.errors import FreshetError
from model_code.hierarchy.tree import Hierarchy
from model_code.retrieval.bm25_index import Bm25Index
from model_code.training.data import ContainsAnswer, TrainingData
from model_code.training.settings import TrainingSettings

# Number of additional candidates that are drawn if candidates may contain an answer. With so many,
# it is rare that too few negatives remain.
EXTRA_CANDIDATES = 256


class NegativeSampler(ABC):
    """Draws extra passages for the pairs of a batch.

    Args:
        data: The training data.
        settings: Number and kind of negatives.
        hierarchy: Required to draw siblings. `recluster` may set it later.
    """

    def __init__(
        self, data: TrainingData, settings: TrainingSettings, hierarchy: Hierarchy | None = None
    ) -> None:
        self.data = data
        self.settings = settings
        self.hierarchy = hierarchy

    def draw(
        self, pairs: np.ndarray, relevant: list[np.ndarray], rng: np.random.Generator
    ) -> list[list[int]]:
        """Draw different extra passages for each pair, each candidate with equal probability.

        A passage is not drawn if it is the relevant passage of some pair of the batch. Nor is it
        drawn if it is known to answer the pair's query, or contains a string that answers it. A
        pair with too few candidates gets fewer passages. Equal arguments give equal results until
        the next `recluster`.

        Args:
            pairs: Numbers of training pairs, (B,).
            relevant: For each pair, the passages of all documents that answer its query.
            rng: Random generator.
        """
        if not self.settings.negatives_per_query:
            return [[] for _ in pairs]

        batch_passages = set(self.data.pairs.passages[pairs].tolist())
        drawn = []
        for pair, answering_passages in zip(pairs, relevant, strict=True):
            banned = batch_passages.union(answering_passages.tolist())
            drawn.append(self._draw_one(int(pair), banned, rng))
        return drawn

    def are_negatives(self, pair: int, passages: np.ndarray, relevant: np.ndarray) -> np.ndarray:
        """Return whether passages may be negatives of a pair, even if drawn for another pair.

        Args:
            pair: Number of the training pair.
            passages: Numbers of passages, (E,).
            relevant: The passages of all documents that answer the pair's query.

        Returns:
            (E,) bool, false for a passage that is known to answer the query, or contains one of the
            strings that answer it.
        """
        are_negatives = ~np.isin(passages, relevant)
        contains_answer = self._contains_answer(pair)
        if contains_answer is not None:
            for position in np.flatnonzero(are_negatives).tolist():
                are_negatives[position] = not contains_answer(int(passages[position]))
        return are_negatives

    @abstractmethod
    def _draw_one(self, pair: int, banned: set[int], rng: np.random.Generator) -> list[int]:
        """Draw the extra passages of one pair. Passages in `banned` must not be drawn."""

    def recluster(self, hierarchy: Hierarchy | None) -> None:
        """Replace the hierarchy from which siblings are drawn."""
        self.hierarchy = hierarchy

    def prepare(self) -> None:
        """Draw once, which computes what all draws share, such as the BM25 index."""
        nothing_relevant = np.empty(0, dtype=np.int64)
        self.draw(np.zeros(1, dtype=np.int64), [nothing_relevant], np.random.default_rng(0))

    def _contains_answer(self, pair: int) -> ContainsAnswer | None:
        """Return a function that tells whether a passage contains an answer of a pair's query.

        It is None if the query has no strings as answers.
        """
        return self.data.answers.of(self.data.pairs.queries[pair])


def sample_passages(
    candidates: np.ndarray,
    count: int,
    banned: Collection[int],
    rng: np.random.Generator,
    contains_answer: ContainsAnswer | None = None,
) -> list[int]:
    """Draw up to `count` different candidates that are not banned.

    Args:
        candidates: Numbers of passages, (n,).
        count: Number of passages to draw.
        banned: Passages that may not be drawn.
        rng: Random generator.
        contains_answer: Returns whether a candidate contains an answer, so that it is not a
            negative. It is called for no more candidates than needed, because it is slow.
    """
    # So many are drawn that `count` passages remain even if all banned passages are among them.
    drawn_count = count + len(banned)
    if contains_answer is not None:
        drawn_count += EXTRA_CANDIDATES
    drawn = rng.choice(candidates, min(len(candidates), drawn_count), replace=False)

    negatives: list[int] = []
    for passage in drawn.tolist():
        if len(negatives) == count:
            break
        if passage in banned:
            continue
        if contains_answer is not None and contains_answer(passage):
            continue
        negatives.append(passage)
    return negatives


class SiblingNegatives(NegativeSampler):
    """Passages below the ancestors of the query's passage: siblings in the hierarchy.

    HCE (equation 6) draws a sample for each level t from M + 1 down to the documents. Its documents
    share the relevant document's ancestor at level t - 1. Here one passage is drawn below each
    of these ancestors in turn, starting with the deepest one. All of them are negatives of one
    contrastive loss. A small cluster may give fewer passages.
    """

    def _draw_one(self, pair: int, banned: set[int], rng: np.random.Generator) -> list[int]:
        """Draw passages below the ancestors of the pair's passage, one ancestor after the other."""
        tree = self.hierarchy
        if tree is None:
            raise FreshetError(
                "negatives: siblings needs a hierarchy, and none was given; build one, or set "
                "negatives: bm25"
            )
        # The highest level M whose nodes have siblings drawn below them.
        top_level = tree.depth
        if self.settings.hierarchy_levels is not None:
            top_level = min(self.settings.hierarchy_levels, tree.depth)
        deepest_first = range(tree.depth, top_level - 1, -1)
        path = tree.path(int(self.data.pairs.passages[pair]))
        contains_answer = self._contains_answer(pair)

        drawn: list[int] = []
        for turn in range(self.settings.negatives_per_query):
            level = deepest_first[turn % len(deepest_first)]
            ancestor = path[level - 1]
            siblings = tree.documents_under(level, ancestor)
            drawn += sample_passages(siblings, 1, banned.union(drawn), rng, contains_answer)
        return drawn


class Bm25Negatives(NegativeSampler):
    """Passages in the first `negatives_depth` ranks of BM25, over the texts that the encoder reads.

    BM25 always has its default settings here. The settings group `bm25` configures the word search
    of users. If this class read it, the training would depend on it, and each change to the word
    search would make a build train encoders again.

    A query is ranked when negatives are first drawn for it. So a short training on large data ranks
    only the queries that it uses. Passages that share no term with the query are not drawn.
    """

    def _draw_one(self, pair: int, banned: set[int], rng: np.random.Generator) -> list[int]:
        """Draw passages that BM25 ranks high for the pair's query."""
        return sample_passages(
            self.candidates(pair),
            self.settings.negatives_per_query,
            banned,
            rng,
            self._contains_answer(pair),
        )

    @cached_property
    def candidates(self) -> Callable[[int], np.ndarray]:
        """Function that returns the passages that may be drawn for a pair, (n,) int64.

        Its results are cached, because a pair is drawn for in every epoch.
        """
        return cache(self._rank)

    def _rank(self, pair: int) -> np.ndarray:
        """Return the best passages by BM25 that are not known to answer a pair's query, (n,)."""
        pairs = self.data.pairs
        scores = self._index.scores(pairs.queries[pair])
        matching = np.flatnonzero(scores > 0)
        answering = self.data.passages.of_all(pairs.relevant[pair])
        candidates = np.setdiff1d(matching, answering)
        best_first = np.argsort(-scores[candidates], kind="stable")
        return candidates[best_first[: self.settings.negatives_depth]]

    @cached_property
    def _index(self) -> Bm25Index:
        """BM25 index of all passages, which ranks the candidates."""
        names = [str(document) for document in self.data.passages.documents.tolist()]
        return Bm25Index.build(self.data.passages.texts, names)


SAMPLERS = {"siblings": SiblingNegatives, "bm25": Bm25Negatives}


def make_negative_sampler(
    data: TrainingData, settings: TrainingSettings, hierarchy: Hierarchy | None = None
) -> NegativeSampler:
    """Return the sampler of extra negatives that the settings name: siblings, or BM25."""
    return SAMPLERS[settings.negatives](data, settings, hierarchy)
