"""Test training by several processes: the weights of one process, and recovery from a death."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from model_code.context import StageContext
from model_code.distributed import engine
from model_code.distributed.engine import ScaleSettings
from model_code.distributed.training import _process, train
from model_code.errors import FreshetError, SettingsError
from model_code.training.optimisation import make_accelerator
from tests.model_code.distributed.jobs import train_and_die, train_tiny
from tests.model_code.training.example import make_encoder

# Of a weight, after 6 steps.
TOLERANCE = 1e-5


def make_context(folder: Path) -> StageContext:
    for name in ("output", "checkpoints"):
        (folder / name).mkdir(parents=True)
    make_encoder(folder / "tiny")
    inputs = {"encoder": folder / "tiny"}
    return StageContext(folder, inputs, folder / "output", {}, folder / "checkpoints")


def read_weights(context: StageContext) -> torch.Tensor:
    """Return all weights in the order of their names."""
    weights = torch.load(context.output / "weights.pt", weights_only=True)
    return torch.cat([weights[name].detach().flatten() for name in sorted(weights)])


class Training(NamedTuple):
    weights: torch.Tensor
    report: dict


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """Train by one process, without Ray."""
    context = make_context(tmp_path_factory.mktemp("local"))
    report = train(train_tiny, context, 2)
    return Training(read_weights(context), report)


def test_uneven_sharing_of_batches_is_refused(monkeypatch):
    def two_processes(cpu: bool) -> SimpleNamespace:
        return SimpleNamespace(num_processes=2)

    monkeypatch.setattr("model_code.training.optimisation.PartialState", two_processes)
    message = "accumulation is 3, but 2 processes share the batches of a step"

    with pytest.raises(SettingsError, match=message):
        make_accelerator(torch.device("cpu"), "float32", accumulation=3)


def test_one_ray_process_gives_equal_bits(ray, tmp_path, local):
    context = make_context(tmp_path)

    with engine.using(ScaleSettings(engine="ray", workers=1)):
        report = train(train_tiny, context, 2)

    assert report == local.report
    assert torch.equal(read_weights(context), local.weights)


def test_relative_paths_refer_to_callers_folder(ray, tmp_path, monkeypatch, local):
    make_context(tmp_path)
    monkeypatch.chdir(tmp_path)
    inputs = {"encoder": Path("tiny")}
    context = StageContext(Path(), inputs, Path("output"), {}, Path("checkpoints"))

    with engine.using(ScaleSettings(engine="ray", workers=1)):
        train(train_tiny, context, 2)

    assert torch.equal(read_weights(context), local.weights)


class RayContext(NamedTuple):
    """Context of a training on Ray with this number of processes."""

    processes: int

    def get_world_size(self) -> int:
        return self.processes


@pytest.fixture
def set_processes(monkeypatch):
    """Make Ray report a number of processes."""
    ray_train = pytest.importorskip("ray.train")

    def set_count(processes: int) -> None:
        def get_context() -> RayContext:
            return RayContext(processes)

        monkeypatch.setattr(ray_train, "get_context", get_context)

    return set_count


@pytest.fixture
def config_with_missing_folder(tmp_path) -> dict[str, Any]:
    return {"work": None, "context": None, "folder": tmp_path / "away"}


def test_single_process_returns_the_missing_folder(
    set_processes, config_with_missing_folder, tmp_path
):
    set_processes(1)

    error = _process(config_with_missing_folder)

    assert isinstance(error, FreshetError)
    message = f"the project lies in {tmp_path / 'away'}, which is not there on "
    assert message in str(error)


def test_one_of_several_processes_raises_the_missing_folder(
    set_processes, config_with_missing_folder, tmp_path
):
    set_processes(2)
    message = f"the project lies in {tmp_path / 'away'}, which is not there on "

    with pytest.raises(FreshetError, match=message):
        _process(config_with_missing_folder)


def test_dead_process_of_two_is_resumed(ray, tmp_path, local):
    context = make_context(tmp_path)

    with engine.using(ScaleSettings(engine="ray", workers=2)):
        report = train(train_and_die, context, 2)

    assert (tmp_path / "died").exists()
    assert report["processes"] == 2
    torch.testing.assert_close(read_weights(context), local.weights, atol=TOLERANCE, rtol=0)
    for row, local_row in zip(report["history"], local.report["history"], strict=True):
        assert row == pytest.approx(local_row, abs=1e-4)
