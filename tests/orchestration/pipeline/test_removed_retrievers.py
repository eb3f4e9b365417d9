"""Guards that a build reads no output of a retriever that was taken out of the settings, and loses nothing else.

Run: python -m pytest tests/orchestration/pipeline/test_removed_retrievers.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from model_code.files import hash_path
from orchestration.pipeline.repro import remove_unnamed_outputs
from orchestration.project import Project


@pytest.fixture
def project(tmp_path) -> Project:
    (tmp_path / "params.yaml").write_text("retrievers: {hce: {hierarchy_weight: 0.2}}\n")
    for name in ("train/hce", "index/hce", "evaluate/hce", "baselines/bm25", "corpus", "old"):
        write(tmp_path / "artifacts" / name)
    write(tmp_path / "elsewhere")
    return Project(tmp_path)


def write(folder: Path) -> None:
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "a.txt").write_text("a")


def test_outputs_of_retrievers_without_settings_go_and_all_else_stays(project):
    before = hash_path(project.root)
    assert remove_unnamed_outputs(project) == []
    for name in ("train/old", "index/old", "evaluate/old", "train/.hce.old"):
        write(project.artifacts / name)
    removed = remove_unnamed_outputs(project)
    assert sorted(map(str, removed)) == [
        "artifacts/evaluate/old", "artifacts/index/old", "artifacts/train/.hce.old", "artifacts/train/old"
    ]  # fmt: skip
    assert hash_path(project.root) == before


def test_files_and_links_are_no_outputs(project):
    (project.artifacts / "train" / ".gitignore").write_text("/hce\n")
    (project.artifacts / "train" / "link").symlink_to(project.root / "elsewhere")
    assert remove_unnamed_outputs(project) == []
    assert (project.root / "elsewhere" / "inner" / "a.txt").exists()


def test_before_the_first_build_there_is_nothing_to_remove(tmp_path):
    (tmp_path / "params.yaml").write_text("retrievers: {hce: {}}\n")
    assert remove_unnamed_outputs(Project(tmp_path)) == []
