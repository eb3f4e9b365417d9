"""Guards that a version is opened as it was built, whatever the settings and the ledger say today, and that a champion
which is not live is opened.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pandas as pd
import pytest

from model_code.documents import Document
from model_code.errors import FreshetError
from model_code.evaluation.promotion import Verdict
from model_code.files import canonical_json, write_json, write_text
from model_code.live.collection import Collection
from model_code.live.generation import Generation
from model_code.live.texts import TextRules
from orchestration.live.collection import LiveCollection
from orchestration.live.ledger import open_ledger
from orchestration.project import Project
from orchestration.registry import release, versions
from orchestration.registry.build import Build
from tests.model_code.live import laws
from tests.model_code.live.laws import NEW, OLD, make_encoder, open_build
from tests.orchestration.live_example import position_at

pytestmark = pytest.mark.usefixtures("_own_store")
CUT = {"a": (5, 3), "b": (4, 2)}  # passages.words and passages.stride of two builds
ADDED = sorted(NEW)[0]


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    """Two builds of the old documents, cut by different rules, and a store in which both are registered."""
    root = tmp_path_factory.mktemp("builds")
    make_encoder("dense", root / "encoder")
    for name, cut in CUT.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(laws, "RULES", TextRules(True, *cut))
            open_build("dense", root / name, root / "encoder", OLD, laws.RULES)
        shutil.copytree(root / "encoder", root / name / "build" / "encoder")
    evaluation = root / "evaluation"
    evaluation.mkdir()
    rows = [{"query_id": "q", "split": split, "metric": "nDCG@10", "value": 0.5} for split in ("dev", "test")]
    pd.DataFrame(rows).to_parquet(evaluation / "scores.parquet")
    summary = {"queries": 1, "nDCG@10": 0.5}
    write_json(evaluation / "metrics.json", {"system": "r", "source": "qrels", "dev": summary, "test": summary})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions, "log_retriever", lambda build: str(build.index))
        for variable in ("MLFLOW_TRACKING_URI", "FRESHET_STATE"):
            patch.delenv(variable, raising=False)
        versions.register(Project(root / "project"), build_of(root, "a"))
    return root


def build_of(root, name):
    folder, text = root / name / "build", canonical_json(TextRules(True, *CUT[name]).facts())
    paths = {part: folder / part for part in ("encoder", "index", "hierarchy")}
    documents, evaluation = folder / "documents.parquet", root / "evaluation"
    return Build("r", documents=documents, evaluation=evaluation, key=name * 64, corpus="c" * 64, text=text, **paths)


@pytest.fixture
def project(builds, tmp_path, monkeypatch):
    """The build "a" is registered; every challenger passes, unless `refuse`."""
    monkeypatch.setattr("os.fsync", lambda handle: None)
    monkeypatch.delenv("FRESHET_LEDGER", raising=False)
    monkeypatch.setattr(versions, "log_retriever", lambda build: str(build.index))
    monkeypatch.setattr(versions, "files", lambda project, version: builds / version.key[0] / "build")
    judging(monkeypatch, True)
    shutil.copytree(builds / "project", tmp_path / "project")
    project = Project(tmp_path / "project")
    (project.root / "dvc.yaml").touch()
    settings(project, *CUT["a"])
    return project


def judging(monkeypatch, passed):
    judge = Verdict(passed, ("as the test wants it",), queries=1, source="qrels", intervals=())
    monkeypatch.setattr(release.gate, "may_promote", lambda *_: judge)


def settings(project, words, stride, title="true"):
    passages, encoder = f"{{words: {words}, stride: {stride}}}", f"{{include_title: {title}}}"
    write_text(project.params_file, f"{{retrievers: {{r: {{}}}}, passages: {passages}, encoder: {encoder}}}\n")


def current(project):
    return Collection(project.live, "r").current()


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


def test_a_changed_setting_makes_no_other_generation_of_the_champion(project):
    release.promote(project)
    settings(project, *CUT["a"], title="false")
    assert release.open_live(project).number == 0
    assert current(project).manifest["text"]["include_title"]


def test_a_version_that_does_not_fit_its_rules_does_not_become_champion(builds, project, monkeypatch):
    release.promote(project)
    versions.register(project, replace(build_of(builds, "b"), text=build_of(builds, "a").text))
    with pytest.raises(FreshetError, match="passages in the build"):
        release.promote(project)
    assert (versions.holder(project).version, current(project).number) == ("1", 0)
    assert versions.holder(project, "challenger").version == "2"


def test_after_a_refusal_a_champion_that_is_not_live_is_opened(builds, project, monkeypatch):
    second(builds, project)
    versions.register(project, replace(build_of(builds, "a"), key="ac" * 32))
    judging(monkeypatch, False)
    shutil.rmtree(project.live / "r")
    move = release.promote(project)
    assert (move.passed, move.champion.version) == (False, "2")
    assert build_version(project) == "2"
    LiveCollection(project)


@pytest.mark.parametrize("move", ["promote", "rollback"])
def test_a_refusal_after_a_move_that_was_cut_off_searches_the_champion_again(builds, project, monkeypatch, move):
    release.promote(project) if move == "promote" else second(builds, project)
    champion = versions.holder(project).version
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
    """Neither for its additions, nor once its build is deleted after a reclustering."""
    release.promote(project)
    add(project, ADDED)
    versions.register(project, build_of(builds, "b"))
    judging(monkeypatch, False)
    monkeypatch.setattr(release, "open_version", lambda *_: pytest.fail("it is searched already"))
    release.promote(project)
    shutil.rmtree(current(project).sibling(0))
    release.promote(project)
    assert current(project).number == 1


def test_a_version_of_before_rules_were_kept_is_opened_by_the_settings(builds, project):
    version = replace(versions.holder(project, "challenger"), text="")
    assert release.open_version(project, version).manifest["text"] == json.loads(build_of(builds, "a").text)


def add(project, document_id):
    title, text = NEW[document_id]
    LiveCollection(project).receive([{"id": document_id, "title": title, "text": text}], "test")
    LiveCollection(project).apply()


def test_a_version_knows_up_to_which_event_it_was_built_wherever_its_generation_went(builds, project):
    release.promote(project)
    add(project, ADDED)
    retrained = replace(build_of(builds, "b"), snapshot=position_at(project, 1))
    assert versions.register(project, retrained).snapshot.event == 1
    release.promote(project)
    shutil.rmtree(project.live / "r")
    opened = release.open_live(project)
    assert (opened.watermark, opened.build, opened.segments) == (1, opened.number, ()), "nothing is added a second time"
    assert (opened.standing.trained, LiveCollection(project).seen.pending().events) == (1, ())


def test_a_version_of_another_log_is_opened_with_all_that_this_one_has(builds, project):
    release.promote(project)
    add(project, ADDED)
    retrained = replace(build_of(builds, "b"), snapshot=position_at(project, 1))
    versions.register(project, retrained)
    shutil.rmtree(project.live)
    with open_ledger(project) as ledger:
        ledger.receive([Document(sorted(NEW)[1], *NEW[sorted(NEW)[1]])], "test")
    release.promote(project)
    opened = Collection(project.live, "r").current()
    assert (opened.watermark, opened.standing.trained, opened.standing.replay) == (1, 0, False)
    assert LiveCollection(project).seen.pending().events == ()
