"""Guards runs on a real SQLite store of MLflow: every stage that ran is recorded once and in order,
and found again.

Run: python -m pytest tests/orchestration/pipeline/test_runs.py
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from model_code.errors import FreshetError
from model_code.project import Project
from model_code.stages.stage import Stage
from orchestration.pipeline import dvc, run_stage, runs
from orchestration.pipeline.runs import (
    RunStore,
    StageRecord,
    find_run,
    git_state,
    run_store,
    runs_page,
    store_folder,
    tracking_uri,
    valid_name,
)
from orchestration.registry import versions

RECORD = StageRecord(
    stage="train@hce",
    key="ab" * 32,
    params={},
    metrics={},
    inputs={},
    artifacts=[],
    curves=[],
    git_commit=None,
    git_dirty=False,
    dagster_run_id=None,
    started=1000.0,
    ended=1002.5,
)


@pytest.fixture
def tracker(tracked_project):
    return run_store(tracked_project)


def test_two_processes_create_store_at_once(tracked_project, tracker):
    started = json.loads((tracked_project.root / "started.json").read_text())
    assert started == [[f"{tracker.find_run(key)}\n", "", 0] for key in ("first", "second")]


def test_a_folder_that_mlflow_fails_at_is_refused(tmp_path):
    with pytest.raises(FreshetError, match=r"a path without \?, # and %"):
        run_store(Project(tmp_path / "100%"))


def test_a_run_holds_everything_that_was_recorded(tracker, tmp_path):
    report = tmp_path / "report.json"
    report.write_text("{}")
    record = replace(
        RECORD,
        params={"training.temperature": 0.05, "long": "x" * 9999},
        metrics={"nDCG@10": 0.5, "seconds": 2.5},
        inputs={"artifacts/corpus": "c" * 64, "model_code/files.py": "f" * 64},
        artifacts=[report],
        curves=[
            {"step": 1, "loss": 2.0, "note": "warm-up"},
            {"step": 5, "loss": 1.0, "dev nDCG@10": 0.4},
        ],
        git_commit="d" * 40,
        git_dirty=True,
        dagster_run_id="dag-1",
    )
    run_id = tracker.record_stage(record)
    run = tracker.client.get_run(run_id)
    assert run.data.params == {"training.temperature": "0.05", "long": "x" * 500}
    assert run.data.metrics == {
        "nDCG_at_10": 0.5,
        "seconds": 2.5,
        "loss": 1.0,
        "dev nDCG_at_10": 0.4,
    }
    assert [(m.step, m.value) for m in tracker.client.get_metric_history(run_id, "loss")] == [
        (1, 2.0),
        (5, 1.0),
    ]
    tags = {
        name: run.data.tags[name] for name in ("freshet.key", "freshet.stage", "freshet.git_dirty")
    }
    assert tags == {
        "freshet.key": "ab" * 32,
        "freshet.stage": "train@hce",
        "freshet.git_dirty": "true",
    }
    assert (run.data.tags["mlflow.source.git.commit"], run.data.tags["dagster.run_id"]) == (
        "d" * 40,
        "dag-1",
    )
    (data,) = run.inputs.dataset_inputs
    assert (data.dataset.name, data.dataset.digest, data.tags[0].value) == (
        "corpus",
        "c" * 36,
        "training",
    )
    assert {file.path for file in tracker.client.list_artifacts(run_id)} == {
        "inputs.json",
        "report.json",
    }
    assert (run.info.start_time, run.info.end_time, run.info.status) == (
        1_000_000,
        1_002_500,
        "FINISHED",
    )
    assert run.info.run_name == "train@hce"


def test_stage_runs_are_nested_in_build_run(tracker):
    scores = {"bm25": {"test.nDCG@10": 0.5}, "zero_shot": {"test.nDCG@10": 0.4}}
    first = replace(RECORD, key="baselines", stage="baselines", build="build 1", systems=scores)
    other = replace(
        RECORD,
        key="evaluated",
        stage="evaluate@hce",
        build="build 1",
        systems={"hce": {"test.nDCG@10": 0.6}},
        started=1005.0,
        ended=1006.0,
    )
    pilot = replace(other, key="of a pilot", build="pilot 0123abcd")
    children = [tracker.record_stage(record) for record in (first, other, pilot)]
    assert tracker.record_stage(other) == children[1]
    runs_by_name = {
        run.info.run_name: run for run in tracker.client.search_runs([tracker.experiment])
    }
    build, small = runs_by_name["build 1"], runs_by_name["pilot 0123abcd"]
    assert (build.data.tags["freshet.kind"], small.data.tags["freshet.kind"]) == ("build", "pilot")
    assert (build.info.start_time, build.info.end_time) == (1_000_000, 1_006_000)
    below = [
        run
        for run in runs_by_name.values()
        if run.data.tags.get("mlflow.parentRunId") == build.info.run_id
    ]
    values = {run.info.run_name: run.data.metrics.get("test.nDCG_at_10") for run in below}
    assert values == {
        "baselines": None,
        "bm25": 0.5,
        "zero_shot": 0.4,
        "evaluate@hce": None,
        "hce": 0.6,
    }
    assert {"evaluate@hce (pilot)", "hce (pilot)"} <= set(runs_by_name)


@pytest.fixture
def build_run(tracker):
    """Record two builds; the second one has another temperature. Returns the run of the second."""
    first = replace(
        RECORD,
        stage="train@shown",
        key="of the first build",
        build="build shown 1",
        params={"training.temperature": 0.05, "seed": 0},
    )
    second = replace(
        first,
        key="of the second build",
        build="build shown 2",
        params={"training.temperature": 0.02, "seed": 0},
        inputs={"artifacts/corpus": "c" * 64},
        systems={"hce": {"test.nDCG@10": 0.6}},
        git_commit="d" * 40,
        started=1010.0,
        ended=1012.0,
    )
    tracker.record_stage(first)
    tracker.record_stage(second)
    tracker.record_verdict("build shown 2", passed=False, reasons="not better")
    runs_by_name = {
        run.info.run_name: run for run in tracker.client.search_runs([tracker.experiment])
    }
    return runs_by_name["build shown 2"]


def test_build_run_shows_changed_settings(build_run):
    assert build_run.data.params == {"training.temperature": "0.05 -> 0.02"}


def test_build_run_shows_metrics_of_systems(build_run):
    assert build_run.data.metrics == {"hce.test.nDCG_at_10": 0.6}


def test_build_run_shows_source_user_and_commit(build_run):
    tags = build_run.data.tags

    assert tags["mlflow.source.name"] == "freshet"
    assert tags["mlflow.user"]
    assert tags["mlflow.source.git.commit"] == "d" * 40


def test_build_run_shows_verdict(build_run):
    assert build_run.data.tags["freshet.verdict"] == "refused"
    assert build_run.data.tags["mlflow.note.content"] == "refused: not better"


def test_build_run_has_corpus_as_input(build_run):
    (data,) = build_run.inputs.dataset_inputs

    assert data.dataset.name == "corpus"


def test_reported_systems_share_metric_names():
    scores = {"dev": {"queries": 0}, "gate": {"queries": 0}, "test": {"nDCG@10": 0.5}}
    report = {"system": "hce", **scores, "variants": {"rrf": {"system": "hce.rrf", **scores}}}
    for shape in (report, {"baseline": report}):
        found = {
            system: run_stage.collect_numbers(rows)
            for system, rows in run_stage.evaluated_systems(shape)
        }
        assert found == dict.fromkeys(
            ("hce", "hce.rrf"), {"dev.queries": 0.0, "gate.queries": 0.0, "test.nDCG@10": 0.5}
        )


def test_more_than_one_batch_is_stored_whole(tracker):
    params = {f"p{i}": i for i in range(205)}
    curves = [{"step": i, "loss": float(i), "rate": 1.0} for i in range(1000)]
    run_id = tracker.record_stage(replace(RECORD, key="batches", params=params, curves=curves))
    assert len(tracker.client.get_run(run_id).data.params) == 205
    assert len(tracker.client.get_metric_history(run_id, "loss")) == 1000


def test_newest_finished_run_of_key_is_found(tracker):
    old = tracker.record_stage(replace(RECORD, key="twice"))
    new = tracker.record_stage(replace(RECORD, key="twice", started=2000.0, ended=2001.0))
    assert old != new
    assert tracker.find_run("twice") == new
    assert tracker.find_run("never") is None


def test_interrupted_stage_run_is_recorded_again(tracker, monkeypatch):
    record = replace(RECORD, key="again")
    with monkeypatch.context() as patch:
        patch.setattr(tracker, "_log_inputs", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tracker.record_stage(record)
    assert tracker.find_run("again") is None
    run_id = tracker.record_stage(record)
    assert tracker.record_stage(record) == run_id
    found = tracker.client.search_runs([tracker.experiment], "tags.`freshet.key` = 'again'")
    assert [(run.info.run_id, run.info.status) for run in found] == [(run_id, "FINISHED")]


def test_store_is_in_state_folder_by_default(tmp_path, monkeypatch):
    assert tracking_uri(Project(tmp_path)) == f"sqlite:///{tmp_path}/.freshet/mlflow/mlflow.db"
    monkeypatch.setenv("FRESHET_STATE", str(tmp_path / "state"))
    assert store_folder(Project(tmp_path)) == tmp_path / "state" / "mlflow"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert tracking_uri(Project(tmp_path)) == "http://127.0.0.1:5000"


def test_one_process_opens_a_store_once(tracked_project, tracker):
    assert run_store(Project(tracked_project.root)) is tracker
    assert isinstance(tracker, RunStore)
    assert f"/experiments/{tracker.experiment}/" in runs_page(tracked_project), (
        "without opening the store"
    )


def test_repeated_reads_leave_no_file_open(tracked_project):
    for _ in range(40):
        versions.version_with_alias(tracked_project)
        find_run(tracked_project, "never")
    handles = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert not [name for name in handles if name.startswith(str(store_folder(tracked_project)))]


def test_names_with_allowed_characters_stay_unchanged():
    assert valid_name("dev/loss level-2: mean_x.y") == "dev/loss level-2: mean_x.y"
    assert len(valid_name("é" * 400)) == 250


def test_git_state_ignores_dvc_lock(tmp_path, monkeypatch):
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e"]
        return subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    assert git_state(tmp_path) == (None, False)
    git("init")
    for name in ("dvc.lock", "params.yaml"):
        (tmp_path / name).write_text("a")
    git("add", ".")
    git("commit", "-m", "m")
    commit = git("rev-parse", "HEAD")
    assert git_state(tmp_path) == (commit, False)
    (tmp_path / "dvc.lock").write_text("b")
    assert git_state(tmp_path) == (commit, False)
    (tmp_path / "params.yaml").write_text("b")
    assert git_state(tmp_path) == (commit, True)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) == (None, False)


FIRST = StageRecord(
    stage="train@hce",
    key="ab" * 32,
    params={"training.steps": 3, "on": None},
    metrics={"seconds": 0.1 + 0.2},
    inputs={"artifacts/corpus": "c" * 64},
    artifacts=[],
    curves=[{"step": 1, "loss": 2.5, "note": "µ"}],
    git_commit=None,
    git_dirty=True,
    dagster_run_id="dag-1",
    started=1000.25,
    ended=1002.5,
)
SECOND = replace(FIRST, stage="index@hce", key="cd" * 32, started=1010.0, ended=1020.0)


class Memory:
    """A tracker that keeps its records, and the content of their files at that time."""

    def __init__(self) -> None:
        self.records: list[StageRecord] = []
        self.files: list[dict[str, str]] = []
        self.broken = False

    def record_stage(self, record: StageRecord) -> str:
        if self.broken:
            raise OSError("the store is away")
        self.records.append(record)
        self.files.append({path.name: path.read_text() for path in record.artifacts})
        return "run"


@pytest.fixture
def memory(monkeypatch):
    tracker = Memory()
    monkeypatch.setattr(runs, "run_store", lambda project: tracker)
    return tracker


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def waiting(project: Project) -> list[Path]:
    return sorted((project.state / "spool").glob("*"))


def test_spooled_records_are_replayed_in_start_order(project, memory):
    for record in (SECOND, FIRST):
        runs.spool_record(project, record)
    memory.broken = True
    with pytest.raises(OSError, match="the store is away"):
        runs.record_all(project)
    assert len(waiting(project)) == 2
    memory.broken = False
    runs.record_all(project)
    assert memory.records == [FIRST, SECOND]
    assert waiting(project) == []
    runs.record_all(project)
    assert len(memory.records) == 2


def test_spooled_file_is_kept_after_replacement(project, memory, tmp_path):
    report = tmp_path / "report.json"
    report.write_text("first")
    runs.spool_record(project, replace(FIRST, artifacts=[report]))
    report.write_text("second")
    runs.record_all(project)
    assert memory.files == [{"report.json": "first"}]


def test_crash_while_spooling_leaves_no_entry(project, memory, monkeypatch):
    def crash(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runs, "replace_folder", crash)
        with pytest.raises(KeyboardInterrupt):
            runs.spool_record(project, FIRST)
    assert waiting(project) == []
    runs.spool_record(project, FIRST)
    with monkeypatch.context() as patch:
        patch.setattr(runs.shutil, "rmtree", crash)
        with pytest.raises(KeyboardInterrupt):
            runs.record_all(project)
    runs.record_all(project)
    assert memory.records == [FIRST]


@pytest.mark.parametrize("followed", [False, True])
def test_a_stage_records_itself_only_if_nobody_follows(project, memory, monkeypatch, followed):
    if followed:
        monkeypatch.setenv(dvc.RECORDER, "1")
    (project.root / "params.yaml").write_text("seed: 3\nretrievers: {hce: {}}\n")
    (project.root / "out").mkdir()
    (project.root / "out" / "report.json").write_text('{"rows": 3}')
    stage = Stage("corpus", "Documents.", ("seed",), {}, "out", ())
    reads = run_stage.stage_key.StageInputs("command", {"input": "0"}, {"seed": 3})
    monkeypatch.setattr(run_stage.stage_key, "read_stage_inputs", lambda *_: reads)
    monkeypatch.setattr(
        run_stage, "_execute", lambda *arguments: arguments[-1].mkdir(parents=True) or {"rows": 3}
    )
    run_stage.run_stage(stage, project)
    assert [len(waiting(project)), len(memory.records)] == ([1, 0] if followed else [0, 1])
    runs.record_all(project)  # as whoever follows does
    assert memory.files == [{"report.json": '{"rows": 3}'}]
    assert (memory.records[0].key, memory.records[0].metrics["rows"]) == (reads.key, 3.0)


def test_disabled_tracking_creates_no_store(project, memory, monkeypatch):
    monkeypatch.setenv("FRESHET_TRACKING", "off")
    assert find_run(project, RECORD.key) is None
    assert not list(project.root.iterdir()), "no store is made"
    monkeypatch.delenv("FRESHET_TRACKING")
    runs.spool_record(project, FIRST)
    monkeypatch.setenv("FRESHET_TRACKING", "off")
    runs.spool_record(project, SECOND)
    runs.record_all(project)
    assert (len(waiting(project)), memory.records) == (1, [])
    monkeypatch.setenv("FRESHET_TRACKING", "no")
    with pytest.raises(FreshetError, match="FRESHET_TRACKING is 'no', but must be on or off"):
        find_run(project, RECORD.key)
