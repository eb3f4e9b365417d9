"""Guards learned document vectors: the loss of fine-tuning against sums in float64, rows that no query asks for, equal
runs, and a training that does what it is for."""

from __future__ import annotations

import math

import numpy as np
import torch

from experiments.incdsi_frontier.learning import Asking, KnownQueries, learn
from model_code.dsi.objective import document_losses
from model_code.dsi.settings import DocumentVectorSettings

COUNT, WIDTH, QUERIES = 12, 8, 48


def collection(seed: int = 0) -> tuple[np.ndarray, Asking]:
    """Vectors of documents at random, and queries near others of unit norm."""
    random = np.random.default_rng(seed)
    start, centres = (random.standard_normal((COUNT, WIDTH)) for _ in range(2))
    targets = np.arange(QUERIES) % COUNT
    queries = centres[targets] + 0.3 * random.standard_normal((QUERIES, WIDTH))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    return (start / np.linalg.norm(start, axis=1, keepdims=True)).astype(np.float32), Asking(
        np.float32(queries), targets
    )


def cross_entropy(vectors: np.ndarray, asking: Asking, scale: float) -> list[float]:
    """- log of the softmax over all documents, old and new, term by term in float64."""
    losses = []
    for query, target in zip(asking.queries.astype(float), asking.targets, strict=True):
        scores = [scale * math.fsum(q * v for q, v in zip(query, row, strict=True)) for row in vectors.astype(float)]
        losses.append(math.log(math.fsum(math.exp(one) for one in scores)) - scores[int(target)])
    return losses


def test_the_loss_is_the_cross_entropy_over_all_documents() -> None:
    start, asking = collection()
    scale = DocumentVectorSettings().logit_scale
    ours = document_losses(*map(torch.from_numpy, (asking.queries, start, asking.targets)), scale)
    np.testing.assert_allclose(ours, cross_entropy(start, asking, scale), rtol=1e-4, atol=1e-6)


def test_training_lowers_that_loss_for_old_rows_and_new_ones() -> None:
    start, asking = collection()
    settings = DocumentVectorSettings(epochs=20, learning_rate=2e-2, batch_size=16)
    learned = learn(start, asking, None, settings)
    before, after = (np.array(cross_entropy(one, asking, settings.logit_scale)) for one in (start, learned))
    for rows in (asking.targets < COUNT // 2, asking.targets >= COUNT // 2):
        assert after[rows].mean() < before[rows].mean() / 2
    assert (asking.queries @ learned.T).argmax(axis=1).tolist() == asking.targets.tolist()


def test_one_step_follows_the_gradient_of_the_sum_over_all_documents() -> None:
    start, asking = collection()
    settings = DocumentVectorSettings(epochs=1, learning_rate=1e-3, batch_size=QUERIES)
    moved = learn(start, asking, None, settings) - start
    scores = settings.logit_scale * asking.queries.astype(float) @ start.T.astype(float)
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    chances[np.arange(QUERIES), asking.targets] -= 1
    gradient = settings.logit_scale * chances.T @ asking.queries / QUERIES
    certain = np.abs(gradient) > 1e-3  # Adam's first step is the gradient's sign times the rate
    assert certain.mean() > 0.5
    np.testing.assert_array_equal(np.sign(moved[certain]), -np.sign(gradient[certain]))


def test_equal_runs_give_equal_vectors_and_seeds_matter() -> None:
    start, asking = collection()
    settings = DocumentVectorSettings(batch_size=8)
    one, two, other = (learn(start, asking, None, settings, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, other)
    np.testing.assert_array_equal(start, collection()[0])  # left as it was


def test_dev_queries_keep_the_best_epoch() -> None:
    start, asking = collection()
    own = Asking(start / np.linalg.norm(start, axis=1, keepdims=True), np.arange(COUNT))
    settings = DocumentVectorSettings(epochs=4, learning_rate=0.5, batch_size=16)
    np.testing.assert_array_equal(learn(start, asking, own, settings), start)  # nothing finds these as well
    assert not np.array_equal(learn(start, asking, None, settings), start)


def test_known_queries_are_looked_up() -> None:
    vectors = np.eye(3, dtype=np.float32)
    np.testing.assert_array_equal(KnownQueries(vectors).encode(["2", "0"]), vectors[[2, 0]])
    assert len(Asking(vectors, np.arange(3))) == 3
    assert not list(KnownQueries(vectors).parameters())
