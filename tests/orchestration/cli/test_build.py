"""Tests of `freshet run` and `freshet plan`: when settings are edited, and what is printed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from model_code.errors import FreshetError
from model_code.project import Project
from orchestration import parameters
from orchestration.cli import app
from orchestration.pipeline import repro

SHIPPED_SETTINGS = Path(__file__).parents[3] / "params.yaml"


@pytest.fixture
def project(tmp_path, monkeypatch) -> Project:
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    (tmp_path / "corpus.lock.json").write_text('{"source": "files", "content_hash": "0"}')
    shutil.copy(SHIPPED_SETTINGS, tmp_path / "params.yaml")
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)


def run_command(*arguments: str) -> str:
    return CliRunner().invoke(app, arguments, catch_exceptions=False).output


def test_next_command_enters_a_folder_with_a_blank(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    output = run_command("init", "my notes")

    assert "next: cd 'my notes' && freshet demo" in output


def test_unknown_stage_does_not_change_settings(project):
    before = project.params_file.read_bytes()

    with pytest.raises(FreshetError, match="'nosuch' is not a stage"):
        run_command("run", "--set", "seed=5", "nosuch")

    assert project.params_file.read_bytes() == before


def test_run_accepts_a_new_retriever(project, monkeypatch):
    requested = []

    def fake_repro(project, targets, force):
        requested.extend(targets)
        return ()

    monkeypatch.setattr(repro, "repro", fake_repro)

    run_command("run", "--set", "retrievers.third.epochs=2", "train@third")

    settings = parameters.load(project.params_file)
    assert requested == ["train@third"]
    assert settings.retrievers["third"].training.epochs == 2


@pytest.fixture
def planned_stage(monkeypatch):
    """A plan of one stage."""
    stage = repro.PlannedStage("train@hce", "run", ("it never ran", "seed changed"))
    monkeypatch.setattr(repro, "plan", lambda project, targets: [stage])
    return stage


def test_plan_is_printed_as_a_line(project, planned_stage):
    assert run_command("plan") == "run   train@hce                it never ran; seed changed\n"


def test_plan_is_printed_as_json(project, planned_stage):
    (record,) = json.loads(run_command("plan", "--json"))

    assert record == {
        "address": "train@hce",
        "action": "run",
        "reasons": ["it never ran", "seed changed"],
    }
