"""Guards which retriever is chosen for a release, and that its files belong to one build."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from model_code.errors import FreshetError
from model_code.files import write_json
from model_code.project import Project
from orchestration.pipeline.repro import PlannedStage
from orchestration.registry import built_retriever, release, versions
from orchestration.registry.built_retriever import best_on_dev, require_current


def choose_best(root, **dev_scores):
    """Choose among retrievers with these scores on dev; None for one that is not evaluated."""
    for name, scores in dev_scores.items():
        if scores is None:
            continue
        folder = root / "artifacts" / "evaluate" / name
        folder.mkdir(parents=True)
        splits = {"dev": scores, "test": {"queries": 2, "nDCG@10": 0.9}}
        write_json(folder / "metrics.json", splits)

    settings = SimpleNamespace(built=dev_scores, promotion=SimpleNamespace(metric="nDCG@10"))
    return best_on_dev(Project(root), settings)


def test_best_on_dev_is_chosen(tmp_path):
    better = {"queries": 2, "nDCG@10": 0.5}
    worse = {"queries": 2, "nDCG@10": 0.4}

    assert choose_best(tmp_path, a=better, b=worse) == "a"


@pytest.mark.parametrize("scores", [{}, {"queries": 0}])
def test_choice_without_dev_queries_is_refused(tmp_path, scores):
    message = r"no dev queries.*freshet register NAME.*corpus\.splits\.dev_share"

    with pytest.raises(FreshetError, match=message):
        choose_best(tmp_path, a=scores, b=scores)


@pytest.mark.parametrize("scores", [None, {"queries": 0}])
def test_only_retriever_needs_no_dev_queries(tmp_path, scores):
    assert choose_best(tmp_path, only=scores) == "only"


def test_retriever_without_evaluation_is_named(tmp_path):
    with pytest.raises(FreshetError, match="b is not evaluated yet: run `freshet run`"):
        choose_best(tmp_path, a={"queries": 2, "nDCG@10": 0.5}, b=None)


@pytest.fixture
def settings(monkeypatch):
    """Settings with two retrievers and a fusion."""
    made = SimpleNamespace(retrievers=("a", "b"), fusions=("c",), built=("a", "b", "c"))
    monkeypatch.setattr(built_retriever.parameters, "load", lambda path: made)
    return made


def set_plan(monkeypatch, **actions):
    """Set the planned actions by the name of the stage; other stages are skipped."""

    def plan(project, targets):
        stages = []
        for address in ("train@a", *targets):
            action = actions.get(address.partition("@")[0], "skip")
            stages.append(PlannedStage(address, action, ("why",)))
        return stages

    monkeypatch.setattr(built_retriever, "plan", plan)


def test_current_build_is_accepted(tmp_path, monkeypatch, settings):
    set_plan(monkeypatch)

    require_current(Project(tmp_path), ["a", "b", "c", "bm25"])


@pytest.mark.parametrize("stale", [{"train": "run"}, {"evaluate": "maybe"}])
def test_scores_of_stale_build_are_refused(tmp_path, monkeypatch, settings, stale):
    set_plan(monkeypatch, **stale)
    remedy = r"run `freshet run evaluate@a evaluate@b fuse@c baselines`"

    with pytest.raises(
        FreshetError, match=rf"do not belong to one build: .* out of date \(why\); {remedy}"
    ):
        require_current(Project(tmp_path), ["a", "b", "c", "bm25"])


@pytest.mark.parametrize(
    ("retriever", "checked", "registered"),
    [
        ("a", ["a"], "a"),
        # Scores choose, so the scores of all candidates must be current.
        (None, ["a", "b"], "b"),
    ],
)
def test_build_is_checked_before_registration(
    tmp_path, monkeypatch, retriever, checked, registered
):
    calls = []
    monkeypatch.setattr(release.parameters, "load", lambda path: SimpleNamespace(built=("a", "b")))
    monkeypatch.setattr(release, "best_on_dev", lambda project, settings: "b")
    monkeypatch.setattr(release, "find_build", lambda project, retriever, snapshot: retriever)

    def check(project, retrievers):
        calls.append(("check", list(retrievers)))

    def register(project, build):
        calls.append(("register", build))

    monkeypatch.setattr(release, "require_current", check)
    monkeypatch.setattr(versions, "register", register)

    release.register(Project(tmp_path), retriever)

    assert calls == [("check", checked), ("register", registered)]
