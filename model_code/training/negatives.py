"""Extra negative documents for each training query: siblings in the hierarchy, at random, or from the top of a ranking.

Ranked are passages that a scorer puts high for the query although they are not known to answer it. Ranks are counted
among the passages of documents that are not known to answer the query: rank 0 is the best of those. Of equal scores
the passage with the lower number ranks first.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from itertools import islice
from typing import NamedTuple, Protocol

import numpy as np

from model_code.encoding.encoder import encode_passages
from model_code.errors import FreshetError
from model_code.hierarchy.tree import Hierarchy
from model_code.index.bm25 import Bm25
from model_code.index.top_k import nearest
from model_code.training.data import Holds, TrainingData
from model_code.training.dev_evaluation import TextEncoder
from model_code.training.settings import TrainingSettings

SPARE = 256  # candidates that are drawn in addition where each may hold an answer, so that hardly ever too few are left
QUERIES = 1024  # searched at once


class Negatives(Protocol):
    """Draws extra passages for the pairs of a batch. What it learns while training goes on, a checkpoint keeps."""

    def draw(self, pairs: np.ndarray, known: list[np.ndarray], rng: np.random.Generator) -> list[list[int]]:
        """The extra passages of each pair: different ones, none of them in the batch or known to answer the query.

        Nor does any hold one of the strings that answer the query, where the data names such.
        pairs: (B,) numbers of training pairs; known: for each the passages of all documents that answer its query.
        Equal arguments give equal draws, until the next `refresh` or `recluster`.
        """
        ...

    @property
    def outside_leaf(self) -> bool:
        """Whether passages of a positive's leaf are no negatives of its query, as things are."""
        ...

    def needs_refresh(self, step: int) -> bool:
        """Whether `refresh` has to come before the batches of `step` (0, 1, ...) are drawn."""
        ...

    def refresh(self, encoder: TextEncoder, vectors: np.ndarray | None = None) -> None:
        """Take in what the encoder has learned; vectors: (N, H), the passages as it encodes them, if at hand."""
        ...

    def recluster(self, hierarchy: Hierarchy | None) -> None:
        """Read leaves and siblings from this tree from now on."""
        ...

    def state(self) -> dict[str, np.ndarray]:
        """What a checkpoint must hold for `restore` to go on from; empty if there is nothing to keep."""
        ...

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from what `state` gave."""
        ...


class Drawing:
    """The parts that all kinds share: left out are the batch's own passages, those that hold an answer of the query
    and, if asked for, the positive's leaf.
    """

    def __init__(self, data: TrainingData, settings: TrainingSettings, hierarchy: Hierarchy | None = None) -> None:
        """hierarchy: needed if the settings draw siblings or avoid leaves; `recluster` may give it, too."""
        self.data, self.settings, self.hierarchy = data, settings, hierarchy

    def draw(self, pairs: np.ndarray, known: list[np.ndarray], rng: np.random.Generator) -> list[list[int]]:
        """See `Negatives.draw`."""
        if not self.settings.negatives_per_query:
            return [[] for _ in pairs]
        batch = set(self.data.pairs.passages[pairs].tolist())
        return [
            self._draw_one(int(pair), batch.union(own.tolist()), rng) for pair, own in zip(pairs, known, strict=True)
        ]

    def _draw_one(self, pair: int, banned: set[int], rng: np.random.Generator) -> list[int]:
        raise NotImplementedError

    @property
    def outside_leaf(self) -> bool:
        """As the settings say."""
        return self.settings.negatives_outside_leaf

    def needs_refresh(self, step: int) -> bool:
        """Never."""
        return False

    def refresh(self, encoder: TextEncoder, vectors: np.ndarray | None = None) -> None:
        """Nothing to do."""

    def recluster(self, hierarchy: Hierarchy | None) -> None:
        """See `Negatives.recluster`."""
        self.hierarchy = hierarchy

    def state(self) -> dict[str, np.ndarray]:
        """Nothing to keep."""
        return {}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Nothing to go on from."""

    def _holds(self, pair: int) -> Holds | None:
        """Whether a passage holds an answer of the pair's query; None if the data names none."""
        return self.data.answers.of(self.data.pairs.queries[pair])

    def _leaf(self, pair: int) -> np.ndarray:
        """The passages in the leaf of the pair's passage, if `negatives_outside_leaf` keeps them from being drawn."""
        if self.hierarchy is None or not self.settings.negatives_outside_leaf:
            return np.empty(0, dtype=np.int64)
        depth = self.hierarchy.depth
        node = self.hierarchy.leaves[self.data.pairs.passages[pair]]
        return self.hierarchy.documents_under(depth, int(node))


