"""Guards the workspace of a retrain: its code, its settings, and its cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_code.files import write_text
from model_code.project import Project
from orchestration import parameters
from orchestration.freshness.pilot import SAMPLE_SETTINGS
from orchestration.freshness.workspace import SNAPSHOT_SETTINGS, make_workspace
from orchestration.pipeline.code_lock import PACKAGES

PARAMS = """\
corpus: {source: files, path: data, merge_duplicates: text}   # the user's
retrievers:
  hce: {hierarchy_weight: 0.3}
  svdr: {kind: lexical}
"""


@pytest.fixture
def project(tmp_path):
    """A project with settings, stand-ins for its code, and two folders."""
    root = tmp_path / "project"
    for name in (*PACKAGES, "data", "trained"):
        (root / name).mkdir(parents=True)
        write_text(root / name / "file", name)
    write_text(root / "params.yaml", PARAMS)
    write_text(root / "dvc.yaml", "stages: {}\n")
    return Project(root)


def make(project, folder, share_cache=False):
    workspace = Project(folder, home=project.root)
    make_workspace(workspace, Path.mkdir, share_cache)
    return workspace


def test_workspace_reads_snapshot(project, tmp_path):
    workspace = make(project, tmp_path / "work")

    settings = parameters.load(workspace.params_file)
    assert settings.corpus.source == "snapshot"
    assert settings.corpus.path == "snapshot"
    assert settings.retrievers["hce"].training.hierarchy_weight == 0.3


def test_settings_of_project_are_not_changed(project, tmp_path):
    make(project, tmp_path / "work")

    assert project.params_file.read_text() == PARAMS


def test_other_folders_are_linked(project, tmp_path):
    workspace = make(project, tmp_path / "work")

    assert (workspace.root / "data").is_symlink()


def test_cache_of_project_is_shared(project, tmp_path):
    workspace = make(project, tmp_path / "work", share_cache=True)

    dvc_config = (workspace.root / ".dvc" / "config").read_text()
    assert str(project.root / ".dvc" / "cache") in dvc_config


def test_existing_workspace_is_not_changed(project, tmp_path):
    workspace = make(project, tmp_path / "work", share_cache=True)
    settings = workspace.params_file.read_text()
    write_text(project.params_file, PARAMS.replace("0.3", "0.5"))
    write_text(project.root / "model_code" / "file", "edited")

    again = make(project, tmp_path / "work", share_cache=True)

    assert again == workspace
    assert again.params_file.read_text() == settings
    assert (again.root / "model_code" / "file").read_text() == "model_code"


@pytest.mark.parametrize("base", ["../models/mini", ".models/mini", "trained"])
def test_folder_of_base_encoder_is_found(project, tmp_path, base):
    (project.root / base).mkdir(parents=True, exist_ok=True)
    parameters.write_overrides(project.params_file, [f"encoder.base={base}"])

    workspace = make(project, tmp_path / "some" / "where" / "work")

    found = workspace.root / parameters.load(workspace.params_file).encoder.base
    assert found.resolve() == (project.root / base).resolve()


def test_interrupted_workspace_is_made_again(project, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(parameters, "write_overrides", interrupt)
        with pytest.raises(KeyboardInterrupt):
            make(project, tmp_path / "work")
    assert not (tmp_path / "work").exists()

    workspace = make(project, tmp_path / "work")

    assert parameters.load(workspace.params_file).corpus.source == "snapshot"


def test_settings_of_pilot_are_known(project):
    parameters.write_overrides(project.params_file, [*SNAPSHOT_SETTINGS, *SAMPLE_SETTINGS])

    assert parameters.load(project.params_file).acceptance.min_documents == 1
