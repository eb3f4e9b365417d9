"""Guards that Dagster's checks see a finished artifact as its stage did: its inputs, its own
settings, its name.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import dagster as dg
import pytest

from assets.retrievers import PAGES
from assets.stage_assets import asset_key, check_result, stage_assets
from model_code.checks.rules import require
from model_code.errors import FreshetError
from model_code.project import Project
from model_code.stages import index as index_stage
from model_code.stages.index import STAGE as INDEX
from model_code.stages.train import STAGE as TRAIN
from orchestration.cli.demo import first_failure
from orchestration.pipeline.repro import PlannedBuild, StageRefused
from orchestration.pipeline.stages import expand


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.delenv("FRESHET_STATE", raising=False)
    (tmp_path / "params.yaml").write_text("retrievers: {hce: {hierarchy_weight: 0.2}}\n")
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    return Project(tmp_path)


def test_broken_contract_fails_blocking_asset_check(project, monkeypatch):
    seen = []

    def refuse_once(context):
        seen.append(context)
        require(len(seen) > 1, "index/vectors.npy must be finite numbers")

    monkeypatch.setattr(index_stage, "check", refuse_once)
    stage = INDEX.for_retriever("hce")
    failed, passed = check_result(project, stage), check_result(project, stage)
    assert (failed.passed, failed.asset_key, failed.check_name) == (
        False,
        asset_key(stage),
        "contract_holds",
    )
    assert failed.metadata["violation"].value == "index/vectors.npy must be finite numbers"
    assert (
        "dvc repro --force --single-item index@hce makes it again"
        in failed.metadata["what to do"].value
    )
    assert passed.passed
    assert seen[0].output == project.root / "artifacts" / "index" / "hce"
    assert seen[0].inputs["trained"] == project.root / "artifacts" / "train" / "hce"
    assert seen[0].settings["retriever"].training.hierarchy_weight == 0.2
    assert seen[0].name == "hce"


@pytest.mark.parametrize(
    ("error", "attempts"), [(StageRefused("the loss is nan"), 1), (FreshetError("killed"), 2)]
)
def test_hopeless_stage_failures_are_not_retried(project, monkeypatch, error, attempts):
    tried = []

    def fail(self, address, say):
        tried.append(address)
        raise error
        yield

    monkeypatch.setattr(PlannedBuild, "__init__", lambda self, *_, **__: None)
    monkeypatch.setattr(PlannedBuild, "bring_up_to_date", fail)
    monkeypatch.setattr("assets.stage_assets.RETRY", dg.RetryPolicy(max_retries=1, delay=0))
    table = [TRAIN.for_retriever("hce"), INDEX.for_retriever("hce")]
    assets = stage_assets(table, PAGES)
    assert [one.node_def.name for one in assets] == ["hce__encoder", "hce__index"]
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize(
            assets, instance=instance, resources={"project": project}, raise_on_error=False
        )
    assert tried == ["train@hce"] * attempts
    assert {event.step_key for event in result.get_step_skipped_events()} <= {"hce__index"}
    assert str(error) in first_failure(result)


def test_unchanged_asset_page_is_not_redrawn(project, monkeypatch):
    drawn, now = [], {"version": "v1", "key": "k1", "ran": ["index@hce"]}
    monkeypatch.setattr(PlannedBuild, "__init__", lambda self, *_, **__: None)
    monkeypatch.setattr(
        PlannedBuild, "bring_up_to_date", lambda self, address, say: iter(now["ran"])
    )
    monkeypatch.setattr(
        "orchestration.pipeline.dvc.output_version", lambda root, stage: now["version"]
    )
    monkeypatch.setattr(
        "orchestration.pipeline.stage_key.read_stage_inputs",
        lambda stage, root: SimpleNamespace(key=now["key"]),
    )
    monkeypatch.setattr("orchestration.pipeline.runs.find_run", lambda project, key: None)
    monkeypatch.setattr(index_stage, "check", lambda context: None)
    monkeypatch.setattr("assets.stage_assets.read_json", lambda path: {"passages": 3})
    page = replace(
        PAGES["index"],
        preview=lambda folder: drawn.append(dict(now)) or {"picture": f"drawn {len(drawn)}"},
    )
    asset = stage_assets([INDEX.for_retriever("hce")], {"index": page})

    def shown():
        done = dg.materialize(asset, instance=instance, resources={"project": project})
        (event,) = done.get_asset_materialization_events()
        return {name: value.value for name, value in event.materialization.metadata.items()}

    with dg.DagsterInstance.ephemeral() as instance:
        first = shown()
        assert (first["what happened"], first["picture"], first["passages"]) == (
            "ran",
            "drawn 1",
            3,
        )
        now["ran"] = []
        assert shown() == first | {"what happened": "unchanged: taken from DVC"}
        assert len(drawn) == 1
        for changed in ({"version": "v2"}, {"key": "k2"}, {"ran": ["index@hce"]}):
            now |= changed
            assert shown()["picture"] == f"drawn {len(drawn)}"
    assert len(drawn) == 4


@pytest.mark.parametrize("stage", expand(["hce"], ["hce-fused"]), ids=lambda stage: stage.address)
def test_the_check_asks_the_contract_of_its_stage(stage, project, monkeypatch):
    (project.root / "params.yaml").write_text(
        "retrievers: {hce: {}}\nfusions: {hce-fused: {of: [hce, bm25]}}\n"
    )
    asked = []
    monkeypatch.setattr(f"{stage.module}.check", asked.append)
    assert check_result(project, stage).passed
    assert [context.output for context in asked] == [project.root / stage.output]
