"""Small sets of unit vectors that the hierarchy's tests cluster."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def topics() -> np.ndarray:
    """300 unit vectors (300, 16) float32 in about 20 topics, in random order."""
    draw = np.random.default_rng(3)
    centres = draw.standard_normal((20, 16))
    vectors = centres[draw.integers(0, 20, 300)] + 0.4 * draw.standard_normal((300, 16))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def noise() -> np.ndarray:
    """200 unit vectors (200, 12) float32 without any structure: many iterations, many near-ties."""
    vectors = np.random.default_rng(4).standard_normal((200, 12))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
