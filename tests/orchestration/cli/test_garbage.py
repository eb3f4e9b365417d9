"""Guards garbage collection: what stages left behind is found with its size and freed, and nothing else is touched."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from dvc.repo import Repo

from model_code.files import hash_path
from orchestration.cli import garbage
from orchestration.freshness import pilot
from orchestration.project import Project
from orchestration.registry import versions


@pytest.fixture
def project(tmp_path) -> Project:
    """A project with state, artifacts and live files, and one abandoned checkpoint and one half-made output."""
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
    assert [(item.label, item.megabytes) for item in found] == [
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


def test_what_a_killed_pilot_left_is_freed_and_one_that_runs_is_left_alone(project):
    work = project.state / pilot.FOLDER / "project"
    work.mkdir(parents=True)
    (work / "weights").write_bytes(b"0" * 700_000)
    found = garbage.find_garbage(project, keep=3)
    assert (found[0].label, found[0].megabytes) == ("work of a pilot that was cut off", 0.7)
    with (project.state / pilot.LOCK).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "pilot" not in " ".join(item.label for item in garbage.find_garbage(project, keep=3))
        garbage.collect(project, found)
        assert work.exists(), "it began after the leftovers were listed"
    garbage.collect(project, garbage.find_garbage(project, keep=3))
    assert not work.exists()


def test_only_what_was_chosen_is_freed(project):
    staging, _ = garbage.find_garbage(project, keep=3)
    garbage.collect(project, [staging])
    assert [item.label for item in garbage.find_garbage(project, keep=3)] == ["checkpoints of abandoned"]


def test_a_fresh_project_has_no_garbage(tmp_path):
    assert garbage.find_garbage(Project(tmp_path), keep=1) == []


def test_what_a_build_finished_meanwhile_hinders_nothing(project):
    found = garbage.find_garbage(project, keep=3)
    shutil.rmtree(project.state / "staging" / "train@hce-1")
    garbage.collect(project, found)
    assert garbage.find_garbage(project, keep=3) == []


def test_the_work_of_old_retrains_goes_and_that_of_the_newest_stays(project):
    for age, key in enumerate(("hce-000003", "hce-000001", "hce-000009")):
        plan = project.state / "retraining" / key / "plan.json"
        plan.parent.mkdir(parents=True)
        plan.write_text("{}")
        (plan.parent / "index.bin").write_bytes(b"0" * 1_000_000)
        os.utime(plan, (1000 + age, 1000 + age))

    def found(keep):
        return {item.label for item in garbage.find_garbage(project, keep) if "retrain" in item.label}

    assert found(1) == found(0) == {"work of retrain hce-000003", "work of retrain hce-000001"}
    assert found(3) == set()
    garbage.collect(project, garbage.find_garbage(project, keep=2))
    assert sorted(path.name for path in (project.state / "retraining").iterdir()) == ["hce-000001", "hce-000009"]


def test_a_version_frees_what_lies_in_the_project_s_own_store_and_no_more(project, monkeypatch):
    store = project.state / "mlflow"
    (store / "own").mkdir(parents=True)
    (store / "own" / "index.bin").write_bytes(b"0" * 2_000_000)
    known = [SimpleNamespace(version=number, run_id=number, retriever="hce") for number in ("1", "2", "3")]
    monkeypatch.setattr(versions, "versions", lambda project: known)
    monkeypatch.setattr(versions, "holder", lambda project, alias: None)
    own = {"1": [store / "own"], "2": []}
    monkeypatch.setattr(versions, "run_folders", lambda project, runs: own[runs[0]])
    registry = SimpleNamespace(versions=lambda: known, runs=lambda wanted: [])
    monkeypatch.setattr(versions, "open_registry", lambda project: nullcontext(registry))
    found = [(one.label, one.megabytes) for one in garbage.find_garbage(project, keep=1) if "version" in one.label]
    elsewhere = "its files lie in another store than the project's, and stay there"
    assert found == [("model version 1 (hce)", 2.0), (f"model version 2 (hce); {elsewhere}", 0.0)]


PIPELINE = "stages: {copy: {cmd: cp in out, deps: [in], outs: [out]}}\n"


@pytest.mark.parametrize("place", ["", "in/a/repository"])
def test_outputs_of_former_commits_stay_in_dvc_s_cache(tmp_path, monkeypatch, place):
    """Also where the project is a folder of a larger repository."""
    root = tmp_path / place
    (root / ".dvc").mkdir(parents=True)
    (root / ".dvc" / "config").write_text("[core]\n    analytics = false\n")
    (root / "dvc.yaml").write_text(PIPELINE)
    monkeypatch.chdir(root)

    def run(*command):
        subprocess.run(command, cwd=root, check=True, capture_output=True)

    run("git", "init", "-q", str(tmp_path))
    for text in ("of a commit", "of the next", "of none", "of the working tree"):
        (root / "in").write_text(text)
        Repo(str(root)).reproduce()
        if text.startswith("of a") or text.startswith("of the n"):
            run("git", "add", "in", "dvc.yaml", "dvc.lock", ".dvc/config")
            run("git", "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", text)
    (found,) = garbage.find_garbage(Project(root), keep=3)
    assert found.label == "1 files of DVC's cache that no commit or experiment refers to"
    garbage.collect(Project(root), [found])
    cached = {
        path.read_text() for path in (root / ".dvc" / "cache").rglob("*") if path.is_file() and path.suffix != ".json"
    }
    assert {"of a commit", "of the next", "of the working tree"} <= cached
    assert "of none" not in cached
