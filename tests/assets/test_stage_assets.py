"""Guards that Dagster's checks see a finished artifact as its stage did: its inputs, its own settings, its name."""

from __future__ import annotations

from types import SimpleNamespace

import dagster as dg
import pytest

from assets.retrievers import INDEX as PAGE
from assets.stage_assets import StageAssets, asset_key, contract_check
from model_code.context import StageContext
from model_code.contracts.registry import CONTRACTS
from model_code.contracts.rules import require
from orchestration.pipeline.stages import INDEX, TABLE
from orchestration.project import Project


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.delenv("FRESHET_STATE", raising=False)
    (tmp_path / "params.yaml").write_text("retrievers: {hce: {hierarchy_weight: 0.2}}\n")
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    return Project(tmp_path)


def assets_of(project):
    return StageAssets(project, [INDEX.of("hce")], {"index": PAGE})


def test_a_broken_contract_fails_the_blocking_check_of_the_asset(project, monkeypatch):
    seen = []

    def refuse_once(context):
        seen.append(context)
        require(len(seen) > 1, "index/vectors.npy must be finite numbers")

    monkeypatch.setitem(CONTRACTS, "index", refuse_once)
    stage = INDEX.of("hce")
    run = SimpleNamespace(selected_asset_check_keys={dg.AssetCheckKey(asset_key(stage), "contract_holds")})
    (failed,) = assets_of(project).check_results(run, stage)
    (passed,) = assets_of(project).check_results(run, stage)
    assert (failed.passed, failed.asset_key, failed.check_name) == (False, asset_key(stage), "contract_holds")
    assert failed.metadata["violation"].value == "index/vectors.npy must be finite numbers"
    assert "dvc repro --force --single-item index@hce makes it again" in failed.metadata["what to do"].value
    assert passed.passed
    assert seen[0].output == project.root / "artifacts" / "index" / "hce"
    assert seen[0].inputs["trained"] == project.root / "artifacts" / "train" / "hce"
    assert seen[0].settings["retriever"].training.hierarchy_weight == 0.2
    assert seen[0].name == "hce"


def test_a_check_that_is_not_selected_is_not_asked(project, monkeypatch):
    monkeypatch.setitem(CONTRACTS, "index", pytest.fail)
    run = SimpleNamespace(selected_asset_check_keys=set())
    assert not list(assets_of(project).check_results(run, INDEX.of("hce")))


@pytest.mark.parametrize("stage", [stage.name for stage in TABLE])
def test_the_check_asks_the_contract_of_its_stage_and_tells_the_violation(stage, tmp_path, monkeypatch):
    asked = []

    def broken(context):
        asked.append(context)
        require(len(asked) > 1, "a rule is broken")

    monkeypatch.setitem(CONTRACTS, stage, broken)
    context, check = StageContext(tmp_path, {}, tmp_path, {}, tmp_path), contract_check(stage)
    passed, seen = check.ask(context)
    assert (passed, seen["violation"]) == (False, "a rule is broken")
    assert f"dvc repro --force --single-item {stage} makes it again" in seen["what to do"]
    assert check.ask(context) == (True, {})
    assert asked == [context, context]
