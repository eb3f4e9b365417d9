"""Guards that Dagster's checks see a finished artifact as its stage did: its inputs, its own settings, its name."""

from __future__ import annotations

from types import SimpleNamespace

import dagster as dg
import pytest

from assets import build
from assets.asset_graph import asset_key
from model_code.contracts.registry import CONTRACTS
from model_code.contracts.rules import require
from orchestration.pipeline.stages import INDEX
from orchestration.project import Project


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.delenv("FRESHET_STATE", raising=False)
    (tmp_path / "params.yaml").write_text("retrievers: {hce: {hierarchy_weight: 0.2}}\n")
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    return Project(tmp_path)


def test_a_broken_contract_fails_the_blocking_check_of_the_asset(project, monkeypatch):
    seen = []

    def refuse_once(context):
        seen.append(context)
        require(len(seen) > 1, "index/vectors.npy must be finite numbers")

    monkeypatch.setitem(CONTRACTS, "index", refuse_once)
    stage = INDEX.for_retriever("hce")
    run = SimpleNamespace(selected_asset_check_keys={dg.AssetCheckKey(asset_key(stage), "contract_holds")})
    (failed,) = build._check_results(run, project, stage)
    (passed,) = build._check_results(run, project, stage)
    assert (failed.passed, failed.asset_key, failed.check_name) == (False, asset_key(stage), "contract_holds")
    assert failed.metadata["violation"].value == "index/vectors.npy must be finite numbers"
    assert passed.passed
    assert seen[0].output == project.root / "artifacts" / "index" / "hce"
    assert seen[0].inputs["trained"] == project.root / "artifacts" / "train" / "hce"
    assert seen[0].settings["retriever"].training.hierarchy_weight == 0.2
    assert seen[0].name == "hce"


def test_a_check_that_is_not_selected_is_not_asked(project, monkeypatch):
    monkeypatch.setitem(CONTRACTS, "index", pytest.fail)
    run = SimpleNamespace(selected_asset_check_keys=set())
    assert not list(build._check_results(run, project, INDEX.for_retriever("hce")))
