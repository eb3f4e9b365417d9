"""Guards mined negatives in the loop: when they are mined, that a resumed run draws as an uninterrupted one does, and
that they go together with the hierarchy loss, with co-training and with step 0's vectors.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from model_code.training.checkpoints import latest_checkpoint
from model_code.training.trainer import Trainer
from tests.model_code.training.example import make_data, make_dev, make_encoder, make_settings, make_tree
from tests.model_code.training.killing import kill_at


def make_trainer(tmp_path: Path, checkpoints: Path | None = None, cluster=None, **changes) -> Trainer:
    encoder, data = make_encoder(tmp_path / "tiny"), make_data()
    if changes.get("negatives") == "bm25":  # which finds nothing in common between "ask7" and "word7"
        data = replace(
            data, passages=replace(data.passages, texts=[text.replace("word", "ask") for text in data.passages.texts])
        )
    settings = make_settings(**({"negatives": "nearest", "negatives_refresh": 5, "negatives_depth": 4} | changes))
    tree = make_tree(encoder.encode(data.passages.texts)) if settings.needs_hierarchy else None
    return Trainer(encoder, data, settings, 0, tree, make_dev(data.passages), checkpoints=checkpoints, cluster=cluster)


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.encoder.parameters()])


@pytest.mark.parametrize(  # checkpoints are at steps 4, 8 and 12, refreshes at 0, 5 and 10
    ("kind", "kill"), [("nearest", 7), ("nearest", 10), ("mined", 7), ("bm25", 7)]
)
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


def test_a_checkpoint_at_a_refresh_resumes_alike(tmp_path: Path):
    changes = {"negatives_refresh": 4, "steps": 8}
    expected = make_trainer(tmp_path, tmp_path / "others", **changes).fit()
    kill_at(make_trainer(tmp_path, tmp_path / "checkpoints", **changes), 5)
    assert latest_checkpoint(tmp_path / "checkpoints").name == "step-4"
    assert make_trainer(tmp_path, tmp_path / "checkpoints", **changes).fit() == expected


def test_refreshes_come_at_their_steps_with_the_weights_of_the_moment(tmp_path: Path):
    trainer, seen = make_trainer(tmp_path, learning_rate=1e-2), {}
    refresh = trainer.negatives.refresh

    def spy(encoder, vectors) -> None:
        refresh(encoder, vectors)
        seen[trainer.state.step] = (vectors is not None, trainer.negatives.positives.copy())

    trainer.negatives.refresh = spy
    start = trainer.encoder.encode(trainer.data.passages.texts)
    trainer.fit(start)
    assert {step: given for step, (given, _) in seen.items()} == {0: True, 5: False, 10: False}
    assert not np.allclose(seen[0][1], seen[5][1])


def test_static_mining_is_the_first_refresh_kept(tmp_path: Path):
    mined, nearest = (make_trainer(tmp_path, negatives=kind, negatives_refresh=99) for kind in ("mined", "nearest"))
    assert mined.fit() == nearest.fit()
    assert torch.equal(weights(mined), weights(nearest))


@pytest.mark.parametrize("kind", ["bm25", "mined", "nearest"])
def test_hard_negatives_go_with_the_hierarchy_loss_and_leave_out_leaves(tmp_path: Path, kind: str):
    trainer = make_trainer(tmp_path, negatives=kind, negatives_outside_leaf=True, batches="siblings")
    result = trainer.fit()
    assert {"contrastive", "hierarchy_1", "hierarchy_2"} <= set(result.history[1])
    leaves = trainer.hierarchy.leaves
    for number in range(4):
        pairs = trainer.schedule[number]
        own, known = trainer.data.pairs.passages[pairs], [np.array([p]) for p in trainer.data.pairs.passages[pairs]]
        drawn = trainer.negatives.draw(pairs, known, np.random.default_rng(number))
        assert any(drawn)
        for row, passage in zip(drawn, own, strict=True):
            assert all(leaves[other] != leaves[passage] for other in row)


def test_without_leaves_and_hierarchy_loss_no_tree_is_read(tmp_path: Path):
    trainer = make_trainer(tmp_path, hierarchy_weight=0.0)
    assert trainer.hierarchy is None
    assert trainer.fit().steps == 12


def test_cotraining_keeps_the_table_and_takes_the_new_leaves(tmp_path: Path):
    trees = []

    def cluster(vectors: np.ndarray):
        trees.append(make_tree(vectors))
        return trees[-1]

    trainer = make_trainer(tmp_path, cluster=cluster, cotraining=True, negatives="mined", negatives_outside_leaf=True)
    values = iter([0.1, 0.2, 0.2, 0.2])
    trainer.dev.score = lambda *_: next(values)
    assert trainer.fit().reclustered_at == (4,)
    assert trainer.negatives.hierarchy is trees[0]
    assert trainer.collate.negatives is trainer.negatives
