"""Guards `freshet bench`: a GPU that is not there is refused in one line, options belong to
benchmarks, and a row that could not be measured is still printed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import types
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import bench as benches
from benchmarks import hostile, overhead
from benchmarks.bench import OWNERS, bench
from benchmarks.measurement import row, skipped
from model_code.errors import FreshetError, SettingsError
from orchestration.cli import build as command
from orchestration.cli.app import app


def test_absent_or_unused_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = types.SimpleNamespace(rows=lambda device="cpu": pytest.fail("it ran"))
    monkeypatch.setattr(benches.importlib, "import_module", lambda module: rows)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in OWNERS["gpu"]:
        with pytest.raises(FreshetError, match="--gpu needs a CUDA device"):
            bench(name, gpu=True)
    for device in ("cpu", "auto"):
        benches.require_device(device)
    rows.rows = list
    with pytest.raises(SettingsError, match="the benchmark search has no GPU path"):
        benches.run_bench("search", device="cuda")


def test_gpu_and_large_reach_the_benchmark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = []

    def rows(device: str = "cpu", large: bool = False) -> list[dict]:
        given.append((device, large))
        return [row("x", 2.0, 1.0, goal=1.5), skipped("y", "no reason")]

    monkeypatch.setattr(
        benches.importlib, "import_module", lambda module: types.SimpleNamespace(rows=rows)
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    bench("cluster", gpu=True, large=True)
    bench("cluster", as_json=True)
    assert given == [("cuda", True), ("cpu", False)]
    printed = capsys.readouterr().out
    assert "skipped: no reason" in printed
    assert '"ratio": 2.0' in printed


@pytest.mark.parametrize("option", OWNERS)
def test_an_option_of_another_benchmark_is_refused(option: str) -> None:
    other = next(name for name in benches.BENCHES if name not in OWNERS[option])
    with pytest.raises(SettingsError, match=f"--{option} is for the benchmark {OWNERS[option][0]}"):
        bench(other, **{option: 1})


def measure_idle_build(monkeypatch: pytest.MonkeyPatch, status_code: int) -> tuple[dict, list[str]]:
    """Measure a build whose commands end with a status; return the row and the commands."""
    commands = []

    def run(project: object, command: list[str], check: bool = True) -> types.SimpleNamespace:
        commands.append(command[3])
        return types.SimpleNamespace(returncode=status_code)

    monkeypatch.setattr(overhead, "_run", run)
    return overhead._measure_idle(None, 2), commands


def test_idle_build_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    row, commands = measure_idle_build(monkeypatch, status_code=0)

    assert commands == ["status", "repro", "repro"]
    assert row["met"] is True
    assert row["ours"] is not None


def test_changed_build_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    row, commands = measure_idle_build(monkeypatch, status_code=1)

    assert commands == ["status"]
    assert row["met"] is None
    assert row["ours"] is None


def test_all_benchmarks_run_by_default(monkeypatch, capsys) -> None:
    ran: list[tuple] = []

    def run(name: str, **options: object) -> dict:
        ran.append((name, options))
        return {"name": name, "rows": [row("speed", 2.0, 1.0, goal=1.0)]}

    monkeypatch.setattr(benches, "run_bench", run)
    bench(kills=3)
    assert [name for name, _ in ran] == list(benches.BENCHES)
    sources = [
        Path(importlib.util.find_spec(module).origin).read_text()
        for module in benches.BENCHES.values()
    ]
    assert all("\ndef rows(" in source for source in sources)
    assert [name for name, options in ran if options == {"kills": 3}] == ["faults"]
    printed = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in printed if line.strip() in benches.BENCHES] == list(
        benches.BENCHES
    )
    ran.clear()
    bench(gpu=True, as_json=True)
    assert ran == [(name, {"device": "cuda"}) for name in OWNERS["gpu"]]
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == list(OWNERS["gpu"])


def test_freshet_bench_passes_its_arguments_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    def run(given: list[str], env: dict[str, str]) -> types.SimpleNamespace:
        ran.append((given[1:], env["PYTHONPATH"]))
        return types.SimpleNamespace(returncode=3)

    monkeypatch.setattr(command.subprocess, "run", run)
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    assert (
        CliRunner().invoke(app, ["bench", "faults", "--kills", "3", "--json", "--help"]).exit_code
        == 3
    )
    arguments = ["-m", "benchmarks", "faults", "--kills", "3", "--json", "--help"]
    assert ran == [(arguments, os.pathsep.join([str(command.REPOSITORY), "elsewhere"]))]
    assert (command.REPOSITORY / "benchmarks" / "__main__.py").is_file()
    monkeypatch.setattr(command, "REPOSITORY", tmp_path)
    with pytest.raises(FreshetError, match="run from a clone of the repository"):
        command.bench(types.SimpleNamespace(args=[]))


def test_fifty_kinds_of_hostile_requests_are_sent_to_every_route_and_differ():
    kinds = dict(hostile.requests(1000))
    assert len(kinds) >= 50 == len(set(kinds.values()))
    assert all(any(path.encode() in content for content in kinds.values()) for path in hostile.POST)
