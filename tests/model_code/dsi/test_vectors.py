"""Guards start vectors and mean queries against plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from model_code.dsi.trainer import QueryVectors
from model_code.dsi.vectors import document_means, random_vectors


def test_document_means_against_a_loop():
    random = np.random.default_rng(0)
    documents = np.array([2, 0, 1, 2, 0, 2])
    passages = random.standard_normal((6, 4)).astype(np.float32)
    means = document_means(passages, documents, 3)
    for document in range(3):
        total = sum(passages[row].astype(np.float64) for row in range(6) if documents[row] == document)
        np.testing.assert_allclose(means[document], total / np.linalg.norm(total), rtol=1e-6)
    assert means.dtype == np.float32


def test_random_vectors_are_as_published():
    vectors = random_vectors(200, 64, seed=5)
    assert np.abs(vectors).max() <= 0.125
    assert vectors.std() == pytest.approx(0.125 / np.sqrt(3), rel=0.02)  # of a uniform distribution
    assert np.array_equal(vectors, random_vectors(200, 64, seed=5))
    assert not np.array_equal(vectors, random_vectors(200, 64, seed=6))


def test_mean_queries_against_a_loop():
    random = np.random.default_rng(1)
    vectors = random.standard_normal((5, 3)).astype(np.float32)
    rows, documents = random.integers(0, 5, 12), random.integers(0, 6, 12)
    documents[documents == 2] = 4  # without queries
    means, counts = QueryVectors(vectors, rows).means(documents, 7)
    for document in range(7):
        own = [vectors[row].astype(np.float64) for row, of in zip(rows, documents, strict=True) if of == document]
        assert counts[document] == len(own)
        np.testing.assert_allclose(means[document], np.mean(own, axis=0) if own else np.zeros(3), rtol=1e-6)
