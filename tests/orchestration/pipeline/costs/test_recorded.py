"""Guards the look-up of recorded costs: by stage key alone, so that another build's numbers are never shown."""

from __future__ import annotations

import dataclasses

import pytest

from orchestration.pipeline import stage_key
from orchestration.pipeline.costs import StageCost, stage_costs
from orchestration.pipeline.stages import Stage
from orchestration.registry import runs
from orchestration.registry.runs import StageRecord, run_store

pytestmark = pytest.mark.usefixtures("_own_store")
STAGE = Stage("train", "", ("seed",), {"corpus": "artifacts/costs"}, "artifacts/train/hce", (), retriever="hce")


def made(project, seconds):
    key = stage_key.read(STAGE, project.root).key
    metrics = {"seconds": seconds, "peak_memory_mb": 512.0}
    return StageRecord(STAGE.address, key, {}, metrics, {}, [], [], None, False, None, seconds, seconds + 1)


def record(project, seconds):
    run_store(project).record_stage(made(project, seconds))


def test_the_newest_run_of_the_same_inputs_counts(tracked_project):
    project = tracked_project
    params, corpus = project.root / "params.yaml", project.root / "artifacts" / "costs" / "table"
    params.write_text("seed: 0\n")
    assert stage_costs(project, [STAGE]) == {}  # its input is not there
    corpus.parent.mkdir(parents=True)
    corpus.write_text("one")
    assert stage_costs(project, [STAGE]) == {}
    for seconds in (5.0, 7.0):
        record(project, seconds)
    found = {"train@hce": StageCost(7.0, 512.0)}
    other = dataclasses.replace(STAGE, retriever="mlr")
    assert stage_costs(project, [STAGE, other]) == found
    corpus.write_text("two")
    assert stage_costs(project, [STAGE]) == {}
    corpus.write_text("one")
    params.write_text("seed: 1\n")
    assert stage_costs(project, [STAGE]) == {}


def test_a_run_that_is_still_spooled_counts(tracked_project):
    project = tracked_project
    (project.root / "params.yaml").write_text("seed: 0\n")
    corpus = project.root / "artifacts" / "costs" / "table"
    corpus.parent.mkdir(parents=True, exist_ok=True)
    corpus.write_text("three")
    runs.keep(project, made(project, 9.0))
    assert stage_costs(project, [STAGE]) == {"train@hce": StageCost(9.0, 512.0)}
    assert not [*(project.state / "spool").glob("*/record.json")]
