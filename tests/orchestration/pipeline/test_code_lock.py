"""Tests of the code lock.

The lock follows the installed code, stage by stage. A package of another project with the same name
is detected.
"""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest

from model_code.errors import FreshetError
from model_code.files import read_json, write_json
from model_code.stages.corpus import STAGE as CORPUS
from model_code.stages.train import STAGE as TRAIN
from orchestration.pipeline import code_lock, dvc_file
from orchestration.pipeline.stages import TABLE


def test_clone_without_code_lock_uses_own_code(tmp_path):
    code_lock.write(tmp_path)

    code_lock.require_current(CORPUS, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert code_lock.code_root(tmp_path) == tmp_path


def test_code_lock_holds_one_hash_per_stage(tmp_path):
    code_lock.write(tmp_path, new=True)

    code_lock.require_current(TRAIN, tmp_path)
    hashes = read_json(tmp_path / code_lock.NAME)
    assert list(hashes) == sorted(stage.name for stage in TABLE)
    assert code_lock.code_root(tmp_path) == code_lock.INSTALLED


@pytest.fixture
def older_train(tmp_path):
    """A project whose code lock has another hash of the stage `train`."""
    code_lock.write(tmp_path, new=True)
    hashes = read_json(tmp_path / code_lock.NAME)
    hashes["train"] = "older"
    write_json(tmp_path / code_lock.NAME, hashes)
    return tmp_path


def test_stage_of_another_version_is_refused(older_train):
    with pytest.raises(FreshetError, match="another version of Freshet"):
        code_lock.require_current(TRAIN, older_train)


def test_other_stages_of_another_version_can_run(older_train):
    code_lock.require_current(CORPUS, older_train)


def test_writing_the_lock_updates_its_hashes(older_train, tmp_path_factory):
    current = tmp_path_factory.mktemp("current")
    code_lock.write(current, new=True)

    code_lock.write(older_train)

    assert read_json(older_train / code_lock.NAME) == read_json(current / code_lock.NAME)


def test_foreign_package_of_same_name_is_detected(tmp_path, monkeypatch):
    foreign_spec = SimpleNamespace(
        origin=str(tmp_path / "assets/__init__.py"), submodule_search_locations=None
    )
    find_spec = importlib.util.find_spec

    def find_foreign_assets(name):
        if name == "assets":
            return foreign_spec
        return find_spec(name)

    monkeypatch.setattr(importlib.util, "find_spec", find_foreign_assets)

    with pytest.raises(FreshetError, match="Python finds another package 'assets' than Freshet's"):
        code_lock.write(tmp_path, new=True)


def test_dvc_compares_code_lock_keys():
    entry = dvc_file.stage_entry(TRAIN, has_own_code=False)["do"]

    assert entry["deps"] == [path.format(retriever="${key}") for path in TRAIN.inputs.values()]
    assert entry["params"][-1] == {"code.lock.json": ["train"]}
