"""Extra negative documents for each training query: siblings in the hierarchy, at random, or from the top of a ranking.

Ranked are passages that a scorer puts high for the query although they are not known to answer it. Ranks are counted
among the passages of documents that are not known to answer the query: rank 0 is the best of those. Of equal scores
the passage with the lower number ranks first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache, cached_property
from itertools import islice

import numpy as np

from model_code.encoding.encoder import Encoder
from model_code.errors import FreshetError
from model_code.hierarchy.tree import Hierarchy
from model_code.index.bm25 import Bm25
from model_code.index.top_k import nearest
from model_code.training.data import Holds, TrainingData
from model_code.training.settings import TrainingSettings

SPARE = 256  # candidates that are drawn in addition where each may hold an answer, so that hardly ever too few are left
QUERIES = 1024  # searched at once


class Negatives:
    """Draws extra passages for the pairs of a batch from `candidates`, each as likely as another, but for the batch's
    own passages and those that hold an answer of the query. A query of which too few are left gets fewer.

    What it learns before the first step, a checkpoint keeps.
    """

    def __init__(self, data: TrainingData, settings: TrainingSettings, hierarchy: Hierarchy | None = None) -> None:
        """hierarchy: needed if the settings draw siblings; `recluster` may give it, too."""
        self.data, self.settings, self.hierarchy = data, settings, hierarchy

    def draw(self, pairs: np.ndarray, known: list[np.ndarray], rng: np.random.Generator) -> list[list[int]]:
        """The extra passages of each pair: different ones, none of them in the batch or known to answer the query.

        Nor does any hold one of the strings that answer the query, where the data names such.
        pairs: (B,) numbers of training pairs; known: for each the passages of all documents that answer its query.
        Equal arguments give equal draws, until the next `refresh` or `recluster`.
        """
        if not self.settings.negatives_per_query:
            return [[] for _ in pairs]
        batch = set(self.data.pairs.passages[pairs].tolist())
        return [
            self._draw_one(int(pair), batch.union(passages.tolist()), rng)
            for pair, passages in zip(pairs, known, strict=True)
        ]

    def candidates(self, pair: int) -> np.ndarray:
        """The passages that may be drawn for a pair, those apart that `draw` leaves out: (n,) int64."""
        raise NotImplementedError

    def _draw_one(self, pair: int, banned: set[int], rng: np.random.Generator) -> list[int]:
        return sample(self.candidates(pair), self.settings.negatives_per_query, banned, rng, self._holds(pair))

    def refresh(self, encoder: Encoder, vectors: np.ndarray | None = None) -> None:
        """Take in what the encoder knows before step 0; vectors: (N, H), the passages as it encodes them, or None."""

    def recluster(self, hierarchy: Hierarchy | None) -> None:
        """Read leaves and siblings from this tree from now on."""
        self.hierarchy = hierarchy

    def state(self) -> dict[str, np.ndarray]:
        """What a checkpoint must hold for `restore` to go on from: nothing."""
        return {}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from what `state` gave."""

    def _holds(self, pair: int) -> Holds | None:
        """Whether a passage holds an answer of the pair's query; None if the data names none."""
        return self.data.answers.of(self.data.pairs.queries[pair])


def sample(
    candidates: np.ndarray, count: int, banned: Collection[int], rng: np.random.Generator, holds: Holds | None = None
) -> list[int]:
    """Up to `count` of the candidates, none of them banned: enough are drawn for all banned ones to be among them.

    holds: whether a candidate holds an answer, and so is no negative; asked of no more candidates than it takes.
    """
    most = count + len(banned) + (0 if holds is None else SPARE)
    drawn = rng.choice(candidates, min(len(candidates), most), replace=False)
    kept = (passage for passage in drawn.tolist() if passage not in banned and (holds is None or not holds(passage)))
    return list(islice(kept, count))


class RandomNegatives(Negatives):
    """Any passages of the corpus."""

    def candidates(self, pair: int) -> np.ndarray:
        """See `Negatives.candidates`."""
        return self._everything

    @cached_property
    def _everything(self) -> np.ndarray:
        return np.arange(len(self.data.passages.texts))


class SiblingNegatives(Negatives):
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