def sample(
    candidates: np.ndarray, count: int, banned: Collection[int], rng: np.random.Generator, holds: Holds | None = None
) -> list[int]:
    """Up to `count` of the candidates, none of them banned: enough are drawn for all banned ones to be among them.

    holds: whether a candidate holds an answer, and so is no negative; asked of no more candidates than it takes.
    """
    most = count + len(banned) + (0 if holds is None else SPARE)
    drawn = rng.choice(candidates, min(len(candidates), most), replace=False)
    kept = (one for one in drawn.tolist() if one not in banned and (holds is None or not holds(one)))
    return list(islice(kept, count))


class RandomNegatives(Drawing):
    """Any passages of the corpus, each as likely as another."""

    def _draw_one(self, pair: int, banned: set[int], rng: np.random.Generator) -> list[int]:
        banned = banned.union(self._leaf(pair).tolist())
        return sample(self._everything, self.settings.negatives_per_query, banned, rng, self._holds(pair))

    @cached_property
    def _everything(self) -> np.ndarray:
        return np.arange(len(self.data.passages.texts))


class SiblingNegatives(Drawing):
    """Passages from below the ancestors of the query's own passage: siblings in the hierarchy (HCE, equation 6).

    HCE's equation 6 has, for each tree level t from M + 1 to the documents' own, one sample of the documents that share
    the positive's ancestor at level t - 1. Here the extra documents are dealt over those ancestors, the deepest first,
    and all stand in one contrastive loss. A small cluster gives what it has.
    """

    def _draw_one(self, pair: int, banned: set[int], rng: np.random.Generator) -> list[int]:
        if self.hierarchy is None:
            raise FreshetError("siblings are drawn from a hierarchy, and there is none; set negatives to another kind")
        tree, drawn = self.hierarchy, []
        levels = range(tree.depth, min(self.settings.hierarchy_levels or tree.depth, tree.depth) - 1, -1)
        path, holds = tree.path(int(self.data.pairs.passages[pair])), self._holds(pair)
        for turn in range(self.settings.negatives_per_query):
            level = levels[turn % len(levels)]
            drawn += sample(tree.documents_under(level, path[level - 1]), 1, banned.union(drawn), rng, holds)
        return drawn


class Candidates(NamedTuple):
    """What a scorer ranks high for one pair's query."""

    passages: np.ndarray  # (n,) int64, best first
    scores: np.ndarray  # (n,) float32, descending
    positive: float  # the score of the pair's own passage


class RankedNegatives(Drawing):
    """Draws from the ranks `negatives_skip` to `negatives_skip + negatives_depth - 1`, each as likely as another.

    Of these, passages are dropped that score above the positive's score minus `negatives_margin` (they may well answer
    the query, though nobody said so), those that hold an answer of the query, where the data names answers, and, with
    `negatives_outside_leaf`, those in the positive's leaf. A query of which too few are left gets fewer.
    """

    def candidates(self, pair: int) -> Candidates:
        """The passages at those ranks, before any is dropped; fewer where the scorer finds fewer."""
        raise NotImplementedError

    def _draw_one(self, pair: int, banned: set[int], rng: np.random.Generator) -> list[int]:
        passages, scores, positive = self.candidates(pair)
        if self.settings.negatives_margin is not None:
            passages = passages[scores <= positive - self.settings.negatives_margin]
        banned = banned.union(self._leaf(pair).tolist())
        return sample(passages, self.settings.negatives_per_query, banned, rng, self._holds(pair))


def best_unknown(scores: np.ndarray, passages: np.ndarray, known: np.ndarray, skip: int, depth: int) -> np.ndarray:
    """Positions in `passages` (n,) of those at the ranks skip to skip + depth - 1 once the known ones are left out.

    >>> best_unknown(np.array([.9, .8, .7, .8]), np.array([4, 3, 2, 1]), known=np.array([4]), skip=1, depth=2).tolist()
    [1, 2]
    """
    unknown = np.flatnonzero(~np.isin(passages, known))
    order = np.lexsort((passages[unknown], -scores[unknown]))
    return unknown[order[skip : skip + depth]]


class Bm25Negatives(RankedNegatives):
    """By BM25, over the very texts that the encoder sees.

    A query is ranked when its pair is first drawn for, so that a short run on large data ranks what it uses only.
    Passages that share no term with the query are no candidates.
    """

    def candidates(self, pair: int) -> Candidates:
        """See `RankedNegatives.candidates`."""
        if pair not in self._ranked:
            self._ranked[pair] = self._rank(pair)
        return self._ranked[pair]

    def _rank(self, pair: int) -> Candidates:
        pairs, passages, settings = self.data.pairs, self.data.passages, self.settings
        scores = self._index.scores(pairs.queries[pair])
        found = np.flatnonzero(scores > 0)
        known = np.concatenate([passages.of(document) for document in sorted(pairs.relevant[pair])])
        rows = found[best_unknown(scores[found], found, known, settings.negatives_skip, settings.negatives_depth)]
        return Candidates(rows, scores[rows], float(scores[pairs.passages[pair]]))

    @cached_property
    def _index(self) -> Bm25:
        texts = self.data.passages.texts
        return Bm25(texts, [str(document) for document in self.data.passages.documents.tolist()])

    @cached_property
    def _ranked(self) -> dict[int, Candidates]:
        return {}


