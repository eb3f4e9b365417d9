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
    judging(monkeypatch, True)
    shutil.copytree(builds / "project", tmp_path / "project")
    project = Project(tmp_path / "project")
    (project.root / "dvc.yaml").touch()
    settings(project, *CUT["a"])
    return project


def judging(monkeypatch, passed):
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


def build_version(project):
    """The version whose build is searched."""
    build = current(project).sibling(current(project).build)
    return Generation.read(build).manifest["provenance"]["model_version"]


def second(builds, project):
    """The build "b" in place of "a", under settings of its own."""
    release.promote(project)
    settings(project, *CUT["b"])
    versions.register(project, build_of(builds, "b"))
    return release.promote(project)


def test_a_rollback_opens_a_version_by_the_rules_that_it_was_built_by(builds, project):
    assert (second(builds, project).champion.version, current(project).number) == ("2", 1)
    assert release.rollback(project).champion.version == "1"
    assert (current(project).build, current(project).manifest["text"]["words"]) == (0, 5)
    with pytest.raises(FreshetError, match="no previous champion"):
        release.rollback(project)


def test_a_changed_setting_makes_no_other_generation_of_the_champion(project, monkeypatch):
    release.promote(project)
    settings(project, *CUT["a"], title="false")
    # what is live is not copied again
    monkeypatch.setattr("model_code.collection.generations.build.copy_build", None)
    assert release.open_champion(project).number == 0
    assert current(project).manifest["text"]["include_title"]


def test_a_version_that_does_not_fit_its_rules_does_not_become_champion(builds, project):
    release.promote(project)
    versions.register(project, replace(build_of(builds, "b"), text=build_of(builds, "a").text))
    with pytest.raises(FreshetError, match="passages in the build"):
        release.promote(project)
    assert (versions.version_with_alias(project).version, current(project).number) == ("1", 0)
    assert versions.version_with_alias(project, "challenger").version == "2"


def test_after_a_refusal_a_champion_that_is_not_live_is_opened(builds, project, monkeypatch):
    second(builds, project)
    versions.register(project, replace(build_of(builds, "a"), key="ac" * 32))
    judging(monkeypatch, False)
    shutil.rmtree(project.live / "r")
    move = release.promote(project)
    assert (move.passed, move.champion.version) == (False, "2")
    assert build_version(project) == "2"
    LiveIndex(project)


def first(builds, patch, name="a"):
    """A finished build, none of whose stages is out of date, whose untrained system is the build
    `name`.
    """
    patch.setattr(release, "best_untrained", lambda *_: "r")
    patch.setattr(release, "require_current", lambda *_: None)
    patch.setattr(release, "find_build", lambda *_: build_of(builds, name))


