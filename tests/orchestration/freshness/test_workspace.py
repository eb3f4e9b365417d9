"""Guards the workspace of a retrain: the project's settings but for the source, its cache, and where training begins.

pytest tests/orchestration/freshness/test_workspace.py
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from model_code.errors import FreshetError
from model_code.files import write_json, write_text
from orchestration import parameters
from orchestration.freshness.workspace import keep_start, make_workspace
from orchestration.pipeline.code_lock import PACKAGES
from orchestration.project import Project

PARAMS = """\
corpus: {source: files, path: data, merge_duplicates: text}   # the user's
retrievers:
  hce: {hierarchy_weight: 0.3}
  svdr: {kind: lexical}
"""


@pytest.fixture
def project(tmp_path):
    """A project with nothing but settings, a folder of its own, and the names of its code."""
    root = tmp_path / "project"
    for name in (*PACKAGES, "data", "trained"):
        (root / name).mkdir(parents=True)
        write_text(root / name / "file", name)
    write_text(root / "params.yaml", PARAMS)
    write_text(root / "dvc.yaml", "stages: {}\n")
    (tmp_path / "snapshot").mkdir()
    return Project(root)


def starts(workspace):
    """What each retriever of a workspace begins with."""
    return {name: one.training.start for name, one in parameters.load(workspace.params_file).retrievers.items()}


def test_a_retrain_works_beside_the_project(project, tmp_path):
    workspace = make_workspace(project, tmp_path / "work", tmp_path / "snapshot")
    settings = parameters.load(workspace.params_file)
    assert (settings.corpus.source, settings.corpus.path) == ("snapshot", "snapshot")
    assert settings.retrievers["hce"].training.hierarchy_weight == 0.3
    assert settings.retrievers["hce"].training.start is None
    assert (workspace.root / "data").is_symlink(), "other folders are found under their names"
    assert not (workspace.root / "model_code").is_symlink(), "code is what it was when the retrain began"
    assert project.params_file.read_text() == PARAMS
    assert str(project.root / ".dvc" / "cache") in (workspace.root / ".dvc" / "config").read_text()


def test_training_begins_with_a_copy_of_the_encoder_that_is_named(project, tmp_path):
    where = tmp_path / "work", tmp_path / "snapshot", project.root / "trained"
    workspace = make_workspace(project, *where)
    before = starts(workspace)
    assert before["hce"] is not None
    assert before["svdr"] is None
    assert (workspace.root / before["hce"] / "file").read_text() == "trained"
    assert starts(make_workspace(project, *where)) == before, "a retrain that goes on finds it there"
    write_text(project.root / "trained" / "file", "trained anew")
    other = make_workspace(project, tmp_path / "other", *where[1:])
    assert starts(other)["hce"] != before["hce"], "what DVC ran knows a start by its name"


def test_code_and_settings_stay_those_of_the_start(project, tmp_path):
    where = tmp_path / "work", tmp_path / "snapshot"
    workspace = make_workspace(project, *where)
    before = workspace.params_file.read_text()
    write_text(project.params_file, PARAMS.replace("0.3", "0.5"))
    write_text(project.root / "model_code" / "file", "edited")
    again = make_workspace(project, *where)
    assert (again, again.params_file.read_text()) == (workspace, before)
    assert (again.root / "model_code" / "file").read_text() == "model_code"


@pytest.mark.parametrize("base", ["../models/mini", ".models/mini", "trained"])
def test_a_base_beside_the_project_or_in_a_hidden_folder_is_found(project, tmp_path, base):
    (project.root / base).mkdir(parents=True, exist_ok=True)
    parameters.assign(project.params_file, [f"encoder.base={base}"])
    workspace = make_workspace(project, tmp_path / "some" / "where" / "work", tmp_path / "snapshot")
    found = workspace.root / parameters.load(workspace.params_file).encoder.base
    assert found.resolve() == (project.root / base).resolve()


def test_one_that_was_cut_off_while_it_was_made_is_made_anew(project, tmp_path, monkeypatch):
    where = tmp_path / "work", tmp_path / "snapshot"
    with monkeypatch.context() as patch:
        patch.setattr(parameters, "assign", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            make_workspace(project, *where)
    assert not where[0].exists()
    assert parameters.load(make_workspace(project, *where).params_file).corpus.source == "snapshot"


@pytest.mark.parametrize(("kind", "kept"), [("dense", True), ("lexical", False)])
def test_the_champions_encoder_is_kept_if_training_can_go_on_from_it(project, tmp_path, kind, kept):
    base, start = tmp_path / "base", tmp_path / "start"
    (base / "encoder").mkdir(parents=True)
    (base / "index").mkdir()
    write_json(base / "index" / "manifest.json", {"kind": kind})
    generation = SimpleNamespace(retriever="svdr", base=0, sibling=lambda number: base)
    keep_start(project, generation, start)
    assert not start.exists(), "by default a retrain begins with the base"
    parameters.assign(project.params_file, ["live.retrain_from=champion"])
    with nullcontext() if kept else pytest.raises(FreshetError, match="svdr has no dense encoder"):
        keep_start(project, generation, start)
    assert start.is_dir() == kept
