"""Guards what a retrain does around its training: what it goes on with, what it promotes, what the
ledgers say then.
"""

from __future__ import annotations

import shutil

import dagster as dg
import pytest

from assets.live import RETRAINS, retrained_champion
from model_code.collection.index import retrain_plan
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.project_ledger import open_ledger
from model_code.collection.index.retrain_plan import PLAN, retrain_folder
from model_code.collection.ledger.events import LedgerCursor, Position
from model_code.collection.ledger.tasks import TaskKind, TaskTable
from model_code.errors import FreshetError
from model_code.files import read_json, write_json
from model_code.project import Project
from orchestration.freshness import retrain
from orchestration.freshness.drift import past_decisions
from orchestration.freshness.policy import PastDecision
from orchestration.freshness.retrain import load_challenger, promote_or_reject, train_challenger
from orchestration.pipeline import ingest, repro
from orchestration.registry import release, versions
from orchestration.registry.release import PromotionResult
from orchestration.registry.versions import Version
from tests.live_example import BASE, add, collection_of, make_project, open_build, position_at, row

KEY, DOCUMENTS = "hce-000001", [row(one, f"about {one}") for one in "abc"]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Three documents were added to hce, and contrastive will be the best on dev; nothing is
    trained.
    """
    monkeypatch.setattr(ingest, "ingest", lambda project: None)
    monkeypatch.setattr(repro, "repro", lambda project, **_: iter(()))
    monkeypatch.setattr(retrain, "make_workspace", lambda *_: None)
    monkeypatch.setattr(retrain, "_rules", lambda ready: None)
    monkeypatch.setattr(release, "register", lambda workspace, snapshot: challenger(snapshot))
    monkeypatch.setattr(versions, "list_versions", lambda project: [challenger()])
    made = make_project(tmp_path)
    add(collection_of(made), *DOCUMENTS)
    return made


def challenger(snapshot=Position(), retriever="contrastive"):  # noqa: B008
    return Version("7", retriever, "k" * 64, "f" * 64, "c" * 64, "run", snapshot=snapshot)


def promoting(monkeypatch, project, passed=True):
    """The gate's answer, the first time; who was put before it."""
    asked = []

    def promote(workspace, rules, wanted, verdict):
        asked.append(wanted)
        if passed:
            cursor = LedgerCursor(wanted.snapshot, trained=wanted.snapshot.event)
            open_build(project, BASE, cursor, wanted.retriever)
        return PromotionResult(
            wanted if passed else None,
            passed,
            "as the test wants it",
            already_champion=len(asked) > 1,
        )

    monkeypatch.setattr(release, "promote", promote)
    return asked


def states(project):
    return {
        str(state): number
        for state, number in LiveIndex(project, "hce").ledger_view.counts().items()
        if number
    }


def test_the_challenger_holds_what_its_snapshot_held(project):
    ready = train_challenger(project, KEY, print)
    assert ready.challenger.snapshot == position_at(project, 3)
    add(collection_of(project), row("later"))
    assert train_challenger(project, KEY, print).challenger.snapshot == position_at(project, 3), (
        "it goes on with its plan"
    )


@pytest.mark.parametrize("passed", [True, False])
def test_by_itself_one_that_was_cut_off_goes_on_and_one_that_ended_is_not_gone_on_with(
    project, monkeypatch, passed
):
    promoting(monkeypatch, project, passed)
    plan = retrain_plan.plan_retrain(project, "")
    assert retrain.next_key(project, plan) == KEY
    ready = train_challenger(project, KEY, print)
    assert retrain.next_key(project, plan) == KEY
    promote_or_reject(ready)
    assert retrain.next_key(project, plan) == f"{KEY}-2"
    promote_or_reject(train_challenger(project, f"{KEY}-2", print))
    assert retrain.next_key(project, plan) == f"{KEY}-3"
    # an earlier version wrote none
    for path in (project.state / "retraining").glob("*/ended.json"):
        path.unlink()
    assert retrain.next_key(project, plan) == f"{KEY}-3", "the ledger tells"


def test_its_promotion_builds_nothing(project, monkeypatch):
    with pytest.raises(FreshetError, match=f"retrain {KEY} has no challenger"):
        load_challenger(project, KEY)
    ready = train_challenger(project, KEY, print)
    monkeypatch.setattr(
        retrain,
        "train_challenger",
        lambda *_: pytest.fail("the writer's place is held for a training"),
    )
    again = load_challenger(project, KEY)
    assert (again.plan, again.challenger.version) == (ready.plan, ready.challenger.version)
    assert again.workspace == Project(project.state / "retraining" / KEY / "project", project.root)
    asked = promoting(monkeypatch, project)
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(RETRAINS.name, [KEY])
        given = {"project": project}
        assert dg.materialize(
            [retrained_champion], resources=given, partition_key=KEY, instance=instance
        ).success
    assert [one.version for one in asked] == ["7"], "its own version, whichever has the alias"


