"""Guards the steps of a retrain around its training, and how its outcome is recorded."""

from __future__ import annotations

import shutil

import dagster as dg
import pytest

from assets.live import RETRAINS, retrained_champion
from model_code.collection.index import project_ledger, retrain_plan
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.project_ledger import open_ledger
from model_code.collection.index.retrain_plan import PLAN, retrain_folder
from model_code.collection.ledger.events import LedgerCursor, Position
from model_code.collection.ledger.tasks import TaskKind, TaskTable
from model_code.errors import FreshetError, SettingsError
from model_code.files import read_json, write_json
from model_code.project import Project
from orchestration.freshness import retrain
from orchestration.freshness.drift import past_decisions
from orchestration.freshness.policy import Action, PastDecision
from orchestration.freshness.retrain import load_challenger, promote_or_reject, train_challenger
from orchestration.pipeline import ingest, repro
from orchestration.registry import release, versions
from orchestration.registry.release import PromotionResult
from orchestration.registry.versions import Version
from tests.live_example import BASE, add, collection_of, make_project, open_build, position_at, row

KEY = "hce-000001"
DOCUMENTS = [row(name, f"about {name}") for name in "abc"]
NO_SNAPSHOT = Position()


def make_version(snapshot=NO_SNAPSHOT, retriever="contrastive"):
    return Version("7", retriever, "k" * 64, "f" * 64, "c" * 64, "run", snapshot=snapshot)


