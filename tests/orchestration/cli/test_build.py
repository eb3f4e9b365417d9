"""Guards that `freshet run` edits the settings only for stages that there are, and how `freshet plan` is printed.

Run: python -m pytest tests/orchestration/cli/test_build.py
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from model_code.errors import FreshetError
from orchestration import parameters
from orchestration.cli import app
from orchestration.pipeline import repro

SHIPPED = Path(__file__).parents[3] / "params.yaml"


@pytest.fixture
def params(tmp_path, monkeypatch) -> Path:
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    (tmp_path / "corpus.lock.json").write_text('{"source": "files", "content_hash": "0"}')
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copy(SHIPPED, tmp_path / "params.yaml"))


def run(*arguments: str) -> None:
    CliRunner().invoke(app, ["run", *arguments], catch_exceptions=False)


def test_a_misspelt_stage_leaves_the_settings_as_they_are(params):
    before = params.read_bytes()
    with pytest.raises(FreshetError, match="'nosuch' is not a stage"):
        run("--set", "seed=5", "nosuch")
    assert params.read_bytes() == before


def test_a_retriever_that_the_edit_makes_can_be_asked_for(params, monkeypatch):
    asked = []
    monkeypatch.setattr(repro, "repro", lambda project, targets, force: asked.extend(targets) or ())
    run("--set", "retrievers.third.epochs=2", "train@third")
    assert asked == ["train@third"]
    assert parameters.load(params).retrievers["third"].training.epochs == 2


def test_a_plan_is_printed_for_people_and_for_programs(params, monkeypatch):
    stage = repro.PlannedStage("train@hce", "run", ("it never ran", "seed changed"))
    monkeypatch.setattr(repro, "plan", lambda project, targets: [stage])
    told = [CliRunner().invoke(app, ["plan", *options], catch_exceptions=False).output for options in ([], ["--json"])]
    assert told[0] == "run   train@hce                it never ran; seed changed\n"
    assert json.loads(told[1]) == [
        {"address": "train@hce", "action": "run", "reasons": ["it never ran", "seed changed"]}
    ]  # fmt: skip
