"""Guards the fault benchmark: a few real kills leave a whole collection, and the checks notice each kind of harm."""

from __future__ import annotations

import pytest

from benchmarks.bench import BENCHES
from benchmarks.faults import bench as faults
from benchmarks.faults import checks
from benchmarks.faults.project import OTHER, document_text
from benchmarks.faults.worker import ACTIONS, Journal, follow, perform
from model_code.errors import FreshetError
from orchestration.live.collection import LiveCollection
from tests.tiny_encoder import make_tiny_encoder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    texts = [document_text(number) for number in range(100)]
    return make_tiny_encoder(tmp_path_factory.mktemp("encoder"), [*texts, "base new"])


@pytest.fixture
def trial(tmp_path, encoder, monkeypatch):
    for name in ("FRESHET_LEDGER", "FRESHET_STATE"):
        monkeypatch.delenv(name, raising=False)
    return faults.Trial(tmp_path, encoder, seed=3)


def test_kills_do_no_harm(trial):
    for number in range(3):
        trial.kill(number, longest=0.3)
    assert trial.problems == []
    journals = [Journal(path).read() for path in sorted(trial.root.glob("journal-*"))]
    assert all(any("end" in line for line in journal) for journal in journals)
    assert len(journals) == 3


def test_a_lost_document_is_noticed(trial):
    trial.state = trial.state | {"new-1": "never written"}
    trial._compare(None, acknowledged=False)
    assert trial.found[faults.PROBLEMS[1]] == 1
    assert any("missing ['new-1']" in problem for problem in trial.problems)


def test_a_retriever_that_lacks_what_the_other_has_is_noticed(trial, monkeypatch):
    collection, other = LiveCollection(trial.project), LiveCollection(trial.project, OTHER)
    perform(collection, {"kind": "put", "documents": {"new-1": "the array"}})
    trial.state = checks.searched(collection)
    assert checks.searched(other) != trial.state
    monkeypatch.setattr(LiveCollection, "apply", lambda self: None)
    trial._compare(None, acknowledged=False)
    assert trial.found[faults.PROBLEMS[1]] == 1
    assert OTHER in trial.problems[0]


def test_a_damaged_generation_is_noticed(trial):
    file = trial.project.live / "hce" / "generations" / "000000" / "documents.parquet"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(FreshetError, match="was changed"):
        checks.searched(LiveCollection(trial.project))


def test_a_ledger_that_says_otherwise_is_noticed(trial):
    collection = LiveCollection(trial.project)
    collection.receive([{"id": "new-1", "title": "", "text": "some text"}], "x")
    assert checks.ledger_problem(collection, trial.state, []) == "events are pending after they were applied"
    collection.apply()
    state = checks.searched(collection)
    assert state == trial.state | {"new-1": "some text"}
    assert checks.ledger_problem(collection, state, ["new-1", "base-1"]) is None
    assert "the ledger says of new-1" in checks.ledger_problem(collection, trial.state, ["new-1"])


def test_the_model_follows_every_action():
    generations = {2: {"b": "y"}}
    state = {"a": "x"}
    put = {"kind": "put", "documents": {"a": "2"}}
    assert checks.changed(state, put, generations) == {"a": "2"}
    assert checks.changed(state, {"kind": "remove", "ids": ["a", "z"]}, generations) == {}
    assert checks.changed(state, {"kind": "revert", "to": 2}, generations) == {"b": "y"}
    assert checks.changed(state, {"kind": "compact"}, generations) == state


def test_every_action_does_what_the_model_says(trial):
    collection, other = LiveCollection(trial.project), LiveCollection(trial.project, OTHER)
    state, generations = trial.state, dict(trial.generations)
    put = {"kind": "put", "documents": {"new-1": "the array", "base-3": "the string"}}
    retrain = {"kind": "retrain", "documents": {"new-2": "the file", "new-1": "a table"}, "seed": 5}
    removal, back = {"kind": "remove", "ids": ["new-2", "base-1"]}, {"kind": "revert", "to": None}
    others = [{"kind": kind} for kind in ("compact", "collect")]
    assert {action["kind"] for action in (put, retrain, removal, back, *others)} == set(ACTIONS)
    for action in (put, retrain, removal, *others, retrain | {"seed": 6}, back):
        if action is back:
            action = back | {"to": sorted(generations)[-2]}  # of the build before
        perform(collection, action)
        follow(other, action)
        state = checks.changed(state, action, generations)
        assert checks.searched(collection) == checks.searched(other) == state, action
        assert checks.ledger_problem(collection, state, [*state, "new-1", "new-2"]) is None
        generations[collection.generation.number] = state
    assert len({one.build for one in collection.collection.generations()}) >= 2


def test_it_is_a_benchmark():
    assert BENCHES["faults"] == "benchmarks.faults.bench"
