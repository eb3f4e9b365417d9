"""Guards the middle rung of the drift ladder: asked for once and done once, with a ledger that knows no other build."""

from __future__ import annotations

import shutil
from functools import partial

import pytest

from model_code.ledger.ledger import Ledger
from model_code.live.collection import Collection, open_generation_zero
from model_code.live.trained import added_since_training
from orchestration.freshening import Freshener
from orchestration.freshness_assets import recluster_if_due
from orchestration.opening import open_complete
from orchestration.project import Project
from orchestration.retraining.plan import make_plan
from tests.model_code.live.laws import OLD, RULES, make_encoder, open_build


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The live collection of the old documents, and its build."""
    root = tmp_path_factory.mktemp("built")
    make_encoder("dense", root / "encoder")
    open_build("dense", root, root / "encoder", OLD)
    return root


@pytest.fixture
def project(built, tmp_path, monkeypatch):
    """A project in which the documents a and b were added."""
    monkeypatch.setattr("os.fsync", lambda handle: None)
    monkeypatch.delenv("FRESHET_LEDGER", raising=False)
    shutil.copytree(built / "live", tmp_path / "live")
    (tmp_path / "params.yaml").write_text("{retrievers: {r: {}}, hierarchy: {branching: 3, device: cpu}}\n")
    (tmp_path / "dvc.yaml").touch()
    project = Project(tmp_path)
    add(project, "a")
    add(project, "b")
    return project


def add(project, document_id):
    freshener = Freshener(project)
    freshener.receive([{"id": document_id, "title": "word1", "text": f"word2 {document_id}"}], "test")
    return freshener.apply_pending()


def states(project):
    return {state: number for state, number in Freshener(project).ledger.counts().items() if number}


def current(project):
    return Collection(project.live, "r").current()


def test_additions_rollbacks_and_training_documents_go_on_as_before(project):
    generation = Freshener(project).recluster()
    assert (generation.number, generation.base, generation.build) == (3, 3, 0)
    assert states(project) == {"live": 2}
    assert add(project, "c").added == ("c",)
    assert states(project) == {"live": 3}
    assert added_since_training(current(project)) == set(make_plan(project, "k").new) == {"a", "b", "c"}
    Freshener(project).rollback(1)
    assert states(project) == {"live": 1, "rolled_back": 2}
    Freshener(project).rollback(4)
    assert states(project) == {"live": 3}


def test_dying_between_switch_and_ledger_is_made_up_for(project, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "settle", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Freshener(project).recluster()
    assert current(project).number == 3
    assert add(project, "c").added == ("c",)
    assert states(project) == {"live": 3}
    Freshener(project).rollback(3)
    assert states(project) == {"live": 2, "rolled_back": 1}


def test_promoting_the_same_build_again_keeps_the_new_hierarchy(built, project):
    Freshener(project).recluster()
    number = add(project, "c").generation.number
    build = built / "build"
    make = partial(
        open_generation_zero, project.root, "r", encoder=built / "encoder", index=build / "index",
        documents=build / "documents.parquet", hierarchy=build / "hierarchy", provenance={}, text=RULES, switch=False,
    )  # fmt: skip
    assert open_complete(project, "r", make).number == number
    assert states(project) == {"live": 3}


def test_it_is_done_once_for_each_time_that_drift_asks(project):
    ledger = Freshener(project).ledger
    assert recluster_if_due(project).startswith("nothing")
    ledger.record_decision("recluster", "topics grew", {"batch": [1, 2]})
    assert recluster_if_due(project) == "generation 3 has a new hierarchy"
    assert recluster_if_due(project).startswith("nothing")
    ledger.record_decision("recluster", "again", {"batch": [1, 2]})
    ledger.record_decision("add", "all is well", {"batch": [3, 4]})
    assert recluster_if_due(project).startswith("nothing")
    assert current(project).number == 3
