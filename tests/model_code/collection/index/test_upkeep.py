"""Guards what follows an addition: every live retriever takes it in, one that cannot harms no
other, garbage goes.
"""

from __future__ import annotations

import shutil

import pytest

from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.index.changes import add_files
from model_code.collection.index.live_index import LiveIndex, live_retrievers
from model_code.collection.index.maintenance import BackgroundMaintenance
from model_code.collection.index.retrain_plan import RetrainPlan, retrain_workspace, save_plan
from model_code.collection.index.status import live_status
from model_code.collection.ledger.tasks import EventRange
from orchestration.freshness.due_tasks import request_due_tasks
from tests.disk import skip_fsync
from tests.live_example import (
    BASE,
    StandInBuilder,
    make_project,
    open_build,
    row,
    texts,
    trained_at,
)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Two retrievers are live, "hce" by default."""
    skip_fsync(monkeypatch)
    writer = property(lambda self: StandInBuilder(self.project.live, self.retriever))
    monkeypatch.setattr(LiveIndex, "builder", writer)
    project = make_project(tmp_path)
    open_build(project, BASE, retriever="other")
    return project


def settings(project, **values):
    live = ", ".join(f"{name}: {value}" for name, value in values.items())
    project.params_file.write_text(f"{{retrievers: {{hce: {{}}}}, live: {{{live}}}}}\n")


def receive(project, *names):
    LiveIndex(project).receive([row(one, f"about {one}") for one in names], "test")


def pending(project, name):
    return LiveIndex(project, name).ledger_view.backlog().number


def generations(project, name="hce"):
    return [one.number for one in GenerationStore(project.live, name).generations()]


def test_maintenance_updates_all_live_retrievers(project):
    assert live_retrievers(project) == ["hce", "other"]

    receive(project, "a", "b")
    upkeep = BackgroundMaintenance(project)

    assert upkeep.run_once()
    assert texts(project, ["a"]) == {"a": "about a"}
    assert texts(project, ["a"], "other") == {}
    assert upkeep.run_all() == {}
    assert texts(project, ["a", "b"], "other") == {"a": "about a", "b": "about b"}
    assert pending(project, "hce") == 0
    assert pending(project, "other") == 0

    receive(project, "c")
    # The retriever that has just applied the changes is left out.
    assert BackgroundMaintenance(project).run_all(except_retriever="hce") == {}
    assert pending(project, "hce") == 1
    assert pending(project, "other") == 0


def test_maintenance_continues_in_batches(project):
    receive(project, "a", "b", "c")
    LiveIndex(project).apply()

    assert [
        live_status(project, name)["ledger"]["lag"]["pending"] for name in live_retrievers(project)
    ] == [0, 3]

    upkeep = BackgroundMaintenance(project)
    assert [upkeep.run_once(2) for _ in range(3)] == [True, True, False]
    assert pending(project, "other") == 0


def test_failing_retriever_does_not_stop_others(project, monkeypatch, tmp_path):
    open_build(project, BASE, retriever="third")
    real = StandInBuilder.apply

    def apply(self, *arguments, **named_arguments):
        if self.collection.retriever == "other":
            raise OSError("no space left")
        return real(self, *arguments, **named_arguments)

    monkeypatch.setattr(StandInBuilder, "apply", apply)
    (tmp_path / "a.jsonl").write_text('{"id": "a", "title": "a", "text": "about a"}\n')
    outcome = add_files(LiveIndex(project), [tmp_path / "a.jsonl"])
    assert outcome.added == ["a"]
    assert outcome.behind == {"other": "no space left"}
    assert pending(project, "hce") == 0
    assert pending(project, "other") == 1
    assert pending(project, "third") == 0
    (work,) = request_due_tasks(project)
    assert work.kind == "add"
    assert work.retriever == "other"
    assert work.event_range == EventRange(1, 1)
    assert work.reason == "1 change is waiting for other"
    upkeep = BackgroundMaintenance(project)
    assert upkeep.run_all() == outcome.behind
    monkeypatch.setattr(StandInBuilder, "apply", real)
    # The next maintenance tries again.
    assert upkeep.run_all() == {}
    assert request_due_tasks(project) == []


def test_maintenance_removes_old_generations_in_batches(project, monkeypatch):
    settings(project, keep_generations=2)
    monkeypatch.setattr("model_code.collection.index.maintenance.MIN_COLLECTED_GENERATIONS", 4)
    collect_garbage = StandInBuilder.collect_garbage
    deleted_counts = []

    def collect_and_count(self, keep, registered=()):
        deleted = collect_garbage(self, keep, registered)
        if self.collection.retriever == "hce":
            deleted_counts.append(len(deleted))
        return deleted

    monkeypatch.setattr(StandInBuilder, "collect_garbage", collect_and_count)
    for number in range(10):
        receive(project, f"d{number}")
        LiveIndex(project).apply()
        LiveIndex(project).compact()
        # Each maintenance starts as in a process of its own.
        problems = BackgroundMaintenance(project).run_all()
        assert problems == {}

    needed = GenerationStore(project.live, "hce").current().needs
    assert deleted_counts == [5, 4, 4, 4]
    assert len(texts(project, [f"d{i}" for i in range(10)])) == 10
    assert needed <= set(generations(project))


def test_without_a_number_nothing_is_deleted(project, monkeypatch):
    settings(project, keep_generations="null")
    monkeypatch.setattr("model_code.collection.index.maintenance.MIN_COLLECTED_GENERATIONS", 1)
    for number in range(4):
        receive(project, f"d{number}")
        BackgroundMaintenance(project).run_all()

    assert generations(project) == [0, 1, 2, 3, 4]


def test_maintenance_keeps_builds_and_retrain_inputs(project, monkeypatch):
    settings(project, keep_generations=2)
    monkeypatch.setattr("model_code.collection.index.maintenance.MIN_COLLECTED_GENERATIONS", 1)
    upkeep = BackgroundMaintenance(project)
    save_plan(project, RetrainPlan("k", "hce", 1, 1, 2, ()))
    for number in range(3):
        receive(project, f"d{number}")
        upkeep.run_all()
    of_before = BASE | {f"d{i}": "x" for i in range(3)}
    # This build shares nothing with the one before.
    open_build(project, of_before, trained_at(project, 3))
    for number in range(3, 6):
        receive(project, f"d{number}")
        upkeep.run_all()

    # The generation of the plan and its base are kept.
    assert {0, 1} <= set(generations(project))
    assert not {2, 3} & set(generations(project))

    retrain_workspace(project, "k").root.mkdir()
    receive(project, "last")
    upkeep.run_all()

    assert not {0, 1} & set(generations(project))


def test_a_deleted_retriever_is_behind_no_more(project):
    receive(project, "a")
    upkeep = BackgroundMaintenance(project)
    upkeep.failures["other"] = "no space left"
    shutil.rmtree(project.live / "other")

    assert upkeep.run_all() == {}
