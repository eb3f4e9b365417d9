"""Guards the way from a report of drift to a retrain: the sensor asks for the job, and the job's
gate lets pass or not.

Dagster, MLflow, ledger, live collection, assets and the gate are the real ones; only the training
is replaced.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import dagster as dg
import numpy as np
import pandas as pd
import pytest

from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.project_ledger import open_ledger
from model_code.collection.index.status import live_status
from model_code.collection.ledger.tasks import EventRange, TaskKind
from model_code.evaluation.settings import PromotionSettings
from model_code.files import canonical_json, write_json, write_text
from model_code.text.passages import TextRules
from orchestration.freshness.drift import check_drift
from orchestration.freshness.due_tasks import record_run_end
from orchestration.freshness.pilot import NOT_REQUESTED
from orchestration.instance import open_instance
from orchestration.pipeline import code_lock, ingest, repro
from orchestration.registry import history, release, versions
from orchestration.registry.built_retriever import BuiltRetriever
from orchestration.registry.gate import GateRules
from tests.orchestration.dagster_page import Page
from tests.orchestration.freshness.builds import make_build
from tests.orchestration.freshness.conftest import make_project, write_corpus
from tests.orchestration.freshness.subjects import PARAMS, SEA, SPACE, add, documents, others

RULES = TextRules(include_title=False, words=0, stride=1)
NEW = documents(SPACE, 24, "space", 2)


def work(project):
    """The ledger's table of it."""
    return open_ledger(project, "hce").tasks


def retrain_states(project):
    """What became of them, newest first."""
    return [each.state.value for each in work(project).last("hce", 9, TaskKind.RETRAIN)]


def recorded_changes(project):
    return [(line["action"], line["to"]) for line in history.read(project)]


def write_evaluation(folder, gain):
    """Write an evaluation of 120 queries that score about 0.5 + `gain`; exactly 0.5 without gain."""
    chance = np.random.default_rng(0)
    rows = []
    for metric in PromotionSettings().protected:
        for split in ("dev", "test"):
            for query in range(120):
                noise = chance.normal(0, 0.01)
                value = 0.5
                if gain:
                    value += gain + noise
                rows.append((str(query), split, metric, value))
    folder.mkdir()
    table = pd.DataFrame(rows, columns=["query_id", "split", "metric", "value"])
    table.assign(with_known=False).to_parquet(folder / "scores.parquet")
    summary = {"queries": 120, "nDCG@10": 0.5 + gain}
    write_json(folder / "metrics.json", {"system": "hce", "dev": summary, "test": summary})
    return folder


def build_of(folder, key, gain):
    """Return the build of a folder, whose queries score about 0.5 + `gain`."""
    return BuiltRetriever(
        "hce",
        key=key * 64,
        corpus="c" * 64,
        text=canonical_json(vars(RULES)),
        encoder=folder / "encoder",
        index=folder / "index",
        hierarchy=folder / "hierarchy",
        documents=folder / "documents.parquet",
        evaluation=write_evaluation(folder.with_name(f"{folder.name}_evaluation"), gain),
    )


@pytest.fixture(scope="module")
def loop(built, tmp_path_factory, small_measures):
    """A project and its page: the build of 150 documents is champion and live; then came 24 that
    their own queries do not find, and drift was measured.
    """
    root = tmp_path_factory.mktemp("loop")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FRESHET_LEDGER", "FRESHET_STATE", "MLFLOW_TRACKING_URI"):
            patch.delenv(name, raising=False)
        # Opening the instance of the project sets this variable.
        patch.setenv("DAGSTER_HOME", "")
        # The definitions look for a project when they are imported.
        patch.chdir(root)
        project = make_project(root)
        # So few queries judge a retrain that the gate would probably refuse it.
        params = {**PARAMS, "promotion": {"largest_plausible_gain": None}}
        write_text(project.params_file, json.dumps(params))
        write_corpus(project)
        for name in code_lock.PACKAGES:
            (root / name).mkdir()
        versions.register(project, build_of(shutil.copytree(built, root / "built"), "a", 0.0))
        release.promote(project, GateRules(project, PromotionSettings(), 0))
        add(project, NEW, others(NEW))
        assert check_drift(project).decision.action == "retrain"
        with open_instance(project) as instance:
            yield project, Page(project, instance)


