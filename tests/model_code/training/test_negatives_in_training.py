"""Guards mined negatives in the loop: when they are mined, that a resumed run draws as an uninterrupted one does, and
that they go together with the hierarchy loss, with co-training and with step 0's vectors.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from model_code.training.trainer import Trainer
from tests.model_code.training.example import make_data, make_dev, make_encoder, make_settings, make_tree
from tests.model_code.training.killing import kill_at


def make_trainer(tmp_path: Path, checkpoints: Path | None = None, cluster=None, **changes) -> Trainer:
    encoder, data = make_encoder(tmp_path / "tiny"), make_data()
    if changes.get("negatives") == "bm25":  # which finds nothing in common between "ask7" and "word7"
        data = replace(
            data, passages=replace(data.passages, texts=[text.replace("word", "ask") for text in data.passages.texts])
        )
    settings = make_settings(**({"negatives": "mined", "negatives_depth": 4} | changes))
    tree = make_tree(encoder.encode(data.passages.texts)) if settings.needs_hierarchy else None
    return Trainer(encoder, data, settings, 0, tree, make_dev(data.passages), checkpoints=checkpoints, cluster=cluster)


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.encoder.parameters()])


@pytest.mark.parametrize(("kind", "kill"), [("mined", 7), ("mined", 10), ("bm25", 7)])  # checkpoints: 4, 8 and 12
def test_a_resumed_run_is_as_if_never_stopped(tmp_path: Path, kind: str, kill: int):
    whole = make_trainer(tmp_path, tmp_path / "others", negatives=kind)
    expected = whole.fit()
    kill_at(make_trainer(tmp_path, tmp_path / "checkpoints", negatives=kind), kill)
    resumed = make_trainer(tmp_path, tmp_path / "checkpoints", negatives=kind)
    assert resumed.state.step == kill // 4 * 4
    assert resumed.fit() == expected
    assert torch.equal(weights(resumed), weights(whole))
    for name, array in whole.negatives.state().items():
        assert np.array_equal(resumed.negatives.state()[name], array)


def test_mining_comes_once_with_the_start_vectors(tmp_path: Path):
    trainer, seen = make_trainer(tmp_path, learning_rate=1e-2), {}
    refresh = trainer.negatives.refresh

    def spy(encoder, vectors) -> None:
        refresh(encoder, vectors)
        seen[trainer.state.step] = vectors is not None

    trainer.negatives.refresh = spy
    trainer.fit(trainer.encoder.encode(trainer.data.passages.texts))
    assert seen == {0: True}


def test_cotraining_keeps_the_table_and_takes_the_new_tree(tmp_path: Path):
    trees = []

    def cluster(vectors: np.ndarray):
        trees.append(make_tree(vectors))
        return trees[-1]

    trainer = make_trainer(tmp_path, cluster=cluster, cotraining=True, negatives="mined")
    values = iter([0.1, 0.2, 0.2, 0.2])
    trainer.dev.score = lambda *_: next(values)
    assert trainer.fit().reclustered_at == (4,)
    assert trainer.negatives.hierarchy is trees[0]
    assert trainer.collate.negatives is trainer.negatives
