"""Guards what docs/scaling.md promises of a build: it travels by a DVC remote, and the engine
changes none of it.

Run: python -m pytest tests/end_to_end/test_past_one_machine.py
"""

from __future__ import annotations

import json
import shutil

import pytest

from orchestration import parameters
from tests.end_to_end.tiny_project import dvc, git, output_hashes


def test_fresh_clone_has_nothing_to_run(copy_of_build, tmp_path):
    dvc(copy_of_build, "remote", "add", "--default", "store", str(tmp_path / "store"))
    dvc(copy_of_build, "push")
    git(copy_of_build, "add", "-A")
    git(copy_of_build, "commit", "-qm", "built")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(copy_of_build), str(clone))
    assert not (clone / "artifacts").exists()
    dvc(clone, "pull")
    said = dvc(clone, "repro").stdout
    assert "didn't change, skipping" in said
    assert "Running stage" not in said
    assert output_hashes(clone) == output_hashes(copy_of_build)


def test_ray_engine_builds_the_same_outputs(copy_of_build):
    pytest.importorskip("ray", reason="needs Ray: pip install -e '.[scale]'")
    before = output_hashes(copy_of_build)
    parameters.write_overrides(
        copy_of_build / "params.yaml", ["scale.engine=ray", "scale.workers=2"]
    )
    assert json.loads(dvc(copy_of_build, "status", "--json").stdout) == {}
    for stage in ("base_index", "hierarchy"):
        shutil.rmtree(copy_of_build / "artifacts" / stage)
        dvc(copy_of_build, "repro", "--force", "--single-item", stage)
    assert output_hashes(copy_of_build) == before
