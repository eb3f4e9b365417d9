"""Random unit vectors with everything that breaks rankings.

There are exact ties, near ties and documents of several passages.
"""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def vectors() -> np.ndarray:
    """90 unit vectors (90, 24): 40 distinct, 20 copies, and 30 that differ by about one bit."""
    chance = np.random.default_rng(0)
    base = chance.normal(size=(40, 24))
    nearly_equal = base[:30] * (1 + 1e-7 * chance.normal(size=(30, 1)))
    rows = np.concatenate([base, base[:20], nearly_equal])
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def document_ids() -> list[str]:
    """The documents of the 90 passages: ids not in row order, one to three passages each."""
    return [f"doc-{(17 * i) % 60:02d}" for i in range(90)]


@pytest.fixture
def queries(vectors: np.ndarray) -> np.ndarray:
    """30 queries (30, 24), some of them equal to passages."""
    chance = np.random.default_rng(1)
    rows = np.concatenate([vectors[:10], chance.normal(size=(20, 24)).astype(np.float32)])
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
