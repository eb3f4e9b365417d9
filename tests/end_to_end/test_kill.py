"""Tests that kill -9 leaves nothing half-written.

The next run ends with the same hashes. `make test-long` kills every long command of a project's life
several times, and compares the result with that of an undisturbed project.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from orchestration import parameters
from orchestration.pipeline.stages import expand
from tests.end_to_end.tiny_project import dvc, environment, freshet, make_project, output_hashes
from tests.postgresql import free_ports

DAGSTER, MLFLOW = free_ports(2)
MENDED = ("notes of a DVC that was killed", "dvc.lock was half-written by a DVC that was killed")
# Beginnings of the lines that a build prints while it runs.
PROGRESS = ("Running stage", "  ", *MENDED)


def test_training_improves_the_retriever(built_by_dvc):
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
    """Kill DVC alone with kill -9; its stage must notice by itself."""
    children = psutil.Process(process.pid).children(recursive=True)
    assert children, "the stage is not running"
    process.kill()
    process.wait()
    _, still_running = psutil.wait_procs(children, timeout=30)
    assert not still_running, "the stage outlived its DVC"


@pytest.mark.full
def test_killed_training_resumes_to_the_same_output(copy_of_build):
    address = "train@hce"
    output = copy_of_build / "artifacts/train/hce"
    checkpoints = copy_of_build / ".freshet" / "checkpoints"
    before = output_hashes(copy_of_build)

    def is_training() -> bool:
        return bool(list(checkpoints.glob("*/*"))) and not output.exists()

    process = start_stage(copy_of_build, address)
    wait_for(is_training)
    kill_dvc(process)
    assert not output.exists(), "a stage that was killed has put its output in place"

    # Without `cold`, DVC's cache would give back the old output.
    dvc(copy_of_build, "repro", "--force", "--single-item", address, cold=True)

    assert output_hashes(copy_of_build) == before
    assert not list(checkpoints.iterdir())


SHARDS = """
SHARD_TEXTS = 20  # three of them


def encode_shards(encoder, shards, method, really=encode_shards):
    import time

    for start, found in really(encoder, shards, method):
        with Path("encoded").open("a") as log:
            print(start, file=log)
        yield start, found
        while Path("hold").exists():
            time.sleep(0.01)
"""


@pytest.mark.full
def test_killed_index_stage_resumes_after_its_shard(copy_of_build):
    address = "index@hce"
    output = copy_of_build / "artifacts/index/hce"
    log = copy_of_build / "encoded"
    checkpoints = copy_of_build / ".freshet" / "checkpoints"
    with (copy_of_build / "model_code" / "distributed" / "encoding.py").open("a") as code:
        code.write(SHARDS)
    dvc(copy_of_build, "repro", "--force", "--single-item", address, cold=True)
    before = output_hashes(copy_of_build)
    encoded = log.read_text().split()
    assert encoded == ["0", "20", "40"]

    def first_shard_is_written() -> bool:
        return bool(list(checkpoints.rglob("000000000000.npz")))

    log.unlink()
    (copy_of_build / "hold").touch()
    process = start_stage(copy_of_build, address)
    wait_for(first_shard_is_written)
    kill_dvc(process)
    assert not output.exists(), "a stage that was killed has put its output in place"
    assert log.read_text().split() == encoded[:1]

    (copy_of_build / "hold").unlink()
    dvc(copy_of_build, "repro", "--force", "--single-item", address, cold=True)

    # The first shard was not encoded again.
    assert log.read_text().split() == encoded
    assert output_hashes(copy_of_build) == before
    assert not list(checkpoints.iterdir())


def runs_a_stage(process: psutil.Process) -> bool:
    """Whether one of the processes below it runs a stage; some end while they are looked at."""
    with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
        return any(
            "orchestration.pipeline.run_stage" in each.cmdline() for each in process.children(True)
        )
    return False


def unbuilt(folder: Path) -> Path:
    """The project as if nothing had ever been built."""
    for name in ("artifacts", ".dvc/cache"):
        shutil.rmtree(folder / name)
    (folder / "dvc.lock").unlink()
    return folder


def start_command(folder: Path, command: str) -> subprocess.Popen[str]:
    ports = (
        ["--dagster-port", str(DAGSTER), "--mlflow-port", str(MLFLOW)] if command == "ui" else []
    )
    return subprocess.Popen(
        [sys.executable, "-m", "orchestration.cli", command, *ports],
        cwd=folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def processes_in(folder: Path) -> list[psutil.Process]:
    """Return every process that works in the project, whatever started it."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if Path(process.cwd()) == folder and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def ends_in_one_line(process: subprocess.Popen[str], folder: Path, number: signal.Signals) -> None:
    """Send a signal, and check that the command and its processes end with one line.

    A terminal sends SIGINT to the whole group; SIGTERM is sent to the command alone.
    """
    children = psutil.Process(process.pid).children(recursive=True)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    lines = errors.splitlines()
    assert lines, f"it ended without a word: {process.returncode}"

    # Pages end with 0, because they run until they are stopped.
    last_lines = {130: "stopped; finished stages are kept", 0: "stopped"}
    assert lines[-1].startswith(last_lines[process.returncode])
    assert [line for line in lines[:-1] if not line.startswith(PROGRESS)] == []
    _, still_running = psutil.wait_procs(children, timeout=30)
    assert not still_running, "a process was left"
    wait_for(lambda: not processes_in(folder), 30)


