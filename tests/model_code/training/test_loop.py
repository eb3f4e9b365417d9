"""Tests of checkpoints and the training state.

A run that is killed with SIGKILL and started again ends with the same bytes. The training state
keeps the history and the best evaluation, and its JSON loses nothing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from model_code.errors import FreshetError
from model_code.files import hash_path, read_json
from model_code.training.loop import TrainingState, latest_checkpoint
from tests.model_code.training.example import make_encoder
from tests.model_code.training.training_process import train

ROOT = Path(__file__).parents[3]


def train_and_kill(kill_at: int, encoder: Path, checkpoints: Path, output: Path) -> int:
    """Train in a process of its own that kills itself after a step; return its exit status."""
    program = [sys.executable, "-m", "tests.model_code.training.training_process"]
    arguments = [str(encoder), str(checkpoints), str(output), str(kill_at)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    return subprocess.run(program + arguments, cwd=ROOT, env=environment).returncode


def test_resumed_training_equals_uninterrupted_training(tmp_path: Path):
    tiny = tmp_path / "tiny"
    checkpoints = tmp_path / "checkpoints"
    make_encoder(tiny)

    whole_started_from = train(tiny, tmp_path / "other_checkpoints", tmp_path / "whole")
    exit_status = train_and_kill(7, tiny, checkpoints, tmp_path / "resumed")
    killed_run_wrote_output = (tmp_path / "resumed").exists()
    resumed_from = train(tiny, checkpoints, tmp_path / "resumed")

    assert whole_started_from == 0
    assert exit_status == -signal.SIGKILL
    assert not killed_run_wrote_output
    assert resumed_from == 4
    assert hash_path(tmp_path / "resumed") == hash_path(tmp_path / "whole")
    # The run was re-clustered before step 4, so the checkpoint held a hierarchy.
    reclustered_at = read_json(tmp_path / "whole" / "result.json")["reclustered"]
    assert min(reclustered_at) <= 4


def test_latest_checkpoint_ignores_unfinished_folders(tmp_path: Path):
    for name in ("step-50", "step-100", ".step-150", "step-x"):
        (tmp_path / name).mkdir()

    assert latest_checkpoint(tmp_path).name == "step-100"


def test_missing_folder_has_no_checkpoint(tmp_path: Path):
    assert latest_checkpoint(tmp_path / "nonexistent") is None
    assert latest_checkpoint(None) is None


def make_losses(loss: float) -> dict[str, torch.Tensor]:
    """Make the loss of one step, and a contrastive part of twice its value."""
    return {"loss": torch.tensor(loss), "contrastive": torch.tensor(2 * loss)}


def test_history_rows_are_means_of_the_window():
    state = TrainingState(window=[make_losses(1.0), make_losses(2.0)], step=2)

    state.log(learning_rate=0.1)
    # No step was taken since, so this adds no row.
    state.log(learning_rate=0.3)
    state.step = 3
    state.window = [make_losses(7.0)]
    state.log(learning_rate=0.2)

    assert state.history == [
        {"step": 2, "loss": 1.5, "contrastive": 3.0, "learning_rate": 0.1},
        {"step": 3, "loss": 7.0, "contrastive": 14.0, "learning_rate": 0.2},
    ]


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_infinite_loss_stops_training(loss: float):
    state = TrainingState(window=[make_losses(loss)], step=4)

    with pytest.raises(FreshetError, match="step 4; lower learning_rate"):
        state.log(learning_rate=0.1)


def test_first_of_equal_evaluations_is_best():
    state = TrainingState()
    weight = torch.zeros(2)
    improved = []

    for step, value in [(0, 0.3), (5, 0.5), (10, 0.5), (15, 0.4)]:
        state.step = step
        weight.fill_(step)
        improved.append(state.record_evaluation("hit@1", value, {"w": weight}))

    assert improved == [True, True, False, False]
    assert state.best_step == 5
    assert state.best_metric == 0.5
    assert state.evaluations_since_best == 2
    assert state.best_weights["w"].tolist() == [5, 5]
    assert [row["hit@1"] for row in state.history] == [0.3, 0.5, 0.5, 0.4]


def test_loss_and_metric_share_a_row():
    state = TrainingState(window=[make_losses(1 / 3)], step=1)

    state.log(0.1)
    state.record_evaluation("hit@1", 0.1 + 0.2, {"w": torch.zeros(1)})

    assert len(state.history) == 1


def test_state_survives_json():
    state = TrainingState(window=[make_losses(1 / 3)], step=1, reclustered_at=[1])
    state.log(0.1)
    state.record_evaluation("hit@1", 0.1 + 0.2, {"w": torch.zeros(1)})

    loaded = TrainingState(**json.loads(json.dumps(state.to_json())))

    assert loaded.to_json() == state.to_json()
    assert loaded.history == state.history
