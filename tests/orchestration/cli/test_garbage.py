"""Guards garbage collection: what stages left behind is found with its size and freed, and nothing
else is touched.
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
from model_code.collection.index.live_index import additions_folder
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
    """A project with state, artifacts and live files, and one abandoned checkpoint and one
    half-made output.
    """
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
    return [item.label for item in garbage.find_garbage(project, keep)]


def test_only_chosen_leftovers_are_deleted(project):
    kept = [
        project.root / name for name in ("params.yaml", "artifacts", ".freshet/promotions.jsonl")
    ]
    before, of_kept = hash_path(project.root), [hash_path(path) for path in kept]
    staging, checkpoints = every = garbage.find_garbage(project, keep=3)
    assert [(item.label, item.megabytes) for item in every] == [
        ("staging of train@hce-1", 0.5),
        ("checkpoints of abandoned", 0.3),
    ]
    assert hash_path(project.root) == before, "looking frees nothing"
    garbage.delete_garbage(project, [staging])
    assert found(project) == [checkpoints.label]
    garbage.delete_garbage(
        project, every
    )  # of which one is gone meanwhile, as what a build finished
    assert found(project) == []
    assert [hash_path(path) for path in kept] == of_kept
    assert sorted(path.name for path in project.state.rglob("*")) == [
        "checkpoints",
        "project.lock",
        "promotions.jsonl",
        "staging",
    ]


def test_a_fresh_project_has_no_garbage(tmp_path):
    assert found(Project(tmp_path)) == []


def test_only_interrupted_pilots_are_garbage(project):
    work = project.state / pilot.FOLDER / "project"
    work.mkdir(parents=True)
    (work / "weights").write_bytes(b"0" * 700_000)
    every = garbage.find_garbage(project, keep=3)
    assert (every[0].label, every[0].megabytes) == ("work of an interrupted pilot", 0.7)
    with (project.state / pilot.LOCK).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "pilot" not in " ".join(found(project))
        garbage.delete_garbage(project, every)
        assert work.exists(), "it began after the leftovers were listed"
    garbage.delete_garbage(project, garbage.find_garbage(project, keep=3))
    assert not work.exists()


def test_work_of_old_retrains_is_garbage(project):
    for age, key in enumerate(("hce-000003", "hce-000001", "hce-000009")):
        plan = project.state / "retraining" / key / "plan.json"
        plan.parent.mkdir(parents=True)
        plan.write_text("{}")
        (plan.parent / "index.bin").write_bytes(b"0" * 1_000_000)
        os.utime(plan, (1000 + age, 1000 + age))
    for keep in (1, 0):
        assert {*found(project, keep)} >= {
            "work of retrain hce-000003",
            "work of retrain hce-000001",
        }
        assert "work of retrain hce-000009" not in found(project, keep)
    assert "retrain" not in " ".join(found(project, 3))
    garbage.delete_garbage(project, garbage.find_garbage(project, keep=2))
    assert sorted(path.name for path in (project.state / "retraining").iterdir()) == [
        "hce-000001",
        "hce-000009",
    ]


def test_version_frees_only_files_of_the_project(project, monkeypatch):
    store = project.state / "mlflow"
    (store / "own").mkdir(parents=True)
    (store / "own" / "index.bin").write_bytes(b"0" * 2_000_000)
    known = [
        SimpleNamespace(version=number, run_id=number, retriever="hce")
        for number in ("1", "2", "3")
    ]
    monkeypatch.setattr(versions, "list_versions", lambda project: known)
    monkeypatch.setattr(versions, "version_with_alias", lambda project, alias: None)
    own = {"1": [store / "own"], "2": []}
    monkeypatch.setattr(versions, "run_folders", lambda project, runs: own[runs[0]])
    registry = SimpleNamespace(list_versions=lambda: known, find_runs=lambda wanted: [])
    monkeypatch.setattr(versions, "open_registry", lambda project: nullcontext(registry))
    sizes = [
        (one.label, one.megabytes)
        for one in garbage.find_garbage(project, keep=1)
        if "version" in one.label
    ]
    elsewhere = "its files are in a store outside of the project and stay there"
    assert sizes == [("model version 1 (hce)", 2.0), (f"model version 2 (hce); {elsewhere}", 0.0)]


PIPELINE = "stages: {copy: {cmd: cp in out, deps: [in], outs: [out]}}\n"


@pytest.mark.parametrize("place", ["", "in/a/repository"])
def test_cached_outputs_of_commits_are_kept(tmp_path, monkeypatch, place):
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
    (cache,) = garbage.find_garbage(Project(root), keep=3)
    assert cache.label == "1 files of DVC's cache that no commit or experiment refers to"
    garbage.delete_garbage(Project(root), [cache])
    files = [path for path in (root / ".dvc" / "cache").rglob("*") if path.is_file()]
    cached = {path.read_text() for path in files if path.suffix != ".json"}
    assert {"of a commit", "of the next", "of the working tree"} <= cached
    assert "of none" not in cached


def store_of(project, generation):
    """Where additions to a build are remembered."""
    return cache_folder(
        generation.manifest, LearnedAdditionSettings().spans, additions_folder(project)
    )


@pytest.fixture
def refined(tmp_path):
    """Two builds of hce are there, additions to both are remembered, and what `freshet tools tune`
    found.
    """
    project = make_project(tmp_path)
    open_build(project, BASE | {"a": "about a"})
    for generation in GenerationStore(project.live, "hce").generations():
        folder = store_of(project, generation)
        folder.mkdir(parents=True)
        (folder / "queries.npy").write_bytes(b"0" * 1_000_000)
    for name in ("best", "queries"):
        (additions_folder(project) / name).mkdir()
    return project


def test_store_of_a_generation_is_kept_with_it(refined):
    assert garbage.unneeded_stores(refined) == []
    first, _ = GenerationStore(refined.live, "hce").generations()
    store = store_of(refined, first)
    shutil.rmtree(first.folder)
    (item,) = garbage.find_garbage(refined, keep=3)
    assert (item.label, round(item.megabytes, 2)) == (
        f"vectors of additions to a former build ({store.name})",
        1,
    )
    garbage.delete_garbage(refined, [item])
    assert not store.exists()
    assert len(list(additions_folder(refined).iterdir())) == 3, (
        "the other build's store, and what is no store"
    )
    assert found(refined) == []


def test_store_needed_again_is_kept(refined):
    parameters.write_overrides(refined.params_file, ["additions.learned.spans=2"])
    every = garbage.find_garbage(refined, keep=3)
    parameters.write_overrides(refined.params_file, ["additions.learned.spans=4"])
    garbage.delete_garbage(refined, every)
    assert len(list(additions_folder(refined).iterdir())) == 4