@pytest.mark.full
@pytest.mark.parametrize(("command", "number"), [("demo", signal.SIGINT), ("run", signal.SIGTERM)])
def test_signal_ends_build_without_retry(copy_of_build, command, number):
    process = start_command(unbuilt(copy_of_build), command)
    wait_for(lambda: runs_a_stage(psutil.Process(process.pid)))
    ends_in_one_line(process, copy_of_build, number)

    assert process.returncode == 130


@pytest.mark.long
@pytest.mark.parametrize("command", ["demo", "run"])
def test_interrupted_build_resumes_to_its_end(tmp_path, command):
    """SIGINT and SIGTERM take turns.

    Each build continues from where the one before ended, until its share of the stages has run.
    """
    folder = make_project(tmp_path / "project")
    settings = parameters.load(folder / "params.yaml")
    stage_count = len(expand(settings.retrievers, settings.fusions))
    lock = folder / "dvc.lock"

    for tenth in range(10):
        process = start_command(folder, command)
        share = (tenth + 0.5) / 10
        wait_for(functools.partial(has_come_to, process, lock, int(share * stage_count)), 600)
        # The delay in seconds varies, so that a stage is interrupted at its start and later.
        with contextlib.suppress(subprocess.TimeoutExpired):
            assert process.wait(tenth % 5 * 2) == 0
            # The build ended before the signal.
            break
        number = signal.SIGTERM if tenth % 2 else signal.SIGINT
        ends_in_one_line(process, folder, number)
        assert process.returncode == 130
        if tenth < 9:
            assert stages_of(lock) < stage_count, "it is stopped at fewer moments than it seems"

    process = start_command(folder, command)
    process.communicate(timeout=600)
    assert process.returncode == 0
    assert stages_of(lock) == stage_count


def has_come_to(process: subprocess.Popen[str], lock: Path, stages: int) -> bool:
    """Whether so many stages have ended and the next one runs, or the command has ended."""
    if process.poll() is not None:
        return True
    return stages_of(lock) >= stages and runs_a_stage(psutil.Process(process.pid))


def stages_of(lock: Path) -> int:
    """How many stages DVC has brought to their end."""
    return lock.read_text().count("    cmd: ") if lock.exists() else 0


def pages_answer() -> bool:
    with contextlib.suppress(httpx.TransportError):
        return all(
            httpx.get(f"http://127.0.0.1:{port}").status_code == 200 for port in (DAGSTER, MLFLOW)
        )
    return False