def test_where_another_retriever_wins_the_documents_of_the_old_one_are_not_called_trained_on(
    project, monkeypatch
):
    promoting(monkeypatch, project)
    before = states(project)
    done = promote_or_reject(train_challenger(project, KEY, print))
    assert (done.promoted, done.generation) == (True, 0)
    assert states(project) == before == {"live": 3}
    told = past_decisions(open_ledger(project, "contrastive"), 3)
    assert told == [PastDecision("retrain")], "the cooldown begins for who is searched now"
    assert ended(project) == ["done"]


def test_a_forgotten_ledger_does_not_cost_the_work_of_a_retrain(project, monkeypatch):
    elsewhere = project.root / "elsewhere"
    elsewhere.mkdir()
    for file in project.live.glob("ledger.sqlite*"):
        file.rename(elsewhere / file.name)
    monkeypatch.setenv("FRESHET_LEDGER", f"sqlite:///{elsewhere / 'ledger.sqlite'}")
    first = train_challenger(project, KEY, print).plan
    work = retrain_folder(project, KEY) / "work"
    work.touch()
    monkeypatch.delenv("FRESHET_LEDGER")
    with pytest.raises(FreshetError, match="FRESHET_LEDGER"):
        train_challenger(project, KEY, print)
    monkeypatch.setenv("FRESHET_LEDGER", f"sqlite:///{elsewhere / 'ledger.sqlite'}")
    assert (train_challenger(project, KEY, print).plan, work.exists()) == (first, True)


def test_a_plan_of_before_logs_had_an_identity_is_made_anew(project):
    train_challenger(project, KEY, print)
    path = retrain_folder(project, KEY) / PLAN
    write_json(
        path,
        {name: value for name, value in read_json(path).items() if name not in ("log", "origin")},
    )
    said = []
    assert train_challenger(project, KEY, said.append).challenger.snapshot == position_at(
        project, 3
    )
    assert said[0].endswith("was begun with another ledger or live collection: it begins anew")


@pytest.mark.parametrize("killed", [True, False])
def test_a_promotion_that_was_cut_off_is_noted_to_its_end_and_once(project, monkeypatch, killed):
    monkeypatch.setattr(
        release, "register", lambda workspace, snapshot: challenger(snapshot, "hce")
    )
    promoting(monkeypatch, project)
    ready = train_challenger(project, KEY, print)
    if killed:
        with monkeypatch.context() as patch:
            patch.setattr(TaskTable, "close_retrains", interrupted)
            with pytest.raises(KeyboardInterrupt):
                promote_or_reject(ready)
        assert states(project) == {"absorbed": 3}, "what is trained on follows from what is live"
    else:
        promote_or_reject(ready)
        assert (states(project), ended(project)) == ({"absorbed": 3}, ["done"])
    promote_or_reject(train_challenger(project, KEY, print))
    assert (states(project), ended(project)) == ({"absorbed": 3}, ["done"])


def ended(project, retriever="hce"):
    """What became of retrains, newest first."""
    return [
        work.state
        for work in open_ledger(project, retriever).tasks.last(retriever, 9, TaskKind.RETRAIN)
    ]


def interrupted(*_):
    raise KeyboardInterrupt


def test_a_version_that_is_promoted_anew_is_noted_anew(project, monkeypatch):
    monkeypatch.setattr(
        release, "register", lambda workspace, snapshot: challenger(snapshot, "hce")
    )
    for _ in range(2):  # between them the champion was rolled back
        promoting(monkeypatch, project)
        promote_or_reject(train_challenger(project, KEY, print))
    assert ended(project) == ["done", "done"]


def test_a_refusal_is_noted_where_the_retrain_was_asked_for(project, monkeypatch):
    promoting(monkeypatch, project, passed=False)
    done = promote_or_reject(train_challenger(project, KEY, print))
    assert (done.promoted, done.generation) == (False, None)
    assert ended(project) == ["refused"]
    assert ended(project, "contrastive") == []
    assert states(project) == {"live": 3}


@pytest.mark.parametrize("documents", [[row(one) for one in "xyzw"], DOCUMENTS])
def test_a_plan_of_a_collection_that_was_deleted_is_made_anew(project, documents):
    first = train_challenger(project, KEY, print).plan
    shutil.rmtree(project.live)
    make_project(project.root)
    add(collection_of(project), *documents)
    said = []
    again = train_challenger(project, KEY, said.append).plan
    assert (again.documents, again.snapshot) != (first.documents, first.snapshot)
    assert again.snapshot == position_at(project, len(documents))
    assert "it begins anew" in said[0]
