"""Where k-means starts, by one of three methods. Random numbers are drawn on the CPU, so equal seeds start equally."""

from __future__ import annotations

import torch

from model_code.hierarchy.lloyd import Lloyd

ROUNDS = 8  # of k-means++; 16 and 32 gave no better objective on 1,500 to 12,000 sentence vectors


def initialise(run: Lloyd, method: str, seed: int) -> None:
    """Give every point of `run` a cluster, by a method of `HierarchySettings.initialisation`."""
    generator = torch.Generator().manual_seed(seed)
    if method == "assignment":
        deal(run, generator)
    else:
        draw(run, ROUNDS if method == "plus_plus" else 1, generator)


def deal(run: Lloyd, generator: torch.Generator) -> None:
    """Put every point into a random cluster of its group (HCE, Algorithm 2): all centroids start near the mean.

    Equal points dealt to different clusters may stay there; the other methods bring them together.
    """
    counts = torch.bincount(run.group_of)
    drawn = torch.rand(len(run.labels), generator=generator, dtype=torch.float64).to(run.labels.device)
    run.labels = (counts.cumsum(0) - counts)[run.groups] + (drawn * counts[run.groups]).long()
    run.moved[run.labels] = True
    run.update()


def draw(run: Lloyd, rounds: int, generator: torch.Generator) -> None:
    """Take distinct random points as centroids: any if there is one round, in more rounds rather far-off ones.

    k-means++ (Arthur and Vassilvitskii, 2007) draws one point after the other, each with a probability in proportion
    to its squared distance to the nearest one drawn before, 2 - 2 cos for unit vectors. Here each round draws its
    share of them at once, as k-means|| does (Bahmani et al., 2012), so that all rounds together cost no more than one
    assignment of the points, and are one.
    """
    counts = torch.bincount(run.group_of)
    rounds = min(rounds, int(counts.max()))
    first, drawn = counts.cumsum(0) - counts, torch.zeros_like(counts)
    weights = torch.ones_like(run.score)
    for done in range(1, rounds + 1):
        quota = (counts * done + rounds - 1) // rounds - drawn  # rounded up, so that the first round serves every group
        points, rank = _sample(weights, run.groups, quota, generator)
        run.place((first + drawn)[run.groups[points]] + rank, run.vectors[points])
        drawn += quota
        weights = torch.where(weights > 0, (1 - run.score).clamp(min=1e-9), 0.0)
        weights[points] = 0


def _sample(
    weights: torch.Tensor, groups: torch.Tensor, quota: torch.Tensor, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw `quota[g]` points of each group g without replacement, by weight: their numbers and ranks in the group.

    The smallest of exponential variables with rates w_i is the i-th with probability w_i / sum w.
    """
    uniform = torch.rand(len(weights), generator=generator, dtype=torch.float64).to(weights.device)
    order = torch.argsort(-torch.log1p(-uniform) / weights)
    if len(quota) == 1:
        return order[: int(quota)], torch.arange(int(quota), device=order.device)
    order = order[torch.argsort(groups[order], stable=True)]
    sizes = torch.bincount(groups, minlength=len(quota))
    rank = torch.arange(len(order), device=order.device) - (sizes.cumsum(0) - sizes)[groups[order]]
    chosen = rank < quota[groups[order]]
    return order[chosen], rank[chosen]