@pytest.fixture(scope="module")
def until_pages_answer(built_by_dvc, tmp_path_factory) -> float:
    """Seconds until the pages answer, if nothing disturbs them."""
    folder = shutil.copytree(built_by_dvc, tmp_path_factory.mktemp("ui") / "copy")
    start = time.monotonic()
    process = start_command(folder, "ui")
    wait_for(pages_answer)
    seconds = time.monotonic() - start

    ends_in_one_line(process, folder, signal.SIGINT)
    assert process.returncode == 0
    return seconds


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("tenth", range(10))
def test_signal_ends_pages_in_one_line(copy_of_build, until_pages_answer, number, tenth):
    process = start_command(copy_of_build, "ui")
    time.sleep(until_pages_answer * (tenth + 0.5) / 10)
    ends_in_one_line(process, copy_of_build, number)


# Number of kills of each command.
KILLS = 5
SETTINGS = (
    "retrievers={weak: {steps: 1, evaluate_every: 1, hierarchy_weight: 0.0, batches: random, "
    "negatives: bm25}}",
    "promotion.alpha=0.49",
    "promotion.margin=0.99",
    "drift.minimum_batch=10",
    "acceptance.min_documents=40",
)
WORDS = ["dune", "cactus", "sand", "mirage", "oasis", "camel", "scorpion", "heat", "dust", "nomad"]
DESERTS = [
    {
        "id": f"desert-{i}",
        "title": f"desert {WORDS[i % 10]}",
        "text": " ".join(random.Random(i).sample(WORDS, 6)),
        "queries": [f"{WORDS[i % 10]} {WORDS[(i + 3) % 10]}"],
    }
    for i in range(12)
]


class KilledLife:
    """A project's life, in which each long command is killed several times before it may end."""

    def __init__(self, folder: Path, kills: int, took: dict[str, float]) -> None:
        """Begin the life of a project.

        Args:
            folder: Folder of the project.
            kills: Number of kills of each command.
            took: Seconds of each command, by its words. Missing ones are measured.
        """
        self.folder = folder
        self.kills = kills
        self.took = took
        self.chance = random.Random(kills)
        self.answers: dict[str, object] = {}

    def command(self, *arguments: str, done=lambda: False) -> None:
        """Run a command to its end, having killed it at random moments. done: whether what it is
        for has happened.
        """
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
        """What may not depend on any kill: outputs, champion, documents, and what searches find
        first.
        """
        status = json.loads(freshet(self.folder, "status", "--json").stdout)
        champion = status["champion"] and status["champion"]["retriever"]
        live = {row["retriever"]: row["documents"] for row in status["live"]}
        first = (
            {text: self.first(text) for text in (DESERTS[2]["text"], "wave tide harbour")}
            if live
            else {}
        )
        hashes = output_hashes(self.folder) if (self.folder / "dvc.lock").exists() else {}
        return hashes, champion, live, first, (self.folder / "corpus.lock.json").read_text()

    def first(self, text: str) -> list[str]:
        """The ids that a text finds."""
        return [
            hit["document_id"]
            for hit in json.loads(freshet(self.folder, "search", text, "--json").stdout)
        ]

    def champion(self) -> str | None:
        """The version that is champion."""
        found = json.loads(freshet(self.folder, "status", "--json").stdout)["champion"]
        return found and found["version"]

    def _start(self, arguments: tuple[str, ...]) -> psutil.Popen:
        module = ("dvc",) if arguments[0] == "repro" else ("orchestration.cli",)
        return psutil.Popen(
            [sys.executable, "-m", *module, *arguments],
            cwd=self.folder,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

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
    parameters.write_overrides(life.folder / "params.yaml", SETTINGS)
    (life.folder / "deserts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in DESERTS))
    life.command("ingest")
    life.command("run")
    life.command("register", "weak")
    life.command("promote", done=lambda: life.champion() is not None)
    first = life.champion()
    parameters.write_overrides(
        life.folder / "params.yaml",
        ["retrievers.weak.steps=16", "retrievers.weak.evaluate_every=8"],
    )
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
def test_killed_commands_do_not_change_the_outcome(copy_of_build, tmp_path):
    took: dict[str, float] = {}
    twin = shutil.copytree(copy_of_build, tmp_path / "twin")
    undisturbed = live_through(KilledLife(copy_of_build, 0, took))
    killed = live_through(KilledLife(twin, KILLS, took))

    for command, state in undisturbed.items():
        assert killed[command] == state, command
