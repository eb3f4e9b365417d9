"""Guards that kill -9 leaves nothing half-written and that the next run ends with the same hashes.

`make test-long` kills every long command of a project's life, again and again, and compares it with an undisturbed one.

Run: python -m pytest tests/end_to_end/test_kill.py
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from orchestration import parameters
from tests.end_to_end.tiny_project import dvc, environment, freshet, output_hashes


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


KILLS = 5  # of each command
SETTINGS = (
    "retrievers={weak: {steps: 1, evaluate_every: 1, hierarchy_weight: 0.0, batches: random, negatives: random}}",
    "promotion.alpha=0.49",
    "promotion.margin=0.99",
    "drift.minimum_batch=10",
    "acceptance.min_documents=40",
)
WORDS = ["dune", "cactus", "sand", "mirage", "oasis", "camel", "scorpion", "heat", "dust", "nomad"]
DESERTS = [
    {"id": f"desert-{i}", "title": f"desert {WORDS[i % 10]}", "text": " ".join(random.Random(i).sample(WORDS, 6)),
     "queries": [f"{WORDS[i % 10]} {WORDS[(i + 3) % 10]}"]}
    for i in range(12)
]  # fmt: skip


class KilledLife:
    """A project's life, each of whose long commands is killed so many times before it may end."""

    def __init__(self, folder: Path, kills: int, took: dict[str, float]) -> None:
        """took: seconds of each command, by its first words; those that are not known are measured."""
        self.folder, self.kills, self.took, self.chance = folder, kills, took, random.Random(kills)
        self.answers: dict[str, object] = {}

    def command(self, *arguments: str, done=lambda: False) -> None:
        """Run a command to its end, having killed it at random moments. done: whether what it is for has happened."""
        name = " ".join(arguments)
        for _ in range(self.kills):
            if done():
                break
            self._kill(arguments, self.chance.uniform(0.1, 1.0) * self.took[name])
        start = time.monotonic()
        if not done():
            self._end(self._start(arguments))
        self.took.setdefault(name, time.monotonic() - start)
        self.answers[f"{len(self.answers)} {name}"] = self.state()

    def state(self) -> object:
        """What may not depend on any kill: outputs, champion, documents, and what searches find first."""
        status = json.loads(freshet(self.folder, "status", "--json").stdout)
        champion = status["champion"] and status["champion"]["retriever"]
        live = {row["retriever"]: row["documents"] for row in status["live"]}
        first = {text: self.first(text) for text in (DESERTS[2]["text"], "wave tide harbour")} if live else {}
        hashes = output_hashes(self.folder) if (self.folder / "dvc.lock").exists() else {}
        return hashes, champion, live, first, (self.folder / "corpus.lock.json").read_text()

    def first(self, text: str) -> list[str]:
        """The ids that a text finds."""
        return [hit["document_id"] for hit in json.loads(freshet(self.folder, "search", text, "--json").stdout)]

    def champion(self) -> str | None:
        """The version that is champion."""
        found = json.loads(freshet(self.folder, "status", "--json").stdout)["champion"]
        return found and found["version"]

    def _start(self, arguments: tuple[str, ...]) -> psutil.Popen:
        module = ("dvc",) if arguments[0] == "repro" else ("orchestration.cli",)
        return psutil.Popen(
            [sys.executable, "-m", *module, *arguments], cwd=self.folder, env=environment(),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def _kill(self, arguments: tuple[str, ...], seconds: float) -> None:
        process = self._start(arguments)
        with contextlib.suppress(psutil.TimeoutExpired):
            process.wait(seconds)
        children = process.children(recursive=True) if process.is_running() else []
        for each in [process, *children]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.communicate()
        assert not psutil.wait_procs(children, timeout=60)[1]

    def _end(self, process: psutil.Popen) -> None:
        told = process.communicate(timeout=900)[1]
        assert process.returncode == 0, told


def live_through(life: KilledLife) -> dict[str, object]:
    """From the source to a champion that is rolled back."""
    parameters.assign(life.folder / "params.yaml", SETTINGS)
    (life.folder / "deserts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in DESERTS))
    life.command("ingest")
    life.command("run")
    life.command("register", "weak")
    life.command("promote", done=lambda: life.champion() is not None)
    first = life.champion()
    parameters.assign(life.folder / "params.yaml", ["retrievers.weak.steps=16", "retrievers.weak.evaluate_every=8"])
    life.command("repro")
    life.command("register", "weak")
    life.command("promote", done=lambda: life.champion() != first)
    life.command("add", "deserts.jsonl")
    life.command("tools", "drift")
    life.command("tools", "compact")
    life.command("retrain", "--pilot", "40")
    life.command("retrain", "--key", "first")
    last = life.champion()
    life.command("rollback", done=lambda: life.champion() != last)
    source = life.folder / "data" / "documents.jsonl"
    source.write_text("".join(source.read_text().splitlines(keepends=True)[3:]))
    life.command("sync", "--force")
    life.command("tools", "gc", "--delete", "--keep", "1")
    life.command("verify")
    return life.answers


@pytest.mark.long
def test_a_life_whose_commands_are_killed_ends_as_an_undisturbed_one(copy_of_build, tmp_path):
    took: dict[str, float] = {}
    twin = shutil.copytree(copy_of_build, tmp_path / "twin")
    undisturbed = live_through(KilledLife(copy_of_build, 0, took))
    killed = live_through(KilledLife(twin, KILLS, took))
    for command, state in undisturbed.items():
        assert killed[command] == state, command
