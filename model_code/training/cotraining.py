"""Co-training of encoder and hierarchy (HCE, Algorithm 3): cluster anew with a better encoder, and go on from there.

Whenever an evaluation beats all before it, the corpus is clustered again with the current encoder. Paths, siblings and
centroids are then the new tree's: the centroids' optimiser state, which belongs to nodes that are gone, is dropped, the
encoder's is kept, and learning rates follow their one schedule. Unlike in the paper's listing, the encoder returned is
the best one, not the last; the tree only serves training, so which one it saw last does not matter.
"""

from __future__ import annotations

import torch

from model_code.hierarchy.tree import Hierarchy
from model_code.training.objective import Objective
from model_code.training.optimisation import make_optimizer
from model_code.training.settings import TrainingSettings


def recluster(
    objective: Objective, optimizer: torch.optim.Optimizer, hierarchy: Hierarchy, settings: TrainingSettings
) -> torch.optim.Optimizer:
    """Give `objective` the centroids of `hierarchy`, and return a new optimiser that keeps the encoder's moments.

    Without a hierarchy loss there are no centroids: only siblings and leaves are the new tree's.
    """
    if settings.hierarchy_weight > 0:
        objective.recluster(hierarchy)
    fresh = make_optimizer(objective, settings)
    for parameter in objective.encoder.parameters():
        if parameter in optimizer.state:
            fresh.state[parameter] = optimizer.state[parameter]
    return fresh
