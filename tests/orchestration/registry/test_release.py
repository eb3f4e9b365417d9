"""Test releases of versions.

A version is opened as it was built, whatever the settings and the ledger are today. A champion that
is not live is opened.
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
from orchestration.registry import built_retriever, history, release, versions
from orchestration.registry.built_retriever import BuiltRetriever
from orchestration.sensors import champion_alias
from orchestration.service.app import create_app
from tests.live_example import position_at
from tests.model_code.collection import laws
from tests.model_code.collection.laws import NEW, OLD, make_encoder, open_build
from tests.orchestration.service.conftest import until

# passages.words and passages.stride of two builds.
PASSAGE_RULES = {"a": (5, 3), "b": (4, 2)}
ADDED = sorted(NEW)[0]


class Killed(BaseException):
    """The process ends here."""


def die(*arguments):
    raise Killed


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    """Return a folder with two builds of the old documents, cut by different passage rules.

    Its folder `project` is a project in which the build "a" is registered.
    """
    root = tmp_path_factory.mktemp("builds")
    make_encoder("dense", root / "encoder")
    for name, (words, stride) in PASSAGE_RULES.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(laws, "RULES", TextRules(True, words, stride))
            open_build("dense", root / name, root / "encoder", OLD, laws.RULES)
        shutil.copytree(root / "encoder", root / name / "build" / "encoder")
    write_evaluation(root / "evaluation")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(built_retriever, "log_retriever", log_index_folder)
        for variable in ("MLFLOW_TRACKING_URI", "FRESHET_STATE"):
            patch.delenv(variable, raising=False)
        versions.register(Project(root / "project"), make_build(root, "a"))
    return root


def log_index_folder(build):
    return str(build.index)


def write_evaluation(folder):
    folder.mkdir()
    scores = pd.DataFrame({"query_id": "q", "split": ["dev", "test"]})
    scores = scores.assign(metric="nDCG@10", value=0.5, with_known=False)
    scores.to_parquet(folder / "scores.parquet")
    summary = {"queries": 1, "nDCG@10": 0.5}
    write_json(folder / "metrics.json", {"system": "r", "dev": summary, "test": summary})


def make_build(root, name, **changes):
    """Return the build "a" or "b" with changed fields."""
    folder = root / name / "build"
    words, stride = PASSAGE_RULES[name]
    build = BuiltRetriever(
        "r",
        encoder=folder / "encoder",
        index=folder / "index",
        hierarchy=folder / "hierarchy",
        documents=folder / "documents.parquet",
        evaluation=root / "evaluation",
        key=name * 64,
        corpus="c" * 64,
        text=canonical_json(vars(TextRules(True, words, stride))),
    )
    return replace(build, **changes)


@pytest.fixture
def project(builds, tmp_path, monkeypatch):
    """Return a project in which the build "a" is registered, and a gate that passes everything."""

    def skip_fsync(handle):
        pass

    def build_folder(project, version):
        return builds / version.key[0] / "build"

    monkeypatch.setattr("os.fsync", skip_fsync)
    monkeypatch.setattr(built_retriever, "log_retriever", log_index_folder)
    monkeypatch.setattr(versions, "download_files", build_folder)
    set_verdict(monkeypatch, passed=True)
    shutil.copytree(builds / "project", tmp_path / "project")
    project = Project(tmp_path / "project")
    (project.root / "dvc.yaml").touch()
    write_settings(project, "a")
    return project


def set_verdict(monkeypatch, passed):
    verdict = Verdict(passed, ("as the test wants it",), queries=1, intervals=())

    def judge_challenger(*arguments):
        return verdict

    monkeypatch.setattr(release.gate, "judge_challenger", judge_challenger)


def write_settings(project, build, title="true"):
    """Write settings with the passage rules of a build."""
    words, stride = PASSAGE_RULES[build]
    passages = f"{{words: {words}, stride: {stride}}}"
    encoder = f"{{include_title: {title}}}"
    text = f"{{retrievers: {{r: {{}}}}, passages: {passages}, encoder: {encoder}}}\n"
    write_text(project.params_file, text)


def set_rule_for_manual_changes(project, rule):
    settings = project.params_file.read_text().strip().removesuffix("}")
    write_text(project.params_file, f"{settings}, promotion: {{by_hand: {rule}}}}}\n")


def current_generation(project):
    return GenerationStore(project.live, "r").current()


def pending_events(project):
    return LiveIndex(project).ledger_view.pending().events


def champion_version(project):
    return versions.version_with_alias(project).version


def live_version(project):
    """Return the version whose build is searched."""
    generation = current_generation(project)
    build = generation.sibling(generation.build)
    return Generation.read(build).manifest["provenance"]["model_version"]


def promote_second_build(builds, project):
    """Promote the build "a", and then "b" under the settings of "b"."""
    release.promote(project)
    write_settings(project, "b")
    versions.register(project, make_build(builds, "b"))
    return release.promote(project)


def test_rollback_uses_passage_rules_of_version(builds, project):
    promotion = promote_second_build(builds, project)
    assert promotion.champion.version == "2"
    assert current_generation(project).number == 1

    rollback = release.rollback(project)

    assert rollback.champion.version == "1"
    assert current_generation(project).build == 0
    assert current_generation(project).manifest["text"]["words"] == 5
    with pytest.raises(FreshetError, match="no previous champion"):
        release.rollback(project)


def test_champion_after_rollback_is_no_challenger(builds, project):
    promote_second_build(builds, project)
    versions.register(project, make_build(builds, "a"))
    assert versions.version_with_alias(project, versions.CHALLENGER).version == "1"

    release.rollback(project)

    assert champion_version(project) == "1"
    assert versions.version_with_alias(project, versions.CHALLENGER) is None


def test_changed_setting_does_not_reopen_champion(project, monkeypatch):
    release.promote(project)
    write_settings(project, "a", title="false")
    # The live build must not be copied again.
    monkeypatch.setattr("model_code.collection.generations.build.copy_build", None)

    generation = release.open_champion(project)

    assert generation.number == 0
    assert current_generation(project).manifest["text"]["include_title"]


def test_version_that_cannot_be_opened_is_not_promoted(builds, project):
    release.promote(project)
    rules_of_another_build = make_build(builds, "a").text
    versions.register(project, make_build(builds, "b", text=rules_of_another_build))

    with pytest.raises(FreshetError, match="passages in the build"):
        release.promote(project)

    assert champion_version(project) == "1"
    assert current_generation(project).number == 0
    assert versions.version_with_alias(project, "challenger").version == "2"


def test_refusal_opens_champion_that_is_not_live(builds, project, monkeypatch):
    promote_second_build(builds, project)
    versions.register(project, make_build(builds, "a", key="ac" * 32))
    set_verdict(monkeypatch, passed=False)
    shutil.rmtree(project.live / "r")

    result = release.promote(project)

    assert not result.passed
    assert result.champion.version == "2"
    assert live_version(project) == "2"
    LiveIndex(project)


def set_untrained_build(builds, patch, name="a"):
    """Replace the best untrained system of a finished build by the build `name`."""

    def best_untrained(*arguments):
        return "r"

    def accept(*arguments):
        return None

    def find_build(*arguments):
        return make_build(builds, name)

    patch.setattr(release, "best_untrained", best_untrained)
    patch.setattr(release, "require_current", accept)
    patch.setattr(release, "find_build", find_build)


def test_interrupted_first_champion_is_completed(builds, project, monkeypatch):
    set_untrained_build(builds, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(versions.Registry, "set_champion", die)
        with pytest.raises(Killed):
            release.promote_first_champion(project)
    assert versions.version_with_alias(project) is None
    assert live_version(project) == "1"

    result = release.promote_first_champion(project)

    assert result.champion.version == "1"
    assert champion_version(project) == "1"
    assert release.promote_first_champion(project) is None


@pytest.fixture
def restored_project(project):
    """Return a project with a live collection, but without the registry of its champion."""
    release.promote(project)
    add_document(project, ADDED)
    shutil.rmtree(project.state)
    return project


def test_restored_collection_stays_live(builds, restored_project, monkeypatch):
    set_untrained_build(builds, monkeypatch, "b")

    assert release.promote_first_champion(restored_project) is None

    assert current_generation(restored_project).number == 1
    assert versions.list_versions(restored_project) == []


def test_build_of_restored_collection_becomes_champion(builds, restored_project, monkeypatch):
    set_untrained_build(builds, monkeypatch, "a")

    assert release.promote_first_champion(restored_project).passed

    assert current_generation(restored_project).number == 1
    assert live_version(restored_project) == "1"


def die_before_champion_is_set(monkeypatch, move, project):
    with monkeypatch.context() as patch:
        patch.setattr(versions.Registry, "set_champion", die)
        with pytest.raises(Killed):
            move(project)


def test_refusal_after_interrupted_promotion_reopens_champion(builds, project, monkeypatch):
    release.promote(project)
    versions.register(project, make_build(builds, "b"))
    die_before_champion_is_set(monkeypatch, release.promote, project)
    assert live_version(project) == "2"
    versions.register(project, make_build(builds, "b", key="bc" * 32))
    set_verdict(monkeypatch, passed=False)

    result = release.promote(project)

    assert result.champion.version == "1"
    assert live_version(project) == "1"


def test_refusal_after_interrupted_rollback_reopens_champion(builds, project, monkeypatch):
    promote_second_build(builds, project)
    die_before_champion_is_set(monkeypatch, release.rollback, project)
    assert live_version(project) == "1"
    versions.register(project, make_build(builds, "b", key="bc" * 32))
    set_verdict(monkeypatch, passed=False)

    result = release.promote(project)

    assert result.champion.version == "2"
    assert live_version(project) == "2"


def test_refusal_does_not_reopen_live_champion(builds, project, monkeypatch):
    release.promote(project)
    add_document(project, ADDED)
    versions.register(project, make_build(builds, "b"))
    set_verdict(monkeypatch, passed=False)
    monkeypatch.setattr(release, "open_version", die)

    release.promote(project)

    assert current_generation(project).number == 1


def test_version_without_rules_uses_settings(builds, project):
    challenger = versions.version_with_alias(project, "challenger")

    generation = release.open_version(project, replace(challenger, text=""))

    assert generation.manifest["text"] == json.loads(make_build(builds, "a").text)


def add_document(project, document_id):
    title, text = NEW[document_id]
    index = LiveIndex(project)
    index.receive([{"id": document_id, "title": title, "text": text}], "test")
    index.apply()


def test_trained_events_are_not_applied_again(builds, project):
    release.promote(project)
    add_document(project, ADDED)
    retrained = make_build(builds, "b", snapshot=position_at(project, 1))
    assert versions.register(project, retrained).snapshot.event == 1
    release.promote(project)
    shutil.rmtree(project.live / "r")

    generation = release.open_champion(project)

    assert generation.watermark == 1
    assert generation.build == generation.number
    assert generation.segments == ()
    assert generation.cursor.trained == 1
    assert pending_events(project) == ()


def test_version_of_another_ledger_gets_all_events(builds, project):
    release.promote(project)
    add_document(project, ADDED)
    versions.register(project, make_build(builds, "b", snapshot=position_at(project, 1)))
    # Another ledger with one event replaces the one of the snapshot.
    shutil.rmtree(project.live)
    document_id = sorted(NEW)[1]
    title, text = NEW[document_id]
    with open_ledger(project) as ledger:
        ledger.receive([Document(document_id, title, text)], "test")

    release.promote(project)

    generation = current_generation(project)
    assert generation.watermark == 1
    assert generation.cursor.trained == 0
    assert not generation.cursor.replay
    assert pending_events(project) == ()


def move_champion_alias(project, version):
    with versions.open_registry(project) as registry:
        registry.client.set_registered_model_alias(registry.model, versions.CHAMPION, version)


def recorded_changes(project):
    return [(line["action"], line["from"], line["to"]) for line in history.read(project)]


def move_alias_while_documents_wait(builds, project, monkeypatch, rule):
    """Make version 1 champion by hand, against the gate, while version 2 is champion.

    A document is recorded, but not applied.
    """
    promote_second_build(builds, project)
    set_rule_for_manual_changes(project, rule)
    title, text = NEW[ADDED]
    LiveIndex(project).receive([{"id": ADDED, "title": title, "text": text}], "test")
    set_verdict(monkeypatch, passed=False)
    move_champion_alias(project, "1")


def refuse_first_version(builds, project, monkeypatch, rule):
    """Refuse version 1 as challenger of version 2, with a rule for manual promotions."""
    move_alias_while_documents_wait(builds, project, monkeypatch, rule)
    move_champion_alias(project, "2")
    with versions.open_registry(project) as registry:
        registry.client.set_registered_model_alias(registry.model, versions.CHALLENGER, "1")
    assert not release.promote(project).passed


def test_manual_promotion_against_gate_is_refused_by_setting(builds, project, monkeypatch):
    refuse_first_version(builds, project, monkeypatch, "refuse")

    with pytest.raises(SettingsError, match="a version is only promoted by the gate"):
        release.promote_manually(project)


def test_manual_promotion_against_gate_is_recorded(builds, project, monkeypatch):
    refuse_first_version(builds, project, monkeypatch, "follow")

    result = release.promote_manually(project)

    assert "moved by hand, against the gate: as the test wants it" in result.summary
    assert result.champion.version == "1"
    assert live_version(project) == "1"
    assert recorded_changes(project)[-1] == ("moved by hand", "2", "1")
    assert release.manual_alias_change(project) is None


def test_repeated_manual_promotion_opens_the_champion(builds, project, monkeypatch):
    refuse_first_version(builds, project, monkeypatch, "follow")
    release.promote_manually(project)
    assert release.promote_manually(project).already_champion
    shutil.rmtree(project.live / "r")

    result = release.promote_manually(project)

    assert result.already_champion
    assert live_version(project) == "1"


def test_moved_alias_is_described(builds, project, monkeypatch):
    move_alias_while_documents_wait(builds, project, monkeypatch, "follow")

    change = release.manual_alias_change(project)

    assert str(change) == "moved by hand from version 2 (r) to version 1 (r)"


def test_moved_alias_is_followed_and_rolled_back(builds, project, monkeypatch):
    move_alias_while_documents_wait(builds, project, monkeypatch, "follow")

    result = release.promote(project)

    assert result.champion.version == "1"
    assert live_version(project) == "1"
    assert "moved by hand, against the gate: as the test wants it" in result.summary
    assert recorded_changes(project)[2:] == [("moved by hand", "2", "1")]
    assert history.read(project)[-1]["verdict"]["passed"] is False
    assert pending_events(project) == ()
    assert release.manual_alias_change(project) is None
    assert release.reconcile_alias(project) is None

    rollback = release.rollback(project)

    assert rollback.champion.version == "2"
    assert live_version(project) == "2"
    assert current_generation(project).manifest["documents"] == len(OLD) + 1
    assert recorded_changes(project)[3:] == [("rollback", "1", "2")]


@contextmanager
def search_continuously(project):
    """Search a running service all the time; no search may be refused.

    Yields:
        A function that returns whether the newest generation answers before long.
    """
    answers = []
    is_over = threading.Event()

    def search_until_over(client):
        while not is_over.is_set():
            answers.append(client.post("/search", json={"text": NEW[ADDED][1]}))

    def newest_generation_answers():
        number = current_generation(project).number
        return answers and answers[-1].json().get("generation") == number

    def wait_for_newest_generation():
        return until(newest_generation_answers)

    with TestClient(create_app(project), raise_server_exceptions=False) as client:
        thread = threading.Thread(target=search_until_over, args=[client])
        thread.start()
        try:
            yield wait_for_newest_generation
        finally:
            is_over.set()
            thread.join()
    assert {answer.status_code for answer in answers} == {200}


def test_service_answers_while_alias_is_followed(builds, project, monkeypatch):
    move_alias_while_documents_wait(builds, project, monkeypatch, "follow")

    with search_continuously(project) as newest_generation_answers:
        assert newest_generation_answers()
        assert live_version(project) == "2"

        assert release.promote(project).champion.version == "1"
        assert live_version(project) == "1"
        assert newest_generation_answers()
        assert recorded_changes(project)[2:] == [("moved by hand", "2", "1")]

        assert release.rollback(project).champion.version == "2"
        assert live_version(project) == "2"
        assert newest_generation_answers()

    assert pending_events(project) == ()
    assert current_generation(project).manifest["documents"] == len(OLD) + 1


def test_service_answers_while_alias_is_put_back(builds, project, monkeypatch):
    move_alias_while_documents_wait(builds, project, monkeypatch, "refuse")

    with search_continuously(project) as newest_generation_answers:
        assert newest_generation_answers()
        result = release.reconcile_alias(project)
        assert not result.passed
        assert champion_version(project) == "2"
        assert live_version(project) == "2"
        assert newest_generation_answers()

    assert recorded_changes(project)[2:] == [("put back", "2", "1")]


@pytest.mark.parametrize("move", [release.promote, release.reconcile_alias, release.rollback])
def test_refused_alias_is_put_back(builds, project, monkeypatch, move):
    move_alias_while_documents_wait(builds, project, monkeypatch, "refuse")
    number = current_generation(project).number

    result = move(project)

    assert not result.passed
    assert champion_version(project) == "2"
    assert live_version(project) == "2"
    assert recorded_changes(project)[2:] == [("put back", "2", "1")]
    assert len(pending_events(project)) == 1
    assert current_generation(project).number == number

    # The gate passes the version now.
    set_verdict(monkeypatch, passed=True)
    move_champion_alias(project, "1")
    assert release.reconcile_alias(project).champion.version == "1"
    assert live_version(project) == "1"


def test_manual_promotion_reports_reconciled_alias(builds, project, monkeypatch):
    move_alias_while_documents_wait(builds, project, monkeypatch, "follow")

    result = release.promote_manually(project)

    message = "version 1 (r) is the champion, moved by hand, against the gate"
    assert message in result.summary


def test_alias_without_champion_is_taken_away(project, monkeypatch):
    """There was no champion, the gate cannot judge, and manual changes are refused."""

    def fail(*arguments):
        raise FreshetError("the scores are of other queries")

    monkeypatch.setattr(release.gate, "judge_challenger", fail)
    set_rule_for_manual_changes(project, "refuse")
    move_champion_alias(project, "1")

    result = release.reconcile_alias(project)

    assert not result.passed
    assert "the gate cannot judge: the scores are of other queries" in result.summary
    assert versions.version_with_alias(project) is None
    assert release.reconcile_alias(project) is None


def test_refused_challenger_keeps_its_alias(builds, project, monkeypatch):
    release.promote(project)
    write_settings(project, "b")
    second = versions.register(project, make_build(builds, "b"))
    set_verdict(monkeypatch, passed=False)

    result = release.promote(project, challenger=second)

    assert "is refused" in result.summary
    assert versions.version_with_alias(project, "challenger").version == "2"


def test_deleted_alias_is_put_back(builds, project):
    promote_second_build(builds, project)
    with versions.open_registry(project) as registry:
        registry.client.delete_registered_model_alias(registry.model, versions.CHAMPION)
        # This alias protects the version from deletion.
        recorded_champion = registry.version_with_alias("recorded champion")
        assert registry.list_versions()[1].is_same(recorded_champion)
    assert str(release.manual_alias_change(project)) == "moved by hand from version 2 (r) to none"

    result = release.reconcile_alias(project)

    assert result.champion.version == "2"
    assert champion_version(project) == "2"
    assert recorded_changes(project)[2:] == [("put back", "2", None)]


@pytest.mark.parametrize(
    ("owner", "name"), [(release, "open_version"), (versions.Registry, "set_champion")]
)
def test_interrupted_reconciliation_is_recorded_once(builds, project, monkeypatch, owner, name):
    move_alias_while_documents_wait(builds, project, monkeypatch, "follow")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, die)
        with pytest.raises(Killed):
            release.reconcile_alias(project)

    release.reconcile_alias(project)

    assert recorded_changes(project)[2:] == [("moved by hand", "2", "1")]
    move_champion_alias(project, "2")
    assert release.reconcile_alias(project).champion.version == "2"
    assert live_version(project) == "2"


def test_sensor_starts_reconciliation_once(builds, project, monkeypatch):
    move_alias_while_documents_wait(builds, project, monkeypatch, "follow")

    with dg.DagsterInstance.ephemeral() as instance:

        def run_sensor():
            return champion_alias(dg.build_sensor_context(instance), project=project)

        request = run_sensor()
        repeated_request = run_sensor()
        result = follow_alias.execute_in_process(instance=instance, resources={"project": project})
        event = instance.get_latest_materialization_event(dg.AssetKey("champion"))
        skip = run_sensor()

    assert request.run_key == repeated_request.run_key
    assert request.tags["freshet/why"] == "moved by hand from version 2 (r) to version 1 (r)"
    assert result.success
    metadata = event.asset_materialization.metadata
    assert "against the gate" in metadata["what happened"].value
    assert "promoted last" in skip.skip_message
    assert live_version(project) == "1"


@pytest.fixture
def other_project(project, tmp_path, monkeypatch):
    """Return a second project that shares the MLflow store of the first one."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri(project))
    # A shared store keeps files below the working folder by default.
    monkeypatch.chdir(tmp_path)
    other_project = Project(tmp_path / "other notes")
    other_project.root.mkdir()
    write_settings(other_project, "b")
    return other_project


