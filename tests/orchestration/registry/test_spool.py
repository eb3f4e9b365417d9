"""Guards that every stage that ran is recorded once and in order, whoever drives it and wherever a crash falls.

Run: python -m pytest tests/orchestration/registry/test_spool.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestration.pipeline import repro, run_stage
from orchestration.pipeline.stages import Stage
from orchestration.project import Project
from orchestration.registry import runs
from orchestration.registry.runs import StageRecord

FIRST = StageRecord(
    stage="train@hce", key="ab" * 32, params={"training.steps": 3, "on": None}, metrics={"seconds": 0.1 + 0.2},
    inputs={"artifacts/corpus": "c" * 64}, artifacts=[], curves=[{"step": 1, "loss": 2.5, "note": "µ"}],
    git_commit=None, git_dirty=True, dagster_run_id="dag-1", started=1000.25, ended=1002.5,
)  # fmt: skip
SECOND = replace(FIRST, stage="index@hce", key="cd" * 32, started=1010.0, ended=1020.0)


class Memory:
    """A tracker that remembers what it was given, and the content of the files as they were then."""

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
    for name in ("FRESHET_STATE", "FRESHET_TRACKING", repro.EVENTS_FILE):
        monkeypatch.delenv(name, raising=False)
    return tracker


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def waiting(project: Project) -> list[Path]:
    return sorted((project.state / "spool").glob("*"))


def test_records_come_out_as_they_went_in_in_order_of_their_start(project, memory):
    for record in (SECOND, FIRST):
        runs.keep(project, record)
    assert len(waiting(project)) == 2
    runs.record_all(project)
    assert memory.records == [FIRST, SECOND]
    assert waiting(project) == []
    runs.record_all(project)
    assert len(memory.records) == 2


def test_a_file_is_kept_as_it_was_although_a_later_run_replaced_it(project, memory, tmp_path):
    report = tmp_path / "report.json"
    report.write_text("first")
    runs.keep(project, replace(FIRST, artifacts=[report]))
    report.write_text("second")
    runs.record_all(project)
    assert memory.files == [{"report.json": "first"}]


def test_nothing_is_lost_if_the_store_cannot_be_reached(project, memory):
    runs.keep(project, FIRST)
    memory.broken = True
    with pytest.raises(OSError, match="the store is away"):
        runs.record_all(project)
    memory.broken = False
    runs.record_all(project)
    assert memory.records == [FIRST]


def test_a_crash_while_spooling_or_while_clearing_leaves_no_entry(project, memory, monkeypatch):
    def crash(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runs, "replace_folder", crash)
        with pytest.raises(KeyboardInterrupt):
            runs.keep(project, FIRST)
    assert waiting(project) == []
    runs.keep(project, FIRST)
    with monkeypatch.context() as patch:
        patch.setattr(runs.shutil, "rmtree", crash)
        with pytest.raises(KeyboardInterrupt):
            runs.record_all(project)
    runs.record_all(project)
    assert memory.records == [FIRST]


@pytest.mark.parametrize("followed", [False, True])
def test_a_stage_records_itself_only_if_nobody_follows(project, memory, monkeypatch, followed):
    if followed:
        monkeypatch.setenv(repro.EVENTS_FILE, str(project.root / "events.jsonl"))
    (project.root / "params.yaml").write_text("seed: 3\n")
    (project.root / "out").mkdir()
    (project.root / "out" / "report.json").write_text('{"rows": 3}')
    stage = Stage("corpus", "Documents.", ("seed",), {}, "out", ())
    reads = run_stage.stage_key.StageReads("command", {"input": "0"}, {"seed": 3})
    run_stage._record(stage, project, reads, run_stage.Finished(reads.key, {"rows": 3}, 1.0, 2.0))
    assert [len(waiting(project)), len(memory.records)] == ([1, 0] if followed else [0, 1])
    runs.record_all(project)  # as whoever follows does
    assert memory.files == [{"report.json": '{"rows": 3}'}]
    assert (memory.records[0].key, memory.records[0].metrics["rows"]) == (reads.key, 3.0)


def test_with_tracking_off_nothing_is_kept_and_what_waits_goes_on_waiting(project, memory, monkeypatch):
    runs.keep(project, FIRST)
    monkeypatch.setenv("FRESHET_TRACKING", "off")
    runs.keep(project, SECOND)
    runs.record_all(project)
    assert (len(waiting(project)), memory.records) == (1, [])
