"""Guards that a version is opened as it was built, whatever the settings and the ledger say today,
and that a champion which is not live is opened.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from contextlib import closing, contextmanager
from dataclasses import replace

import dagster as dg
import pandas as pd
import pytest
from fastapi.testclient import TestClient

from assets.registry import follow_alias
from model_code.collection.generations.generation import Generation
from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.project_ledger import open_ledger
from model_code.errors import FreshetError, SettingsError
from model_code.evaluation.promotion import Verdict
from model_code.files import canonical_json, write_json, write_text
from model_code.project import Project
from model_code.text.documents import Document
from model_code.text.passages import TextRules
from orchestration.pipeline import runs
from orchestration.pipeline.runs import tracking_uri
from orchestration.registry import history, release, versions
from orchestration.registry.built_retriever import BuiltRetriever
from orchestration.sensors import champion_alias
from orchestration.service.app import create_app
from tests.live_example import position_at
from tests.model_code.collection import laws
from tests.model_code.collection.laws import NEW, OLD, make_encoder, open_build
from tests.orchestration.service.conftest import until

CUT = {"a": (5, 3), "b": (4, 2)}  # passages.words and passages.stride of two builds
ADDED = sorted(NEW)[0]


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    """Two builds of the old documents, cut by different rules, and a store in which both are
    registered.
    """
    root = tmp_path_factory.mktemp("builds")
    make_encoder("dense", root / "encoder")
    for name, cut in CUT.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(laws, "RULES", TextRules(True, *cut))
            open_build("dense", root / name, root / "encoder", OLD, laws.RULES)
        shutil.copytree(root / "encoder", root / name / "build" / "encoder")
    evaluation = root / "evaluation"
    evaluation.mkdir()
    rows = [
        {
            "query_id": "q",
            "split": split,
            "metric": "nDCG@10",
            "value": 0.5,
            "asked_in_training": False,
        }
        for split in ("dev", "test")
    ]
    pd.DataFrame(rows).to_parquet(evaluation / "scores.parquet")
    summary = {"queries": 1, "nDCG@10": 0.5}
    write_json(evaluation / "metrics.json", {"system": "r", "dev": summary, "test": summary})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions, "log_retriever", lambda build: str(build.index))
        for variable in ("MLFLOW_TRACKING_URI", "FRESHET_STATE"):
            patch.delenv(variable, raising=False)
        versions.register(Project(root / "project"), build_of(root, "a"))
    return root


def build_of(root, name):
    folder, text = root / name / "build", canonical_json(vars(TextRules(True, *CUT[name])))
    paths = {part: folder / part for part in ("encoder", "index", "hierarchy")}
    documents, evaluation = folder / "documents.parquet", root / "evaluation"
    return BuiltRetriever(
        "r",
        documents=documents,
        evaluation=evaluation,
        key=name * 64,
        corpus="c" * 64,
        text=text,
        **paths,
    )


@pytest.fixture
def project(builds, tmp_path, monkeypatch):
    """The build "a" is registered; every challenger passes, unless `refuse`."""
    monkeypatch.setattr("os.fsync", lambda handle: None)
    monkeypatch.setattr(versions, "log_retriever", lambda build: str(build.index))
    monkeypatch.setattr(
        versions, "download_files", lambda project, version: builds / version.key[0] / "build"
    )
    set_verdict(monkeypatch, True)
    shutil.copytree(builds / "project", tmp_path / "project")
    project = Project(tmp_path / "project")
    (project.root / "dvc.yaml").touch()
    settings(project, *CUT["a"])
    return project


def set_verdict(monkeypatch, passed):
    judge = Verdict(passed, ("as the test wants it",), queries=1, intervals=())
    monkeypatch.setattr(release.gate, "judge_challenger", lambda *_: judge)


def settings(project, words, stride, title="true"):
    passages, encoder = f"{{words: {words}, stride: {stride}}}", f"{{include_title: {title}}}"
    write_text(
        project.params_file,
        f"{{retrievers: {{r: {{}}}}, passages: {passages}, encoder: {encoder}}}\n",
    )


def current(project):
    return GenerationStore(project.live, "r").current()


def live_version(project):
    """The version whose build is searched."""
    build = current(project).sibling(current(project).build)
    return Generation.read(build).manifest["provenance"]["model_version"]


def promote_second_build(builds, project):
    """The build "b" in place of "a", under settings of its own."""
    release.promote(project)
    settings(project, *CUT["b"])
    versions.register(project, build_of(builds, "b"))
    return release.promote(project)


def test_rollback_uses_passage_rules_of_version(builds, project):
    assert promote_second_build(builds, project).champion.version == "2"
    assert current(project).number == 1
    assert release.rollback(project).champion.version == "1"
    assert current(project).build == 0
    assert current(project).manifest["text"]["words"] == 5
    with pytest.raises(FreshetError, match="no previous champion"):
        release.rollback(project)


def test_changed_setting_does_not_reopen_champion(project, monkeypatch):
    release.promote(project)
    settings(project, *CUT["a"], title="false")
    # what is live is not copied again
    monkeypatch.setattr("model_code.collection.generations.build.copy_build", None)
    assert release.open_champion(project).number == 0
    assert current(project).manifest["text"]["include_title"]


def test_version_that_cannot_be_opened_is_not_promoted(builds, project):
    release.promote(project)
    versions.register(project, replace(build_of(builds, "b"), text=build_of(builds, "a").text))
    with pytest.raises(FreshetError, match="passages in the build"):
        release.promote(project)
    assert versions.version_with_alias(project).version == "1"
    assert current(project).number == 0
    assert versions.version_with_alias(project, "challenger").version == "2"


def test_refusal_opens_champion_that_is_not_live(builds, project, monkeypatch):
    promote_second_build(builds, project)
    versions.register(project, replace(build_of(builds, "a"), key="ac" * 32))
    set_verdict(monkeypatch, False)
    shutil.rmtree(project.live / "r")
    move = release.promote(project)
    assert not move.passed
    assert move.champion.version == "2"
    assert live_version(project) == "2"
    LiveIndex(project)


def set_untrained_build(builds, patch, name="a"):
    """A finished build, none of whose stages is out of date, whose untrained system is the build
    `name`.
    """
    patch.setattr(release, "best_untrained", lambda *_: "r")
    patch.setattr(release, "require_current", lambda *_: None)
    patch.setattr(release, "find_build", lambda *_: build_of(builds, name))


def test_interrupted_first_champion_is_completed(builds, project, monkeypatch):
    set_untrained_build(builds, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(versions.Registry, "set_champion", lambda *_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            release.promote_first_champion(project)
    assert versions.version_with_alias(project) is None
    assert live_version(project) == "1"
    assert (
        release.promote_first_champion(project).champion.version
        == versions.version_with_alias(project).version
        == "1"
    )
    assert release.promote_first_champion(project) is None


def test_restored_collection_without_champion_stays_live(builds, project, monkeypatch):
    release.promote(project)
    add(project, ADDED)
    shutil.rmtree(project.state)
    set_untrained_build(builds, monkeypatch, "b")
    assert release.promote_first_champion(project) is None
    assert current(project).number == 1
    assert versions.list_versions(project) == []
    set_untrained_build(builds, monkeypatch)
    assert release.promote_first_champion(project).passed, (
        "the same build may be champion: it is live already"
    )
    assert current(project).number == 1
    assert live_version(project) == "1"


@pytest.mark.parametrize("move", ["promote", "rollback"])
def test_refusal_after_interrupted_promotion_reopens_champion(builds, project, monkeypatch, move):
    release.promote(project) if move == "promote" else promote_second_build(builds, project)
    champion = versions.version_with_alias(project).version
    versions.register(project, build_of(builds, "b"))
    with monkeypatch.context() as patch:
        patch.setattr(versions.Registry, "set_champion", lambda *_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            getattr(release, move)(project)
    assert live_version(project) != champion
    versions.register(project, replace(build_of(builds, "b"), key="bc" * 32))
    set_verdict(monkeypatch, False)
    assert release.promote(project).champion.version == champion
    assert live_version(project) == champion


def test_refusal_does_not_reopen_live_champion(builds, project, monkeypatch):
    release.promote(project)
    add(project, ADDED)
    versions.register(project, build_of(builds, "b"))
    set_verdict(monkeypatch, False)
    monkeypatch.setattr(release, "open_version", lambda *_: pytest.fail("it is searched already"))
    release.promote(project)
    assert current(project).number == 1


def test_version_without_rules_uses_settings(builds, project):
    version = replace(versions.version_with_alias(project, "challenger"), text="")
    assert release.open_version(project, version).manifest["text"] == json.loads(
        build_of(builds, "a").text
    )


def add(project, document_id):
    title, text = NEW[document_id]
    LiveIndex(project).receive([{"id": document_id, "title": title, "text": text}], "test")
    LiveIndex(project).apply()


def test_trained_events_are_not_applied_again(builds, project):
    release.promote(project)
    add(project, ADDED)
    retrained = replace(build_of(builds, "b"), snapshot=position_at(project, 1))
    assert versions.register(project, retrained).snapshot.event == 1
    release.promote(project)
    shutil.rmtree(project.live / "r")
    opened = release.open_champion(project)
    # Nothing is added a second time.
    assert opened.watermark == 1
    assert opened.build == opened.number
    assert opened.segments == ()
    assert opened.cursor.trained == 1
    assert LiveIndex(project).ledger_view.pending().events == ()


def test_version_of_another_ledger_gets_all_events(builds, project):
    release.promote(project)
    add(project, ADDED)
    retrained = replace(build_of(builds, "b"), snapshot=position_at(project, 1))
    versions.register(project, retrained)
    shutil.rmtree(project.live)
    with open_ledger(project) as ledger:
        ledger.receive([Document(sorted(NEW)[1], *NEW[sorted(NEW)[1]])], "test")
    release.promote(project)
    opened = GenerationStore(project.live, "r").current()
    assert opened.watermark == 1
    assert opened.cursor.trained == 0
    assert not opened.cursor.replay
    assert LiveIndex(project).ledger_view.pending().events == ()


def move_alias(project, number):
    with versions.open_registry(project) as registry:
        registry.client.set_registered_model_alias(registry.model, versions.CHAMPION, number)


def recorded_changes(project):
    return [(line["action"], line["from"], line["to"]) for line in history.read(project)]


def move_alias_while_documents_wait(builds, project, monkeypatch, rule):
    """Version 2 is champion, documents wait, the gate is against version 1, and a person makes that
    champion.
    """
    promote_second_build(builds, project)
    text = project.params_file.read_text()
    write_text(project.params_file, text.strip()[:-1] + f", promotion: {{by_hand: {rule}}}}}\n")
    title, body = NEW[ADDED]
    LiveIndex(project).receive([{"id": ADDED, "title": title, "text": body}], "test")
    set_verdict(monkeypatch, False)
    move_alias(project, "1")


@pytest.mark.parametrize("rule", ["follow", "refuse"])
def test_manual_promotion_against_gate_follows_setting(builds, project, monkeypatch, rule):
    move_alias_while_documents_wait(builds, project, monkeypatch, rule)
    move_alias(project, "2")
    with versions.open_registry(project) as registry:
        registry.client.set_registered_model_alias(registry.model, versions.CHALLENGER, "1")
    assert not release.promote(project).passed
    if rule == "refuse":
        with pytest.raises(SettingsError, match="a version is only promoted by the gate"):
            release.promote_manually(project)
        return
    move = release.promote_manually(project)
    assert "moved by hand, against the gate: as the test wants it" in move.summary
    assert move.champion.version == live_version(project) == "1"
    assert recorded_changes(project)[-1] == ("moved by hand", "2", "1")
    assert release.manual_alias_change(project) is None
    assert release.promote_manually(project).already_champion
    shutil.rmtree(project.live / "r")
    # And opened where it is not.
    assert release.promote_manually(project).already_champion
    assert live_version(project) == "1"


def test_moved_alias_is_followed_and_rolled_back(builds, project, monkeypatch):
    move_alias_while_documents_wait(builds, project, monkeypatch, "follow")
    assert (
        str(release.manual_alias_change(project))
        == "moved by hand from version 2 (r) to version 1 (r)"
    )
    move = release.promote(project)
    assert move.champion.version == "1"
    assert live_version(project) == "1"
    assert "moved by hand, against the gate: as the test wants it" in move.summary
    assert recorded_changes(project)[2:] == [("moved by hand", "2", "1")]
    assert history.read(project)[-1]["verdict"]["passed"] is False
    assert LiveIndex(project).ledger_view.pending().events == ()
    assert release.manual_alias_change(project) is None
    assert release.reconcile_alias(project) is None
    assert release.rollback(project).champion.version == live_version(project) == "2"
    assert current(project).manifest["documents"] == len(OLD) + 1
    assert recorded_changes(project)[3:] == [("rollback", "1", "2")]


@contextmanager
def search_continuously(project):
    """A running service that is asked all the time; gives whether the newest generation answers.
    None was refused.
    """
    told, ended = [], threading.Event()

    def ask(client):
        while not ended.is_set():
            told.append(client.post("/search", json={"text": NEW[ADDED][1]}))

    def answers():
        """Whether the newest generation answers before long."""
        return until(lambda: told and told[-1].json().get("generation") == current(project).number)

    with TestClient(create_app(project), raise_server_exceptions=False) as client:
        asking = threading.Thread(target=ask, args=[client])
        asking.start()
        try:
            yield answers
        finally:
            ended.set()
            asking.join()
    assert {answer.status_code for answer in told} == {200}


def test_service_answers_while_alias_is_followed(builds, project, monkeypatch):
    move_alias_while_documents_wait(builds, project, monkeypatch, "follow")
    with search_continuously(project) as answers_newest:
        assert answers_newest()
        assert live_version(project) == "2"
        assert release.promote(project).champion.version == live_version(project) == "1"
        assert answers_newest()
        assert recorded_changes(project)[2:] == [("moved by hand", "2", "1")]
        assert release.rollback(project).champion.version == live_version(project) == "2"
        assert answers_newest()
    assert LiveIndex(project).ledger_view.pending().events == ()
    assert current(project).manifest["documents"] == len(OLD) + 1


def test_service_answers_while_alias_is_put_back(builds, project, monkeypatch):
    move_alias_while_documents_wait(builds, project, monkeypatch, "refuse")
    with search_continuously(project) as answers_newest:
        assert answers_newest()
        move = release.reconcile_alias(project)
        assert not move.passed
        assert versions.version_with_alias(project).version == "2"
        assert live_version(project) == "2"
        assert answers_newest()
    assert recorded_changes(project)[2:] == [("put back", "2", "1")]


@pytest.mark.parametrize("call", [release.promote, release.reconcile_alias, release.rollback])
def test_refused_alias_is_put_back(builds, project, monkeypatch, call):
    move_alias_while_documents_wait(builds, project, monkeypatch, "refuse")
    number = current(project).number
    move = call(project)
    assert not move.passed
    assert versions.version_with_alias(project).version == "2"
    assert live_version(project) == "2"
    assert recorded_changes(project)[2:] == [("put back", "2", "1")]
    assert len(LiveIndex(project).ledger_view.pending().events) == 1
    assert current(project).number == number
    set_verdict(monkeypatch, True)
    move_alias(project, "1")
    assert release.reconcile_alias(project).champion.version == live_version(project) == "1", (
        "the gate is for it"
    )


def test_manual_promotion_reports_reconciled_alias(builds, project, monkeypatch):
    move_alias_while_documents_wait(builds, project, monkeypatch, "follow")
    assert (
        "version 1 (r) is the champion, moved by hand, against the gate"
        in release.promote_manually(project).summary
    )


def test_alias_without_champion_is_taken_away(project, monkeypatch):
    """Nobody was champion, the gate cannot judge, and aliases moved by hand are refused."""

    def fail(*_):
        raise FreshetError("the scores are of other queries")

    monkeypatch.setattr(release.gate, "judge_challenger", fail)
    text = project.params_file.read_text()
    write_text(project.params_file, text.strip()[:-1] + ", promotion: {by_hand: refuse}}\n")
    move_alias(project, "1")

    result = release.reconcile_alias(project)

    assert not result.passed
    assert "the gate cannot judge: the scores are of other queries" in result.summary
    assert versions.version_with_alias(project) is None
    assert release.reconcile_alias(project) is None


def test_refused_challenger_keeps_its_alias(builds, project, monkeypatch):
    release.promote(project)
    settings(project, *CUT["b"])
    second = versions.register(project, build_of(builds, "b"))
    set_verdict(monkeypatch, False)

    result = release.promote(project, challenger=second)

    assert "is refused" in result.summary
    assert versions.version_with_alias(project, "challenger").version == "2"


def test_deleted_alias_is_put_back(builds, project):
    promote_second_build(builds, project)
    with versions.open_registry(project) as registry:
        registry.client.delete_registered_model_alias(registry.model, versions.CHAMPION)
        assert registry.list_versions()[1].is_same(
            registry.version_with_alias("recorded champion")
        ), "so that nothing deletes it"
    assert str(release.manual_alias_change(project)) == "moved by hand from version 2 (r) to none"
    assert (
        release.reconcile_alias(project).champion.version
        == versions.version_with_alias(project).version
        == "2"
    )
    assert recorded_changes(project)[2:] == [("put back", "2", None)]


@pytest.mark.parametrize("name", ["open_version", "set_champion"])
def test_interrupted_reconciliation_is_recorded_once(builds, project, monkeypatch, name):
    move_alias_while_documents_wait(builds, project, monkeypatch, "follow")
    with monkeypatch.context() as patch:
        owner = release if name == "open_version" else versions.Registry
        patch.setattr(owner, name, lambda *_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            release.reconcile_alias(project)
    release.reconcile_alias(project)
    assert recorded_changes(project)[2:] == [("moved by hand", "2", "1")]
    move_alias(project, "2")
    assert release.reconcile_alias(project).champion.version == live_version(project) == "2"


def test_sensor_starts_reconciliation_once(builds, project, monkeypatch):
    move_alias_while_documents_wait(builds, project, monkeypatch, "follow")
    with dg.DagsterInstance.ephemeral() as instance:
        first, second_look = (
            champion_alias(dg.build_sensor_context(instance), project=project) for _ in range(2)
        )
        assert first.run_key == second_look.run_key
        assert first.tags["freshet/why"] == "moved by hand from version 2 (r) to version 1 (r)"
        assert follow_alias.execute_in_process(
            instance=instance, resources={"project": project}
        ).success
        shown = instance.get_latest_materialization_event(
            dg.AssetKey("champion")
        ).asset_materialization
        assert "against the gate" in shown.metadata["what happened"].value
        assert (
            "promoted last"
            in champion_alias(dg.build_sensor_context(instance), project=project).skip_message
        )
    assert live_version(project) == "1"


@pytest.fixture
def other(project, tmp_path, monkeypatch):
    """A second project, with a build of its own registered, where MLflow's store is the first
    one's.
    """
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri(project))
    # where a store that is not a project's own keeps files, unless told otherwise
    monkeypatch.chdir(tmp_path)
    other = Project(tmp_path / "other notes")
    other.root.mkdir()
    shutil.copyfile(project.params_file, other.params_file)
    settings(other, *CUT["b"])
    return other


def test_projects_of_shared_store_have_own_champions(builds, project, other):
    assert release.promote(project).champion.key == "a" * 64
    # What is there is not its own.
    assert versions.version_with_alias(other) is None
    assert release.manual_alias_change(other) is None
    versions.register(other, build_of(builds, "b"))
    move = release.promote(other)
    assert move.champion.version == "1"
    assert move.champion.key == "b" * 64
    assert current(other).number == 0
    assert versions.version_with_alias(project).key == "a" * 64
    assert release.manual_alias_change(project) is None
    assert current(project).number == 0
    assert [version.project for version in versions.list_versions(project)] == [project.identity]
    with versions.open_registry(project) as first, versions.open_registry(other) as second:
        assert first.model == "freshet"
        assert second.model == f"freshet-{other.identity}"
        assert other.identity.startswith("other-notes-")
        assert first.experiment != second.experiment, (
            "nor does one clean up what the other registers"
        )
        pages = [runs.runs_page(each).split("/")[3] for each in (project, other)]
        assert pages == [first.experiment, second.experiment]
    workspace = Project(other.root / "workspace", home=other.root)
    assert versions.version_with_alias(workspace).key == "b" * 64, (
        "a retrain registers for its project"
    )


def test_copied_project_is_told_from_moved_one(builds, project, other, tmp_path):
    versions.register(other, build_of(builds, "b"))
    release.promote(other)
    copy = Project(shutil.copytree(other.root, tmp_path / "copy"))
    with pytest.raises(
        FreshetError, match=rf"copy of .*other notes.*: delete {copy.state / 'identity'}"
    ):
        release.promote(copy)
    (copy.state / "identity").unlink()
    assert versions.version_with_alias(copy) is None
    assert copy.identity.startswith("copy-")
    moved = Project(other.root.rename(tmp_path / "moved"))
    assert versions.version_with_alias(moved).key == "b" * 64
    assert versions.version_with_alias(moved).project == moved.identity
    again = Project(shutil.copytree(moved.root, tmp_path / "other notes"))
    with pytest.raises(FreshetError, match="copy of .*moved"):
        versions.version_with_alias(again)


def test_version_of_another_project_is_refused(builds, project, other):
    promote_second_build(builds, project)
    versions.register(other, build_of(builds, "b"))
    with versions.open_registry(project) as registry:
        foreign = registry.client.copy_model_version(
            f"models:/freshet-{other.identity}/1", "freshet"
        )
        registry.client.set_registered_model_alias("freshet", versions.CHALLENGER, foreign.version)
    with pytest.raises(
        FreshetError, match=rf"version 3 \(r\) belongs to the project {other.identity}, .*register"
    ):
        release.promote(project)
    move_alias(project, foreign.version)
    assert f"belongs to the project {other.identity}" in release.reconcile_alias(project).summary
    assert versions.version_with_alias(project).version == "2"
    assert live_version(project) == "2"
    assert recorded_changes(project)[2:] == [("put back", "2", "3")]


def test_store_without_owner_keeps_its_champion(project, other, monkeypatch):
    release.promote(project)
    with closing(sqlite3.connect(project.state / "mlflow" / "mlflow.db")) as database, database:
        for table in ("experiment_tags", "model_version_tags"):
            assert (
                database.execute(f"DELETE FROM {table} WHERE key = 'freshet.owner'").rowcount == 1
            )
    (project.state / "identity").unlink()
    assert versions.version_with_alias(other) is None, (
        "a new project takes nothing that is not its own"
    )
    monkeypatch.setattr(runs, "_own_uri", lambda project: "another")
    champion = versions.version_with_alias(project)
    assert champion.version == "1"
    assert champion.project == ""
    assert not champion.is_foreign(project)
    assert release.open_champion(project).number == 0
    with versions.open_registry(project) as registry:
        assert (
            registry.client.get_experiment(registry.experiment).tags["freshet.owner"]
            == project.identity
        )
