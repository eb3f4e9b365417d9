"""Guards how the parts of the HCE loss add up: the hierarchy's weight, and alpha between the two kinds of pairs."""

from __future__ import annotations

import pytest
import torch

from model_code.losses.hce import hce_losses, joint_loss


def test_weight_zero_is_plain_contrastive_training():
    contrastive, hierarchy = torch.rand(4), torch.rand(4, 2)
    assert torch.equal(hce_losses(contrastive, hierarchy, 0.0), contrastive)
    assert torch.equal(hce_losses(contrastive, None, 0.2), contrastive)


def test_levels_are_summed_as_in_equation_6():
    contrastive, hierarchy = torch.rand(3, dtype=torch.float64), torch.rand(3, 4, dtype=torch.float64)
    expected = [contrastive[i] + 0.2 * sum(hierarchy[i, t] for t in range(4)) for i in range(3)]
    torch.testing.assert_close(hce_losses(contrastive, hierarchy, 0.2), torch.stack(expected))


@pytest.mark.parametrize("kinds", [[0, 1, 1, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1]])
def test_joint_is_equation_7_with_a_mean_per_kind(kinds: list[int]):
    losses = torch.rand(5, dtype=torch.float64, requires_grad=True)
    supervised = [losses[i] for i in range(5) if not kinds[i]]
    unsupervised = [losses[i] for i in range(5) if kinds[i]]
    expected = sum(supervised) / len(supervised) + 0.5 * sum(unsupervised) / len(unsupervised)
    ours = joint_loss(losses, torch.tensor(kinds, dtype=torch.bool), 0.5)
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(*(torch.autograd.grad(value, losses)[0] for value in (ours, expected)))


@pytest.mark.parametrize("unsupervised", [False, True])
def test_one_kind_alone_has_weight_one(unsupervised: bool):
    losses = torch.rand(5, dtype=torch.float64)
    torch.testing.assert_close(joint_loss(losses, torch.full((5,), unsupervised), 0.5), losses.mean())
