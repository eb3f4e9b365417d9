"""Guards that the code lock follows the installed code, stage by stage, and notices another's
packages.
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
    held = read_json(tmp_path / code_lock.NAME)
    assert list(held) == sorted(stage.name for stage in TABLE)
    assert code_lock.code_root(tmp_path) == code_lock.INSTALLED
    code_lock.require_current(TRAIN, tmp_path)
    write_json(tmp_path / code_lock.NAME, held | {"train": "older"})
    code_lock.require_current(CORPUS, tmp_path)
    with pytest.raises(FreshetError, match="another version of Freshet"):
        code_lock.require_current(TRAIN, tmp_path)
    code_lock.write(tmp_path)
    assert read_json(tmp_path / code_lock.NAME) == held


def test_foreign_package_of_same_name_is_detected(tmp_path, monkeypatch):
    other = SimpleNamespace(
        origin=str(tmp_path / "assets/__init__.py"), submodule_search_locations=None
    )
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: other if name == "assets" else found(name)
    )
    with pytest.raises(FreshetError, match="Python finds another package 'assets' than Freshet's"):
        code_lock.write(tmp_path, new=True)


def test_dvc_compares_code_lock_keys():
    entry = dvc_file.stage_entry(TRAIN, has_own_code=False)["do"]
    assert entry["deps"] == [path.format(retriever="${key}") for path in TRAIN.inputs.values()]
    assert entry["params"][-1] == {"code.lock.json": ["train"]}
