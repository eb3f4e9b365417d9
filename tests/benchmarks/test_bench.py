"""Tests of `freshet bench`.

An absent GPU is refused, an option belongs to its benchmark, and a row that could not be measured
is printed nevertheless.
"""

from __future__ import annotations

import importlib.util
import json
import os
import types
from collections.abc import Callable
from functools import partial
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


def use_rows_of(monkeypatch: pytest.MonkeyPatch, rows: Callable[..., list[dict]]) -> None:
    """Let a function make the rows of every benchmark."""

    def import_module(name: str) -> types.SimpleNamespace:
        return types.SimpleNamespace(rows=rows)

    monkeypatch.setattr(benches.importlib, "import_module", import_module)


def set_gpu(monkeypatch: pytest.MonkeyPatch, is_available: bool) -> None:
    """Let PyTorch report a GPU, or none."""
    monkeypatch.setattr(torch.cuda, "is_available", partial(bool, is_available))


@pytest.mark.parametrize("name", OWNERS["gpu"])
def test_absent_gpu_is_refused_before_measuring(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def rows(device: str = "cpu") -> list[dict]:
        pytest.fail("it ran")

    use_rows_of(monkeypatch, rows)
    set_gpu(monkeypatch, is_available=False)

    with pytest.raises(FreshetError, match="--gpu needs a CUDA device"):
        bench(name, gpu=True)


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_other_devices_need_no_gpu(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    set_gpu(monkeypatch, is_available=False)

    benches.require_device(device)


def test_benchmark_without_gpu_path_refuses_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    # The function has no parameter for the device.
    use_rows_of(monkeypatch, list)
    set_gpu(monkeypatch, is_available=False)

    with pytest.raises(SettingsError, match="the benchmark search has no GPU path"):
        benches.run_bench("search", device="cuda")


def test_gpu_and_large_reach_the_benchmark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = []

    def rows(device: str = "cpu", large: bool = False) -> list[dict]:
        options.append((device, large))
        return [row("x", 2.0, 1.0, goal=1.5), skipped("y", "no reason")]

    use_rows_of(monkeypatch, rows)
    set_gpu(monkeypatch, is_available=True)

    bench("cluster", gpu=True, large=True)
    bench("cluster", as_json=True)

    assert options == [("cuda", True), ("cpu", False)]
    printed = capsys.readouterr().out
    assert "skipped: no reason" in printed
    assert '"ratio": 2.0' in printed


@pytest.mark.parametrize("option", OWNERS)
def test_option_of_another_benchmark_is_refused(option: str) -> None:
    other = next(name for name in benches.BENCHES if name not in OWNERS[option])
    owner = OWNERS[option][0]

    with pytest.raises(SettingsError, match=f"--{option} is for the benchmark {owner}"):
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


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict]]:
    """The name and the options of each benchmark that runs, in place of its measurement."""
    recorded = []

    def run(name: str, **options: object) -> dict:
        recorded.append((name, options))
        return {"name": name, "rows": [row("speed", 2.0, 1.0, goal=1.0)]}

    monkeypatch.setattr(benches, "run_bench", run)
    return recorded


def test_all_benchmarks_run_by_default(
    runs: list[tuple[str, dict]], capsys: pytest.CaptureFixture[str]
) -> None:
    bench()

    assert [name for name, _ in runs] == list(benches.BENCHES)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line in benches.BENCHES] == list(benches.BENCHES)


def test_option_reaches_only_its_benchmark(runs: list[tuple[str, dict]]) -> None:
    bench(kills=3)

    assert [name for name, _ in runs] == list(benches.BENCHES)
    assert [name for name, options in runs if options == {"kills": 3}] == ["faults", "writers"]


def test_writers_are_measured_several_times(runs: list[tuple[str, dict]]) -> None:
    bench("writers", runs=5, inline=True)

    assert runs == [("writers", {"runs": 5, "inline": True})]


def test_gpu_alone_runs_the_benchmarks_with_a_gpu_path(
    runs: list[tuple[str, dict]], capsys: pytest.CaptureFixture[str]
) -> None:
    bench(gpu=True, as_json=True)

    assert runs == [(name, {"device": "cuda"}) for name in OWNERS["gpu"]]
    printed = json.loads(capsys.readouterr().out)
    assert [benchmark["name"] for benchmark in printed] == list(OWNERS["gpu"])


@pytest.mark.parametrize("module", benches.BENCHES.values())
def test_module_of_a_benchmark_defines_rows(module: str) -> None:
    source = Path(importlib.util.find_spec(module).origin).read_text()

    assert "\ndef rows(" in source


def test_freshet_bench_passes_its_arguments_on(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def run(arguments: list[str], env: dict[str, str]) -> types.SimpleNamespace:
        runs.append((arguments[1:], env["PYTHONPATH"]))
        return types.SimpleNamespace(returncode=3)

    monkeypatch.setattr(command.subprocess, "run", run)
    monkeypatch.setenv("PYTHONPATH", "elsewhere")

    arguments = ["faults", "--kills", "3", "--json", "--help"]
    result = CliRunner().invoke(app, ["bench", *arguments])

    assert result.exit_code == 3
    python_path = os.pathsep.join([str(command.REPOSITORY), "elsewhere"])
    assert runs == [(["-m", "benchmarks", *arguments], python_path)]
    assert (command.REPOSITORY / "benchmarks" / "__main__.py").is_file()


def test_freshet_bench_needs_a_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "REPOSITORY", tmp_path)

    with pytest.raises(FreshetError, match="run from a clone of the repository"):
        command.bench(types.SimpleNamespace(args=[]))


def test_at_least_fifty_hostile_requests_differ() -> None:
    requests = dict(hostile.requests(1000))

    assert len(requests) >= 50
    assert len(set(requests.values())) == 50


def test_every_post_route_gets_hostile_requests() -> None:
    contents = list(dict(hostile.requests(1000)).values())

    for path in hostile.POST:
        assert any(path.encode() in content for content in contents)
