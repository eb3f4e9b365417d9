"""The hierarchy loss: a query finds its document's ancestor among its siblings, level by level
(HCE, equation 5).

Each of the tree's first M levels gives one softmax per query, over the children of one node: the
ancestor at that level of the query's relevant document is the positive, its siblings are the
negatives. Centroids are parameters (HCE, section 5.2), set by the clustering, trained with the
encoder, and scaled to unit norm whenever they are scored.

`hce_losses` and `joint_loss` say how the parts of the Hierarchical Corpus Encoder's loss add up
(equations 6 and 7).
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
    """The loss of each of B queries at one level of the tree, (B,); 0 where the ancestor has no
    sibling.

    With S(q, c) = q.c / (temperature |c|), query i's loss is
        - log[ e^S(q_i, c(node_i)) / sum_k e^S(q_i, c_k) ],   k = all nodes under node_i's parent

    queries: (B, H), unit norm. centroids: (K, H). parents: (K,), each node's parent one level up.
    nodes: (B,) int64, the ancestor at this level of query i's document. excluded: (B, K) bool,
    nodes that are no negatives of a query, since other relevant documents lie below them.

    >>> centroids, parents = torch.tensor([[2., 0.], [0., 5.], [0., 1.]]), torch.tensor([0, 0, 1])
    >>> queries, nodes = torch.tensor([[1., 0.], [1., 0.]]), torch.tensor([0, 2])
    >>> level_losses(queries, centroids, parents, nodes, temperature=1.0)  # log(1 + 1/e); an only child
    tensor([0.3133, 0.0000])
    """
    scores = queries @ normalize(centroids, dim=1).T / temperature
    return softmax_losses(scores, nodes, ~siblings(parents, nodes, excluded))


def siblings(parents: Tensor, nodes: Tensor, excluded: Tensor | None = None) -> Tensor:
    """The nodes that each of B queries is to tell apart: its own and all under the same parent, (B,
    K) bool.

    parents, nodes, excluded: as in `level_losses`.

    >>> siblings(torch.tensor([0, 0, 1]), torch.tensor([0, 2]))
    tensor([[ True,  True, False],
            [False, False,  True]])
    """
    inside = parents[None, :] == parents[nodes][:, None]
    return inside if excluded is None else inside & ~excluded.scatter(1, nodes[:, None], False)


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
        """centroids, parents: of levels 1 to M, (K_t, H) floats and (K_t,) integers."""
        super().__init__()
        self.temperature = temperature
        self.centroids = nn.ParameterList(
            nn.Parameter(level.detach().clone()) for level in centroids
        )
        for level, above in enumerate(parents):
            self.register_buffer(f"parents_{level}", above.long(), persistent=False)

    def forward(
        self, queries: Tensor, paths: Tensor, excluded: Sequence[Tensor | None] | None = None
    ) -> Tensor:
        """The loss of each of B queries at each level: (B, M).

        paths: (B, M) int64, the nodes at levels 1 to M above query i's document.
        excluded: for each level None or a (B, K_t) mask, see `level_losses`.
        """
        losses = []
        for level, centroids in enumerate(self.centroids):
            parents = self.get_buffer(f"parents_{level}")
            out = None if excluded is None else excluded[level]
            losses.append(
                level_losses(queries, centroids, parents, paths[:, level], self.temperature, out)
            )
        return torch.stack(losses, dim=1)


def hce_losses(contrastive: Tensor, hierarchy: Tensor | None, hierarchy_weight: float) -> Tensor:
    """Each pair's contrastive loss (B,) plus `hierarchy_weight` times its hierarchy loss (B, M)
    over all levels: (B,).

    The paper's weight is 1; weight 0, or no hierarchy, is plain contrastive training.

    >>> hce_losses(torch.tensor([1., 2.]), torch.tensor([[1., 3.], [0., 0.]]), hierarchy_weight=0.5)
    tensor([3., 2.])
    """
    if hierarchy is None:
        return contrastive
    return contrastive + hierarchy_weight * hierarchy.sum(dim=1)


def level_means(hierarchy: Tensor | None) -> dict[str, Tensor]:
    """The hierarchy loss (B, M) as the history has it: `hierarchy_1` to `hierarchy_M`, batch means
    without gradient.
    """
    levels = [] if hierarchy is None else hierarchy.detach().mean(dim=0)
    return {f"hierarchy_{level}": mean for level, mean in enumerate(levels, start=1)}


def joint_loss(losses: Tensor, unsupervised: Tensor, unsupervised_weight: float) -> Tensor:
    """HCE-J: mean over the supervised pairs + `unsupervised_weight` (alpha) * mean over the
    unsupervised ones.

    A batch of one kind only is its plain mean, with weight 1: HCE-S or HCE-U.

    losses: (B,); unsupervised: (B,) bool.

    >>> losses = torch.tensor([1., 3., 8.])
    >>> joint_loss(losses, torch.tensor([False, False, True]), unsupervised_weight=0.5)  # 2 + .5 * 8
    tensor(6.)
    >>> joint_loss(losses, torch.tensor([True, True, True]), unsupervised_weight=0.5)
    tensor(4.)
    """
    kind = unsupervised.to(losses.dtype)
    share, supervised = kind.mean(), 1 - kind.mean()
    alpha = torch.where(supervised > 0, unsupervised_weight, 1.0)
    weights = (1 - kind) / supervised.clamp_min(1e-9) + alpha * kind / share.clamp_min(1e-9)
    return (losses * weights).mean()
