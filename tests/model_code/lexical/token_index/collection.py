"""A random collection of token bags with everything that breaks rankings.

Its oracle ranks by a double loop and knows no index.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from model_code.retrieval.protocol import Ranking

VOCABULARY = 60
Sparse = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Collection:
    """Token bags of passages, and the document of each passage.

    A document has one to three passages. Some passages are equal to others.
    """

    bags: list[np.ndarray]
    document_ids: list[str]

    def select(self, documents: list[str]) -> Collection:
        """Return the passages of these documents, in the order of `documents`."""
        bags = []
        document_ids = []
        for document in documents:
            for bag, name in zip(self.bags, self.document_ids, strict=True):
                if name == document:
                    bags.append(bag)
                    document_ids.append(name)
        return Collection(bags, document_ids)

    @property
    def documents(self) -> list[str]:
        """Different documents, in the order of their first passage."""
        return list(dict.fromkeys(self.document_ids))

    @property
    def postings(self) -> int:
        """Number of tokens over all passages."""
        return sum(len(bag) for bag in self.bags)


def make_collection(seed: int, documents: int = 60) -> Collection:
    """Make bags of 0 to 20 tokens, with some tokens in nearly all passages and some in one."""
    chance = np.random.default_rng(seed)
    shares = np.geomspace(0.01, 0.9, VOCABULARY)
    bags: list[np.ndarray] = []
    document_ids = []
    for number in chance.permutation(documents).tolist():
        for _ in range(chance.integers(1, 4)):
            bag = np.flatnonzero(chance.random(VOCABULARY) < shares)
            if bags and chance.random() < 0.2:
                bag = bags[chance.integers(len(bags))]
            bags.append(bag)
            document_ids.append(f"d{number:03d}")
    return Collection(bags, document_ids)


def make_queries(seed: int, count: int = 12, max_tokens: int = 40) -> list[Sparse]:
    """Make queries of fewer than `max_tokens` tokens, in no order, some of them unknown.

    Weights differ by many orders of magnitude, and some are equal. They are multiples of 2^-10, so
    that float64 sums are exact in any order, including the oracle's.
    """
    chance = np.random.default_rng(seed)
    queries = []
    for size in [0, *chance.integers(1, max_tokens, count - 1).tolist()]:
        numerators = np.ceil(1024 * np.exp(3 * chance.standard_normal(size)))
        weights = numerators.astype(np.float32) / np.float32(1024)
        weights[chance.random(size) < 0.3] = 1.0
        tokens = chance.choice(VOCABULARY + 5, size, replace=False)
        queries.append((tokens, weights))
    return queries


def sort_key(hit: tuple[str, float]) -> tuple[float, str]:
    """Sort by score, highest first, and equal scores by id."""
    document, score = hit
    return -score, document


def rank_by_double_loop(queries: list[Sparse], collection: Collection, k: int) -> list[Ranking]:
    """Score every query with every passage in float64, one weight after the other."""
    bags = [set(bag.tolist()) for bag in collection.bags]
    rankings = []
    for tokens, weights in queries:
        best: dict[str, float] = {}
        for bag, document in zip(bags, collection.document_ids, strict=True):
            score = 0.0
            for token, weight in zip(tokens.tolist(), weights.tolist(), strict=True):
                if token in bag:
                    score += weight
            best[document] = max(best.get(document, 0.0), float(np.float32(score)))
        matching = [hit for hit in best.items() if hit[1] > 0]
        rankings.append(sorted(matching, key=sort_key)[:k])
    return rankings
