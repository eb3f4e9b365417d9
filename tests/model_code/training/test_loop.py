"""Guards resuming: killed with SIGKILL in mid-training and started again, a run ends with the very
same bytes; and the training state: rows of the history, the best of the evaluations, and a JSON
that loses nothing.
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


def train_and_kill(kill_at: int, *folders: Path) -> int:
    program = [
        sys.executable,
        "-m",
        "tests.model_code.training.training_process",
        *map(str, folders),
        str(kill_at),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    return subprocess.run(program, cwd=ROOT, env=environment).returncode


def test_resumed_training_equals_uninterrupted_training(tmp_path: Path):
    tiny = tmp_path / "tiny"
    make_encoder(tiny)
    assert train(tiny, tmp_path / "other_checkpoints", tmp_path / "whole") == 0
    assert (
        train_and_kill(7, tiny, tmp_path / "checkpoints", tmp_path / "resumed") == -signal.SIGKILL
    )
    assert not (tmp_path / "resumed").exists()
    assert train(tiny, tmp_path / "checkpoints", tmp_path / "resumed") == 4
    assert hash_path(tmp_path / "resumed") == hash_path(tmp_path / "whole")
    reclustered = read_json(tmp_path / "whole" / "result.json")["reclustered"]
    assert min(reclustered) <= 4  # so that the checkpoint held a hierarchy


def test_only_the_newest_whole_checkpoint_counts(tmp_path: Path):
    for name in ("step-50", "step-100", ".step-150", "step-x"):
        (tmp_path / name).mkdir()
    assert latest_checkpoint(tmp_path).name == "step-100"
    assert latest_checkpoint(tmp_path / "nonexistent") is latest_checkpoint(None) is None


def parts(loss: float) -> dict[str, torch.Tensor]:
    return {"loss": torch.tensor(loss), "contrastive": torch.tensor(2 * loss)}


def test_history_rows_are_means_of_the_window():
    state = TrainingState(window=[parts(1.0), parts(2.0)], step=2)
    state.log(learning_rate=0.1)
    state.log(learning_rate=0.3)  # nothing since: no new row
    state.step, state.window = 3, [parts(7.0)]
    state.log(learning_rate=0.2)
    assert state.history == [
        {"step": 2, "loss": 1.5, "contrastive": 3.0, "learning_rate": 0.1},
        {"step": 3, "loss": 7.0, "contrastive": 14.0, "learning_rate": 0.2},
    ]


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_training(loss: float):
    with pytest.raises(FreshetError, match="step 4; lower learning_rate"):
        TrainingState(window=[parts(loss)], step=4).log(learning_rate=0.1)


def test_first_of_equal_evaluations_is_best():
    state, weight = TrainingState(), torch.zeros(2)
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
    state = TrainingState(window=[parts(1 / 3)], step=1, reclustered_at=[1])
    state.log(0.1)
    state.record_evaluation("hit@1", 0.1 + 0.2, {"w": torch.zeros(1)})
    assert len(state.history) == 1
    again = TrainingState(**json.loads(json.dumps(state.to_json())))
    assert again.to_json() == state.to_json()
    assert again.history == state.history
