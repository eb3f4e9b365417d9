"""Guards training by several processes: the same weights as by one that takes all batches, and a
death resumed.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

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

TOLERANCE = 1e-5  # of a weight, after 6 steps


def context_in(folder: Path) -> StageContext:
    for name in ("output", "checkpoints"):
        (folder / name).mkdir(parents=True)
    make_encoder(folder / "tiny")
    return StageContext(
        folder, {"encoder": folder / "tiny"}, folder / "output", {}, folder / "checkpoints"
    )


def weights(context: StageContext) -> torch.Tensor:
    found = torch.load(context.output / "weights.pt", weights_only=True)
    return torch.cat([found[name].detach().flatten() for name in sorted(found)])


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.Tensor, dict]:
    """What one process makes, without Ray."""
    context = context_in(tmp_path_factory.mktemp("local"))
    return weights_after(train(train_tiny, context, 2), context)


def weights_after(report: dict, context: StageContext) -> tuple[torch.Tensor, dict]:
    return weights(context), report


def test_uneven_sharing_of_batches_is_refused(monkeypatch):
    monkeypatch.setattr(
        "model_code.training.optimisation.PartialState",
        lambda cpu: SimpleNamespace(num_processes=2),
    )
    with pytest.raises(
        SettingsError, match="accumulation is 3, but 2 processes share the batches of a step"
    ):
        make_accelerator(torch.device("cpu"), "float32", accumulation=3)


def test_one_ray_process_gives_equal_bits(ray, tmp_path, expected):
    context = context_in(tmp_path)
    with engine.using(ScaleSettings(engine="ray", workers=1)):
        report = train(train_tiny, context, 2)
    assert report == expected[1]
    assert torch.equal(weights(context), expected[0])


def test_relative_paths_refer_to_callers_folder(ray, tmp_path, monkeypatch, expected):
    context_in(tmp_path)
    monkeypatch.chdir(tmp_path)
    here = StageContext(Path(), {"encoder": Path("tiny")}, Path("output"), {}, Path("checkpoints"))
    with engine.using(ScaleSettings(engine="ray", workers=1)):
        train(train_tiny, here, 2)
    assert torch.equal(weights(here), expected[0])


def test_a_machine_without_the_projects_folder_is_named(tmp_path, monkeypatch):
    train_of_ray = pytest.importorskip("ray.train")
    config = {"work": None, "context": None, "folder": tmp_path / "away"}
    message = f"the project lies in {tmp_path / 'away'}, which is not there on "
    monkeypatch.setattr(
        train_of_ray, "get_context", lambda: SimpleNamespace(get_world_size=lambda: 1)
    )
    found = _process(config)
    assert isinstance(found, FreshetError)
    assert message in str(found)
    monkeypatch.setattr(
        train_of_ray, "get_context", lambda: SimpleNamespace(get_world_size=lambda: 2)
    )
    with pytest.raises(FreshetError, match=message):
        _process(config)


def test_dead_process_of_two_is_resumed(ray, tmp_path, expected):
    context = context_in(tmp_path)
    with engine.using(ScaleSettings(engine="ray", workers=2)):
        report = train(train_and_die, context, 2)
    assert (tmp_path / "died").exists()
    assert report["processes"] == 2
    torch.testing.assert_close(weights(context), expected[0], atol=TOLERANCE, rtol=0)
    for row, other in zip(report["history"], expected[1]["history"], strict=True):
        assert row == pytest.approx(other, abs=1e-4)
