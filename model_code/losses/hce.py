"""How the parts of the Hierarchical Corpus Encoder's loss add up (HCE, equations 6 and 7)."""

from __future__ import annotations

import torch
from torch import Tensor


def hce_losses(contrastive: Tensor, hierarchy: Tensor | None, hierarchy_weight: float) -> Tensor:
    """Each pair's contrastive loss (B,) plus `hierarchy_weight` times its hierarchy loss (B, M) over all levels: (B,).

    The paper's weight is 1; weight 0, or no hierarchy, is plain contrastive training.

    >>> hce_losses(torch.tensor([1., 2.]), torch.tensor([[1., 3.], [0., 0.]]), hierarchy_weight=0.5)
    tensor([3., 2.])
    """
    if hierarchy is None:
        return contrastive
    return contrastive + hierarchy_weight * hierarchy.sum(dim=1)


def level_means(hierarchy: Tensor | None) -> dict[str, Tensor]:
    """The hierarchy loss (B, M) as the history has it: `hierarchy_1` to `hierarchy_M`, batch means without gradient."""
    levels = [] if hierarchy is None else hierarchy.detach().mean(dim=0)
    return {f"hierarchy_{level}": mean for level, mean in enumerate(levels, start=1)}


def joint_loss(losses: Tensor, unsupervised: Tensor, unsupervised_weight: float) -> Tensor:
    """HCE-J: mean over the supervised pairs + `unsupervised_weight` (alpha) * mean over the unsupervised ones.

    A batch of one kind only is its plain mean, with weight 1: HCE-S or HCE-U.

    losses: (B,); unsupervised: (B,) bool.

    >>> losses = torch.tensor([1., 3., 8.])
    >>> joint_loss(losses, torch.tensor([False, False, True]), unsupervised_weight=0.5)  # 2 + .5 * 8
    tensor(6.)
    >>> joint_loss(losses, torch.tensor([True, True, True]), unsupervised_weight=0.5)
    tensor(4.)
    """
    kind = unsupervised.to(losses.dtype)
    share, other = kind.mean(), 1 - kind.mean()
    alpha = torch.where(other > 0, unsupervised_weight, 1.0)
    weights = (1 - kind) / other.clamp_min(1e-9) + alpha * kind / share.clamp_min(1e-9)
    return (losses * weights).mean()
