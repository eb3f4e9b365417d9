"""Guards the semi-parametric and beta losses against double loops in float64, masks and extra negatives included."""

from __future__ import annotations

import math

import pytest
import torch

from model_code.lexical.losses import Views, beta_losses, dense, quarter_deviation, semi_parametric_losses, total

B, E, V = 4, 3, 12


@pytest.fixture
def views() -> tuple[Views, Views]:
    """Random weights and tokens of B queries, and of B positives and E negatives, in float64."""
    torch.manual_seed(0)

    def texts(count: int) -> Views:
        return Views(torch.rand(count, V, dtype=torch.float64), (torch.rand(count, V) > 0.5).double())

    return texts(B), texts(B + E)


def naive(left: torch.Tensor, right: torch.Tensor, scale: float, relevant: torch.Tensor, allowed: torch.Tensor) -> list:
    """The bidirectional contrastive loss, pair by pair; scalars that autograd can follow."""
    losses = []
    score = lambda i, j: sum(left[i, v] * right[j, v] for v in range(V)) / scale  # noqa: E731
    for i in range(B):
        columns = [j for j in range(B) if j == i or not relevant[i, j]]
        rows = [j for j in range(B) if j == i or not relevant[j, i]]
        extra = [B + e for e in range(E) if allowed[i, e]]
        forward = torch.log(sum(torch.exp(score(i, j)) for j in columns + extra))
        backward = torch.log(sum(torch.exp(score(j, i)) for j in rows))
        losses.append(forward + backward - 2 * score(i, i))
    return losses


def test_semi_parametric_loss_is_the_sum_of_three_contrastive_ones(views: tuple[Views, Views]) -> None:
    queries, documents = views
    relevant = torch.eye(B, dtype=torch.bool)
    relevant[0, 2] = relevant[3, 1] = True
    allowed = torch.rand(B, E) > 0.4
    scales = torch.tensor([2.0, 0.5, 3.0], dtype=torch.float64)
    found = total(semi_parametric_losses(queries, documents, scales, relevant, allowed))
    full = naive(queries.weights, documents.weights, 2.0, relevant, allowed)
    beta = naive(queries.weights, documents.tokens, 0.5, relevant, allowed)
    alpha = naive(queries.tokens, documents.weights, 3.0, relevant, allowed)
    for i in range(B):
        assert float(found[i]) == pytest.approx(float(full[i] + beta[i] / 2 + alpha[i] / 2), abs=1e-12)


def test_gradients_are_those_of_the_double_loop(views: tuple[Views, Views]) -> None:
    queries, documents = views
    relevant = torch.eye(B, dtype=torch.bool)
    relevant[1, 3] = True
    allowed = torch.rand(B, E) > 0.4
    learned = [queries.weights.requires_grad_(), documents.weights.requires_grad_()]
    scales = torch.tensor([2.0, 0.5, 3.0], dtype=torch.float64)
    found = total(semi_parametric_losses(queries, documents, scales, relevant, allowed)).sum()
    full = naive(queries.weights, documents.weights, 2.0, relevant, allowed)
    beta = naive(queries.weights, documents.tokens, 0.5, relevant, allowed)
    alpha = naive(queries.tokens, documents.weights, 3.0, relevant, allowed)
    expected = sum(full) + sum(beta) / 2 + sum(alpha) / 2
    for ours, theirs in zip(torch.autograd.grad(found, learned), torch.autograd.grad(expected, learned), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_gradients_of_the_beta_loss_are_those_of_the_double_loop(views: tuple[Views, Views]) -> None:
    queries, documents = views
    weights = queries.weights.requires_grad_()
    scores = weights @ documents.tokens.T
    excluded = torch.rand(B, B + E) > 0.6
    positives = [1, 0, 5, 6]
    (ours,) = torch.autograd.grad(beta_losses(scores, torch.tensor(positives), excluded, 1.7).sum(), [weights])
    score = lambda i, j: sum(weights[i, v] * documents.tokens[j, v] for v in range(V)) / 1.7  # noqa: E731
    expected = 0.0
    for i, own in enumerate(positives):
        kept = [j for j in range(B + E) if j == own or not excluded[i, j]]
        expected = expected + torch.log(sum(torch.exp(score(i, j)) for j in kept)) - score(i, own)
    torch.testing.assert_close(ours, torch.autograd.grad(expected, [weights])[0], rtol=0, atol=1e-12)


def test_a_part_of_the_loss_keeps_its_share_and_its_scale(views: tuple[Views, Views]) -> None:
    queries, documents = views
    relevant, allowed = torch.eye(B, dtype=torch.bool), torch.rand(B, E) > 0.4
    scales = torch.tensor([3.0, 2.0], dtype=torch.float64)
    found = total(semi_parametric_losses(queries, documents, scales, relevant, allowed, terms=("alpha", "full")))
    alpha = naive(queries.tokens, documents.weights, 3.0, relevant, allowed)
    full = naive(queries.weights, documents.weights, 2.0, relevant, allowed)
    for i in range(B):
        assert float(found[i]) == pytest.approx(float(full[i] + alpha[i] / 2), abs=1e-12)


def test_beta_loss_counts_every_passage_that_is_not_excluded(views: tuple[Views, Views]) -> None:
    queries, documents = views
    scores = queries.weights @ documents.tokens.T
    excluded = torch.rand(B, B + E) > 0.6
    positives = torch.tensor([1, 0, 5, 6])
    found = beta_losses(scores, positives, excluded, 1.7)
    for i in range(B):
        kept = [j for j in range(B + E) if j == positives[i] or not excluded[i, j]]
        own = float(scores[i, positives[i]]) / 1.7
        expected = math.log(sum(math.exp(float(scores[i, j]) / 1.7) for j in kept)) - own
        assert float(found[i]) == pytest.approx(expected, abs=1e-12)


def test_dense_rows_pass_their_gradient_to_the_weights() -> None:
    weights = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    rows = dense(torch.tensor([[0, 4, 5], [1, 2, 3]]), weights, 6)
    (rows * torch.arange(6)).sum().backward()
    assert weights.grad.tolist() == [[0, 4, 5], [1, 2, 3]]


def test_scale_is_a_quarter_of_the_spread_of_the_negatives() -> None:
    scores = torch.tensor([[100.0, 1.0, 5.0], [3.0, 100.0, 7.0]])
    expected = torch.tensor([1.0, 5.0, 3.0, 7.0]).std() / 4
    torch.testing.assert_close(quarter_deviation(scores, torch.eye(2, dtype=torch.bool)), expected)
    assert quarter_deviation(torch.zeros(3, 5)) > 0
