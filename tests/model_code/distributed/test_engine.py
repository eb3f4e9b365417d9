"""Guards the group `scale`: what makes no sense is refused, a missing or small Ray is explained,
nothing is left on.

Run: python -m pytest tests/model_code/scale (the tests of Ray itself need pip install -e
'.[scale]')
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
def test_nonsense_is_refused(values, message):
    with pytest.raises(SettingsError, match=message):
        parse(ScaleSettings, values, "scale")


def test_engine_is_no_part_of_stage_keys():
    loaded = parameters.load(ROOT / "params.yaml")
    assert loaded.scale == ScaleSettings()
    assert not [stage for stage in stages.expand(loaded.retrievers) if "scale" in stage.groups]


def test_without_ray_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(FreshetError, match=r"pip install -e '\.\[scale\]'"),
        engine.using(ScaleSettings(engine="ray")),
    ):
        pass
    assert engine.current() == ScaleSettings()


def test_a_cluster_that_does_not_answer_is_named():
    def init(*_: object, **__: object) -> None:
        raise ConnectionError("nobody there")

    hint = "where it asks for a token, set RAY_AUTH_MODE=token here"
    with pytest.raises(
        FreshetError, match=rf"there is no Ray at scale.address 'far:6379' \({hint}\): nobody there"
    ):
        engine._start(SimpleNamespace(init=init), ScaleSettings(engine="ray", address="far:6379"))


def test_too_many_workers_are_refused(ray):
    message = "3 workers, so 4 CPUs, one of them a spare, and Ray has 3"
    with (
        engine.using(ScaleSettings(engine="ray", workers=3)),
        pytest.raises(FreshetError, match=message),
    ):
        engine.ray()
    message = "1 workers, so 1 GPUs, and Ray has 0"
    with (
        engine.using(ScaleSettings(engine="ray", gpus_per_worker=1)),
        pytest.raises(FreshetError, match=message),
    ):
        engine.ray()


def test_settings_end_with_their_block(ray):
    with engine.using(ScaleSettings(engine="ray", workers=2)):
        assert engine.ray().is_initialized()
        assert engine.current().workers == 2
    assert engine.current().engine == "local"
    assert ray.is_initialized()
