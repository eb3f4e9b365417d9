"""A random collection of token bags with all that breaks rankings, and an oracle that knows no
index.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from model_code.retrieval.protocol import Ranking

VOCABULARY = 60
Sparse = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Collection:
    """Passages and their documents; a document has one to three passages, some of which are equal
    to others.
    """

    bags: list[np.ndarray]
    document_ids: list[str]

    def of(self, wanted: list[str]) -> Collection:
        """The passages of these documents, in the order of `wanted`."""
        rows = [
            i for document in wanted for i, name in enumerate(self.document_ids) if name == document
        ]
        return Collection([self.bags[i] for i in rows], [self.document_ids[i] for i in rows])

    @property
    def documents(self) -> list[str]:
        """Different documents, in the order of their first passage."""
        return list(dict.fromkeys(self.document_ids))


def make_collection(seed: int, documents: int = 60) -> Collection:
    """Bags of 0 to 20 tokens, some tokens in nearly all passages and some in one."""
    chance = np.random.default_rng(seed)
    shares = np.geomspace(0.01, 0.9, VOCABULARY)
    bags, names = [], []
    for number in chance.permutation(documents).tolist():
        for _ in range(chance.integers(1, 4)):
            held = np.flatnonzero(chance.random(VOCABULARY) < shares)
            bags.append(
                bags[chance.integers(len(bags))] if bags and chance.random() < 0.2 else held
            )
            names.append(f"d{number:03d}")
    return Collection(bags, names)


def make_queries(seed: int, count: int = 12, most: int = 40) -> list[Sparse]:
    """Queries of 0 to `most` tokens, in no order, some unknown; weights over many orders of
    magnitude, some equal.

    Weights are multiples of 2^-10, so that float64 sums of them are exact in any order, the
    oracle's too.
    """
    chance = np.random.default_rng(seed)
    queries = []
    for size in [0, *chance.integers(1, most, count - 1).tolist()]:
        weights = np.ceil(1024 * np.exp(3 * chance.standard_normal(size))).astype(
            np.float32
        ) / np.float32(1024)
        weights[chance.random(size) < 0.3] = 1.0
        queries.append((chance.choice(VOCABULARY + 5, size, replace=False), weights))
    return queries


def oracle(queries: list[Sparse], collection: Collection, k: int) -> list[Ranking]:
    """Every query with every passage in float64, one weight after the other."""
    rankings, bags = [], [set(bag.tolist()) for bag in collection.bags]
    for tokens, weights in queries:
        pairs = list(zip(tokens.tolist(), weights.tolist(), strict=True))
        best: dict[str, float] = {}
        for bag, document in zip(bags, collection.document_ids, strict=True):
            score = 0.0
            for token, weight in pairs:
                score += weight if token in bag else 0.0
            best[document] = max(best.get(document, 0.0), float(np.float32(score)))
        ranking = sorted(best.items(), key=lambda item: (-item[1], item[0]))
        rankings.append([item for item in ranking if item[1] > 0][:k])
    return rankings
