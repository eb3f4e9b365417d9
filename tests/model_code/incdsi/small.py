"""Small collections with near-duplicates, and the objective of IncDSI in plain loops.

The near-duplicates make additions meet conflicts.
"""

from __future__ import annotations

import math

import numpy as np

from model_code.incdsi.adder import NewDocument
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.state import IncDsiState


def make_collection(
    old: int, new: int, width: int = 8, seed: int = 0, noise: float = 0.8
) -> tuple[IncDsiState, list[NewDocument]]:
    """Make a state of `old` documents, and `new` documents to add, with three queries each.

    Two of the old documents are equal.

    Args:
        old: Number of documents in the state.
        new: Number of documents to add.
        width: Number of components of a vector.
        seed: Seed of the vectors.
        noise: Distance of the queries from the vector of their document.

    Returns:
        The state, and the documents to add.
    """
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(old + new, width))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[old // 2] = vectors[old // 3]
    offsets = noise * random.normal(size=(old + new, 3, width)) / width**0.5
    queries = vectors[:, None] + offsets

    ids = [f"old {i}" for i in range(old)]
    state = IncDsiState(vectors[:old], queries[:old].mean(axis=1), ids)
    documents = []
    for number in range(new):
        row = old + number
        documents.append(NewDocument(f"new {number}", queries[row], vectors[row]))
    return state, documents


def without_encodings(documents: list[NewDocument]) -> list[NewDocument]:
    """Return the documents without an encoding to be pulled to, as IncDSI was published."""
    return [NewDocument(document.id, document.queries) for document in documents]


class Oracle:
    """The objective L of one document, row by row from V and Z before it is added."""

    def __init__(self, state: IncDsiState, document: NewDocument, settings: IncDsiSettings) -> None:
        vectors = state.vectors.view.tolist()
        queries = state.queries.view.tolist()
        unit = state.score_deviation
        self.settings = settings
        self.query = np.float32(np.mean(document.queries, axis=0)).astype(float).tolist()
        self.rows = queries

        self.limits = []
        for query, vector in zip(queries, vectors, strict=True):
            own_score = dot(query, vector)
            self.limits.append(own_score - settings.gamma2 * unit)
        self.best_rival = max(dot(self.query, vector) for vector in vectors)
        self.own_limit = self.best_rival + settings.gamma1 * unit

        encoding = document.encoding
        if encoding is None:
            encoding = np.zeros(len(self.query))
        self.prior = np.asarray(encoding, float).tolist()

    def value(self, vector: np.ndarray) -> float:
        """Return L of a vector."""
        settings = self.settings
        components = vector.tolist()
        missing = max(0.0, self.own_limit - dot(self.query, components))
        total = settings.lambda1 * missing**2
        for row, limit in zip(self.rows, self.limits, strict=True):
            excess = max(0.0, dot(row, components) - limit)
            total += (1 - settings.lambda1) * excess**2

        distances = [(a - b) ** 2 for a, b in zip(components, self.prior, strict=True)]
        return total + settings.lambda2 * math.fsum(distances)

    def gap(self, vector: np.ndarray) -> float:
        """Return the share of L that could still be gained, at most.

        It is the distance from L(v) to the dual value of its excesses over all rows.
        """
        settings = self.settings
        rows = np.array([[-component for component in self.query], *self.rows])
        limits = np.array([-self.own_limit, *self.limits])
        lambdas = np.array([settings.lambda1, *[1 - settings.lambda1] * len(self.rows)])
        weights = lambdas / settings.lambda2

        multipliers = weights * np.maximum(0.0, rows @ vector - limits)
        quadratic = np.sum((multipliers @ rows) ** 2) + np.sum(multipliers**2 / weights)
        linear = 2 * (limits - rows @ self.prior) @ multipliers
        bound = -settings.lambda2 * (quadratic + linear)
        value = self.value(vector)
        return (value - bound) / max(value, 1e-12)

    def gradient(self, vector: np.ndarray) -> np.ndarray:
        """Return the gradient of L at a vector."""
        settings = self.settings
        components = vector.tolist()
        missing = max(0.0, self.own_limit - dot(self.query, components))
        own_slope = 2 * settings.lambda1 * missing
        gradient = []
        for a, b, query in zip(components, self.prior, self.query, strict=True):
            gradient.append(2 * settings.lambda2 * (a - b) - own_slope * query)

        for row, limit in zip(self.rows, self.limits, strict=True):
            excess = max(0.0, dot(row, components) - limit)
            slope = 2 * (1 - settings.lambda1) * excess
            gradient = [g + slope * z for g, z in zip(gradient, row, strict=True)]
        return np.array(gradient)


def dot(a: list[float], b: list[float]) -> float:
    """Return the inner product of two vectors, without rounding the sum."""
    return math.fsum(x * y for x, y in zip(a, b, strict=True))
