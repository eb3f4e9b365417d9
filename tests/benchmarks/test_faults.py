"""Tests of the fault benchmark.

A few real kills leave a whole collection, and the checks notice each kind of harm.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace

import pytest

from benchmarks.faults import bench as faults
from benchmarks.faults import checks
from benchmarks.faults.project import OTHER, document_text
from benchmarks.faults.receivers import ReceiverTrial
from benchmarks.faults.worker import ACTIONS, Journal, draw, follow, perform
from model_code.collection.generations import generation_builder, generation_store
from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.generations.net_changes import NetChanges
from model_code.collection.index import builds
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.ledger import ledger
from model_code.collection.ledger.events import LedgerCursor, Receipt
from model_code.collection.ledger.ledger import Ledger
from model_code.collection.ledger.states import LedgerView
from model_code.collection.segments import segment as segment_module
from model_code.errors import FreshetError
from model_code.files import write_text
from tests.tiny_encoder import make_tiny_encoder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A tiny encoder that knows the words of the benchmark."""
    texts = [document_text(number) for number in range(100)]
    return make_tiny_encoder(tmp_path_factory.mktemp("encoder"), [*texts, "base new"])


@pytest.fixture(autouse=True)
def _own_state(monkeypatch):
    """Ignore the ledger and the state that the environment names."""
    for name in ("FRESHET_LEDGER", "FRESHET_STATE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def trial(tmp_path, encoder):
    """A trial that kills writers of one collection."""
    return faults.Trial(tmp_path, encoder, seed=3)


@pytest.fixture
def receivers(tmp_path, encoder):
    """A trial that kills the processes that receive documents."""
    return ReceiverTrial(tmp_path, encoder, seed=3)


def test_kills_do_no_harm(trial):
    for number in range(3):
        trial.kill(number, longest=0.3)

    journals = [Journal(path).read() for path in sorted(trial.root.glob("journal-*"))]
    assert trial.problems == []
    assert len(journals) == 3
    for journal in journals:
        assert any("end" in line for line in journal)


def test_kills_of_receivers_do_no_harm(receivers):
    for number in range(3):
        receivers.kill(number)

    assert receivers.problems == []
    assert receivers.dropped_files == 6


def run_nothing(self, work):
    """Stand in for a process that is killed before it does anything."""
    return nullcontext()


@pytest.mark.full
def test_document_lost_by_receiver_is_noticed(receivers, monkeypatch):
    """The process that finishes the work loses the last document of each file."""
    monkeypatch.setattr(ReceiverTrial, "_run_and_kill", run_nothing)
    monkeypatch.setattr(Ledger, "receive", drop_last_document(Ledger.receive))

    receivers.kill(1)

    assert any(
        "kill_inbox_reader" in problem and "missing" in problem for problem in receivers.problems
    )


def test_lost_document_is_noticed(trial):
    trial.state = {**trial.state, "new-1": "never written"}

    trial._compare(None, acknowledged=False)

    assert trial.problem_counts[faults.PROBLEMS[1]] == 1
    assert any("missing ['new-1']" in problem for problem in trial.problems)


PUT = {"kind": "put", "documents": {"new-1": "the array", "base-3": "the string"}}


def test_changes_only_in_ledger_are_not_lost(trial, monkeypatch):
    """A process was killed between the commit and the receipt: nobody was told."""
    rows = []
    for document_id, text in PUT["documents"].items():
        rows.append({"id": document_id, "title": document_id, "text": text})
    LiveIndex(trial.project).receive(rows, "x")
    monkeypatch.setattr(LiveIndex, "recover", skip_pending_events(LiveIndex.recover))

    trial._compare(PUT, acknowledged=False)

    assert trial.problem_counts[faults.PROBLEMS[1]] >= 1
    assert any("new-1" in problem for problem in trial.problems)


def apply_nothing(self):
    """Stand in for `LiveIndex.apply`."""


def test_retriever_with_missing_document_is_detected(trial, monkeypatch):
    index = LiveIndex(trial.project)
    other_index = LiveIndex(trial.project, OTHER)
    perform(index, {"kind": "put", "documents": {"new-1": "the array"}})
    trial.state = checks.find_all_documents(index)
    assert checks.find_all_documents(other_index) != trial.state

    monkeypatch.setattr(LiveIndex, "apply", apply_nothing)
    trial._compare(None, acknowledged=False)

    assert trial.problem_counts[faults.PROBLEMS[1]] == 1
    assert OTHER in trial.problems[0]


def test_damaged_generation_is_noticed(trial):
    file = trial.project.live / "hce" / "generations" / "000000" / "documents.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")

    with pytest.raises(FreshetError, match="was changed"):
        checks.find_all_documents(LiveIndex(trial.project))


