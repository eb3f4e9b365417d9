"""The hierarchy loss, and how the parts of the Hierarchical Corpus Encoder's loss add up.

Level by level, a query has to find its document's ancestor among the ancestor's siblings (HCE,
equation 5). Each of the tree's first M levels gives one softmax per query over the children of one
node. The ancestor of the relevant document is the positive, and its siblings are the negatives.

Centroids are parameters (HCE, section 5.2). The clustering sets them, training moves them together
with the encoder, and they are scaled to unit norm whenever they are scored.

`hce_losses` and `joint_loss` add the parts up (HCE, equations 6 and 7). Source: Hierarchical Corpus
Encoder (HCE), sections 4 and 5.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from model_code.losses.contrastive import softmax_losses


def level_losses(
    queries: Tensor,
    centroids: Tensor,
    parents: Tensor,
    nodes: Tensor,
    temperature: float,
    excluded: Tensor | None = None,
) -> Tensor:
    """Return each query's hierarchy loss at one level of the tree (HCE, equation 5).

    With S(q, c) = q.c / (temperature |c|), the loss of query i is

        - log[ e^S(q_i, c(node_i)) / sum_k e^S(q_i, c_k) ],   k = all nodes under node_i's parent

    A query whose ancestor has no sibling has loss 0.

    Args:
        queries: Unit vectors of the queries, (B, H).
        centroids: Centroids of the level's K nodes, of any norm, (K, H).
        parents: Each node's parent one level up, (K,) int64.
        nodes: The ancestor of each query's document at this level, (B,) int64.
        temperature: Divisor of the scores.
        excluded: Mask of the nodes that are not negatives of a query, because other documents that
            are relevant to it lie below them, (B, K) bool. None: no node is excluded.

    Returns:
        Losses, (B,).

    >>> centroids, parents = torch.tensor([[2., 0.], [0., 5.], [0., 1.]]), torch.tensor([0, 0, 1])
    >>> queries, nodes = torch.tensor([[1., 0.], [1., 0.]]), torch.tensor([0, 2])
    >>> # The first loss is log(1 + 1/e). The second query's ancestor is an only child.
    >>> level_losses(queries, centroids, parents, nodes, temperature=1.0)
    tensor([0.3133, 0.0000])
    """
    scores = queries @ normalize(centroids, dim=1).T / temperature
    return softmax_losses(scores, nodes, ~siblings(parents, nodes, excluded))


def siblings(parents: Tensor, nodes: Tensor, excluded: Tensor | None = None) -> Tensor:
    """Mark the nodes that each query has to tell apart: its ancestor and the ancestor's siblings.

    Args:
        parents: Each node's parent one level up, (K,) int64.
        nodes: The ancestor of each query's document, (B,) int64. It is marked even if it is
            excluded.
        excluded: Mask of the nodes that are left out, (B, K) bool; see `level_losses`.

    Returns:
        Mask, (B, K) bool.

    >>> siblings(torch.tensor([0, 0, 1]), torch.tensor([0, 2]))
    tensor([[ True,  True, False],
            [False, False,  True]])
    """
    has_same_parent = parents[None, :] == parents[nodes][:, None]
    if excluded is None:
        return has_same_parent
    left_out = excluded.scatter(1, nodes[:, None], False)
    return has_same_parent & ~left_out


class HierarchyLoss(nn.Module):
    """The hierarchy loss over the first M levels of a tree, with trainable centroids.

    >>> loss = HierarchyLoss([torch.eye(2)], [torch.zeros(2, dtype=torch.int64)], temperature=1.0)
    >>> loss(torch.eye(2), torch.tensor([[0], [1]]))
    tensor([[0.3133],
            [0.3133]], grad_fn=<StackBackward0>)
    """

    def __init__(
        self, centroids: Sequence[Tensor], parents: Sequence[Tensor], temperature: float
    ) -> None:
        """Copy the centroids into parameters.

        Args:
            centroids: Levels 1 to M, (K_t, H) floats each.
            parents: Levels 1 to M, (K_t,) integers each.
            temperature: Divisor of the scores.
        """
        super().__init__()
        self.temperature = temperature
        self.centroids = nn.ParameterList()
        for level_centroids in centroids:
            self.centroids.append(nn.Parameter(level_centroids.detach().clone()))
        for level, level_parents in enumerate(parents):
            self.register_buffer(f"parents_{level}", level_parents.long(), persistent=False)

    def forward(
        self, queries: Tensor, paths: Tensor, excluded: Sequence[Tensor | None] | None = None
    ) -> Tensor:
        """Return the loss of each query at each level.

        Args:
            queries: Unit vectors of the queries, (B, H).
            paths: The ancestors of each query's document at levels 1 to M, (B, M) int64.
            excluded: The mask `excluded` of each level, (B, K_t) bool, or None; see `level_losses`.

        Returns:
            Losses, (B, M).
        """
        losses = []
        for level, centroids in enumerate(self.centroids):
            parents = self.get_buffer(f"parents_{level}")
            excluded_nodes = None if excluded is None else excluded[level]
            losses.append(
                level_losses(
                    queries,
                    centroids,
                    parents,
                    paths[:, level],
                    self.temperature,
                    excluded_nodes,
                )
            )
        return torch.stack(losses, dim=1)


def hce_losses(contrastive: Tensor, hierarchy: Tensor | None, hierarchy_weight: float) -> Tensor:
    """Add the hierarchy loss over all levels to each pair's contrastive loss (HCE, equation 6).

    The paper's weight is 1. Without a hierarchy, or with weight 0, this is contrastive training.

    Args:
        contrastive: Contrastive loss of each pair, (B,).
        hierarchy: Hierarchy loss of each pair at each level, (B, M). None without a hierarchy.
        hierarchy_weight: Factor of the hierarchy loss.

    Returns:
        Losses, (B,).

    >>> hce_losses(torch.tensor([1., 2.]), torch.tensor([[1., 3.], [0., 0.]]), hierarchy_weight=0.5)
    tensor([3., 2.])
    """
    if hierarchy is None:
        return contrastive
    return contrastive + hierarchy_weight * hierarchy.sum(dim=1)


def level_means(hierarchy: Tensor | None) -> dict[str, Tensor]:
    """Return the batch means of the hierarchy loss (B, M) for the training curve.

    The keys are `hierarchy_1` to `hierarchy_M`. The means carry no gradient.
    """
    if hierarchy is None:
        return {}
    means = hierarchy.detach().mean(dim=0)
    return {f"hierarchy_{level}": mean for level, mean in enumerate(means, start=1)}


def joint_loss(losses: Tensor, unsupervised: Tensor, unsupervised_weight: float) -> Tensor:
    """Add the mean over supervised pairs and the weighted mean over unsupervised ones (HCE, eq. 7).

    This is HCE-J. If a batch has only supervised or only unsupervised pairs, the loss is their
    plain mean, as in HCE-S or HCE-U.

    Args:
        losses: Loss of each pair, (B,).
        unsupervised: Mask of the pairs whose query was generated, (B,) bool.
        unsupervised_weight: Weight alpha of the unsupervised pairs' mean.

    Returns:
        The loss of the batch, a scalar.

    >>> losses = torch.tensor([1., 3., 8.])
    >>> joint_loss(losses, torch.tensor([False, False, True]), unsupervised_weight=0.5)
    tensor(6.)
    >>> joint_loss(losses, torch.tensor([True, True, True]), unsupervised_weight=0.5)
    tensor(4.)
    """
    is_unsupervised = unsupervised.to(losses.dtype)
    unsupervised_share = is_unsupervised.mean()
    supervised_share = 1 - unsupervised_share

    # Without supervised pairs, the unsupervised ones have weight 1: the loss is their mean.
    alpha = torch.where(supervised_share > 0, unsupervised_weight, 1.0)
    # The mean over all B pairs of weighted losses is the sum of both means if a pair of a kind has
    # the weight 1 / (share of this kind). The clamps only avoid 0/0 for a kind that is missing.
    supervised_weights = (1 - is_unsupervised) / supervised_share.clamp_min(1e-9)
    unsupervised_weights = alpha * is_unsupervised / unsupervised_share.clamp_min(1e-9)
    return (losses * (supervised_weights + unsupervised_weights)).mean()
