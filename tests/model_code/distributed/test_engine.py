"""Test the settings group `scale`, and errors of a missing or small Ray.

The tests with Ray need `pip install -e '.[scale]'`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from model_code.distributed import engine
from model_code.distributed.engine import ScaleSettings
from model_code.errors import FreshetError, SettingsError
from model_code.settings import parse
from orchestration import parameters
from orchestration.pipeline import stages

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"workers": 2},
            "workers is 2, but engine local is this process alone; set scale.engine: ray",
        ),
        ({"address": "auto"}, "address is auto, but engine local"),
        ({"engine": "spark"}, "must be one of 'local', 'ray'"),
        ({"engine": "ray", "workers": 0}, "workers is 0, but must be at least 1"),
    ],
)
def test_contradicting_settings_are_refused(values, message):
    with pytest.raises(SettingsError, match=message):
        parse(ScaleSettings, values, "scale")


def test_engine_is_no_part_of_stage_keys():
    settings = parameters.load(ROOT / "params.yaml")

    table = stages.expand(settings.retrievers)

    assert not [stage for stage in table if "scale" in stage.groups]


def test_engine_of_the_project_is_local():
    assert parameters.load(ROOT / "params.yaml").scale == ScaleSettings()


def test_missing_ray_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)

    with (
        pytest.raises(FreshetError, match=r"pip install -e '\.\[scale\]'"),
        engine.using(ScaleSettings(engine="ray")),
    ):
        pass

    assert engine.current() == ScaleSettings()


def test_unreachable_cluster_is_named():
    def init(*arguments: object, **options: object) -> None:
        raise ConnectionError("nobody there")

    unreachable_ray = SimpleNamespace(init=init)
    settings = ScaleSettings(engine="ray", address="far:6379")
    hint = "where it asks for a token, set RAY_AUTH_MODE=token here"
    message = rf"there is no Ray at scale.address 'far:6379' \({hint}\): nobody there"

    with pytest.raises(FreshetError, match=message):
        engine._start(unreachable_ray, settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ScaleSettings(engine="ray", workers=3),
            "3 workers, so 4 CPUs, one of them a spare, and Ray has 3",
        ),
        (ScaleSettings(engine="ray", gpus_per_worker=1), "1 workers, so 1 GPUs, and Ray has 0"),
    ],
)
def test_too_many_workers_are_refused(ray, settings, message):
    with engine.using(settings), pytest.raises(FreshetError, match=message):
        engine.ray()


def test_settings_end_with_their_block(ray):
    with engine.using(ScaleSettings(engine="ray", workers=2)):
        assert engine.ray().is_initialized()
        assert engine.current().workers == 2

    assert engine.current().engine == "local"
    assert ray.is_initialized()
