"""Guards which retriever is released where none is named: the best on dev, and never one that dev cannot tell."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from model_code.errors import FreshetError
from model_code.files import write_json
from orchestration.project import Project
from orchestration.release import best_on_dev


def choose(root, source: str = "qrels", **dev: dict | None) -> str:
    """The choice among retrievers whose metrics of dev are given; None is a retriever that was not evaluated."""
    for name, metrics in dev.items():
        if metrics is not None:
            folder = root / "artifacts" / "evaluate" / name
            folder.mkdir(parents=True)
            splits = {"dev": metrics, "test": {"queries": 2, "nDCG@10": 0.9}}
            write_json(folder / "metrics.json", {"source": source, **splits})
    return best_on_dev(Project(root), SimpleNamespace(retrievers=dev, promotion=SimpleNamespace(metric="nDCG@10")))


def test_the_best_on_dev_is_chosen(tmp_path):
    assert choose(tmp_path, a={"queries": 2, "nDCG@10": 0.5}, b={"queries": 2, "nDCG@10": 0.4}) == "a"


@pytest.mark.parametrize("dev", [{}, {"queries": 0}])
def test_without_dev_queries_the_user_is_asked_to_choose(tmp_path, dev):
    with pytest.raises(FreshetError, match=r"no dev queries.*freshet register NAME.*corpus\.splits\.dev_share"):
        choose(tmp_path, a=dev, b=dev)


def test_held_out_pseudo_queries_have_a_share_of_their_own(tmp_path):
    with pytest.raises(FreshetError, match=r"raise pseudo_queries\.dev_share in params\.yaml"):
        choose(tmp_path, "pseudo-queries", a={"queries": 0}, b={"queries": 0})


@pytest.mark.parametrize("dev", [None, {"queries": 0}])
def test_the_only_retriever_needs_no_dev_queries(tmp_path, dev):
    assert choose(tmp_path, only=dev) == "only"


def test_one_of_several_that_is_not_evaluated_is_named(tmp_path):
    with pytest.raises(FreshetError, match="b is not evaluated yet: run `freshet run evaluate@b`"):
        choose(tmp_path, a={"queries": 2, "nDCG@10": 0.5}, b=None)
