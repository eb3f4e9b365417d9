"""Guards what re-clustering keeps and drops: the encoder's moments stay, the centroids start anew."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from model_code.hierarchy.tree import Hierarchy
from model_code.training.batches import BatchSchedule
from model_code.training.collator import Collator
from model_code.training.cotraining import recluster
from model_code.training.objective import Objective
from model_code.training.optimisation import freeze, make_optimizer
from tests.model_code.training.example import make_data, make_encoder, make_settings, make_tree


def test_the_encoders_moments_stay_and_the_centroids_start_anew(tmp_path: Path):
    encoder, data, settings = make_encoder(tmp_path / "tiny"), make_data(), make_settings()
    freeze(encoder.backbone, settings.frozen_layers)
    vectors = encoder.encode(data.passages.texts)
    tree = make_tree(vectors)
    objective = Objective(encoder, settings, tree)
    optimizer = make_optimizer(objective, settings)
    objective(Collator(data, settings, encoder.tokenize, 0, tree)(0, BatchSchedule(data, settings, 0)[0]))[
        "loss"
    ].backward()
    optimizer.step()
    moments = {p: optimizer.state[p]["exp_avg"].clone() for p in encoder.parameters() if p in optimizer.state}

    smaller = Hierarchy(  # another number of nodes
        tuple(centroids[:1] for centroids in tree.centroids), (np.zeros(1, np.int32),) * 2, np.zeros(24, np.int32)
    )
    fresh = recluster(objective, optimizer, smaller, settings)
    assert len(moments) > 5
    for parameter, moment in moments.items():
        assert torch.equal(fresh.state[parameter]["exp_avg"], moment)
        assert fresh.state[parameter]["step"] == 1
    assert [parameter.shape for parameter in objective.hierarchy.parameters()] == [(1, 32), (1, 32)]
    assert not any(parameter in fresh.state for parameter in objective.hierarchy.parameters())
    assert {id(p) for g in fresh.param_groups for p in g["params"]} == {
        id(p) for p in objective.parameters() if p.requires_grad
    }