def test_the_first_champion_is_opened_where_nothing_is_live_and_after_a_kill(
    builds, project, monkeypatch
):
    first(builds, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(versions.Registry, "set_champion", lambda *_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            release.promote_first_champion(project)
    assert (versions.version_with_alias(project), build_version(project)) == (None, "1")
    assert (
        release.promote_first_champion(project).champion.version
        == versions.version_with_alias(project).version
        == "1"
    )
    assert release.promote_first_champion(project) is None


def test_what_is_live_without_a_champion_as_after_a_restore_stays_live(
    builds, project, monkeypatch
):
    release.promote(project)
    add(project, ADDED)
    shutil.rmtree(project.state)
    first(builds, monkeypatch, "b")
    assert release.promote_first_champion(project) is None
    assert (current(project).number, versions.list_versions(project)) == (1, [])
    first(builds, monkeypatch)
    assert release.promote_first_champion(project).passed, (
        "the same build may be champion: it is live already"
    )
    assert (current(project).number, build_version(project)) == (1, "1")


@pytest.mark.parametrize("move", ["promote", "rollback"])
def test_a_refusal_after_a_move_that_was_cut_off_searches_the_champion_again(
    builds, project, monkeypatch, move
):
    release.promote(project) if move == "promote" else second(builds, project)
    champion = versions.version_with_alias(project).version
    versions.register(project, build_of(builds, "b"))
    with monkeypatch.context() as patch:
        patch.setattr(versions.Registry, "set_champion", lambda *_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            getattr(release, move)(project)
    assert build_version(project) != champion
    versions.register(project, replace(build_of(builds, "b"), key="bc" * 32))
    judging(monkeypatch, False)
    assert release.promote(project).champion.version == champion
    assert build_version(project) == champion


def test_a_refusal_opens_nothing_where_the_champion_is_searched(builds, project, monkeypatch):
    release.promote(project)
    add(project, ADDED)
    versions.register(project, build_of(builds, "b"))
    judging(monkeypatch, False)
    monkeypatch.setattr(release, "open_version", lambda *_: pytest.fail("it is searched already"))
    release.promote(project)
    assert current(project).number == 1


def test_a_version_of_before_rules_were_kept_is_opened_by_the_settings(builds, project):
    version = replace(versions.version_with_alias(project, "challenger"), text="")
    assert release.open_version(project, version).manifest["text"] == json.loads(
        build_of(builds, "a").text
    )


def add(project, document_id):
    title, text = NEW[document_id]
    LiveIndex(project).receive([{"id": document_id, "title": title, "text": text}], "test")
    LiveIndex(project).apply()


def test_a_version_knows_up_to_which_event_it_was_built_wherever_its_generation_went(
    builds, project
):
    release.promote(project)
    add(project, ADDED)
    retrained = replace(build_of(builds, "b"), snapshot=position_at(project, 1))
    assert versions.register(project, retrained).snapshot.event == 1
    release.promote(project)
    shutil.rmtree(project.live / "r")
    opened = release.open_champion(project)
    assert (opened.watermark, opened.build, opened.segments) == (1, opened.number, ()), (
        "nothing is added a second time"
    )
    assert (opened.cursor.trained, LiveIndex(project).ledger_view.pending().events) == (1, ())


def test_a_version_of_another_log_is_opened_with_all_that_this_one_has(builds, project):
    release.promote(project)
    add(project, ADDED)
    retrained = replace(build_of(builds, "b"), snapshot=position_at(project, 1))
    versions.register(project, retrained)
    shutil.rmtree(project.live)
    with open_ledger(project) as ledger:
        ledger.receive([Document(sorted(NEW)[1], *NEW[sorted(NEW)[1]])], "test")
    release.promote(project)
    opened = GenerationStore(project.live, "r").current()
    assert (opened.watermark, opened.cursor.trained, opened.cursor.replay) == (1, 0, False)
    assert LiveIndex(project).ledger_view.pending().events == ()


def move_alias(project, number):
    with versions.open_registry(project) as registry:
        registry.client.set_registered_model_alias(registry.model, versions.CHAMPION, number)


def moves(project):
    return [(line["action"], line["from"], line["to"]) for line in history.read(project)]


def moved_with_a_batch_waiting(builds, project, monkeypatch, rule):
    """Version 2 is champion, documents wait, the gate is against version 1, and a person makes that
    champion.
    """
    second(builds, project)
    text = project.params_file.read_text()
    write_text(project.params_file, text.strip()[:-1] + f", promotion: {{by_hand: {rule}}}}}\n")
    title, body = NEW[ADDED]
    LiveIndex(project).receive([{"id": ADDED, "title": title, "text": body}], "test")
    judging(monkeypatch, False)
    move_alias(project, "1")


@pytest.mark.parametrize("rule", ["follow", "refuse"])
def test_a_person_may_promote_against_the_gate_unless_the_settings_refuse_it(
    builds, project, monkeypatch, rule
):
    moved_with_a_batch_waiting(builds, project, monkeypatch, rule)
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
    assert move.champion.version == build_version(project) == "1"
    assert moves(project)[-1] == ("moved by hand", "2", "1")
    assert (
        release.manual_alias_change(project),
        release.promote_manually(project).already_champion,
    ) == (None, True)
    shutil.rmtree(project.live / "r")
    assert (release.promote_manually(project).already_champion, build_version(project)) == (
        True,
        "1",
    ), "and opened where it is not"


def test_an_alias_moved_by_hand_is_followed_with_what_waits_and_rolled_back(
    builds, project, monkeypatch
):
    moved_with_a_batch_waiting(builds, project, monkeypatch, "follow")
    assert (
        str(release.manual_alias_change(project))
        == "moved by hand from version 2 (r) to version 1 (r)"
    )
    move = release.promote(project)
    assert (move.champion.version, build_version(project)) == ("1", "1")
    assert "moved by hand, against the gate: as the test wants it" in move.summary
    assert moves(project)[2:] == [("moved by hand", "2", "1")]
    assert history.read(project)[-1]["verdict"]["passed"] is False
    assert LiveIndex(project).ledger_view.pending().events == ()
    assert (release.manual_alias_change(project), release.reconcile_alias(project)) == (None, None)
    assert release.rollback(project).champion.version == build_version(project) == "2"
    assert current(project).manifest["documents"] == len(OLD) + 1
    assert moves(project)[3:] == [("rollback", "1", "2")]


@contextmanager
def searched_throughout(project):
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


def test_a_running_service_answers_throughout_a_move_by_hand_and_its_rollback(
    builds, project, monkeypatch
):
    moved_with_a_batch_waiting(builds, project, monkeypatch, "follow")
    with searched_throughout(project) as answers_newest:
        assert answers_newest()
        assert build_version(project) == "2"
        assert release.promote(project).champion.version == build_version(project) == "1"
        assert answers_newest()
        assert moves(project)[2:] == [("moved by hand", "2", "1")]
        assert release.rollback(project).champion.version == build_version(project) == "2"
        assert answers_newest()
    assert LiveIndex(project).ledger_view.pending().events == ()
    assert current(project).manifest["documents"] == len(OLD) + 1


def test_a_running_service_answers_throughout_a_move_by_hand_that_is_put_back(
    builds, project, monkeypatch
):
    moved_with_a_batch_waiting(builds, project, monkeypatch, "refuse")
    with searched_throughout(project) as answers_newest:
        assert answers_newest()
        move = release.reconcile_alias(project)
        assert (
            move.passed,
            versions.version_with_alias(project).version,
            build_version(project),
        ) == (
            False,
            "2",
            "2",
        )
        assert answers_newest()
    assert moves(project)[2:] == [("put back", "2", "1")]


@pytest.mark.parametrize("call", [release.promote, release.reconcile_alias, release.rollback])
def test_by_the_other_setting_the_alias_goes_back_and_nothing_else_changes(
    builds, project, monkeypatch, call
):
    moved_with_a_batch_waiting(builds, project, monkeypatch, "refuse")
    number = current(project).number
    move = call(project)
    assert (move.passed, versions.version_with_alias(project).version, build_version(project)) == (
        False,
        "2",
        "2",
    )
    assert moves(project)[2:] == [("put back", "2", "1")]
    assert (len(LiveIndex(project).ledger_view.pending().events), current(project).number) == (
        1,
        number,
    )
    judging(monkeypatch, True)
    move_alias(project, "1")
    assert release.reconcile_alias(project).champion.version == build_version(project) == "1", (
        "the gate is for it"
    )


def test_where_nobody_else_asks_a_promotion_by_hand_tells_what_settled_the_alias(
    builds, project, monkeypatch
):
    moved_with_a_batch_waiting(builds, project, monkeypatch, "follow")
    assert (
        "version 1 (r) is the champion, moved by hand, against the gate"
        in release.promote_manually(project).summary
    )


def test_an_alias_that_was_deleted_comes_back(builds, project):
    second(builds, project)
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
    assert moves(project)[2:] == [("put back", "2", None)]


@pytest.mark.parametrize("name", ["open_version", "set_champion"])
def test_following_that_was_cut_off_is_one_line_once_it_is_done(builds, project, monkeypatch, name):
    moved_with_a_batch_waiting(builds, project, monkeypatch, "follow")
    with monkeypatch.context() as patch:
        owner = release if name == "open_version" else versions.Registry
        patch.setattr(owner, name, lambda *_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            release.reconcile_alias(project)
    release.reconcile_alias(project)
    assert moves(project)[2:] == [("moved by hand", "2", "1")]
    move_alias(project, "2")
    assert release.reconcile_alias(project).champion.version == build_version(project) == "2"


def test_the_sensor_sees_the_move_once_and_its_run_settles_it(builds, project, monkeypatch):
    moved_with_a_batch_waiting(builds, project, monkeypatch, "follow")
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
    assert build_version(project) == "1"


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


def test_two_projects_of_one_store_have_a_champion_and_live_documents_each(builds, project, other):
    assert release.promote(project).champion.key == "a" * 64
    assert (versions.version_with_alias(other), release.manual_alias_change(other)) == (
        None,
        None,
    ), "what is there is not its own"
    versions.register(other, build_of(builds, "b"))
    move = release.promote(other)
    assert (move.champion.version, move.champion.key, current(other).number) == ("1", "b" * 64, 0)
    assert versions.version_with_alias(project).key == "a" * 64
    assert (release.manual_alias_change(project), current(project).number) == (None, 0)
    assert [version.project for version in versions.list_versions(project)] == [project.identity]
    with versions.open_registry(project) as first, versions.open_registry(other) as second:
        assert (first.model, second.model) == ("freshet", f"freshet-{other.identity}")
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


def test_a_copy_is_not_its_original_in_a_store_that_both_share_and_a_project_may_move(
    builds, project, other, tmp_path
):
    versions.register(other, build_of(builds, "b"))
    release.promote(other)
    copy = Project(shutil.copytree(other.root, tmp_path / "copy"))
    with pytest.raises(
        FreshetError, match=rf"copy of .*other notes.*: delete {copy.state / 'identity'}"
    ):
        release.promote(copy)
    (copy.state / "identity").unlink()
    assert (versions.version_with_alias(copy), copy.identity.startswith("copy-")) == (None, True)
    moved = Project(other.root.rename(tmp_path / "moved"))
    assert versions.version_with_alias(moved).key == "b" * 64
    assert versions.version_with_alias(moved).project == moved.identity
    again = Project(shutil.copytree(moved.root, tmp_path / "other notes"))
    with pytest.raises(FreshetError, match="copy of .*moved"):
        versions.version_with_alias(again)


def test_a_version_that_a_person_copied_from_another_project_is_refused_by_name(
    builds, project, other
):
    second(builds, project)
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
    assert (versions.version_with_alias(project).version, build_version(project)) == ("2", "2")
    assert moves(project)[2:] == [("put back", "2", "3")]


def test_a_store_of_before_projects_were_named_goes_on_with_who_was_promoted_there(
    project, other, monkeypatch
):
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
    assert (champion.version, champion.project, champion.is_foreign(project)) == ("1", "", False)
    assert release.open_champion(project).number == 0
    with versions.open_registry(project) as registry:
        assert (
            registry.client.get_experiment(registry.experiment).tags["freshet.owner"]
            == project.identity
        )
