"""Guards the workspace of a retrain: the project's settings but for the source, and its cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_code.files import write_text
from model_code.project import Project
from orchestration import parameters
from orchestration.freshness.pilot import ANY_SIZE
from orchestration.freshness.workspace import SETTINGS, make_workspace
from orchestration.pipeline.code_lock import PACKAGES

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
    return Project(root)


def made(project, folder, share_cache=False):
    """A workspace of the project."""
    workspace = Project(folder, home=project.root)
    make_workspace(workspace, Path.mkdir, share_cache)
    return workspace


def test_a_retrain_works_beside_the_project_with_code_and_settings_of_the_start(project, tmp_path):
    workspace = made(project, tmp_path / "work", share_cache=True)
    settings = parameters.load(workspace.params_file)
    assert (settings.corpus.source, settings.corpus.path) == ("snapshot", "snapshot")
    assert settings.retrievers["hce"].training.hierarchy_weight == 0.3
    assert (workspace.root / "data").is_symlink(), "other folders are found under their names"
    assert project.params_file.read_text() == PARAMS
    assert str(project.root / ".dvc" / "cache") in (workspace.root / ".dvc" / "config").read_text()
    before = workspace.params_file.read_text()
    write_text(project.params_file, PARAMS.replace("0.3", "0.5"))
    write_text(project.root / "model_code" / "file", "edited")
    again = made(project, tmp_path / "work", share_cache=True)
    assert (again, again.params_file.read_text()) == (workspace, before)
    assert (again.root / "model_code" / "file").read_text() == "model_code"


@pytest.mark.parametrize("base", ["../models/mini", ".models/mini", "trained"])
def test_a_base_beside_the_project_or_in_a_hidden_folder_is_found(project, tmp_path, base):
    (project.root / base).mkdir(parents=True, exist_ok=True)
    parameters.write_overrides(project.params_file, [f"encoder.base={base}"])
    workspace = made(project, tmp_path / "some" / "where" / "work")
    found = workspace.root / parameters.load(workspace.params_file).encoder.base
    assert found.resolve() == (project.root / base).resolve()


def test_one_that_was_cut_off_while_it_was_made_is_made_anew(project, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(parameters, "write_overrides", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            made(project, tmp_path / "work")
    assert not (tmp_path / "work").exists()
    assert parameters.load(made(project, tmp_path / "work").params_file).corpus.source == "snapshot"


def test_what_a_pilot_asks_of_its_workspace_are_settings(project):
    parameters.write_overrides(project.params_file, [*SETTINGS, *ANY_SIZE])
    assert parameters.load(project.params_file).acceptance.min_documents == 1
