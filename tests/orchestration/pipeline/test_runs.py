"""Test runs in a real SQLite store of MLflow.

Every stage that ran is recorded once and in order, and is found again.
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

    expected = [[f"{tracker.find_run(key)}\n", "", 0] for key in ("first", "second")]
    assert started == expected


def test_folder_that_mlflow_cannot_use_is_refused(tmp_path):
    with pytest.raises(FreshetError, match=r"a path without \?, # and %"):
        run_store(Project(tmp_path / "100%"))


@pytest.fixture(scope="module")
def report_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.json"
    path.write_text("{}")
    return path


@pytest.fixture
def run(tracker, report_file):
    """Return the run of a stage with all kinds of values."""
    record = replace(
        RECORD,
        params={"training.temperature": 0.05, "long": "x" * 9999},
        metrics={"nDCG@10": 0.5, "seconds": 2.5},
        inputs={"artifacts/corpus": "c" * 64, "model_code/files.py": "f" * 64},
        artifacts=[report_file],
        curves=[
            {"step": 1, "loss": 2.0, "note": "warm-up"},
            {"step": 5, "loss": 1.0, "dev nDCG@10": 0.4},
        ],
        git_commit="d" * 40,
        git_dirty=True,
        dagster_run_id="dag-1",
    )
    return tracker.client.get_run(tracker.record_stage(record))


def test_run_holds_parameters(run):
    assert run.data.params == {"training.temperature": "0.05", "long": "x" * 500}


def test_run_holds_metrics(run):
    assert run.data.metrics == {
        "nDCG_at_10": 0.5,
        "seconds": 2.5,
        "loss": 1.0,
        "dev nDCG_at_10": 0.4,
    }


def test_run_holds_curves(run, tracker):
    history = tracker.client.get_metric_history(run.info.run_id, "loss")

    assert [(metric.step, metric.value) for metric in history] == [(1, 2.0), (5, 1.0)]


def test_run_holds_tags(run):
    tags = run.data.tags

    assert tags["freshet.key"] == "ab" * 32
    assert tags["freshet.stage"] == "train@hce"
    assert tags["freshet.git_dirty"] == "true"
    assert tags["mlflow.source.git.commit"] == "d" * 40
    assert tags["dagster.run_id"] == "dag-1"


def test_run_has_the_corpus_as_input(run):
    (dataset_input,) = run.inputs.dataset_inputs

    assert dataset_input.dataset.name == "corpus"
    assert dataset_input.dataset.digest == "c" * 36
    assert dataset_input.tags[0].value == "training"


def test_run_holds_files(run, tracker):
    files = tracker.client.list_artifacts(run.info.run_id)

    assert {file.path for file in files} == {"inputs.json", "report.json"}


def test_run_holds_name_and_times(run):
    assert run.info.start_time == 1_000_000
    assert run.info.end_time == 1_002_500
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "train@hce"


def runs_by_name(tracker):
    all_runs = tracker.client.search_runs([tracker.experiment])
    return {run.info.run_name: run for run in all_runs}


BASELINES = replace(
    RECORD,
    key="baselines",
    stage="baselines",
    build="build 1",
    systems={"bm25": {"test.nDCG@10": 0.5}, "zero_shot": {"test.nDCG@10": 0.4}},
)
EVALUATION = replace(
    RECORD,
    key="evaluated",
    stage="evaluate@hce",
    build="build 1",
    systems={"hce": {"test.nDCG@10": 0.6}},
    started=1005.0,
    ended=1006.0,
)
PILOT_EVALUATION = replace(EVALUATION, key="of a pilot", build="pilot 0123abcd")


@pytest.fixture
def recorded_builds(tracker):
    """Return the runs of a build and a pilot by their names."""
    for record in (BASELINES, EVALUATION, PILOT_EVALUATION):
        tracker.record_stage(record)
    return runs_by_name(tracker)


def test_build_and_pilot_have_runs_of_their_kind(recorded_builds):
    assert recorded_builds["build 1"].data.tags["freshet.kind"] == "build"
    assert recorded_builds["pilot 0123abcd"].data.tags["freshet.kind"] == "pilot"


def test_build_run_lasts_as_long_as_its_stages(recorded_builds):
    build = recorded_builds["build 1"]

    assert build.info.start_time == 1_000_000
    assert build.info.end_time == 1_006_000


def test_stage_runs_are_nested_in_build_run(recorded_builds):
    build_id = recorded_builds["build 1"].info.run_id

    scores = {}
    for name, run in recorded_builds.items():
        if run.data.tags.get("mlflow.parentRunId") == build_id:
            scores[name] = run.data.metrics.get("test.nDCG_at_10")

    assert scores == {
        "baselines": None,
        "bm25": 0.5,
        "zero_shot": 0.4,
        "evaluate@hce": None,
        "hce": 0.6,
    }


def test_stage_runs_of_pilots_are_marked(recorded_builds):
    assert {"evaluate@hce (pilot)", "hce (pilot)"} <= set(recorded_builds)


def test_stage_of_a_build_is_recorded_once(tracker):
    run_id = tracker.record_stage(EVALUATION)

    assert tracker.record_stage(EVALUATION) == run_id


@pytest.fixture
def build_run(tracker):
    """Record two builds with different temperatures, and return the run of the second build."""
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
    return runs_by_name(tracker)["build shown 2"]


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
    (dataset_input,) = build_run.inputs.dataset_inputs

    assert dataset_input.dataset.name == "corpus"


REPORT = {
    "system": "hce",
    "dev": {"queries": 0},
    "gate": {"queries": 0},
    "test": {"nDCG@10": 0.5},
    "variants": {
        "rrf": {
            "system": "hce.rrf",
            "dev": {"queries": 0},
            "gate": {"queries": 0},
            "test": {"nDCG@10": 0.5},
        }
    },
}


@pytest.mark.parametrize("report", [REPORT, {"baseline": REPORT}], ids=["one", "by name"])
def test_reported_systems_share_metric_names(report):
    numbers = {}
    for system, rows in run_stage.evaluated_systems(report):
        numbers[system] = run_stage.collect_numbers(rows)

    expected = {"dev.queries": 0.0, "gate.queries": 0.0, "test.nDCG@10": 0.5}
    assert numbers == {"hce": expected, "hce.rrf": expected}


def test_values_of_several_batches_are_stored(tracker):
    params = {f"p{i}": i for i in range(205)}
    curves = [{"step": i, "loss": float(i), "rate": 1.0} for i in range(1000)]

    run_id = tracker.record_stage(replace(RECORD, key="batches", params=params, curves=curves))

    assert len(tracker.client.get_run(run_id).data.params) == 205
    assert len(tracker.client.get_metric_history(run_id, "loss")) == 1000


def test_newest_finished_run_of_key_is_found(tracker):
    old_id = tracker.record_stage(replace(RECORD, key="twice"))
    new_id = tracker.record_stage(replace(RECORD, key="twice", started=2000.0, ended=2001.0))

    assert old_id != new_id
    assert tracker.find_run("twice") == new_id


def test_no_run_is_found_for_an_unknown_key(tracker):
    assert tracker.find_run("never") is None


def test_interrupted_stage_run_is_recorded_again(tracker, monkeypatch):
    def fail(*arguments):
        raise ZeroDivisionError

    record = replace(RECORD, key="again")
    with monkeypatch.context() as patch:
        patch.setattr(tracker, "_log_inputs", fail)
        with pytest.raises(ZeroDivisionError):
            tracker.record_stage(record)
    assert tracker.find_run("again") is None

    run_id = tracker.record_stage(record)

    assert tracker.record_stage(record) == run_id
    (run,) = tracker.client.search_runs([tracker.experiment], "tags.`freshet.key` = 'again'")
    assert run.info.run_id == run_id
    assert run.info.status == "FINISHED"


def test_store_is_in_state_folder_by_default(tmp_path):
    assert tracking_uri(Project(tmp_path)) == f"sqlite:///{tmp_path}/.freshet/mlflow/mlflow.db"


def test_store_moves_with_the_state_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FRESHET_STATE", str(tmp_path / "state"))

    assert store_folder(Project(tmp_path)) == tmp_path / "state" / "mlflow"


def test_tracking_uri_of_the_environment_is_used(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")

    assert tracking_uri(Project(tmp_path)) == "http://127.0.0.1:5000"


def test_process_opens_a_store_once(tracked_project, tracker):
    assert run_store(Project(tracked_project.root)) is tracker
    assert isinstance(tracker, RunStore)


def test_page_of_runs_names_the_experiment(tracked_project, tracker):
    assert f"/experiments/{tracker.experiment}/" in runs_page(tracked_project)


def test_repeated_reads_leave_no_file_open(tracked_project):
    for _ in range(40):
        versions.version_with_alias(tracked_project)
        find_run(tracked_project, "never")

    store = str(store_folder(tracked_project))
    open_store_files = []
    for link in Path("/proc/self/fd").iterdir():
        if link.is_symlink() and os.readlink(link).startswith(store):
            open_store_files.append(link)
    assert not open_store_files


def test_names_with_allowed_characters_stay_unchanged():
    assert valid_name("dev/loss level-2: mean_x.y") == "dev/loss level-2: mean_x.y"


def test_long_names_are_cut():
    assert len(valid_name("é" * 400)) == 250


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=n", "-c", "user.email=e", *arguments]
    completed = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return completed.stdout.strip()


@pytest.fixture
def repository(tmp_path) -> Path:
    """Return a repository with one commit."""
    git(tmp_path, "init")
    for name in ("dvc.lock", "params.yaml"):
        (tmp_path / name).write_text("a")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "m")
    return tmp_path


def test_git_state_without_repository(tmp_path):
    assert git_state(tmp_path) == (None, False)


def test_git_state_names_the_commit(repository):
    assert git_state(repository) == (git(repository, "rev-parse", "HEAD"), False)


def test_git_state_ignores_dvc_lock(repository):
    (repository / "dvc.lock").write_text("b")

    _, is_dirty = git_state(repository)

    assert is_dirty is False


def test_git_state_is_dirty_after_a_change(repository):
    (repository / "params.yaml").write_text("b")

    assert git_state(repository) == (git(repository, "rev-parse", "HEAD"), True)


def test_git_state_without_git(repository, monkeypatch):
    monkeypatch.setenv("PATH", str(repository))

    assert git_state(repository) == (None, False)


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


class MemoryStore:
    """Keep records, and the content of their files when they were recorded."""

    def __init__(self) -> None:
        self.records: list[StageRecord] = []
        self.files: list[dict[str, str]] = []
        self.is_reachable = True

    def record_stage(self, record: StageRecord) -> str:
        if not self.is_reachable:
            raise OSError("the store is away")
        self.records.append(record)
        self.files.append({path.name: path.read_text() for path in record.artifacts})
        return "run"


@pytest.fixture
def memory(monkeypatch):
    store = MemoryStore()

    def open_memory_store(project):
        return store

    monkeypatch.setattr(runs, "run_store", open_memory_store)
    return store


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def spooled_entries(project: Project) -> list[Path]:
    return sorted((project.state / "spool").glob("*"))


@pytest.fixture
def spooled_project(project):
    """Return a project with two spooled records. The later one was spooled first."""
    runs.spool_record(project, SECOND)
    runs.spool_record(project, FIRST)
    return project


def test_spooled_records_are_replayed_in_start_order(spooled_project, memory):
    runs.record_all(spooled_project)

    assert memory.records == [FIRST, SECOND]
    assert spooled_entries(spooled_project) == []


def test_spooled_records_are_replayed_once(spooled_project, memory):
    runs.record_all(spooled_project)

    runs.record_all(spooled_project)

    assert len(memory.records) == 2


def test_spooled_records_remain_while_the_store_is_away(spooled_project, memory):
    memory.is_reachable = False

    with pytest.raises(OSError, match="the store is away"):
        runs.record_all(spooled_project)

    assert len(spooled_entries(spooled_project)) == 2


def test_spooled_file_is_kept_after_replacement(project, memory, tmp_path):
    report = tmp_path / "report.json"
    report.write_text("first")
    runs.spool_record(project, replace(FIRST, artifacts=[report]))

    report.write_text("second")
    runs.record_all(project)

    assert memory.files == [{"report.json": "first"}]


def crash(*arguments):
    raise KeyboardInterrupt


def test_crash_while_spooling_leaves_no_entry(project, memory, monkeypatch):
    monkeypatch.setattr(runs, "replace_folder", crash)

    with pytest.raises(KeyboardInterrupt):
        runs.spool_record(project, FIRST)

    assert spooled_entries(project) == []


def test_crash_after_recording_records_nothing_twice(project, memory, monkeypatch):
    runs.spool_record(project, FIRST)
    with monkeypatch.context() as patch:
        patch.setattr(runs.shutil, "rmtree", crash)
        with pytest.raises(KeyboardInterrupt):
            runs.record_all(project)

    runs.record_all(project)

    assert memory.records == [FIRST]


@pytest.fixture
def stage_inputs(project, monkeypatch):
    """Replace the work of a stage, and return its inputs."""
    (project.root / "params.yaml").write_text("seed: 3\nretrievers: {hce: {}}\n")
    (project.root / "out").mkdir()
    (project.root / "out" / "report.json").write_text('{"rows": 3}')
    stage_inputs = run_stage.stage_key.StageInputs("command", {"input": "0"}, {"seed": 3})

    def read_inputs(*arguments):
        return stage_inputs

    def execute(*arguments):
        output = arguments[-1]
        output.mkdir(parents=True)
        return {"rows": 3}

    monkeypatch.setattr(run_stage.stage_key, "read_stage_inputs", read_inputs)
    monkeypatch.setattr(run_stage, "_execute", execute)
    return stage_inputs


CORPUS_STAGE = Stage("corpus", "Documents.", ("seed",), {}, "out", ())


def test_stage_records_itself(project, memory, stage_inputs):
    run_stage.run_stage(CORPUS_STAGE, project)

    assert spooled_entries(project) == []
    assert memory.files == [{"report.json": '{"rows": 3}'}]
    assert memory.records[0].key == stage_inputs.key
    assert memory.records[0].metrics["rows"] == 3.0


def test_stage_of_a_build_is_recorded_by_the_build(project, memory, stage_inputs, monkeypatch):
    monkeypatch.setenv(dvc.RECORDER, "1")

    run_stage.run_stage(CORPUS_STAGE, project)

    assert len(spooled_entries(project)) == 1
    assert memory.records == []
    runs.record_all(project)
    assert memory.files == [{"report.json": '{"rows": 3}'}]
    assert memory.records[0].key == stage_inputs.key
    assert memory.records[0].metrics["rows"] == 3.0


def test_disabled_tracking_creates_no_store(project, monkeypatch):
    monkeypatch.setenv("FRESHET_TRACKING", "off")

    assert find_run(project, RECORD.key) is None
    assert not list(project.root.iterdir())


def test_disabled_tracking_spools_and_records_nothing(project, memory, monkeypatch):
    runs.spool_record(project, FIRST)
    monkeypatch.setenv("FRESHET_TRACKING", "off")

    runs.spool_record(project, SECOND)
    runs.record_all(project)

    assert len(spooled_entries(project)) == 1
    assert memory.records == []


def test_unknown_tracking_value_is_refused(project, monkeypatch):
    monkeypatch.setenv("FRESHET_TRACKING", "no")

    with pytest.raises(FreshetError, match="FRESHET_TRACKING is 'no', but must be on or off"):
        find_run(project, RECORD.key)