def set_registered_retriever(monkeypatch, retriever):
    """Set which retriever is the best on dev after a training."""

    def register(workspace, snapshot):
        return make_version(snapshot, retriever)

    monkeypatch.setattr(release, "register", register)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Three documents were added to hce. Nothing is trained, and contrastive is the best on dev."""
    monkeypatch.setattr(ingest, "ingest", lambda project: None)
    monkeypatch.setattr(repro, "repro", lambda project, **_: iter(()))
    monkeypatch.setattr(retrain, "make_workspace", lambda *_: None)
    monkeypatch.setattr(retrain, "_gate_rules", lambda challenger: None)
    monkeypatch.setattr(versions, "list_versions", lambda project: [make_version()])
    set_registered_retriever(monkeypatch, "contrastive")

    made = make_project(tmp_path)
    add(collection_of(made), *DOCUMENTS)
    return made


def replace_promotion(monkeypatch, project, passed=True):
    """Replace the promotion by one with this outcome; return the versions that were promoted."""
    promoted = []

    def promote(workspace, rules, version, verdict):
        promoted.append(version)
        is_repeated = len(promoted) > 1
        if not passed:
            return PromotionResult(None, False, "as the test wants it", is_repeated)
        cursor = LedgerCursor(version.snapshot, trained=version.snapshot.event)
        open_build(project, BASE, cursor, version.retriever)
        return PromotionResult(version, True, "as the test wants it", is_repeated)

    monkeypatch.setattr(release, "promote", promote)
    return promoted


def count_states(project):
    """Count the documents of hce by state."""
    counts = LiveIndex(project, "hce").ledger_view.counts()
    return {str(state): number for state, number in counts.items() if number}


def retrain_states(project, retriever="hce"):
    """The states of the recorded retrains, newest first."""
    tasks = open_ledger(project, retriever).tasks.last(retriever, 9, TaskKind.RETRAIN)
    return [task.state for task in tasks]


def test_challenger_is_trained_on_snapshot(project):
    challenger = train_challenger(project, KEY)

    assert challenger.version.snapshot == position_at(project, 3)


def test_interrupted_retrain_keeps_its_snapshot(project):
    train_challenger(project, KEY)
    add(collection_of(project), row("later"))

    continued = train_challenger(project, KEY)

    assert continued.version.snapshot == position_at(project, 3)


def test_interrupted_retrain_keeps_its_key(project):
    plan = retrain_plan.plan_retrain(project, "")
    assert retrain.next_key(project, plan) == KEY

    train_challenger(project, KEY)

    assert retrain.next_key(project, plan) == KEY


@pytest.mark.parametrize("passed", [True, False])
def test_retrain_after_ended_one_has_new_key(project, monkeypatch, passed):
    replace_promotion(monkeypatch, project, passed)
    plan = retrain_plan.plan_retrain(project, "")

    promote_or_reject(train_challenger(project, KEY))
    assert retrain.next_key(project, plan) == f"{KEY}-2"

    promote_or_reject(train_challenger(project, f"{KEY}-2"))
    assert retrain.next_key(project, plan) == f"{KEY}-3"


@pytest.mark.parametrize("passed", [True, False])
def test_ledger_knows_ended_retrain_without_outcome_file(project, monkeypatch, passed):
    replace_promotion(monkeypatch, project, passed)
    plan = retrain_plan.plan_retrain(project, "")
    promote_or_reject(train_challenger(project, KEY))

    (retrain_folder(project, KEY) / "ended.json").unlink()

    assert retrain.next_key(project, plan) == f"{KEY}-2"


def test_challenger_cannot_be_loaded_before_training(project):
    with pytest.raises(FreshetError, match=f"retrain {KEY} has no challenger"):
        load_challenger(project, KEY)


def test_loaded_challenger_is_the_trained_one(project):
    trained = train_challenger(project, KEY)

    loaded = load_challenger(project, KEY)

    assert loaded.plan == trained.plan
    assert loaded.version.version == trained.version.version
    workspace = project.state / "retraining" / KEY / "project"
    assert loaded.workspace == Project(workspace, project.root)


def test_promotion_in_dagster_trains_nothing(project, monkeypatch):
    train_challenger(project, KEY)
    promoted = replace_promotion(monkeypatch, project)

    def fail(*_):
        pytest.fail("a training blocks the one writer")

    monkeypatch.setattr(retrain, "train_challenger", fail)
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(RETRAINS.name, [KEY])
        run = dg.materialize(
            [retrained_champion],
            resources={"project": project},
            partition_key=KEY,
            instance=instance,
        )

    assert run.success
    # Its own version is promoted, whichever version has the alias.
    assert [version.version for version in promoted] == ["7"]


def test_other_promoted_retriever_absorbs_no_documents(project, monkeypatch):
    replace_promotion(monkeypatch, project)
    assert count_states(project) == {"live": 3}

    result = promote_or_reject(train_challenger(project, KEY))

    assert result.promoted
    assert result.generation == 0
    assert count_states(project) == {"live": 3}
    assert retrain_states(project) == ["done"]


def test_cooldown_starts_for_promoted_retriever(project, monkeypatch):
    replace_promotion(monkeypatch, project)

    promote_or_reject(train_challenger(project, KEY))

    past = past_decisions(open_ledger(project, "contrastive"), 3)
    assert past == [PastDecision(Action.RETRAIN, carried_out=True)]


def test_forgotten_ledger_keeps_files_of_retrain(project, monkeypatch):
    elsewhere = project.root / "elsewhere"
    elsewhere.mkdir()
    for file in project.live.glob("ledger.sqlite*"):
        file.rename(elsewhere / file.name)
    ledger_url = f"sqlite:///{elsewhere / 'ledger.sqlite'}"

    monkeypatch.setenv("FRESHET_LEDGER", ledger_url)
    plan = train_challenger(project, KEY).plan
    work = retrain_folder(project, KEY) / "work"
    work.touch()

    monkeypatch.delenv("FRESHET_LEDGER")
    with pytest.raises(FreshetError, match="FRESHET_LEDGER"):
        train_challenger(project, KEY)

    monkeypatch.setenv("FRESHET_LEDGER", ledger_url)
    assert train_challenger(project, KEY).plan == plan
    assert work.exists()


def test_plan_of_unknown_ledger_starts_again(project):
    train_challenger(project, KEY)
    path = retrain_folder(project, KEY) / PLAN
    plan = read_json(path)
    del plan["log"]
    del plan["origin"]
    write_json(path, plan)

    messages = []
    challenger = train_challenger(project, KEY, messages.append)

    assert challenger.version.snapshot == position_at(project, 3)
    message = "belongs to another ledger or live collection: it starts again"
    assert messages[0].endswith(message)


def test_plan_leaves_no_ledger_open(project, monkeypatch):
    opened = []
    closed = []
    real_open = project_ledger.open_ledger_if_exists

    def open_recorded(project):
        ledger = real_open(project)
        opened.append(ledger)
        monkeypatch.setattr(ledger, "close", lambda: closed.append(ledger))
        return ledger

    monkeypatch.setattr(project_ledger, "open_ledger_if_exists", open_recorded)
    monkeypatch.setattr(retrain_plan, "open_ledger_if_exists", open_recorded)

    plan = retrain_plan.plan_retrain(project, "")

    assert not retrain_plan.is_from_another_collection(project, plan)
    assert len(opened) == 2
    assert closed == opened


@pytest.mark.parametrize("documents", [[row(name) for name in "xyzw"], DOCUMENTS])
def test_plan_of_deleted_collection_starts_again(project, documents):
    first = train_challenger(project, KEY).plan
    shutil.rmtree(project.live)
    make_project(project.root)
    add(collection_of(project), *documents)

    messages = []
    second = train_challenger(project, KEY, messages.append).plan

    assert (second.documents, second.snapshot) != (first.documents, first.snapshot)
    assert second.snapshot == position_at(project, len(documents))
    assert "it starts again" in messages[0]


def test_interrupted_record_is_completed(project, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    set_registered_retriever(monkeypatch, "hce")
    replace_promotion(monkeypatch, project)
    challenger = train_challenger(project, KEY)
    with monkeypatch.context() as patch:
        patch.setattr(TaskTable, "close_retrains", interrupt)
        with pytest.raises(KeyboardInterrupt):
            promote_or_reject(challenger)
    # The documents that were trained on follow from the live generation.
    assert count_states(project) == {"absorbed": 3}

    promote_or_reject(train_challenger(project, KEY))

    assert count_states(project) == {"absorbed": 3}
    assert retrain_states(project) == ["done"]


def test_repeated_promotion_is_recorded_once(project, monkeypatch):
    set_registered_retriever(monkeypatch, "hce")
    replace_promotion(monkeypatch, project)
    promote_or_reject(train_challenger(project, KEY))
    assert count_states(project) == {"absorbed": 3}
    assert retrain_states(project) == ["done"]

    promote_or_reject(train_challenger(project, KEY))

    assert count_states(project) == {"absorbed": 3}
    assert retrain_states(project) == ["done"]


def test_promotion_after_rollback_is_recorded_again(project, monkeypatch):
    set_registered_retriever(monkeypatch, "hce")
    replace_promotion(monkeypatch, project)
    promote_or_reject(train_challenger(project, KEY))

    # After a rollback the version is not champion, so the promotion is not a repeated one.
    replace_promotion(monkeypatch, project)
    promote_or_reject(train_challenger(project, KEY))

    assert retrain_states(project) == ["done", "done"]


def test_rejection_is_recorded_for_retrained_retriever(project, monkeypatch):
    replace_promotion(monkeypatch, project, passed=False)

    result = promote_or_reject(train_challenger(project, KEY))

    assert not result.promoted
    assert result.generation is None
    assert retrain_states(project) == ["refused"]
    assert retrain_states(project, "contrastive") == []
    assert count_states(project) == {"live": 3}


@pytest.mark.parametrize("key", ["..", "../../live", "/tmp/other", "it's", "two words"])
def test_key_that_leads_elsewhere_deletes_nothing(project, key, monkeypatch):
    """A retrain begins with the deletion of its folder, which the key names."""
    monkeypatch.setattr(shutil, "rmtree", lambda folder: pytest.fail(f"{folder} was deleted"))

    with pytest.raises(SettingsError, match="the name of the retrain is"):
        train_challenger(project, key, print)