@pytest.fixture
def two_champions(builds, project, other_project):
    """Promote the build "a" in the first project, and "b" in the other one."""
    release.promote(project)
    versions.register(other_project, make_build(builds, "b"))
    return release.promote(other_project)


def test_champion_of_another_project_is_not_seen(project, other_project):
    assert release.promote(project).champion.key == "a" * 64

    assert versions.version_with_alias(other_project) is None
    assert release.manual_alias_change(other_project) is None


def test_projects_of_shared_store_have_own_champions(two_champions, project, other_project):
    assert two_champions.champion.version == "1"
    assert two_champions.champion.key == "b" * 64
    assert current_generation(other_project).number == 0
    assert versions.version_with_alias(project).key == "a" * 64
    assert release.manual_alias_change(project) is None
    assert current_generation(project).number == 0
    (version,) = versions.list_versions(project)
    assert version.project == project.identity


def test_projects_of_shared_store_have_own_models(two_champions, project, other_project):
    with versions.open_registry(project) as first, versions.open_registry(other_project) as second:
        assert first.model == "freshet"
        assert second.model == f"freshet-{other_project.identity}"
        assert other_project.identity.startswith("other-notes-")
        # Garbage collection of a project works within its experiment.
        assert first.experiment != second.experiment
        assert runs.runs_page(project).split("/")[3] == first.experiment
        assert runs.runs_page(other_project).split("/")[3] == second.experiment


