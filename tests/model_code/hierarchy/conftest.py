"""Unit vectors that the tests of hierarchies cluster."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def topics() -> np.ndarray:
    """Return 300 unit vectors (300, 16) float32 in about 20 topics, in random order."""
    rng = np.random.default_rng(3)
    centres = rng.standard_normal((20, 16))
    topic_numbers = rng.integers(0, 20, 300)
    vectors = centres[topic_numbers] + 0.4 * rng.standard_normal((300, 16))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def noise() -> np.ndarray:
    """Return 200 unit vectors (200, 12) float32 without structure.

    They take many iterations and have many near-ties.
    """
    vectors = np.random.default_rng(4).standard_normal((200, 12))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
