"""Guards that kill -9 leaves nothing half-written and that the next run ends with the same hashes.

Run: python -m pytest tests/end_to_end/test_kill.py
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.tiny_project import dvc, environment, output_hashes


def test_training_learns_something_so_that_resuming_it_is_a_test(built_by_dvc):
    report = json.loads((built_by_dvc / "artifacts" / "train" / "hce" / "report.json").read_text())
    assert report["best_step"] > 0


def start_stage(folder: Path, address: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "dvc", "repro", "--force", "--single-item", address]
    return subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def wait_for(happened, seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it never came to that point"
        time.sleep(0.01)


def kill_dvc(process: subprocess.Popen[bytes]) -> None:
    """kill -9 of DVC alone; its stage has to notice by itself."""
    children = psutil.Process(process.pid).children(recursive=True)
    assert children, "the stage is not running"
    process.kill()
    process.wait()
    assert not psutil.wait_procs(children, timeout=30)[1], "the stage outlived its DVC"


def test_a_killed_training_resumes_to_the_same_output(copy_of_build):
    address, output = "train@hce", "artifacts/train/hce"
    before = output_hashes(copy_of_build)
    process = start_stage(copy_of_build, address)
    checkpoints = copy_of_build / ".freshet" / "checkpoints"
    wait_for(lambda: list(checkpoints.glob("*/*")) and not (copy_of_build / output).exists())
    kill_dvc(process)
    assert not (copy_of_build / output).exists(), "a stage that was killed has put its output in place"
    dvc(
        copy_of_build, "repro", "--force", "--single-item", address, cold=True
    )  # else DVC's cache would give back the old output
    assert output_hashes(copy_of_build) == before
    assert not list(checkpoints.iterdir())


SHARDS = """
SHARD = 20  # three of them


def encode_shards(encoder, shards, method, really=encode_shards):
    import time

    for start, found in really(encoder, shards, method):
        with Path("encoded").open("a") as log:
            print(start, file=log)
        yield start, found
        while Path("hold").exists():
            time.sleep(0.01)
"""


def test_an_index_that_is_killed_after_a_shard_resumes_with_that_shard_to_the_same_output(copy_of_build):
    address, output, log = "index@hce", "artifacts/index/hce", copy_of_build / "encoded"
    with (copy_of_build / "model_code" / "scale" / "encoding.py").open("a") as code:
        code.write(SHARDS)
    dvc(copy_of_build, "repro", "--force", "--single-item", address, cold=True)
    before, encoded = output_hashes(copy_of_build), log.read_text().split()
    assert encoded == ["0", "20", "40"]
    log.unlink()
    (copy_of_build / "hold").touch()
    process = start_stage(copy_of_build, address)
    checkpoints = copy_of_build / ".freshet" / "checkpoints"
    wait_for(lambda: list(checkpoints.rglob("000000000000.npy")))
    kill_dvc(process)
    assert not (copy_of_build / output).exists(), "a stage that was killed has put its output in place"
    assert log.read_text().split() == encoded[:1]
    (copy_of_build / "hold").unlink()
    dvc(copy_of_build, "repro", "--force", "--single-item", address, cold=True)
    assert log.read_text().split() == encoded, "the first shard was not encoded again"
    assert output_hashes(copy_of_build) == before
    assert not list(checkpoints.iterdir())


def runs_a_stage(process: psutil.Process) -> bool:
    """Whether one of the processes below it runs a stage; some end while they are looked at."""
    with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
        return any("orchestration.pipeline.run_stage" in each.cmdline() for each in process.children(True))
    return False


@pytest.mark.parametrize(("command", "number"), [("demo", signal.SIGINT), ("run", signal.SIGTERM)])
def test_a_signal_ends_a_build_in_one_line_and_starts_nothing_again(copy_of_build, command, number):
    """SIGINT as a terminal sends it, to the whole group; SIGTERM to the command alone."""
    for name in ("artifacts", ".dvc/cache"):
        shutil.rmtree(copy_of_build / name)
    (copy_of_build / "dvc.lock").unlink()
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestration.cli", command], cwd=copy_of_build, env=environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    below = psutil.Process(process.pid)
    wait_for(lambda: runs_a_stage(below))
    children = below.children(recursive=True)
    os.killpg(process.pid, number) if command == "demo" else process.send_signal(number)
    told = process.communicate(timeout=60)[1].splitlines()
    assert process.returncode == 130
    assert told[-1].startswith("stopped; finished stages are kept")
    assert [line for line in told[:-1] if not line.startswith(("Running stage", "  corpus"))] == []
    assert not psutil.wait_procs(children, timeout=30)[1], "a process was left"