def test_workspace_registers_for_its_project(two_champions, other_project):
    workspace = Project(other_project.root / "workspace", home=other_project.root)

    assert versions.version_with_alias(workspace).key == "b" * 64


@pytest.fixture
def champion_of_other_project(builds, other_project):
    versions.register(other_project, make_build(builds, "b"))
    return release.promote(other_project).champion


@pytest.mark.usefixtures("champion_of_other_project")
def test_copied_project_is_refused(other_project, tmp_path):
    copy = Project(shutil.copytree(other_project.root, tmp_path / "copy"))
    message = rf"copy of .*other notes.*: delete {copy.state / 'identity'}"

    with pytest.raises(FreshetError, match=message):
        release.promote(copy)


@pytest.mark.usefixtures("champion_of_other_project")
def test_copied_project_without_identity_is_a_new_one(other_project, tmp_path):
    copy = Project(shutil.copytree(other_project.root, tmp_path / "copy"))
    (copy.state / "identity").unlink()

    assert versions.version_with_alias(copy) is None
    assert copy.identity.startswith("copy-")


@pytest.mark.usefixtures("champion_of_other_project")
def test_moved_project_keeps_its_champion(other_project, tmp_path):
    moved = Project(other_project.root.rename(tmp_path / "moved"))

    assert versions.version_with_alias(moved).key == "b" * 64
    assert versions.version_with_alias(moved).project == moved.identity