@pytest.fixture
def with_pending(trial):
    """The live index of a trial, in which one document waits."""
    index = LiveIndex(trial.project)
    index.receive([{"id": "new-1", "title": "", "text": "some text"}], "x")
    return index


def test_pending_event_is_noticed(trial, with_pending):
    problem = checks.ledger_problem(with_pending, trial.state, [])

    assert problem == "events are pending after they were applied"


def test_applied_event_is_no_problem(trial, with_pending):
    with_pending.apply()

    state = checks.find_all_documents(with_pending)

    assert state == {**trial.state, "new-1": "some text"}
    assert checks.ledger_problem(with_pending, state, ["new-1", "base-1"]) is None


def test_ledger_that_says_otherwise_is_noticed(trial, with_pending):
    with_pending.apply()

    problem = checks.ledger_problem(with_pending, trial.state, ["new-1"])

    assert "the ledger says of new-1" in problem


RETRAIN = {"kind": "retrain", "documents": {"new-2": "the file", "new-1": "a table"}, "seed": 5}
REMOVAL = {"kind": "remove", "ids": ["new-2", "base-1", "nobody"]}
COMPACTION = {"kind": "compact"}
COLLECTION = {"kind": "collect"}
SECOND_RETRAIN = {**RETRAIN, "seed": 6}


def require_model_state(trial, action, state, generations):
    """Perform an action in both retrievers and compare them with the model; return its state."""
    index = LiveIndex(trial.project)
    other_index = LiveIndex(trial.project, OTHER)
    perform(index, action)
    follow(other_index, action)

    after = checks.apply_action(state, action, generations)

    assert checks.find_all_documents(index) == after, action
    assert checks.find_all_documents(other_index) == after, action
    assert checks.ledger_problem(index, after, [*after, "new-1", "new-2"]) is None
    generations[index.generation.number] = after
    return after


def test_actions_do_what_the_model_says(trial):
    state = trial.state
    generations = dict(trial.generations)

    for action in (PUT, RETRAIN, REMOVAL, COMPACTION, COLLECTION, SECOND_RETRAIN):
        state = require_model_state(trial, action, state, generations)
    generation_of_first_build = sorted(generations)[-2]
    revert = {"kind": "revert", "to": generation_of_first_build}
    require_model_state(trial, revert, state, generations)

    tried = (PUT, RETRAIN, REMOVAL, COMPACTION, COLLECTION, revert)
    assert {action["kind"] for action in tried} == set(ACTIONS)
    builds_of_generations = {
        generation.build for generation in LiveIndex(trial.project).store.generations()
    }
    assert len(builds_of_generations) >= 2


class Killed(BaseException):
    """The process is dead: no code of the product catches this."""


# Steps of publishing a generation before which the process dies.
STEPS = (
    (GenerationStore, "write_manifest"),
    (generation_store, "fsync_tree"),
    (GenerationStore, "commit"),
    (GenerationStore, "set_current"),
)
# Kinds of action in the order of the kills. In ten kills each comes twice.
KINDS = ("put", "revert", "remove", "put", "retrain")


def draw_action(trial, kind):
    """Draw random actions until one has the kind."""
    generations = sorted(trial.generations)[-3:]
    action = draw(trial.random, generations)
    while action["kind"] != kind:
        action = draw(trial.random, generations)
    return action


def die_at_call(function, calls):
    """Return a function that dies instead of the call after `calls` calls of `function`."""
    remaining = calls

    def count_and_call(*arguments, **options):
        nonlocal remaining
        remaining -= 1
        if remaining < 0:
            raise Killed
        return function(*arguments, **options)

    return count_and_call


