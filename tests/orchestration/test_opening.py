"""Guards that another build becomes current with everything that arrived since, in one step, and that whatever goes
wrong before that leaves the old generation searched, the ledger right, and the next attempt able to finish.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from functools import partial

import pytest

from model_code.errors import FreshetError
from model_code.ledger.ledger import Ledger
from model_code.live import collection as collections
from model_code.live.collection import Collection, open_generation_zero, set_default_retriever
from model_code.live.searcher import Searcher
from model_code.live.writer import LiveWriter
from orchestration.ledgers import first_free_number
from orchestration.live.collection import LiveCollection
from orchestration.opening import open_complete
from orchestration.project import Project
from tests.model_code.live.laws import NEW, OLD, RULES, make_encoder, open_build

A, B, C, D, E = sorted(NEW)[:5]


class Killed(BaseException):
    """The process is dead."""


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    """The live collection of the old documents, and a build that was trained with A too."""
    root = tmp_path_factory.mktemp("builds")
    make_encoder("dense", root / "encoder")
    open_build("dense", root / "old", root / "encoder", OLD)
    open_build("dense", root / "new", root / "encoder", OLD | {A: NEW[A]})
    return root


@pytest.fixture
def project(builds, tmp_path, monkeypatch):
    """A and B are searchable, C waits; the new build was made after A."""
    monkeypatch.setattr("os.fsync", lambda handle: None)
    monkeypatch.delenv("FRESHET_LEDGER", raising=False)
    shutil.copytree(builds / "old" / "live", tmp_path / "live")
    (tmp_path / "params.yaml").write_text("{retrievers: {r: {}}}\n")
    (tmp_path / "dvc.yaml").touch()
    project = Project(tmp_path)
    for one in (A, B):
        receive(project, one)
        LiveCollection(project).apply()
    receive(project, C)
    return project


def receive(project, document_id):
    title, text = NEW[document_id]
    return LiveCollection(project).receive([{"id": document_id, "title": title, "text": text}], "test")


def candidate(builds, project, which="new", watermark=1, retriever="r"):
    build = builds / which / "build"
    return partial(
        open_generation_zero, project.root, retriever, encoder=builds / "encoder", index=build / "index",
        documents=build / "documents.parquet", hierarchy=build / "hierarchy", provenance={}, text=RULES,
        watermark=watermark, switch=False,
    )  # fmt: skip


def die(*arguments, **options):
    raise Killed


def found(project):
    searcher = Searcher.open(project.live)
    return {one for view in searcher.views for one in view.document_ids()} - OLD.keys()


def states(project):
    return {state: number for state, number in LiveCollection(project).ledger.counts().items() if number}


def cut_off_rollback(project, monkeypatch, number):
    """The pointer is switched, the ledger knows nothing of it."""
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "roll_back", die)
        with pytest.raises(Killed):
            LiveCollection(project).rollback(number)


def test_the_first_generation_of_the_new_build_that_is_searched_has_all_that_arrived(builds, project, monkeypatch):
    seen, write = [], collections.write_text

    def watched(path, text):
        write(path, text)
        seen.append((path.name, Searcher.open(project.live).generation.base, found(project)))

    monkeypatch.setattr(collections, "write_text", watched)
    generation = open_complete(project, "r", candidate(builds, project))
    assert [(name, base) for name, base, _ in seen] == [
        ("candidate", 0), ("candidate", 0), ("current", 3), ("current", 3)
    ]  # fmt: skip
    assert [names for *_, names in seen] == [{A, B}, {A, B}, {A, B, C}, {A, B, C}]
    assert (generation.base, generation.watermark, generation.manifest["provenance"]["events"]) == (3, 3, [2, 3])
    assert states(project) == {"absorbed": 1, "live": 2}
    assert LiveCollection(project).apply() is None
    names = {path.name for path in (project.live / "r").iterdir()}
    assert names == {"current", "generations"}


def test_what_arrives_afterwards_and_going_back_work_as_ever(builds, project):
    open_complete(project, "r", candidate(builds, project))
    receive(project, sorted(NEW)[3])
    assert LiveCollection(project).apply().added == (sorted(NEW)[3],)
    assert LiveCollection(project).rollback(2).number == 2
    assert found(project) == {A, B}


def test_opening_what_is_live_leaves_it_and_what_waits_alone(builds, project):
    first = open_complete(project, "r", candidate(builds, project))
    receive(project, sorted(NEW)[3])
    again = open_complete(project, "r", candidate(builds, project))
    assert (again.number, states(project)["pending"]) == (first.number, 1)
    assert not (project.live / "r" / "candidate").exists()


@pytest.mark.parametrize("place", ["build", "addition", "switch"])
def test_dying_before_the_switch_leaves_the_old_generation_and_the_ledger(builds, project, monkeypatch, place):
    before, said = Collection(project.live, "r").current(), LiveCollection(project).ledger.between(0, 99)
    make, switch = candidate(builds, project), Collection.switch

    def switched(self, *arguments, **options):
        return switch(self, *arguments, **options) if self.pointer == "candidate" else die()

    with monkeypatch.context() as patch:
        if place == "switch":
            patch.setattr(Collection, "switch", switched)
        else:
            patch.setattr(*((LiveWriter, "apply") if place == "addition" else (collections.Collection, "seal")), die)
        with pytest.raises(Killed):
            open_complete(project, "r", make)
    assert (Collection(project.live, "r").current(), found(project)) == (before, {A, B})
    assert LiveCollection(project).ledger.between(0, 99) == said
    assert LiveCollection(project).apply().added == (C,)
    assert open_complete(project, "r", make).base > 0
    assert found(project) == {A, B, C}
    assert states(project) == {"absorbed": 1, "live": 2}


@pytest.mark.parametrize("place", ["register", "reopen", "settle"])
def test_dying_between_switch_and_ledger_is_made_up_for(builds, project, monkeypatch, place):
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, place, die)
        with pytest.raises(Killed):
            open_complete(project, "r", candidate(builds, project))
    assert found(project) == {A, B, C}
    LiveCollection(project).reconcile()
    assert states(project) == {"absorbed": 1, "live": 2}


def test_what_arrives_while_the_build_is_made_ready_is_applied_by_whoever_received_it(builds, project, monkeypatch):
    late, write = sorted(NEW)[3], collections.write_text

    def watched(path, text):
        write(path, text)
        if path.name == "current" and states(project).get("pending", 0) == 0:
            receive(project, late)

    monkeypatch.setattr(collections, "write_text", watched)
    open_complete(project, "r", candidate(builds, project))
    assert found(project) == {A, B, C}
    assert LiveCollection(project).apply().added == (late,), "as after every receipt: no second look is needed"


def test_a_rollback_to_another_build_that_is_cut_off_is_a_rollback_all_the_same(builds, project, monkeypatch):
    open_complete(project, "r", candidate(builds, project))
    assert found(project) == {A, B, C}

    cut_off_rollback(project, monkeypatch, 2)
    assert found(project) == {A, B}, "the pointer is switched"
    assert LiveCollection(project).apply() is None, "C is rolled back, and does not come back by itself"
    assert found(project) == {A, B}
    assert states(project) == {"live": 2, "rolled_back": 1}
    assert not (project.live / "r" / "rollback").exists()


def test_a_collection_that_was_deleted_comes_back_with_what_the_ledger_has(builds, project):
    """The ledger knows generations 0 to 2 by number; none of them may be taken for a new one."""
    before = states(project)
    shutil.rmtree(project.live / "r")
    make = partial(candidate(builds, project), first=first_free_number(project, "r"))
    made = open_complete(project, "r", make)
    assert (made.number, made.base, found(project)) == (4, 3, {A, B, C})
    assert (before, states(project)) == ({"pending": 1, "live": 2}, {"absorbed": 1, "live": 2})
    LiveCollection(project).rollback(3)
    assert found(project) == {A}
    assert LiveCollection(project).apply() is None


@pytest.mark.parametrize("cut_off", [False, True])
def test_a_rollback_that_could_not_be_is_not_taken_for_the_next_promotion(builds, project, monkeypatch, cut_off):
    """The new build gets the number that was asked for in vain."""
    LiveCollection(project).apply()
    with monkeypatch.context() as patch:
        if cut_off:
            patch.setattr(Collection, "switch", die)
            patch.setattr("orchestration.announced_rollback.forget_rollback", lambda collection: None)
        with pytest.raises(Killed if cut_off else FreshetError):
            LiveCollection(project).rollback(4)
    assert (project.live / "r" / "rollback").exists() == cut_off
    assert open_complete(project, "r", candidate(builds, project)).base == 4
    assert found(project) == {A, B, C}
    assert not (project.live / "r" / "rollback").exists()


def test_a_promotion_after_a_rollback_that_was_cut_off_keeps_to_it(builds, project, monkeypatch):
    LiveCollection(project).apply()
    cut_off_rollback(project, monkeypatch, 2)
    open_complete(project, "r", candidate(builds, project))
    assert found(project) == {A, B}
    assert states(project) == {"absorbed": 1, "live": 1, "rolled_back": 1}


def test_going_back_to_a_build_does_not_bring_back_what_was_rolled_back_in_it(builds, project):
    LiveCollection(project).apply()
    LiveCollection(project).rollback(2)  # C was a bad document
    open_complete(project, "r", candidate(builds, project))
    receive(project, D)
    assert open_complete(project, "r", candidate(builds, project, "old", 0)).base == 0
    assert found(project) == {A, B, D}
    assert [event.state for event in LiveCollection(project).ledger.between(1, 4)] == [
        "live",
        "live",
        "rolled_back",
        "live",
    ]


def test_a_build_whose_own_corpus_had_what_was_rolled_back_is_opened_with_it(builds, project):
    """There is no generation of it without the document, and the ledger says so."""
    open_complete(project, "r", candidate(builds, project))
    LiveCollection(project).rollback(0)
    open_complete(project, "r", candidate(builds, project))
    assert found(project) == {A}
    assert states(project) == {"absorbed": 1, "rolled_back": 2}


def test_an_aborted_return_to_a_build_leaves_what_was_rolled_back_so(builds, project, monkeypatch):
    LiveCollection(project).apply()
    LiveCollection(project).rollback(2)
    open_complete(project, "r", candidate(builds, project))
    receive(project, D)
    said = LiveCollection(project).ledger.between(0, 99)
    with monkeypatch.context() as patch:
        patch.setattr(LiveWriter, "apply", die)
        with pytest.raises(Killed):
            open_complete(project, "r", candidate(builds, project, "old", 0))
    assert LiveCollection(project).ledger.between(0, 99) == said
    assert LiveCollection(project).apply().added == (D,)


def test_what_was_rolled_back_is_so_for_another_retriever_that_takes_over(builds, project):
    LiveCollection(project).apply()
    LiveCollection(project).rollback(1)
    open_complete(project, "s", candidate(builds, project, "old", 0, "s"))
    assert (LiveCollection(project).retriever, found(project)) == ("s", {A})
    assert states(project) == {"live": 1, "rolled_back": 2}
    receive(project, B)
    assert LiveCollection(project).apply().added == (B,), "added again, it comes back"


def test_a_live_retriever_that_takes_over_gives_up_what_was_rolled_back(builds, project):
    partial(candidate(builds, project, "old", 0, "s"), switch=True)()
    set_default_retriever(project.live, "r")
    LiveCollection(project, "s").apply()
    LiveCollection(project).rollback(1)
    receive(project, D)
    open_complete(project, "s", candidate(builds, project, "old", 0, "s"))
    assert (LiveCollection(project).retriever, found(project)) == ("s", {A, C, D})
    assert states(project) == {"live": 3, "rolled_back": 1}


@pytest.mark.parametrize("place", [None, "reopen", "settle"])
@pytest.mark.parametrize("late", [(), (E,)])
def test_a_live_retriever_that_lagged_behind_takes_over_with_all_but_what_was_rolled_back(
    builds, project, monkeypatch, place, late
):
    partial(candidate(builds, project, "old", 0, "s"), switch=True)()
    set_default_retriever(project.live, "r")
    LiveCollection(project, "s").apply()
    LiveCollection(project).apply()
    receive(project, D)
    before = LiveCollection(project).apply().generation.manifest["parent"]
    LiveCollection(project).rollback(before)
    for one in late:
        receive(project, one)
        LiveCollection(project).apply()
    with monkeypatch.context() as patch, suppress(Killed):
        if place is not None:
            patch.setattr(Ledger, place, die)
        open_complete(project, "s", candidate(builds, project, "old", 0, "s"))
    open_complete(project, "s", candidate(builds, project, "old", 0, "s"))
    assert (LiveCollection(project).retriever, found(project)) == ("s", {A, B, C, *late})
    assert states(project) == {"live": 3 + len(late), "rolled_back": 1}
    assert LiveCollection(project).apply() is None


def test_a_retrain_that_another_retriever_wins_did_not_train_on_what_was_rolled_back(builds, project):
    """B lies before the snapshot's watermark, but was not in the snapshot."""
    LiveCollection(project).rollback(1)
    LiveCollection(project).apply()
    watermark = Collection(project.live, "r").current().watermark
    open_complete(project, "s", candidate(builds, project, "new", watermark, "s"))
    ledger = LiveCollection(project).ledger
    assert [event.state for event in ledger.between(1, 3)] == ["absorbed", "rolled_back", "absorbed"]
    assert len(receive(project, B).events) == 1
    assert LiveCollection(project).apply().added == (B,)