def best_unknown(scores: np.ndarray, passages: np.ndarray, known: np.ndarray, depth: int) -> np.ndarray:
    """Positions in `passages` (n,) of the `depth` best ones, best first, once the known ones are left out.

    >>> best_unknown(np.array([.9, .8, .7, .8]), np.array([4, 3, 2, 1]), known=np.array([4]), depth=2).tolist()
    [3, 1]
    """
    unknown = np.flatnonzero(~np.isin(passages, known))
    return unknown[np.lexsort((passages[unknown], -scores[unknown]))[:depth]]


class Bm25Negatives(Negatives):
    """The first `negatives_depth` ranks by BM25, over the very texts that the encoder sees.

    A query is ranked when its pair is first drawn for, so that a short run on large data ranks what it uses only.
    Passages that share no term with the query are no candidates.
    """

    @cached_property
    def candidates(self) -> Callable[[int], np.ndarray]:
        """See `Negatives.candidates`; each pair's are kept."""
        return cache(self._rank)

    def _rank(self, pair: int) -> np.ndarray:
        pairs, passages = self.data.pairs, self.data.passages
        scores = self._index.scores(pairs.queries[pair])
        matching = np.flatnonzero(scores > 0)
        known = passages.of_all(pairs.relevant[pair])
        return matching[best_unknown(scores[matching], matching, known, self.settings.negatives_depth)]

    @cached_property
    def _index(self) -> Bm25:
        texts = self.data.passages.texts
        return Bm25.build(texts, [str(document) for document in self.data.passages.documents.tolist()])


class MinedNegatives(Negatives):
    """The `negatives_depth` passages nearest to the query by the encoder that training starts from.

    One table for all pairs, one row per different query text. Checkpoints keep it: a run that resumes draws what an
    uninterrupted one draws.
    """

    def __init__(self, data: TrainingData, settings: TrainingSettings, hierarchy: Hierarchy | None = None) -> None:
        super().__init__(data, settings, hierarchy)
        rows = {query: row for row, query in enumerate(dict.fromkeys(data.pairs.queries))}
        self.queries, self.row = list(rows), np.array([rows[query] for query in data.pairs.queries], dtype=np.int64)
        self.passages = np.empty((0, 0), dtype=np.int32)  # (queries, negatives_depth), -1 where there are fewer

    def refresh(self, encoder: Encoder, vectors: np.ndarray | None = None) -> None:
        """Encode passages and queries, each by its own side, and rank the passages for each query."""
        if vectors is None:
            vectors = encoder.encode_passages(self.data.passages.texts)
        queries = encoder.encode(self.queries)
        parts = [self._search(queries, vectors, start) for start in range(0, len(queries), QUERIES)]
        self.passages = np.concatenate(parts)

    def candidates(self, pair: int) -> np.ndarray:
        """See `Negatives.candidates`."""
        passages = self.passages[self.row[pair]]
        return passages[passages >= 0].astype(np.int64)

    def state(self) -> dict[str, np.ndarray]:
        """The table."""
        return {"passages": self.passages}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """See `Negatives.restore`."""
        self.passages = state["passages"]

    def _search(self, queries: np.ndarray, vectors: np.ndarray, start: int) -> np.ndarray:
        """The table's rows of the queries from `start` on: passages (QUERIES, negatives_depth)."""
        depth, known = self.settings.negatives_depth, self._known[start : start + QUERIES]
        scores, passages = nearest(queries[start : start + QUERIES], vectors, depth + max(map(len, known)))
        table = np.full((len(known), depth), -1, dtype=np.int32)
        for row, answers in enumerate(known):
            best = best_unknown(scores[row], passages[row], answers, depth)
            table[row, : len(best)] = passages[row][best]
        return table

    @cached_property
    def _known(self) -> list[np.ndarray]:
        """For each different query the passages of the documents that answer it."""
        pairs, passages = self.data.pairs, self.data.passages
        relevant = dict(zip(pairs.queries, pairs.relevant, strict=True))
        return [passages.of_all(relevant[query]) for query in self.queries]


def make_negatives(data: TrainingData, settings: TrainingSettings, hierarchy: Hierarchy | None = None) -> Negatives:
    """What `settings.negatives` names; "mined" must be refreshed before they are drawn from.

    hierarchy: needed where the settings draw siblings.
    """
    kinds = {"siblings": SiblingNegatives, "random": RandomNegatives, "bm25": Bm25Negatives, "mined": MinedNegatives}
    return kinds[settings.negatives if settings.negatives_per_query else "random"](data, settings, hierarchy)