def crash(trial, number: int) -> None:
    """Let an action die before a step of publishing, and compare, as `Trial.kill` does.

    The action dies in this process.
    """
    index = LiveIndex(trial.project)
    other_index = LiveIndex(trial.project, OTHER)
    action = draw_action(trial, KINDS[number % len(KINDS)])
    lines: list[dict] = [{"begin": action}]

    def acknowledge():
        lines.append({"acknowledged": True})

    with pytest.MonkeyPatch.context() as patch:
        owner, step = trial.random.choice(STEPS)
        calls = trial.random.randrange(3)
        patch.setattr(owner, step, die_at_call(getattr(owner, step), calls))
        with suppress(Killed):
            perform(index, action, acknowledge)
            follow(other_index, action)
            lines.append({"end": index.generation.number})
    index.ledger.close()
    other_index.ledger.close()
    trial._compare(*trial._replay(lines))


def skip_pending_events(recover):
    """Let the recovery treat all pending events as applied, as if they were rolled back."""

    def recover_and_skip(self):
        recover(self)
        self.store.publish_again(self.generation, LedgerCursor(self.ledger.position()), {})

    return recover_and_skip


def switch_before_commit(commit):
    """Let the pointer move before the folder has its name."""

    def switch_and_commit(self, folder, number):
        write_text(self.folder / "current", f"{number}\n")
        return commit(self, folder, number)

    return switch_and_commit


def drop_last_document(receive):
    """Receive a batch in two transactions, of which the second never comes."""

    def receive_all_but_last(self, documents, *arguments, **options):
        return receive(self, list(documents)[:-1], *arguments, **options)

    return receive_all_but_last


def drop_last_pending(pending):
    """Leave out the last pending event, but not from the position."""

    def pending_without_last(self, limit=None):
        found = pending(self, limit)
        return replace(found, events=found.events[:-1])

    return pending_without_last


def remove_nothing(remove):
    """Acknowledge removals and record none."""

    def acknowledge_removal(self, ids, *arguments):
        return Receipt(len(list(ids)), 0, (), ())

    return acknowledge_removal


def keep_replaced(compute):
    """Keep the old rows of documents that are updated or deleted."""

    def compute_without_removals(*arguments):
        return replace(compute(*arguments), removed={})

    return compute_without_removals


def compensate_nothing(compensations):
    """Let a revert write no events."""

    def no_compensations(*arguments):
        return []

    return no_compensations


def cut_text(document_row):
    """Store a document without the last letter of its text."""

    def row_of_cut_document(document):
        return document_row(replace(document, text=document.text[:-1]))

    return row_of_cut_document


def claim_all_events(build_cursor):
    """Open a build as if it held everything that has arrived."""

    def cursor_at_end(log, snapshot):
        return LedgerCursor(log.position())

    return cursor_at_end


def forget_base_removals(write_removed):
    """Forget the documents that were removed from the base."""

    def write_other_removals(folder, removed):
        base = min(removed)
        others = {segment: ids for segment, ids in removed.items() if segment != base}
        return write_removed(folder, others)

    return write_other_removals


MUTATIONS = {
    "what waits is rolled back at recovery": (LiveIndex, "recover", skip_pending_events),
    "the pointer moves before the folder has its name": (
        GenerationStore,
        "commit",
        switch_before_commit,
    ),
    "a document of a batch is dropped": (Ledger, "receive", drop_last_document),
    "the last event is passed over": (LedgerView, "pending", drop_last_pending),
    "a removal is lost": (Ledger, "remove", remove_nothing),
    "what is replaced stays": (NetChanges, "compute", keep_replaced),
    "a revert compensates nothing": (ledger, "_compensations", compensate_nothing),
    "a text is cut": (segment_module, "document_row", cut_text),
    "a build is opened as if it held all that arrived": (
        builds,
        "_build_cursor",
        claim_all_events,
    ),
    "what left the base is forgotten": (generation_builder, "write_removed", forget_base_removals),
}


def test_crashes_without_a_mutation_do_no_harm(trial):
    for number in range(10):
        crash(trial, number)

    assert trial.problems == []
    assert trial.interrupted.total() > 3


@pytest.mark.full
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_each_mutation_is_caught_within_ten_kills(trial, monkeypatch, mutation):
    owner, name, mutate = MUTATIONS[mutation]
    monkeypatch.setattr(owner, name, mutate(getattr(owner, name)))

    for number in range(10):
        # An error that ends the trial is noticed, too.
        try:
            crash(trial, number)
        except Exception as error:
            trial.problems.append(repr(error))
        if trial.problems:
            break

    assert trial.problems
