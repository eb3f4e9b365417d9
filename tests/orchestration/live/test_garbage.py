"""Guards that what is remembered of additions goes with the generations that it belongs to, and not before.

pytest tests/orchestration/live/test_garbage.py
"""

from __future__ import annotations

import shutil

import pytest

from model_code.additions.settings import AdditionSettings
from model_code.additions.store import cache_folder
from model_code.live.collection import Collection
from orchestration import parameters
from orchestration.cli.garbage import collect, find_garbage, unneeded_stores
from orchestration.live.collection import additions_folder
from orchestration.project import Project
from tests.orchestration.live_example import BASE, make_project, open_build


@pytest.fixture
def project(tmp_path):
    """Two builds of hce are there, additions to both are remembered, and what `freshet tools tune` found."""
    project = make_project(tmp_path)
    open_build(project, BASE | {"a": "about a"})
    for generation in Collection(project.live, "hce").generations():
        folder = cache_folder(generation.manifest, AdditionSettings().spans, additions_folder(project))
        folder.mkdir(parents=True)
        (folder / "queries.npy").write_bytes(b"0" * 1_000_000)
    for name in ("best", "queries"):
        (additions_folder(project) / name).mkdir()
    return project


def test_what_belongs_to_a_generation_stays_and_goes_with_it(project):
    assert unneeded_stores(project) == []
    first, _ = Collection(project.live, "hce").generations()
    store = cache_folder(first.manifest, AdditionSettings().spans, additions_folder(project))
    shutil.rmtree(first.folder)
    (item,) = find_garbage(project, keep=3)
    assert (item.label, round(item.megabytes, 2)) == (f"what additions to a former build remembered ({store.name})", 1)
    collect(project, [item])
    assert not store.exists()
    assert len(list(additions_folder(project).iterdir())) == 3, "the other build's store, and what is no store"
    assert find_garbage(project, keep=3) == []


def test_a_store_that_is_needed_again_by_then_is_not_freed(project):
    parameters.assign(project.params_file, ["additions.spans=2"])
    found = find_garbage(project, keep=3)
    parameters.assign(project.params_file, ["additions.spans=4"])
    collect(project, found)
    assert len(list(additions_folder(project).iterdir())) == 4


def test_a_project_that_never_refined_has_none(tmp_path):
    assert unneeded_stores(Project(tmp_path)) == []
