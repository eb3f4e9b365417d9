"""Guards garbage collection: what stages left behind is found with its size and freed, and nothing else is touched."""

from __future__ import annotations

import shutil

import pytest

from model_code.files import hash_path
from orchestration import garbage
from orchestration.project import LOCK_HELD, Project


@pytest.fixture
def project(tmp_path, monkeypatch) -> Project:
    """A project with state, artifacts and live files, and one abandoned checkpoint and one half-made output."""
    for name in (LOCK_HELD, "FRESHET_STATE"):
        monkeypatch.delenv(name, raising=False)
    for name, size in {
        "params.yaml": 10,
        "artifacts/corpus/documents.parquet": 1000,
        ".freshet/promotions.jsonl": 20,
        ".freshet/checkpoints/abandoned/step/weights.safetensors": 300_000,
        ".freshet/staging/train@hce-1/encoder.bin": 500_000,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"0" * size)
    return Project(tmp_path)


def test_leftovers_are_found_with_their_size_largest_first(project):
    before = hash_path(project.root)
    found = garbage.find_garbage(project, keep=3)
    assert [(item.what, item.megabytes) for item in found] == [
        ("staging of train@hce-1", 0.5), ("checkpoints of abandoned", 0.3)
    ]  # fmt: skip
    assert hash_path(project.root) == before  # looking frees nothing


def test_leftovers_are_freed_and_nothing_else(project):
    kept = [project.root / name for name in ("params.yaml", "artifacts", ".freshet/promotions.jsonl")]
    before = [hash_path(path) for path in kept]
    garbage.collect(project, garbage.find_garbage(project, keep=3))
    assert [hash_path(path) for path in kept] == before
    assert garbage.find_garbage(project, keep=3) == []
    assert sorted(path.name for path in project.state.rglob("*")) == [
        "checkpoints", "project.lock", "promotions.jsonl", "staging"
    ]  # fmt: skip


def test_only_what_was_chosen_is_freed(project):
    staging, _ = garbage.find_garbage(project, keep=3)
    garbage.collect(project, [staging])
    assert [item.what for item in garbage.find_garbage(project, keep=3)] == ["checkpoints of abandoned"]


def test_a_fresh_project_has_no_garbage(tmp_path):
    assert garbage.find_garbage(Project(tmp_path), keep=1) == []


def test_what_a_build_finished_meanwhile_hinders_nothing(project):
    found = garbage.find_garbage(project, keep=3)
    shutil.rmtree(project.state / "staging" / "train@hce-1")
    garbage.collect(project, found)
    assert garbage.find_garbage(project, keep=3) == []
