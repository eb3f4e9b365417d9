"""Guards resuming: killed with SIGKILL in mid-training and started again, a run ends with the very same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from model_code.files import hash_path, read_json
from model_code.training.checkpoints import latest_checkpoint
from tests.model_code.training.example import make_encoder
from tests.model_code.training.training_process import train

ROOT = Path(__file__).parents[3]


def train_and_kill(kill_at: int, *folders: Path) -> int:
    program = [sys.executable, "-m", "tests.model_code.training.training_process", *map(str, folders), str(kill_at)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    return subprocess.run(program, cwd=ROOT, env=environment).returncode


def test_killed_and_resumed_is_as_if_never_stopped(tmp_path: Path):
    tiny = tmp_path / "tiny"
    make_encoder(tiny)
    assert train(tiny, tmp_path / "other_checkpoints", tmp_path / "whole") == 0
    assert train_and_kill(7, tiny, tmp_path / "checkpoints", tmp_path / "resumed") == -signal.SIGKILL
    assert not (tmp_path / "resumed").exists()
    assert train(tiny, tmp_path / "checkpoints", tmp_path / "resumed") == 4
    assert hash_path(tmp_path / "resumed") == hash_path(tmp_path / "whole")
    reclustered = read_json(tmp_path / "whole" / "result.json")["reclustered"]
    assert min(reclustered) <= 4  # so that the checkpoint held a hierarchy


def test_only_the_newest_whole_checkpoint_counts(tmp_path: Path):
    for name in ("step-50", "step-100", ".step-150", "step-x"):
        (tmp_path / name).mkdir()
    assert latest_checkpoint(tmp_path).name == "step-100"


@pytest.mark.parametrize("folder", [None, Path("/nonexistent")])
def test_no_folder_no_checkpoint(folder: Path | None):
    assert latest_checkpoint(folder) is None
