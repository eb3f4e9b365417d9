"""Unit vectors around a few topics, and a drift reference built from them, for tests of drift."""

from __future__ import annotations

import numpy as np

from model_code.drift.calibration import Calibration
from model_code.drift.measures import Arrivals, OldScores
from model_code.drift.reference import DriftReference
from model_code.drift.settings import DriftSettings

WIDTH = 8
TOPICS = 6

# Few draws are fast, but need a large alpha.
SETTINGS = DriftSettings(
    alpha=0.15,
    minimum_batch=20,
    largest_batch=40,
    reference_documents=240,
    draws=99,
    classifier_contrast=60,
    window=3,
)


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def topical(count: int, seed: int, shift: float = 0.0) -> np.ndarray:
    """Return `count` unit vectors around `TOPICS` axes.

    A shift moves all of them towards an axis that has no topic.
    """
    rng = np.random.default_rng(seed)
    topics = rng.integers(TOPICS, size=count)
    noise = 0.25 * rng.standard_normal((count, WIDTH))
    vectors = np.eye(WIDTH)[topics] + noise
    vectors[:, -1] += shift
    return unit(vectors)


def reference(seed: int = 0, count: int = 300) -> DriftReference:
    return DriftReference.build(topical(count, seed), "f", SETTINGS)


def calibration(seed: int = 0) -> Calibration:
    made = np.random.default_rng([seed, 1]).random(200).astype(np.float32)
    return Calibration(reference(seed), SETTINGS, scores=OldScores(made))


def arrivals(seed: int, count: int = 30, shift: float = 0.0, worse: float = 0.0) -> Arrivals:
    quality = np.random.default_rng([seed, 2]).random(count) - worse
    return Arrivals(topical(count, seed, shift), "f", quality)
