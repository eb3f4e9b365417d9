"""Guards that DVC starts with and without git, and that a build does not depend on what was built before.

Run: python -m pytest tests/orchestration/test_repro.py
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from orchestration.project import Project
from orchestration.repro import dvc_command, initialise, repro

ROOT = Path(__file__).parents[2]


@pytest.fixture
def unpacked(tmp_path) -> Project:
    """What an unpacked archive of the repository holds of DVC: its settings, and no git."""
    (tmp_path / ".dvc").mkdir()
    for name in (".dvc/config", ".dvc/.gitignore"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    return Project(tmp_path)


def dvc_starts(project: Project) -> bool:
    return subprocess.run(dvc_command("status", "-q"), cwd=project.root, capture_output=True).returncode == 0


def test_dvc_starts_without_git_and_uses_git_once_it_is_there(unpacked):
    assert not dvc_starts(unpacked)
    initialise(unpacked)
    assert dvc_starts(unpacked)
    local = unpacked.root / ".dvc" / "config.local"
    told = local.read_text()
    assert "no_scm = true" in told
    initialise(unpacked)
    assert local.read_text() == told
    subprocess.run(["git", "init", "-q"], cwd=unpacked.root, check=True)
    initialise(unpacked)
    assert "no_scm" not in local.read_text()
    assert dvc_starts(unpacked)


def test_settings_made_without_git_are_left_alone(tmp_path):
    project = Project(tmp_path)
    initialise(project)
    before = (tmp_path / ".dvc" / "config").read_text()
    initialise(project)
    assert (tmp_path / ".dvc" / "config").read_text() == before
    assert not (tmp_path / ".dvc" / "config.local").exists()


PIPELINE = """\
stages:
  train:
    foreach: ${retrievers}
    do:
      cmd: echo ${key} >> log && mkdir -p artifacts/train/${key} && echo ${key} > artifacts/train/${key}/model
      params: ["retrievers.${key}"]
      outs: ["artifacts/train/${key}"]
  comparison:
    cmd: mkdir -p artifacts/comparison && ls artifacts/train > artifacts/comparison/seen
    deps: [artifacts/train]
    outs: [artifacts/comparison]
"""


def test_a_retriever_taken_out_is_gone_for_later_stages_and_comes_back_from_the_cache(tmp_path, monkeypatch):
    for name, value in (("FRESHET_TRACKING", "off"), ("DVC_NO_ANALYTICS", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("FRESHET_STATE", raising=False)
    (tmp_path / "dvc.yaml").write_text(PIPELINE)
    project = Project(tmp_path)
    for names in (("one", "two"), ("one",), ("one", "two")):
        retrievers = ", ".join(f"{name}: {{epochs: 1}}" for name in names)
        (tmp_path / "params.yaml").write_text(f"retrievers: {{{retrievers}}}\n")
        list(repro(project))
        seen = (tmp_path / "artifacts" / "comparison" / "seen").read_text().split()
        assert seen == sorted(names)
    assert sorted((tmp_path / "log").read_text().split()) == ["one", "two"], "each is trained once"
