"""Tests of the assets of the stages.

Dagster's checks see a finished artifact as its stage did: with its inputs, its settings and its
name.
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
    """A project with one retriever and no stage that has run."""
    monkeypatch.delenv("FRESHET_STATE", raising=False)
    (tmp_path / "params.yaml").write_text("retrievers: {hce: {hierarchy_weight: 0.2}}\n")
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    return Project(tmp_path)


INDEX_OF_HCE = INDEX.for_retriever("hce")


def test_broken_contract_fails_blocking_asset_check(project, monkeypatch):
    def refuse(context):
        require(False, "index/vectors.npy must be finite numbers")

    monkeypatch.setattr(index_stage, "check", refuse)

    result = check_result(project, INDEX_OF_HCE)

    remedy = "dvc repro --force --single-item index@hce makes it again"
    assert not result.passed
    assert result.asset_key == asset_key(INDEX_OF_HCE)
    assert result.check_name == "contract_holds"
    assert result.metadata["violation"].value == "index/vectors.npy must be finite numbers"
    assert remedy in result.metadata["what to do"].value


def test_contract_of_a_stage_that_ran_is_not_checked_twice(project, monkeypatch):
    contexts = []
    monkeypatch.setattr(index_stage, "check", contexts.append)

    result = check_result(project, INDEX_OF_HCE, ran=True)

    assert result.passed
    assert contexts == []


def test_contract_sees_what_its_stage_saw(project, monkeypatch):
    contexts = []
    monkeypatch.setattr(index_stage, "check", contexts.append)

    result = check_result(project, INDEX_OF_HCE)

    (context,) = contexts
    assert result.passed
    assert context.output == project.root / "artifacts" / "index" / "hce"
    assert context.inputs["trained"] == project.root / "artifacts" / "train" / "hce"
    assert context.settings["retriever"].training.hierarchy_weight == 0.2
    assert context.name == "hce"


@pytest.fixture
def _unplanned_builds(monkeypatch):
    """Make builds without asking DVC which stages would run."""

    def plan_nothing(self, *arguments, **options):
        """Do not plan."""

    monkeypatch.setattr(PlannedBuild, "__init__", plan_nothing)


@pytest.mark.usefixtures("_unplanned_builds")
@pytest.mark.parametrize(
    ("error", "attempts"), [(StageRefused("the loss is nan"), 1), (FreshetError("killed"), 2)]
)
def test_hopeless_stage_failures_are_not_retried(project, monkeypatch, error, attempts):
    tried = []

    def fail(self, address, say):
        tried.append(address)
        raise error
        yield

    monkeypatch.setattr(PlannedBuild, "bring_up_to_date", fail)
    monkeypatch.setattr("assets.stage_assets.RETRY", dg.RetryPolicy(max_retries=1, delay=0))
    assets = stage_assets([TRAIN.for_retriever("hce"), INDEX_OF_HCE], PAGES)

    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize(
            assets, instance=instance, resources={"project": project}, raise_on_error=False
        )

    skipped = {event.step_key for event in result.get_step_skipped_events()}
    assert [asset.node_def.name for asset in assets] == ["hce__encoder", "hce__index"]
    assert tried == ["train@hce"] * attempts
    assert skipped <= {"hce__index"}
    assert str(error) in first_failure(result)


class FakeBuild:
    """A build of the index whose version, key and stages a test can change."""

    def __init__(self, monkeypatch):
        self.version = "v1"
        self.key = "k1"
        self.stages_that_run = ["index@hce"]
        self.drawn = 0
        for name, function in {
            "orchestration.pipeline.dvc.output_version": self.output_version,
            "orchestration.pipeline.stage_key.read_stage_inputs": self.read_stage_inputs,
            "orchestration.pipeline.runs.find_run": self.find_run,
            "assets.stage_assets.read_json": self.read_report,
        }.items():
            monkeypatch.setattr(name, function)
        monkeypatch.setattr(index_stage, "check", self.check)
        monkeypatch.setattr(PlannedBuild, "bring_up_to_date", self.bring_up_to_date)

    def output_version(self, root, stage):
        return self.version

    def read_stage_inputs(self, stage, root):
        return SimpleNamespace(key=self.key)

    def find_run(self, project, key):
        return None

    def read_report(self, path):
        return {"passages": 3}

    def check(self, context):
        """Accept every output."""

    def bring_up_to_date(self, address, say):
        return iter(self.stages_that_run)

    def draw(self, folder):
        """Draw the preview of the page."""
        self.drawn += 1
        return {"picture": f"drawn {self.drawn}"}


@pytest.fixture
def fake_build(monkeypatch, _unplanned_builds):
    """A build that runs no stage."""
    return FakeBuild(monkeypatch)


@pytest.fixture
def materialize(project, fake_build):
    """A function that materialises the index and returns the metadata of its page."""
    page = replace(PAGES["index"], preview=fake_build.draw)
    asset = stage_assets([INDEX_OF_HCE], {"index": page})

    with dg.DagsterInstance.ephemeral() as instance:

        def materialize_once():
            result = dg.materialize(asset, instance=instance, resources={"project": project})
            (event,) = result.get_asset_materialization_events()
            metadata = event.materialization.metadata
            return {name: value.value for name, value in metadata.items()}

        yield materialize_once


def test_page_of_a_stage_shows_its_report_and_preview(materialize):
    page = materialize()

    assert page["what happened"] == "ran"
    assert page["picture"] == "drawn 1"
    assert page["passages"] == 3


def test_unchanged_asset_page_is_not_redrawn(materialize, fake_build):
    first = materialize()

    fake_build.stages_that_run = []
    second = materialize()

    assert second == {**first, "what happened": "unchanged: taken from DVC"}
    assert fake_build.drawn == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("version", "v2"), ("key", "k2"), ("stages_that_run", ["index@hce"])],
)
def test_changed_asset_page_is_redrawn(materialize, fake_build, name, value):
    materialize()
    fake_build.stages_that_run = []

    setattr(fake_build, name, value)
    page = materialize()

    assert page["picture"] == "drawn 2"
    assert fake_build.drawn == 2


STAGES_WITH_FUSION = expand(["hce"], ["hce-fused"])


@pytest.mark.parametrize(
    "stage", STAGES_WITH_FUSION, ids=[stage.address for stage in STAGES_WITH_FUSION]
)
def test_check_uses_the_contract_of_its_stage(stage, project, monkeypatch):
    (project.root / "params.yaml").write_text(
        "retrievers: {hce: {}}\nfusions: {hce-fused: {of: [hce, bm25]}}\n"
    )
    contexts = []
    monkeypatch.setattr(f"{stage.module}.check", contexts.append)

    result = check_result(project, stage)

    (context,) = contexts
    assert result.passed
    assert context.output == project.root / stage.output
