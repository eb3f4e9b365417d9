"""Small collections with near-duplicates, so that additions meet conflicts, and the objective in
plain loops.
"""

from __future__ import annotations

import math

import numpy as np

from model_code.incdsi.adder import NewDocument
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.state import IncDsiState


def make(
    old: int, new: int, width: int = 8, seed: int = 0, noise: float = 0.8
) -> tuple[IncDsiState, list[NewDocument]]:
    """A state of `old` documents and `new` ones to add, three queries each; two old documents are
    equal.
    """
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(old + new, width))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[old // 2] = vectors[old // 3]
    queries = vectors[:, None] + noise * random.normal(size=(old + new, 3, width)) / width**0.5
    state = IncDsiState(vectors[:old], queries[:old].mean(axis=1), [f"old {i}" for i in range(old)])
    documents = [NewDocument(f"new {i}", queries[old + i], vectors[old + i]) for i in range(new)]
    return state, documents


class Oracle:
    """L of one document, row by row from V and Z as they are before it is added."""

    def __init__(self, state: IncDsiState, document: NewDocument, settings: IncDsiSettings) -> None:
        vectors, queries = state.vectors.view.tolist(), state.queries.view.tolist()
        self.query = np.float32(np.mean(document.queries, axis=0)).astype(float).tolist()
        self.settings = settings
        unit = state.score_deviation
        scores = [[dot(z, v) for v in vectors] for z in queries]
        self.rows, own = queries, [row[j] for j, row in enumerate(scores)]
        self.limits = [score - settings.gamma2 * unit for score in own]
        self.best_rival = max(dot(self.query, v) for v in vectors)
        self.own_limit = self.best_rival + settings.gamma1 * unit
        encoding = np.zeros(len(self.query)) if document.encoding is None else document.encoding
        self.prior = np.asarray(encoding, float).tolist()

    def value(self, vector: np.ndarray) -> float:
        v, settings = vector.tolist(), self.settings
        total = settings.lambda1 * max(0.0, self.own_limit - dot(self.query, v)) ** 2
        for row, limit in zip(self.rows, self.limits, strict=True):
            total += (1 - settings.lambda1) * max(0.0, dot(row, v) - limit) ** 2
        return total + settings.lambda2 * math.fsum(
            (a - b) ** 2 for a, b in zip(v, self.prior, strict=True)
        )

    def gap(self, vector: np.ndarray) -> float:
        """The share of L(v) above the dual value of its excesses over all rows, which is what could
        be left to gain.
        """
        settings, rows = self.settings, np.array([[-q for q in self.query], *self.rows])
        weights = (
            np.array([settings.lambda1, *[1 - settings.lambda1] * len(self.rows)])
            / settings.lambda2
        )
        limits = np.array([-self.own_limit, *self.limits])
        x = weights * np.maximum(0.0, rows @ vector - limits)
        quadratic = np.sum((x @ rows) ** 2) + np.sum(x**2 / weights)
        value, bound = (
            self.value(vector),
            -settings.lambda2 * (quadratic + 2 * (limits - rows @ self.prior) @ x),
        )
        return (value - bound) / max(value, 1e-12)

    def gradient(self, vector: np.ndarray) -> np.ndarray:
        v, settings = vector.tolist(), self.settings
        slope = settings.lambda1 * 2 * max(0.0, self.own_limit - dot(self.query, v))
        found = [
            2 * settings.lambda2 * (a - b) - slope * q
            for a, b, q in zip(v, self.prior, self.query, strict=True)
        ]
        for row, limit in zip(self.rows, self.limits, strict=True):
            slope = (1 - settings.lambda1) * 2 * max(0.0, dot(row, v) - limit)
            found = [g + slope * z for g, z in zip(found, row, strict=True)]
        return np.array(found)


def dot(a: list[float], b: list[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))
