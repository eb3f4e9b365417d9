"""Guards the killing of retrains: every part is marked and has its turn, and the checks notice each
kind of harm.
"""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from benchmarks.faults import checks, retrains, worker
from benchmarks.faults.worker import Journal
from model_code.collection.index.project_ledger import open_ledger
from model_code.collection.ledger.tasks import TaskState
from model_code.evaluation.promotion import Verdict
from model_code.project import Project
from orchestration.pipeline.stages import TABLE
from orchestration.registry import history, versions
from tests.live_example import collection_of, make_project


@pytest.fixture
def collection(tmp_path, monkeypatch):
    """Of a collection to which three documents were added."""
    for name in retrains.OUTSIDE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    make_project(tmp_path)
    collection = collection_of(Project(tmp_path))
    collection.receive([{"id": one, "title": one, "text": f"about {one}"} for one in "abc"], "api")
    collection.apply()
    return collection


class Scripted(retrains.RetrainTrial):
    """A trial whose retrains end before the kills `missed`, by number."""

    def __init__(self, missed=()):
        self.missed, self.attempts = missed, []

    def _change_documents(self):
        pass

    def attempt(self, key, part=None):
        self.attempts.append((key, part))
        return part is not None and len(self.attempts) not in self.missed


def test_retrain_kill_points_come_in_order():
    trial, wanted = Scripted(), retrains.wanted_parts(20)
    left = trial._kill_in_parts("k", wanted)
    assert {retrains.PARTS[one] for one in wanted} == set(retrains.PARTS)
    assert [part for _, part in trial.attempts] == [
        *retrains.PARTS[:: retrains.PARTS_BETWEEN_KILLS],
        None,
    ]
    assert left == wanted[len(trial.attempts) - 1 :]


def test_passed_kill_point_waits_for_next_retrain():
    trial = Scripted(missed=[2])
    assert trial._kill_in_parts("k", [0, 3, 6]) == [3, 6]
    assert len(trial.attempts) == 2, "the second one ended by itself"


def test_what_a_retrain_does_is_told_by_its_journal_and_by_what_is_in_the_making(tmp_path):
    journal, trial = Journal(tmp_path / "journal"), Scripted()
    trial.project = SimpleNamespace(state=tmp_path)
    assert trial._find_part(journal) == retrains.STARTING
    worker._mark_in_journal(
        journal, "snapshot", lambda: journal.write(seen=trial._find_part(journal))
    )()
    assert journal.read()[1] == {"seen": "snapshot"}
    assert trial._find_part(journal) == retrains.BETWEEN_PARTS
    (tmp_path / "staging" / "train@hce").mkdir(parents=True)
    assert trial._find_part(journal) == "train@hce"
    journal.write(part="judge")
    assert trial._find_part(journal) == "judge"


def test_stages_and_marked_functions_are_there_and_the_gate_passes_with_its_own_reasons():
    known = {stage.name for stage in TABLE}
    assert {stage.partition("@")[0] for stage in retrains.STAGES} <= known
    assert all(callable(getattr(module, name)) for module, name in worker.MARKED_FUNCTIONS.values())
    refused = Verdict(False, ("it gains nothing",), 3, ())
    assert worker._always_pass(lambda: refused)() == Verdict(True, refused.reasons, 3, ())


def test_a_kill_with_children_leaves_none():
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    process = psutil.Popen([sys.executable, "-c", child], stdout=subprocess.DEVNULL)
    while not (below := process.children()):
        assert process.poll() is None
    retrains._kill(process, with_children=True)
    assert not any(one.is_running() for one in (process, *below))


@pytest.mark.parametrize(
    ("champion", "live", "finished", "wrong"),
    [
        ("1", "1", False, False),
        ("1", "2", False, False),
        ("2", "2", False, False),
        ("2", "1", False, True),
        ("2", "2", True, False),
        ("1", "1", True, True),
        ("1", "2", True, True),
    ],
)
def test_champion_and_live_build_change_together(
    monkeypatch, collection, champion, live, finished, wrong
):
    known = [SimpleNamespace(version=number) for number in ("1", "2")]
    monkeypatch.setattr(versions, "list_versions", lambda project: known)
    monkeypatch.setattr(checks, "champion_of", lambda project: champion)
    monkeypatch.setattr(checks, "live_version", lambda generation: live)
    assert (checks.roles_problem(collection, "1", finished) is not None) == wrong


def test_live_build_keeps_its_opened_version(collection):
    assert checks.live_version(collection.generation) == checks.NO_VERSION


def test_a_promotion_is_noted_once_in_each_place(collection):
    project = collection.project
    assert checks.notes_problem(collection, "7").startswith(
        "version 7 is promoted 0 times in the ledger"
    )
    open_ledger(project, "hce").tasks.close_retrains("hce", TaskState.DONE, "why", {"version": "7"})
    history.append(project, "promote", None, "7", None)
    assert checks.notes_problem(collection, "7") is None
    open_ledger(project, "hce").tasks.close_retrains("hce", TaskState.DONE, "why", {"version": "7"})
    assert checks.notes_problem(collection, "7").startswith(
        "version 7 is promoted 2 times in the ledger and 1"
    )
