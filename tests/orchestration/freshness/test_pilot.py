"""Guards a pilot of a retrain: what it trains on, whom it asks, what it leaves behind.

pytest tests/orchestration/freshness/test_pilot.py
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from model_code.corpus.tables import Judgements
from model_code.errors import FreshetError
from model_code.evaluation.promotion import Verdict
from model_code.live.collection import Collection
from orchestration import parameters
from orchestration.freshness import pilot as pilots
from orchestration.freshness.pilot import FOLDER, NoPilot, pilot, sample
from orchestration.live.collection import open_ledger
from orchestration.live.retrain_plan import make_plan
from tests.orchestration.live_example import collection_of, make_project

IDS = [f"document {i}" for i in range(40)]


@pytest.fixture
def project(tmp_path):
    """Two documents were trained on, four were added, three of them with queries, and one was deleted."""
    made = make_project(tmp_path)
    collection = collection_of(made)
    rows = [{"id": one, "title": one, "text": one, "queries": [f"about {one}"] * (one != "c")} for one in "abcd"]
    collection.receive(rows, "api")
    collection.remove(["a"], "api")
    collection.apply()
    parameters.assign(made.params_file, ["drift.minimum_batch=10"])  # 2 documents must be asked for
    return made


@pytest.fixture
def steps(project, monkeypatch):
    """Every step of a pilot in the order it was done, nothing trained; people ask for b and d."""
    done = []

    def make_workspace(workspace, write_snapshot, share_cache):
        workspace.root.mkdir(parents=True)
        (workspace.root / "params.yaml").write_bytes(project.params_file.read_bytes())
        done.append(("sample", sorted(write_snapshot.keywords["only"])))

    def judge(trained, searched, promotion, asked, margin, seed):
        done.append(("judge", trained, searched, asked, margin))
        return Verdict(True, ("as the test wants it",), len(asked), ())

    qrels = {"1": {"b": 1}, "2": {"b": 1, "d": 1}, "3": {"d": 1, "numpy.sort": 1}, "4": {"numpy.sort": 1}}
    monkeypatch.setattr(pilots, "make_workspace", make_workspace)
    monkeypatch.setattr(pilots, "_build", lambda workspace, target, show: done.append(("build", target)))
    live = SimpleNamespace(views=[SimpleNamespace(segment="searched")])
    monkeypatch.setattr(pilots, "Searcher", lambda live_, generation, loaded: done.append("open") or live)
    monkeypatch.setattr(
        pilots, "gate_judgements", lambda artifacts: Judgements(dict.fromkeys(qrels, "?"), qrels, "qrels")
    )
    monkeypatch.setattr(pilots, "score", lambda *given: done.append(("score", *given[1:3])))
    monkeypatch.setattr(pilots, "load_gate_scores", lambda folder: folder.name)
    monkeypatch.setattr(pilots, "judge_pilot", judge)
    return done


def silent(text):
    pass


@pytest.mark.parametrize("size", [2, 7, 20, 40, 99])
def test_a_sample_is_half_new_where_there_are_as_many_and_wastes_no_place(size):
    new = IDS[:12]
    drawn = sample(IDS, new, size)
    assert len(drawn) == min(size, len(IDS))
    assert drawn & set(new) == set(new[: size // 2]), "the first of them first"
    assert drawn == sample(reversed(IDS), new, size), "which old ones, ids alone say"


def test_where_old_documents_are_few_new_ones_take_their_places():
    drawn = sample(IDS, IDS[4:], 20)
    assert drawn >= set(IDS[:4])
    assert len(drawn) == 20


def test_what_is_searched_is_that_of_the_start_and_judged_by_people_s_queries_for_new_documents(project, steps):
    before = Collection(project.live, "hce").current().number
    result = pilot(project, 100, silent)
    margin = parameters.load(project.params_file).drift.quality_margin
    assert steps == [
        "open",
        ("sample", ["b", "c", "d", "numpy.sort", "str.split"]),
        ("build", "corpus"),
        ("build", "evaluate@hce"),
        ("score", "hce", ["searched"]),
        ("judge", "hce", "searched", {"1": "b", "2": "b", "3": "d"}, margin),
    ]
    assert (result.documents, result.new) == (5, 3)
    assert result.summary.startswith("a retrain is due (trained on 5 documents, 3 of them new, 3 queries)")
    assert open_ledger(project).work.last("hce", 9) == []
    assert Collection(project.live, "hce").current().number == before
    assert not (project.state / FOLDER).exists()


def test_new_documents_that_came_with_queries_are_taken_first_and_of_them_the_latest(project, steps):
    assert pilots._ranked(project, make_plan(project, FOLDER)) == ["d", "b", "c"]
    pilot(project, 4, silent)
    assert steps[1] == ("sample", ["b", "d", "numpy.sort", "str.split"])


def test_a_pilot_that_fails_leaves_nothing(project, steps, monkeypatch):
    def fail(workspace, target, show):
        assert (project.state / FOLDER).is_dir()
        raise FreshetError("the training stage failed")

    monkeypatch.setattr(pilots, "_build", fail)
    with pytest.raises(FreshetError, match="training stage"):
        pilot(project, 100, silent)
    assert not (project.state / FOLDER).exists()


@pytest.mark.parametrize("why", ["few are asked for", "nobody asks", "a sample of the queries"])
def test_where_too_few_new_documents_are_asked_for_nothing_is_trained(project, steps, monkeypatch, why):
    told = 2
    if why == "few are asked for":
        parameters.assign(project.params_file, ["drift.minimum_batch=15"])
    elif why == "nobody asks":
        told, made = 0, Judgements({}, {}, "qrels")
        monkeypatch.setattr(pilots, "gate_judgements", lambda artifacts: made)
    else:
        told, two = 1, Judgements({"1": "?", "2": "?"}, {"1": {"b": 1}, "2": {"d": 1}}, "qrels")
        monkeypatch.setattr(pilots, "gate_judgements", lambda artifacts: two)
        parameters.assign(project.params_file, ["evaluation.max_queries=1"])
    with pytest.raises(NoPilot, match=f"ask for {told} of the 3 new documents.*arrive with `queries`"):
        pilot(project, 100, silent)
    assert [step for step in steps if step[0] in ("build", "score")] == [("build", "corpus")]


def test_where_too_few_documents_are_new_nothing_is_built(project, steps):
    parameters.assign(project.params_file, ["drift.minimum_batch=20"])
    with pytest.raises(NoPilot, match="ask for 3 of the 3 new documents at most, fewer than 4"):
        pilot(project, 100, silent)
    assert steps == ["open"], "and nothing more"


def test_what_a_killed_pilot_left_is_not_gone_on_with(project, steps):
    left = project.state / FOLDER / "project"
    left.mkdir(parents=True)
    pilot(project, 100, silent)  # whose workspace refuses a folder that is there
    assert not left.exists()


def test_a_retriever_that_the_settings_do_not_name_has_no_pilot(project, steps):
    project.params_file.write_text("{retrievers: {other: {}}}\n")
    with pytest.raises(NoPilot, match="params.yaml names no retriever hce"):
        pilot(project, 100, silent)
    assert steps == []