@pytest.mark.usefixtures("champion_of_other_project")
def test_copy_in_the_place_of_a_moved_project_is_refused(other_project, tmp_path):
    moved = Project(other_project.root.rename(tmp_path / "moved"))
    # The identity records the new place when it is read.
    versions.version_with_alias(moved)
    copy = Project(shutil.copytree(moved.root, tmp_path / "other notes"))

    with pytest.raises(FreshetError, match="copy of .*moved"):
        versions.version_with_alias(copy)


def test_version_of_another_project_is_refused(builds, project, other_project):
    promote_second_build(builds, project)
    versions.register(other_project, make_build(builds, "b"))
    with versions.open_registry(project) as registry:
        source = f"models:/freshet-{other_project.identity}/1"
        foreign = registry.client.copy_model_version(source, "freshet")
        registry.client.set_registered_model_alias("freshet", versions.CHALLENGER, foreign.version)
    owner = f"belongs to the project {other_project.identity}"

    with pytest.raises(FreshetError, match=rf"version 3 \(r\) {owner}, .*register"):
        release.promote(project)

    move_champion_alias(project, foreign.version)
    assert owner in release.reconcile_alias(project).summary
    assert champion_version(project) == "2"
    assert live_version(project) == "2"
    assert recorded_changes(project)[2:] == [("put back", "2", "3")]


def forget_owner(project):
    """Remove the owner from the store, and the identity from the project."""
    with closing(sqlite3.connect(project.state / "mlflow" / "mlflow.db")) as database, database:
        for table in ("experiment_tags", "model_version_tags"):
            cursor = database.execute(f"DELETE FROM {table} WHERE key = 'freshet.owner'")
            assert cursor.rowcount == 1
    (project.state / "identity").unlink()


def test_store_without_owner_keeps_its_champion(project, other_project, monkeypatch):
    release.promote(project)
    forget_owner(project)
    # Another project takes nothing that is not its own.
    assert versions.version_with_alias(other_project) is None

    def another_uri(project):
        return "another"

    monkeypatch.setattr(runs, "_own_uri", another_uri)
    champion = versions.version_with_alias(project)

    assert champion.version == "1"
    assert champion.project == ""
    assert not champion.is_foreign(project)
    assert release.open_champion(project).number == 0
    with versions.open_registry(project) as registry:
        experiment = registry.client.get_experiment(registry.experiment)
        assert experiment.tags["freshet.owner"] == project.identity
