"""Guards the fault benchmark: a few real kills leave a whole collection, and the checks notice each
kind of harm.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace

import pytest

from benchmarks.faults import bench as faults
from benchmarks.faults import checks
from benchmarks.faults.doors import DoorTrial
from benchmarks.faults.project import OTHER, document_text
from benchmarks.faults.worker import ACTIONS, Journal, draw, follow, perform
from model_code.collection.generations import generation_builder as writer
from model_code.collection.generations import generation_store as live
from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.generations.net_changes import NetChanges
from model_code.collection.index import builds
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.ledger import ledger
from model_code.collection.ledger.events import LedgerCursor, Receipt
from model_code.collection.ledger.ledger import Ledger
from model_code.collection.ledger.states import LedgerView
from model_code.collection.segments import segment as part
from model_code.errors import FreshetError
from model_code.files import write_text
from tests.tiny_encoder import make_tiny_encoder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    texts = [document_text(number) for number in range(100)]
    return make_tiny_encoder(tmp_path_factory.mktemp("encoder"), [*texts, "base new"])


@pytest.fixture(autouse=True)
def _own_state(monkeypatch):
    for name in ("FRESHET_LEDGER", "FRESHET_STATE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def trial(tmp_path, encoder):
    return faults.Trial(tmp_path, encoder, seed=3)


@pytest.fixture
def doors(tmp_path, encoder):
    return DoorTrial(tmp_path, encoder, seed=3)


def test_kills_do_no_harm(trial):
    for number in range(3):
        trial.kill(number, longest=0.3)
    assert trial.problems == []
    journals = [Journal(path).read() for path in sorted(trial.root.glob("journal-*"))]
    assert all(any("end" in line for line in journal) for journal in journals)
    assert len(journals) == 3


def test_kills_at_the_doors_do_no_harm(doors):
    for number in range(3):
        doors.kill(number)
    assert doors.problems == []
    assert doors.dropped == 6


@pytest.mark.full
def test_what_is_lost_at_a_door_is_noticed(doors, monkeypatch):
    """The one who finishes for a process that was killed loses the last document of each file."""
    monkeypatch.setattr(DoorTrial, "_run_and_kill", lambda self, work: nullcontext())
    monkeypatch.setattr(Ledger, "receive", halved(Ledger.receive))
    doors.kill(1)
    assert any("at_the_inbox" in problem and "missing" in problem for problem in doors.problems)


def test_a_lost_document_is_noticed(trial):
    trial.state = trial.state | {"new-1": "never written"}
    trial._compare(None, acknowledged=False)
    assert trial.found[faults.PROBLEMS[1]] == 1
    assert any("missing ['new-1']" in problem for problem in trial.problems)


def test_changes_only_in_ledger_are_not_lost(trial, monkeypatch):
    """Killed between the commit and the receipt: nobody was told, and yet it has to be there."""
    action = {"kind": "put", "documents": {"new-1": "the array", "base-3": "the string"}}
    collection = LiveIndex(trial.project)
    collection.receive(
        [{"id": one, "title": one, "text": text} for one, text in action["documents"].items()], "x"
    )
    monkeypatch.setattr(LiveIndex, "recover", jumping(LiveIndex.recover))
    trial._compare(action, acknowledged=False)
    assert trial.found[faults.PROBLEMS[1]] >= 1
    assert any("new-1" in problem for problem in trial.problems)


def test_retriever_with_missing_document_is_detected(trial, monkeypatch):
    collection, other = LiveIndex(trial.project), LiveIndex(trial.project, OTHER)
    perform(collection, {"kind": "put", "documents": {"new-1": "the array"}})
    trial.state = checks.searched(collection)
    assert checks.searched(other) != trial.state
    monkeypatch.setattr(LiveIndex, "apply", lambda self: None)
    trial._compare(None, acknowledged=False)
    assert trial.found[faults.PROBLEMS[1]] == 1
    assert OTHER in trial.problems[0]


def test_a_damaged_generation_is_noticed(trial):
    file = trial.project.live / "hce" / "generations" / "000000" / "documents.parquet"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(FreshetError, match="was changed"):
        checks.searched(LiveIndex(trial.project))


def test_a_ledger_that_says_otherwise_is_noticed(trial):
    collection = LiveIndex(trial.project)
    collection.receive([{"id": "new-1", "title": "", "text": "some text"}], "x")
    assert (
        checks.ledger_problem(collection, trial.state, [])
        == "events are pending after they were applied"
    )
    collection.apply()
    state = checks.searched(collection)
    assert state == trial.state | {"new-1": "some text"}
    assert checks.ledger_problem(collection, state, ["new-1", "base-1"]) is None
    assert "the ledger says of new-1" in checks.ledger_problem(collection, trial.state, ["new-1"])


def test_every_action_does_what_the_model_says(trial):
    collection, other = LiveIndex(trial.project), LiveIndex(trial.project, OTHER)
    state, generations = trial.state, dict(trial.generations)
    put = {"kind": "put", "documents": {"new-1": "the array", "base-3": "the string"}}
    retrain = {"kind": "retrain", "documents": {"new-2": "the file", "new-1": "a table"}, "seed": 5}
    removal, back = (
        {"kind": "remove", "ids": ["new-2", "base-1", "nobody"]},
        {"kind": "revert", "to": None},
    )
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
    assert len({one.build for one in collection.store.generations()}) >= 2


class Killed(BaseException):
    """The process is dead: nothing catches this."""


STEPS = (
    (GenerationStore, "write_manifest"),
    (live, "fsync_tree"),
    (GenerationStore, "commit"),
    (GenerationStore, "set_current"),
)
DRAWN = ("put", "revert", "remove", "put", "retrain")  # each twice in ten kills, in this order


def crash(trial, number: int) -> None:
    """As `Trial.kill`, in this process: one change goes well, the next dies before a step of the
    live collection.
    """
    collection, other = LiveIndex(trial.project), LiveIndex(trial.project, OTHER)
    kind = DRAWN[number % len(DRAWN)]
    chosen = sorted(trial.generations)[-3:]
    action = next(
        drawn for drawn in iter(lambda: draw(trial.random, chosen), None) if drawn["kind"] == kind
    )
    lines: list[dict] = [{"begin": action}]
    with pytest.MonkeyPatch.context() as patch:
        owner, step = trial.random.choice(STEPS)
        real, calls = getattr(owner, step), trial.random.randrange(3)

        def dying(*arguments, **named):
            nonlocal calls
            calls -= 1
            if calls < 0:
                raise Killed
            return real(*arguments, **named)

        patch.setattr(owner, step, dying)
        with suppress(Killed):
            perform(collection, action, lambda: lines.append({"acknowledged": True}))
            follow(other, action)
            lines.append({"end": collection.generation.number})
    for each in (collection, other):
        each.ledger.close()
    trial._compare(*trial._replay(lines))


def jumping(method):
    """What waits is passed over by whoever begins: every pending event is as good as rolled back."""

    def recover(self):
        method(self)
        self.store.publish_again(self.generation, LedgerCursor(self.ledger.position()), {})

    return recover


def pointer_first(keep):
    def swapped(self, made, number):
        write_text(self.folder / "current", f"{number}\n")
        return keep(self, made, number)

    return swapped


def halved(receive):
    """A batch in two transactions, the second of which never comes."""
    return lambda self, documents, *rest, **named: receive(
        self, list(documents)[:-1], *rest, **named
    )


def cut_pending(pending):
    def without_last(self, limit=None):
        found = pending(self, limit)
        return replace(found, events=found.events[:-1])

    return without_last


def silent_removal(remove):
    return lambda self, ids, *arguments: Receipt(len(list(ids)), 0, (), ())


def garbled(row):
    return lambda document: row(replace(document, text=document.text[:-1]))


def forgetful(write):
    return lambda folder, removed: write(
        folder, {part: ids for part, ids in removed.items() if part != min(removed)}
    )


MUTATIONS = {
    "what waits is rolled back at recovery": (LiveIndex, "recover", jumping),
    "the pointer moves before the folder has its name": (GenerationStore, "commit", pointer_first),
    "a document of a batch is dropped": (Ledger, "receive", halved),
    "the last event is passed over": (LedgerView, "pending", cut_pending),
    "a removal is lost": (Ledger, "remove", silent_removal),
    "what is replaced stays": (
        NetChanges,
        "compute",
        lambda of: lambda *given: replace(of(*given), removed={}),
    ),
    "a revert compensates nothing": (ledger, "_compensations", lambda _: lambda *_: []),
    "a text is cut": (part, "document_row", garbled),
    "a build is opened as if it held all that arrived": (
        builds,
        "_build_cursor",
        lambda _: lambda log, snapshot: LedgerCursor(log.position()),
    ),
    "what left the base is forgotten": (writer, "write_removed", forgetful),
}


def test_crashes_without_a_mutation_do_no_harm(trial):
    for number in range(10):
        crash(trial, number)
    assert trial.problems == []
    assert trial.interrupted.total() > 3


@pytest.mark.full
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_each_mutation_is_caught_within_ten_kills(trial, monkeypatch, mutation):
    owner, name, change = MUTATIONS[mutation]
    monkeypatch.setattr(owner, name, change(getattr(owner, name)))
    for number in range(10):
        try:
            crash(trial, number)
        except Exception as error:  # whatever ends the bench is seen
            trial.problems.append(repr(error))
        if trial.problems:
            return
    pytest.fail("nobody noticed")
