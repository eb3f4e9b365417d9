"""Guards the hierarchy loss: values and gradients against float64 loops written from HCE's equation
5, uneven trees; and how the parts of the HCE loss add up.
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
    """Equation 5 for one query at one level, in plain exponentials."""
    positive, total = None, torch.zeros((), dtype=torch.float64)
    for k in range(len(centroids)):
        if parents[k] != parents[node] or (excluded[k] and k != node):
            continue
        score = torch.exp(torch.dot(query, centroids[k] / centroids[k].norm()) / temperature)
        total = total + score
        positive = score if k == node else positive
    return -torch.log(positive / total)


def example(seed: int) -> tuple[Tensor, list[Tensor]]:
    random = torch.Generator().manual_seed(seed)
    queries = normalize(
        torch.randn(5, 4, generator=random, dtype=torch.float64), dim=1
    ).requires_grad_()
    centroids = [
        torch.randn(len(p), 4, generator=random, dtype=torch.float64).requires_grad_()
        for p in PARENTS
    ]
    return queries, centroids  # centroids of any length: training moves them off the unit sphere


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("temperature", [1.0, 0.05])
@pytest.mark.parametrize("masked", [False, True])
def test_values_and_gradients_are_those_of_the_equation(
    seed: int, temperature: float, masked: bool
):
    queries, centroids = example(seed)
    weights = torch.tensor(
        [[1.0, 2.0], [3.0, 5.0], [7.0, 11.0], [13.0, 17.0], [19.0, 23.0]], dtype=torch.float64
    )
    random = torch.Generator().manual_seed(seed)
    excluded = [torch.rand(5, len(p), generator=random) < (0.4 if masked else 0.0) for p in PARENTS]
    ours, loop = [], []
    for t, (vectors, parents) in enumerate(zip(centroids, PARENTS, strict=True)):
        ours.append(level_losses(queries, vectors, parents, PATHS[:, t], temperature, excluded[t]))
        rows = [
            (queries[i], vectors, parents, int(PATHS[i, t]), temperature, excluded[t][i])
            for i in range(5)
        ]
        loop.append(torch.stack([loop_loss(*row) for row in rows]))
    ours, loop = torch.stack(ours, dim=1), torch.stack(loop, dim=1)
    torch.testing.assert_close(ours, loop, rtol=1e-10, atol=1e-10)
    tensors = [queries, *centroids]
    gradients = torch.autograd.grad((weights * ours).sum(), tensors)
    expected = torch.autograd.grad((weights * loop).sum(), tensors)
    torch.testing.assert_close(gradients, expected, rtol=1e-9, atol=1e-9)


def test_an_only_child_costs_nothing():
    queries, centroids = example(1)
    loss = level_losses(queries, centroids[1], PARENTS[1], PATHS[:, 1], 0.05)[2]
    assert loss.item() == 0
    assert torch.autograd.grad(loss, queries)[0].abs().max() < 1e-12


def test_module_trains_copies_of_the_centroids():
    queries, centroids = example(3)
    one = HierarchyLoss(centroids[:1], PARENTS[:1], temperature=0.1)(queries, PATHS[:, :1])
    torch.testing.assert_close(
        one[:, 0], level_losses(queries, centroids[0], PARENTS[0], PATHS[:, 0], 0.1)
    )
    module = HierarchyLoss([level.detach() for level in centroids], PARENTS, temperature=0.1)
    assert [name for name, _ in module.named_parameters()] == ["centroids.0", "centroids.1"]
    assert list(module.state_dict()) == ["centroids.0", "centroids.1"]
    module(queries, PATHS).sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in module.parameters())
    with torch.no_grad():
        module.centroids[0].zero_()
    assert centroids[0].abs().min() > 0


def test_levels_are_summed_as_in_equation_6():
    contrastive, hierarchy = (
        torch.rand(3, dtype=torch.float64),
        torch.rand(3, 4, dtype=torch.float64),
    )
    expected = [contrastive[i] + 0.2 * sum(hierarchy[i, t] for t in range(4)) for i in range(3)]
    torch.testing.assert_close(hce_losses(contrastive, hierarchy, 0.2), torch.stack(expected))
    assert torch.equal(hce_losses(contrastive, hierarchy, 0.0), contrastive)
    assert torch.equal(hce_losses(contrastive, None, 0.2), contrastive)


@pytest.mark.parametrize("kinds", [[0, 1, 1, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1]])
def test_joint_loss_equals_equation_7(kinds: list[int]):
    losses = torch.rand(5, dtype=torch.float64, requires_grad=True)
    supervised = [losses[i] for i in range(5) if not kinds[i]]
    unsupervised = [losses[i] for i in range(5) if kinds[i]]
    expected = sum(supervised) / len(supervised) + 0.5 * sum(unsupervised) / len(unsupervised)
    ours = joint_loss(losses, torch.tensor(kinds, dtype=torch.bool), 0.5)
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(
        *(torch.autograd.grad(value, losses)[0] for value in (ours, expected))
    )


@pytest.mark.parametrize("unsupervised", [False, True])
def test_one_kind_alone_has_weight_one(unsupervised: bool):
    losses = torch.rand(5, dtype=torch.float64)
    torch.testing.assert_close(
        joint_loss(losses, torch.full((5,), unsupervised), 0.5), losses.mean()
    )
