"""Guards which retriever is released where none is named: the best on dev, and never one that dev
cannot tell; and that what is released is of one build.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from model_code.errors import FreshetError
from model_code.files import write_json
from model_code.project import Project
from orchestration.pipeline.repro import PlannedStage
from orchestration.registry import built_retriever, release, versions
from orchestration.registry.built_retriever import best_on_dev, require_current


def choose(root, **dev: dict | None) -> str:
    """The choice among retrievers whose metrics of dev are given; None is a retriever that was not
    evaluated.
    """
    for name, metrics in dev.items():
        if metrics is not None:
            folder = root / "artifacts" / "evaluate" / name
            folder.mkdir(parents=True)
            splits = {"dev": metrics, "test": {"queries": 2, "nDCG@10": 0.9}}
            write_json(folder / "metrics.json", splits)
    return best_on_dev(
        Project(root), SimpleNamespace(built=dev, promotion=SimpleNamespace(metric="nDCG@10"))
    )


def test_the_best_on_dev_is_chosen(tmp_path):
    assert (
        choose(tmp_path, a={"queries": 2, "nDCG@10": 0.5}, b={"queries": 2, "nDCG@10": 0.4}) == "a"
    )


@pytest.mark.parametrize("dev", [{}, {"queries": 0}])
def test_without_dev_queries_the_user_is_asked_to_choose(tmp_path, dev):
    with pytest.raises(
        FreshetError, match=r"no dev queries.*freshet register NAME.*corpus\.splits\.dev_share"
    ):
        choose(tmp_path, a=dev, b=dev)


@pytest.mark.parametrize("dev", [None, {"queries": 0}])
def test_the_only_retriever_needs_no_dev_queries(tmp_path, dev):
    assert choose(tmp_path, only=dev) == "only"


def test_one_of_several_that_is_not_evaluated_is_named(tmp_path):
    with pytest.raises(FreshetError, match="b is not evaluated yet: run `freshet run`"):
        choose(tmp_path, a={"queries": 2, "nDCG@10": 0.5}, b=None)


def planned(monkeypatch, **actions: str) -> None:
    """What `freshet plan` says of some stages."""

    def plan(project, targets):
        return [
            PlannedStage(one, actions.get(one.partition("@")[0], "skip"), ("why",))
            for one in ("train@a", *targets)
        ]

    monkeypatch.setattr(built_retriever, "plan", plan)


@pytest.mark.parametrize("stale", [{"train": "run"}, {"evaluate": "maybe"}])
def test_scores_of_another_encoder_than_the_one_that_is_there_are_refused(
    tmp_path, monkeypatch, stale
):
    names = SimpleNamespace(retrievers=("a", "b"), fusions=("c",), built=("a", "b", "c"))
    monkeypatch.setattr(built_retriever.parameters, "load", lambda path: names)
    planned(monkeypatch)
    require_current(Project(tmp_path), [*"abc", "bm25"])
    planned(monkeypatch, **stale)
    remedy = r"run `freshet run evaluate@a evaluate@b fuse@c baselines`"
    with pytest.raises(FreshetError, match=rf"not of one build: .* out of date \(why\); {remedy}"):
        require_current(Project(tmp_path), [*"abc", "bm25"])


@pytest.mark.parametrize(("named", "asked"), [("a", ["a"]), (None, ["a", "b"])])
def test_nothing_is_registered_before_that_is_known(tmp_path, monkeypatch, named, asked):
    seen: list[str] = []
    settings = SimpleNamespace(built=("a", "b"))
    monkeypatch.setattr(release.parameters, "load", lambda path: settings)
    monkeypatch.setattr(release, "best_on_dev", lambda project, settings: "b")
    monkeypatch.setattr(release, "find_build", lambda project, retriever, snapshot: retriever)
    monkeypatch.setattr(
        release, "require_current", lambda project, retrievers: seen.extend(retrievers)
    )
    monkeypatch.setattr(versions, "register", lambda project, build: (list(seen), build))
    assert release.register(Project(tmp_path), named) == (asked, named or "b"), (
        "the choice is by scores, too"
    )
