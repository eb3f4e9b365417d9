"""Guards that another build becomes current with everything that arrived since, in one step, and that whatever goes
wrong before that leaves the old generation searched, the ledger right, and the next attempt able to finish.
"""

from __future__ import annotations

import shutil
from functools import partial

import pytest

from model_code.live import collection as collections
from model_code.live.collection import Collection, open_generation_zero
from model_code.live.searcher import Searcher
from model_code.live.writer import LiveWriter
from orchestration import opening
from orchestration.freshening import Freshener
from orchestration.ledgers import first_free_number
from orchestration.opening import open_complete
from orchestration.project import Project
from tests.model_code.live.laws import NEW, OLD, RULES, make_encoder, open_build

A, B, C = sorted(NEW)[:3]


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
        Freshener(project).apply_pending()
    receive(project, C)
    return project


def receive(project, document_id):
    title, text = NEW[document_id]
    return Freshener(project).receive([{"id": document_id, "title": title, "text": text}], "test")


def candidate(builds, project):
    build = builds / "new" / "build"
    return partial(
        open_generation_zero, project.root, "r", encoder=builds / "encoder", index=build / "index",
        documents=build / "documents.parquet", hierarchy=build / "hierarchy", provenance={}, text=RULES, watermark=1,
        switch=False,
    )  # fmt: skip


def found(project):
    searcher = Searcher.open(project.live)
    return {one for view in searcher.views for one in view.document_ids()} - OLD.keys()


def states(project):
    return {state: number for state, number in Freshener(project).ledger.counts().items() if number}


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
    assert Freshener(project).apply_pending() is None
    names = {path.name for path in (project.live / "r").iterdir()}
    assert names == {"current", "generations"}


def test_what_arrives_afterwards_and_going_back_work_as_ever(builds, project):
    open_complete(project, "r", candidate(builds, project))
    receive(project, sorted(NEW)[3])
    assert Freshener(project).apply_pending().added == (sorted(NEW)[3],)
    assert Freshener(project).rollback(2).number == 2
    assert found(project) == {A, B}


def test_opening_what_is_live_leaves_it_and_what_waits_alone(builds, project):
    first = open_complete(project, "r", candidate(builds, project))
    receive(project, sorted(NEW)[3])
    again = open_complete(project, "r", candidate(builds, project))
    assert (again.number, states(project)["pending"]) == (first.number, 1)
    assert not (project.live / "r" / "candidate").exists()


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("place", ["build", "addition", "switch"])
def test_dying_before_the_switch_leaves_the_old_generation(builds, project, monkeypatch, place, hard):
    before, said, calls = Collection(project.live, "r").current(), states(project), []
    make, switch, reconcile = candidate(builds, project), Collection.switch, opening.reconcile

    def die(*arguments, **options):
        raise Killed

    def switched(self, *arguments, **options):
        return switch(self, *arguments, **options) if self.pointer == "candidate" else die()

    def reconciled(*arguments):
        calls.append(arguments)
        return die() if hard and len(calls) > 1 else reconcile(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(opening, "reconcile", reconciled)
        if place == "switch":
            patch.setattr(Collection, "switch", switched)
        else:
            patch.setattr(*((LiveWriter, "apply") if place == "addition" else (collections.Collection, "seal")), die)
        with pytest.raises(Killed):
            open_complete(project, "r", make)
    assert (Collection(project.live, "r").current(), found(project)) == (before, {A, B})
    Freshener(project).reconcile()
    assert states(project) == said == {"live": 2, "pending": 1}
    assert Freshener(project).apply_pending().added == (C,)
    assert open_complete(project, "r", make).base > 0
    assert found(project) == {A, B, C}
    assert states(project) == {"absorbed": 1, "live": 2}


def test_dying_between_switch_and_ledger_is_made_up_for(builds, project, monkeypatch):
    from model_code.ledger.ledger import Ledger

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "settle", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            open_complete(project, "r", candidate(builds, project))
    assert found(project) == {A, B, C}
    Freshener(project).reconcile()
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
    assert Freshener(project).apply_pending().added == (late,), "as after every receipt: no second look is needed"


def test_a_rollback_to_another_build_that_is_cut_off_is_a_rollback_all_the_same(builds, project, monkeypatch):
    open_complete(project, "r", candidate(builds, project))
    assert found(project) == {A, B, C}

    def die(self, number):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("model_code.ledger.ledger.Ledger.roll_back", die)
        with pytest.raises(KeyboardInterrupt):
            Freshener(project).rollback(2)
    assert found(project) == {A, B}, "the pointer is switched"
    assert Freshener(project).apply_pending() is None, "C is rolled back, and does not come back by itself"
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
    Freshener(project).rollback(3)
    assert found(project) == {A}
    assert Freshener(project).apply_pending() is None
