"""Tests of the trial that kills retrains.

Every part of a retrain is marked and has its turn, and the checks notice each kind of harm.
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
    """The live index of a project to which three documents were added."""
    for name in retrains.OUTSIDE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    make_project(tmp_path)
    collection = collection_of(Project(tmp_path))
    rows = [{"id": name, "title": name, "text": f"about {name}"} for name in "abc"]
    collection.receive(rows, "api")
    collection.apply()
    return collection


class ScriptedTrial(retrains.RetrainTrial):
    """A trial whose retrains end before the kills `missed`, by number."""

    def __init__(self, missed=()):
        self.missed = missed
        self.attempts = []

    def _change_documents(self):
        """Change no documents."""

    def attempt(self, key, part=None):
        self.attempts.append((key, part))
        return part is not None and len(self.attempts) not in self.missed


def test_every_part_is_a_kill_point():
    kill_points = {retrains.PARTS[number] for number in retrains.wanted_parts(20)}

    assert kill_points == set(retrains.PARTS)


def test_retrain_kill_points_come_in_order():
    trial = ScriptedTrial()
    wanted = retrains.wanted_parts(20)

    remaining = trial._kill_in_parts("k", wanted)

    killed_in = [part for _, part in trial.attempts]
    assert killed_in == [*retrains.PARTS[:: retrains.PARTS_BETWEEN_KILLS], None]
    assert remaining == wanted[len(killed_in) - 1 :]


def test_passed_kill_point_waits_for_next_retrain():
    # The second retrain ends by itself.
    trial = ScriptedTrial(missed=[2])

    remaining = trial._kill_in_parts("k", [0, 3, 6])

    assert remaining == [3, 6]
    assert len(trial.attempts) == 2


@pytest.fixture
def journal(tmp_path):
    """The journal of a retrain."""
    return Journal(tmp_path / "journal")


@pytest.fixture
def journal_trial(tmp_path):
    """A trial in whose project no stage is running."""
    trial = ScriptedTrial()
    trial.project = SimpleNamespace(state=tmp_path)
    return trial


def test_retrain_without_journal_is_starting(journal, journal_trial):
    assert journal_trial._find_part(journal) == retrains.STARTING


def test_marked_function_is_a_part(journal, journal_trial):
    def write_part():
        journal.write(seen=journal_trial._find_part(journal))

    worker._mark_in_journal(journal, "snapshot", write_part)()

    assert journal.read()[1] == {"seen": "snapshot"}
    assert journal_trial._find_part(journal) == retrains.BETWEEN_PARTS


def test_running_stage_is_a_part(journal, journal_trial, tmp_path):
    worker._mark_in_journal(journal, "snapshot", tmp_path.exists)()

    (tmp_path / "staging" / "train@hce").mkdir(parents=True)

    assert journal_trial._find_part(journal) == "train@hce"


def test_last_line_of_the_journal_is_the_part(journal, journal_trial, tmp_path):
    (tmp_path / "staging" / "train@hce").mkdir(parents=True)

    journal.write(part="judge")

    assert journal_trial._find_part(journal) == "judge"


def test_stages_of_a_retrain_exist():
    stage_names = {stage.name for stage in TABLE}

    assert {address.partition("@")[0] for address in retrains.STAGES} <= stage_names


def test_marked_functions_exist():
    assert worker.MARKED_FUNCTIONS
    for module, name in worker.MARKED_FUNCTIONS.values():
        assert callable(getattr(module, name))


def test_gate_always_passes_with_its_own_reasons():
    refused = Verdict(False, ("it gains nothing",), 3, ())

    def refuse():
        return refused

    assert worker._always_pass(refuse)() == Verdict(True, refused.reasons, 3, ())


PARENT = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"])
"""


def test_kill_with_children_leaves_none():
    process = psutil.Popen([sys.executable, "-c", PARENT], stdout=subprocess.DEVNULL)
    children = process.children()
    while not children:
        assert process.poll() is None
        children = process.children()

    retrains._kill(process, with_children=True)

    assert not process.is_running()
    assert not any(child.is_running() for child in children)


@pytest.mark.parametrize(
    ("champion", "live", "finished", "is_problem"),
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
    monkeypatch, collection, champion, live, finished, is_problem
):
    def list_two_versions(project):
        return [SimpleNamespace(version="1"), SimpleNamespace(version="2")]

    def champion_of(project):
        return champion

    def live_version(generation):
        return live

    monkeypatch.setattr(versions, "list_versions", list_two_versions)
    monkeypatch.setattr(checks, "champion_of", champion_of)
    monkeypatch.setattr(checks, "live_version", live_version)

    problem = checks.version_problem(collection, "1", finished)

    assert (problem is not None) == is_problem


def test_live_build_keeps_its_opened_version(collection):
    assert checks.live_version(collection.generation) == checks.NO_VERSION


def record_promotion_in_ledger(project):
    """Close the retrain task with a promotion of version 7."""
    tasks = open_ledger(project, "hce").tasks
    tasks.close_retrains("hce", TaskState.DONE, "why", {"version": "7"})


def test_missing_promotion_is_noticed(collection):
    problem = checks.promotion_problem(collection, "7")

    assert problem.startswith("version 7 is promoted 0 times in the ledger")


def test_promotion_noted_once_in_each_place_is_no_problem(collection):
    record_promotion_in_ledger(collection.project)
    history.append(collection.project, "promote", None, "7", None)

    assert checks.promotion_problem(collection, "7") is None


def test_promotion_noted_twice_is_noticed(collection):
    record_promotion_in_ledger(collection.project)
    history.append(collection.project, "promote", None, "7", None)

    record_promotion_in_ledger(collection.project)

    problem = checks.promotion_problem(collection, "7")
    assert problem.startswith("version 7 is promoted 2 times in the ledger and 1")