class NearestNegatives(RankedNegatives):
    """The passages nearest to the query by an encoder: one table for all pairs, one row per different query text.

    Mined once by the encoder that training starts from, or again and again by the one that is being trained (ANCE;
    Xiong et al., 2021, with whole refreshes between steps rather than beside them). A refresh is a function of the
    weights at its step, and checkpoints keep its result: a run that resumes draws what an uninterrupted one draws.
    """

    def __init__(
        self,
        data: TrainingData,
        settings: TrainingSettings,
        hierarchy: Hierarchy | None = None,
        every: int | None = None,
    ) -> None:
        """every: steps between two refreshes; None: mine before step 0 only."""
        super().__init__(data, settings, hierarchy)
        self.every = every
        rows = {query: row for row, query in enumerate(dict.fromkeys(data.pairs.queries))}
        self.queries, self.row = list(rows), np.array([rows[query] for query in data.pairs.queries], dtype=np.int64)
        self.passages = np.empty((0, 0), dtype=np.int32)  # (queries, negatives_depth), -1 where there are fewer
        self.scores = np.empty((0, 0), dtype=np.float32)
        self.positives = np.empty(0, dtype=np.float32)  # (pairs,)

    def needs_refresh(self, step: int) -> bool:
        """Before step 0, and before every `every`-th."""
        return step == 0 or (self.every is not None and step % self.every == 0)

    def refresh(self, encoder: TextEncoder, vectors: np.ndarray | None = None) -> None:
        """Encode passages and queries, each by its own side, and rank the passages for each query."""
        if vectors is None:
            vectors = encode_passages(encoder, self.data.passages.texts)
        queries = encoder.encode(self.queries)
        parts = [self._search(queries, vectors, start) for start in range(0, len(queries), QUERIES)]
        self.passages, self.scores = (np.concatenate(part) for part in zip(*parts, strict=True))
        self.positives = np.einsum("nh,nh->n", queries[self.row], vectors[self.data.pairs.passages])

    def candidates(self, pair: int) -> Candidates:
        """See `RankedNegatives.candidates`."""
        if not len(self.positives):
            raise FreshetError(f"negatives: {self.settings.negatives} are mined by `refresh`, before the first draw")
        row = self.row[pair]
        found = self.passages[row] >= 0
        return Candidates(
            self.passages[row][found].astype(np.int64), self.scores[row][found], float(self.positives[pair])
        )

    def state(self) -> dict[str, np.ndarray]:
        """The table."""
        return {"passages": self.passages, "scores": self.scores, "positives": self.positives}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """See `Negatives.restore`."""
        self.passages, self.scores, self.positives = state["passages"], state["scores"], state["positives"]

    def _search(self, queries: np.ndarray, vectors: np.ndarray, start: int) -> tuple[np.ndarray, np.ndarray]:
        """The table's rows of the queries from `start` on: passages and scores, (QUERIES, negatives_depth) each."""
        settings, known = self.settings, self._known[start : start + QUERIES]
        count = settings.negatives_skip + settings.negatives_depth + max(map(len, known))
        scores, found = nearest(queries[start : start + QUERIES], vectors, count)  # (QUERIES, count)
        table = np.full((len(known), settings.negatives_depth), -1, dtype=np.int32)
        values = np.zeros(table.shape, dtype=np.float32)
        for row, own in enumerate(known):
            best = best_unknown(scores[row], found[row], own, settings.negatives_skip, settings.negatives_depth)
            table[row, : len(best)], values[row, : len(best)] = found[row][best], scores[row][best]
        return table, values

    @cached_property
    def _known(self) -> list[np.ndarray]:
        """For each different query the passages of the documents that answer it."""
        pairs, passages = self.data.pairs, self.data.passages
        relevant = dict(zip(pairs.queries, pairs.relevant, strict=True))
        return [np.concatenate([passages.of(i) for i in sorted(relevant[query])]) for query in self.queries]


def make_negatives(data: TrainingData, settings: TrainingSettings, hierarchy: Hierarchy | None = None) -> Negatives:
    """What `settings.negatives` names; "mined" and "nearest" must be refreshed before they are drawn from.

    hierarchy: needed where the settings draw siblings or leave out leaves.
    """
    if settings.negatives in ("mined", "nearest") and settings.negatives_per_query:
        every = settings.negatives_refresh if settings.negatives == "nearest" else None
        return NearestNegatives(data, settings, hierarchy, every)
    kinds = {"siblings": SiblingNegatives, "bm25": Bm25Negatives}
    return kinds.get(settings.negatives, RandomNegatives)(data, settings, hierarchy)
