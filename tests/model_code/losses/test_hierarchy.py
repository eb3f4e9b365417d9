"""Test the hierarchy loss against loops in float64 (HCE, equation 5), and the sums of HCE's losses.

The loops are written from the paper's equations. The tree is uneven.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from model_code.losses.hierarchy import HierarchyLoss, hce_losses, joint_loss, level_losses

# Level 1: 3 nodes under the root. Level 2: node 0 has three children, node 1 one, node 2 two.
PARENTS = [torch.tensor([0, 0, 0]), torch.tensor([0, 0, 0, 1, 2, 2])]
PATHS = torch.tensor([[0, 1], [0, 2], [1, 3], [2, 4], [2, 5]])


def loop_loss(
    query: Tensor,
    centroids: Tensor,
    parents: Tensor,
    node: int,
    temperature: float,
    excluded: Tensor,
) -> Tensor:
    """Return equation 5 for one query at one level, in plain exponentials."""
    total = torch.zeros((), dtype=torch.float64)
    for k in range(len(centroids)):
        is_sibling = parents[k] == parents[node]
        if not is_sibling or (excluded[k] and k != node):
            continue
        direction = centroids[k] / centroids[k].norm()
        score = torch.exp(torch.dot(query, direction) / temperature)
        total = total + score
        if k == node:
            positive = score
    return -torch.log(positive / total)


def example(seed: int) -> tuple[Tensor, list[Tensor]]:
    """Return five unit queries and the centroids of both levels.

    Centroids have any length, because training moves them off the unit sphere.
    """
    random = torch.Generator().manual_seed(seed)
    queries = normalize(torch.randn(5, 4, generator=random, dtype=torch.float64), dim=1)
    centroids = []
    for parents in PARENTS:
        level = torch.randn(len(parents), 4, generator=random, dtype=torch.float64)
        centroids.append(level.requires_grad_())
    return queries.requires_grad_(), centroids


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("temperature", [1.0, 0.05])
@pytest.mark.parametrize("masked_share", [0.0, 0.4])
def test_values_and_gradients_equal_the_equation(
    seed: int, temperature: float, masked_share: float
):
    queries, centroids = example(seed)
    # Different weights, so that no two losses can be mistaken for each other.
    weights = torch.tensor(
        [[1.0, 2.0], [3.0, 5.0], [7.0, 11.0], [13.0, 17.0], [19.0, 23.0]], dtype=torch.float64
    )
    random = torch.Generator().manual_seed(seed)
    excluded = []
    for parents in PARENTS:
        excluded.append(torch.rand(5, len(parents), generator=random) < masked_share)

    levels = []
    expected_levels = []
    for level in range(2):
        nodes = PATHS[:, level]
        losses = level_losses(
            queries, centroids[level], PARENTS[level], nodes, temperature, excluded[level]
        )
        levels.append(losses)

        expected_losses = []
        for i in range(5):
            expected_loss = loop_loss(
                queries[i],
                centroids[level],
                PARENTS[level],
                int(nodes[i]),
                temperature,
                excluded[level][i],
            )
            expected_losses.append(expected_loss)
        expected_levels.append(torch.stack(expected_losses))

    losses = torch.stack(levels, dim=1)
    expected = torch.stack(expected_levels, dim=1)
    torch.testing.assert_close(losses, expected, rtol=1e-10, atol=1e-10)

    inputs = [queries, *centroids]
    gradients = torch.autograd.grad((weights * losses).sum(), inputs)
    expected_gradients = torch.autograd.grad((weights * expected).sum(), inputs)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-9, atol=1e-9)


def test_only_child_costs_nothing():
    queries, centroids = example(1)

    losses = level_losses(queries, centroids[1], PARENTS[1], PATHS[:, 1], 0.05)

    # The third query's leaf is the only child of node 1.
    loss = losses[2]
    assert loss.item() == 0
    assert torch.autograd.grad(loss, queries)[0].abs().max() < 1e-12


def test_module_returns_the_loss_of_each_level():
    queries, centroids = example(3)
    module = HierarchyLoss(centroids[:1], PARENTS[:1], temperature=0.1)

    losses = module(queries, PATHS[:, :1])

    expected = level_losses(queries, centroids[0], PARENTS[0], PATHS[:, 0], 0.1)
    torch.testing.assert_close(losses[:, 0], expected)


@pytest.fixture
def centroids() -> list[Tensor]:
    return [level.detach() for level in example(3)[1]]


@pytest.fixture
def module(centroids: list[Tensor]) -> HierarchyLoss:
    return HierarchyLoss(centroids, PARENTS, temperature=0.1)


def test_centroids_are_the_parameters(module: HierarchyLoss):
    names = [name for name, _ in module.named_parameters()]

    assert names == ["centroids.0", "centroids.1"]
    assert list(module.state_dict()) == ["centroids.0", "centroids.1"]


def test_all_centroids_get_gradients(module: HierarchyLoss):
    queries, _ = example(3)

    module(queries, PATHS).sum().backward()

    assert all(parameter.grad.abs().sum() > 0 for parameter in module.parameters())


def test_module_trains_copies_of_the_centroids(module: HierarchyLoss, centroids: list[Tensor]):
    with torch.no_grad():
        module.centroids[0].zero_()

    assert centroids[0].abs().min() > 0


def test_levels_are_summed_as_in_equation_6():
    contrastive = torch.rand(3, dtype=torch.float64)
    hierarchy = torch.rand(3, 4, dtype=torch.float64)

    losses = hce_losses(contrastive, hierarchy, 0.2)

    expected = []
    for i in range(3):
        level_sum = sum(hierarchy[i, level] for level in range(4))
        expected.append(contrastive[i] + 0.2 * level_sum)
    torch.testing.assert_close(losses, torch.stack(expected))


def test_contrastive_losses_remain_without_hierarchy():
    contrastive = torch.rand(3, dtype=torch.float64)
    hierarchy = torch.rand(3, 4, dtype=torch.float64)

    assert torch.equal(hce_losses(contrastive, hierarchy, 0.0), contrastive)
    assert torch.equal(hce_losses(contrastive, None, 0.2), contrastive)


@pytest.mark.parametrize("unsupervised", [[0, 1, 1, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1]])
def test_joint_loss_equals_equation_7(unsupervised: list[int]):
    losses = torch.rand(5, dtype=torch.float64, requires_grad=True)
    is_unsupervised = torch.tensor(unsupervised, dtype=torch.bool)

    joint = joint_loss(losses, is_unsupervised, 0.5)

    expected = losses[~is_unsupervised].mean() + 0.5 * losses[is_unsupervised].mean()
    torch.testing.assert_close(joint, expected)
    (gradient,) = torch.autograd.grad(joint, losses)
    (expected_gradient,) = torch.autograd.grad(expected, losses)
    torch.testing.assert_close(gradient, expected_gradient)


@pytest.mark.parametrize("unsupervised", [False, True])
def test_single_kind_of_pair_has_weight_one(unsupervised: bool):
    losses = torch.rand(5, dtype=torch.float64)
    is_unsupervised = torch.full((5,), unsupervised)

    torch.testing.assert_close(joint_loss(losses, is_unsupervised, 0.5), losses.mean())
