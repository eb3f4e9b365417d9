"""Tests of garbage collection.

What stages left behind is found with its size and deleted, and nothing else is touched.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from dvc.repo import Repo

from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.index.builder_factory import additions_folder
from model_code.files import hash_path
from model_code.incdsi.settings import LearnedAdditionSettings
from model_code.incdsi.store import cache_folder
from model_code.project import Project
from orchestration import parameters
from orchestration.cli import garbage
from orchestration.freshness import pilot
from orchestration.registry import versions
from tests.live_example import BASE, make_project, open_build


@pytest.fixture
def project(tmp_path) -> Project:
    """A project with state, artifacts, an abandoned checkpoint and a half-made output."""
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


def found(project, keep=3) -> list[str]:
    """Return the labels of the garbage."""
    return [item.label for item in garbage.find_garbage(project, keep)]


def test_leftovers_are_found_with_their_size(project):
    before = hash_path(project.root)

    staging, checkpoints = garbage.find_garbage(project, keep=3)

    assert staging.label == "staging of train@hce-1"
    assert staging.megabytes == 0.5
    assert checkpoints.label == "checkpoints of abandoned"
    assert checkpoints.megabytes == 0.3
    # Finding garbage deletes nothing.
    assert hash_path(project.root) == before


def test_only_chosen_leftovers_are_deleted(project):
    staging, checkpoints = garbage.find_garbage(project, keep=3)

    garbage.delete_garbage(project, [staging])

    assert found(project) == [checkpoints.label]


def test_leftovers_that_are_gone_are_ignored(project):
    """A build may have finished after the leftovers were found."""
    leftovers = garbage.find_garbage(project, keep=3)
    garbage.delete_garbage(project, leftovers[:1])

    garbage.delete_garbage(project, leftovers)

    assert found(project) == []


def test_other_files_are_kept(project):
    names = ("params.yaml", "artifacts", ".freshet/promotions.jsonl")
    before = [hash_path(project.root / name) for name in names]

    garbage.delete_garbage(project, garbage.find_garbage(project, keep=3))

    assert [hash_path(project.root / name) for name in names] == before
    assert sorted(path.name for path in project.state.rglob("*")) == [
        "checkpoints",
        "project.lock",
        "promotions.jsonl",
        "staging",
    ]


def test_fresh_project_has_no_garbage(tmp_path):
    assert found(Project(tmp_path)) == []


@pytest.fixture
def pilot_work(project):
    """The folder of an interrupted pilot."""
    work = project.state / pilot.FOLDER / "project"
    work.mkdir(parents=True)
    (work / "weights").write_bytes(b"0" * 700_000)
    return work


def test_interrupted_pilot_is_garbage(project, pilot_work):
    item, *_ = garbage.find_garbage(project, keep=3)
    garbage.delete_garbage(project, [item])

    assert item.label == "work of an interrupted pilot"
    assert item.megabytes == 0.7
    assert not pilot_work.exists()


def test_running_pilot_is_no_garbage(project, pilot_work):
    with (project.state / pilot.LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        assert "pilot" not in " ".join(found(project))


def test_pilot_that_began_since_is_kept(project, pilot_work):
    leftovers = garbage.find_garbage(project, keep=3)

    with (project.state / pilot.LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        garbage.delete_garbage(project, leftovers)

    assert pilot_work.exists()


@pytest.fixture
def retrained(project):
    """The project with the work of three retrains, oldest first."""
    for age, key in enumerate(("hce-000003", "hce-000001", "hce-000009")):
        plan = project.state / "retraining" / key / "plan.json"
        plan.parent.mkdir(parents=True)
        plan.write_text("{}")
        (plan.parent / "index.bin").write_bytes(b"0" * 1_000_000)
        os.utime(plan, (1000 + age, 1000 + age))
    return project


@pytest.mark.parametrize("keep", [1, 0])
def test_work_of_old_retrains_is_garbage(retrained, keep):
    labels = found(retrained, keep)

    assert "work of retrain hce-000003" in labels
    assert "work of retrain hce-000001" in labels
    # The work of the newest retrain is always kept.
    assert "work of retrain hce-000009" not in labels


def test_work_of_kept_retrains_is_no_garbage(retrained):
    assert "retrain" not in " ".join(found(retrained, 3))


def test_work_of_old_retrains_is_deleted(retrained):
    garbage.delete_garbage(retrained, garbage.find_garbage(retrained, keep=2))

    remaining = sorted(path.name for path in (retrained.state / "retraining").iterdir())
    assert remaining == ["hce-000001", "hce-000009"]


class FakeRegistry:
    """A registry with three versions and no runs without a version."""

    def __init__(self):
        self.versions = [
            SimpleNamespace(version=number, run_id=number, retriever="hce") for number in "123"
        ]

    def list_versions(self, project=None):
        return self.versions

    def find_runs(self, tags):
        return []


def test_version_frees_only_files_of_the_project(project, monkeypatch):
    folder = project.state / "mlflow" / "own"
    folder.mkdir(parents=True)
    (folder / "index.bin").write_bytes(b"0" * 2_000_000)
    folders_of_run = {"1": [folder], "2": []}
    registry = FakeRegistry()

    def find_no_alias(project, alias):
        return None

    def run_folders(project, run_ids):
        return folders_of_run[run_ids[0]]

    def open_registry(project):
        return nullcontext(registry)

    monkeypatch.setattr(versions, "list_versions", registry.list_versions)
    monkeypatch.setattr(versions, "version_with_alias", find_no_alias)
    monkeypatch.setattr(versions, "run_folders", run_folders)
    monkeypatch.setattr(versions, "open_registry", open_registry)

    items = garbage.find_garbage(project, keep=1)

    sizes = {item.label: item.megabytes for item in items if "version" in item.label}
    elsewhere = "its files are in a store outside of the project and stay there"
    assert sizes == {
        "model version 1 (hce)": 2.0,
        f"model version 2 (hce); {elsewhere}": 0.0,
    }


PIPELINE = "stages: {copy: {cmd: cp in out, deps: [in], outs: [out]}}\n"


def run_in(folder, *command):
    """Run a command in a folder."""
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def build_with_input(root, text):
    """Run the pipeline for a text."""
    (root / "in").write_text(text)
    Repo(str(root)).reproduce()


def build_and_commit(root, text):
    """Run the pipeline for a text and commit its lock."""
    build_with_input(root, text)
    run_in(root, "git", "add", "in", "dvc.yaml", "dvc.lock", ".dvc/config")
    author = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    run_in(root, "git", *author, "commit", "-qm", text)


@pytest.mark.parametrize("place", ["", "in/a/repository"])
def test_cached_outputs_of_commits_are_kept(tmp_path, monkeypatch, place):
    """Also if the project is a folder of a larger repository."""
    root = tmp_path / place
    (root / ".dvc").mkdir(parents=True)
    (root / ".dvc" / "config").write_text("[core]\n    analytics = false\n")
    (root / "dvc.yaml").write_text(PIPELINE)
    monkeypatch.chdir(root)
    run_in(root, "git", "init", "-q", str(tmp_path))
    build_and_commit(root, "of a commit")
    build_and_commit(root, "of the next")
    build_with_input(root, "of none")
    build_with_input(root, "of the working tree")

    (cache,) = garbage.find_garbage(Project(root), keep=3)
    garbage.delete_garbage(Project(root), [cache])

    files = [path for path in (root / ".dvc" / "cache").rglob("*") if path.is_file()]
    cached = {path.read_text() for path in files if path.suffix != ".json"}
    assert cache.label == "1 files of DVC's cache that no commit or experiment refers to"
    assert {"of a commit", "of the next", "of the working tree"} <= cached
    assert "of none" not in cached


def store_of(project, generation):
    """Return the folder in which additions to a build are cached."""
    spans = LearnedAdditionSettings().spans
    return cache_folder(generation.manifest, spans, additions_folder(project))


@pytest.fixture
def refined(tmp_path):
    """A project with two builds of hce and cached additions to both.

    The results of `freshet tools tune` lie beside the caches.
    """
    project = make_project(tmp_path)
    open_build(project, {**BASE, "a": "about a"})
    for generation in GenerationStore(project.live, "hce").generations():
        folder = store_of(project, generation)
        folder.mkdir(parents=True)
        (folder / "queries.npy").write_bytes(b"0" * 1_000_000)
    for name in ("best", "queries"):
        (additions_folder(project) / name).mkdir()
    return project


def test_caches_of_present_builds_are_no_garbage(refined):
    assert garbage.unneeded_stores(refined) == []


def test_cache_of_a_former_build_is_garbage(refined):
    first, _ = GenerationStore(refined.live, "hce").generations()
    cache = store_of(refined, first)
    shutil.rmtree(first.folder)

    (item,) = garbage.find_garbage(refined, keep=3)
    garbage.delete_garbage(refined, [item])

    assert item.label == f"vectors of additions to a former build ({cache.name})"
    assert round(item.megabytes, 2) == 1
    assert not cache.exists()
    # The cache of the other build and the two results of tuning are kept.
    assert len(list(additions_folder(refined).iterdir())) == 3
    assert found(refined) == []


def test_cache_needed_again_is_kept(refined):
    parameters.write_overrides(refined.params_file, ["additions.learned.spans=2"])
    leftovers = garbage.find_garbage(refined, keep=3)

    parameters.write_overrides(refined.params_file, ["additions.learned.spans=4"])
    garbage.delete_garbage(refined, leftovers)

    assert len(list(additions_folder(refined).iterdir())) == 4
