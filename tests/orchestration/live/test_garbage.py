"""Guards that what is remembered of additions goes with the generations that it belongs to, and not before.

pytest tests/orchestration/live/test_garbage.py
"""

from __future__ import annotations

import shutil

import pytest

from model_code.additions.settings import AdditionSettings
from model_code.additions.store import PARENT, store_of
from model_code.files import read_json, write_json
from model_code.live.collection import Collection
from model_code.manifest import MANIFEST
from orchestration import parameters
from orchestration.cli.garbage import collect, find_garbage, unneeded_stores
from orchestration.live.collection import additions_folder
from orchestration.project import Project
from tests.orchestration.live_example import BASE, make_project, open_build


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Two builds of hce are there, additions to both are remembered, and what `freshet tools tune` found."""
    monkeypatch.delenv("FRESHET_STATE", raising=False)
    project = make_project(tmp_path)
    open_build(project, BASE | {"a": "about a"})
    for generation in Collection(project.live, "hce").generations():
        remember(store_of(additions_folder(project), generation, AdditionSettings().spans).folder, "token")
    for name in ("best", "queries"):
        (additions_folder(project) / name).mkdir()
    return project


def remember(store, token):
    (store / token).mkdir(parents=True)
    (store / token / "vectors.npy").write_bytes(b"0" * 1_000_000)
    write_json(store / token / PARENT, None)


def test_what_belongs_to_a_generation_stays_and_goes_with_it(project):
    assert unneeded_stores(project) == []
    first, _ = Collection(project.live, "hce").generations()
    store = store_of(additions_folder(project), first, AdditionSettings().spans).folder
    shutil.rmtree(first.folder)
    (found,) = find_garbage(project, keep=3)
    assert (found.what, round(found.megabytes, 2)) == (f"what additions to a former build remembered ({store.name})", 1)
    collect(project, [found])
    assert not store.exists()
    assert len(list(additions_folder(project).iterdir())) == 3, "the other build's store, and what is no store"
    assert find_garbage(project, keep=3) == []


def test_one_of_former_settings_stays_while_a_generation_stands_on_it(project):
    parameters.assign(project.params_file, ["additions.spans=2"])
    assert len(unneeded_stores(project)) == 2
    manifest = Collection(project.live, "hce").current().folder / MANIFEST
    write_json(manifest, read_json(manifest) | {"provenance": {"additions": "token"}})
    assert unneeded_stores(project) == []


def test_a_store_that_is_needed_again_by_then_is_not_freed(project):
    parameters.assign(project.params_file, ["additions.spans=2"])
    found = find_garbage(project, keep=3)
    parameters.assign(project.params_file, ["additions.spans=4"])
    collect(project, found)
    assert len(list(additions_folder(project).iterdir())) == 4


def test_a_project_that_never_refined_has_none(tmp_path):
    assert unneeded_stores(Project(tmp_path)) == []