@pytest.fixture
def set_training(loop, tmp_path, monkeypatch):
    """Replaces the stages; takes the gain of the retriever that they give."""

    def choose(key, gain):
        def stages(space, **_):
            shutil.copytree(loop[0].artifacts, space.artifacts, dirs_exist_ok=True)
            return iter(())

        def register(space, snapshot):
            folder = make_build(tmp_path / "trained", documents(SEA, 150, "sea", 0) | NEW)
            return versions.register(space, replace(build_of(folder, key, gain), snapshot=snapshot))

        monkeypatch.setattr(ingest, "ingest", lambda space: None)
        monkeypatch.setattr(repro, "repro", stages)
        monkeypatch.setattr(release, "register", register)

    return choose


def test_rejected_retrain_does_not_replace_champion(loop, set_training):
    project, page = loop
    set_training("b", gain=0.0)
    generation_before = Searcher.open(project.live).generation.number

    (request,) = page.look().run_requests
    (task,) = work(project).open("hce")
    assert request.job_name == "retrain"
    assert request.run_key == task.run_key
    assert request.partition_key == task.run_key
    assert request.tags["freshet/why"] == task.reason[:200]
    assert page.instance.has_dynamic_partition("retrains", request.partition_key)

    result = page.run("retrain", request.partition_key)
    checks = result.get_asset_check_evaluations()
    started = {event.step_key for event in result.all_events if event.is_step_start}
    assert not result.success
    assert [check.passed for check in checks] == [False]
    # The check is blocking, so no step after it starts.
    assert started == {"retrained_retriever"}
    assert versions.version_with_alias(project).version == "1"
    assert Searcher.open(project.live).generation.number == generation_before

    record_run_end(project, request.run_key, result.run_id, "the check failed", canceled=False)
    assert recorded_changes(project)[-1] == ("refuse", "2")
    # This is a verdict, and no failure after which the retrain is tried again.
    assert retrain_states(project) == ["refused"]
    assert page.look().run_requests == []


def fail_to_train(*arguments):
    """Stand in for a training that must not start."""
    pytest.fail("it trains")


def test_backfill_of_ended_tasks_does_nothing(loop, monkeypatch):
    """The documents of a batch are searchable, and the answer of a pilot is reported.

    A backfill runs both again and must change nothing.
    """
    project, page = loop
    monkeypatch.setattr("orchestration.freshness.retrain.train_challenger", fail_to_train)
    monkeypatch.setattr("orchestration.freshness.pilot.run_pilot", fail_to_train)
    backfill = {"dagster/backfill": "all"}
    generation_before = Searcher.open(project.live).generation.number
    changes_before = recorded_changes(project)
    tasks_before = work(project).last("hce", 9)

    last_retrain = page.instance.get_dynamic_partitions("retrains")[0]
    retrain = page.run("retrain", last_retrain, **backfill)
    page.instance.add_dynamic_partitions("batches", ["settled"])
    addition = page.run("add_documents", "settled", **backfill)
    page.instance.add_dynamic_partitions("pilots", ["settled"])
    pilot = page.run("pilot", "settled", **backfill)

    assert retrain.success
    assert not retrain.get_asset_materialization_events()
    assert not retrain.get_asset_check_evaluations()
    assert addition.success
    assert pilot.success
    assert Searcher.open(project.live).generation.number == generation_before
    assert recorded_changes(project) == changes_before
    assert work(project).last("hce", 9) == tasks_before
    event = page.instance.get_latest_materialization_event(dg.AssetKey("retrain_pilot"))
    assert event.asset_materialization.metadata["what happened"].value == NOT_REQUESTED


def test_passed_challenger_becomes_live_champion(loop, set_training):
    """Which drift asked for later."""
    project, page = loop
    set_training("c", gain=0.1)
    work(project).request(
        TaskKind.RETRAIN,
        "hce",
        EventRange(1, 24),
        "growth is above its limit",
        requested_by="drift",
    )
    (request,) = page.look().run_requests
    done = page.run(request.job_name, request.partition_key)

    assert done.success
    assert [one.passed for one in done.get_asset_check_evaluations()] == [True]

    champion = versions.version_with_alias(project)
    assert champion.key == "c" * 64
    assert len(Searcher.open(project.live).base.rows.document_ids) == 174
    assert recorded_changes(project)[-1] == ("promote", champion.version)
    assert retrain_states(project) == ["done", "refused"]
    assert live_status(project, "hce")["ledger"]["documents"]["absorbed"] == 24
    assert page.look().run_requests == []
