"""Guards a pilot of a retrain: what it trains on, whom it asks, what it leaves behind, and what
follows from it.

By hand nothing follows, for drift a retrain if it is due, and neither twice.
"""

from __future__ import annotations

from types import SimpleNamespace

import dagster as dg
import pytest

from assets.live import PILOTS, retrain_pilot
from model_code.collection.generations.generation_store import (
    GenerationStore,
    set_default_retriever,
)
from model_code.collection.index.project_ledger import open_ledger
from model_code.collection.index.retrain_plan import plan_retrain
from model_code.collection.ledger.tasks import EventRange, TaskKind, TaskState
from model_code.corpus.tables import Judgements
from model_code.errors import FreshetError
from model_code.evaluation.promotion import Verdict
from orchestration import parameters
from orchestration.freshness import pilot as pilots
from orchestration.freshness.drift import past_decisions
from orchestration.freshness.due_tasks import record_run_end, request_due_tasks
from orchestration.freshness.pilot import (
    FOLDER,
    NOT_REQUESTED,
    PilotNotPossible,
    PilotResult,
    run_manual_pilot,
    run_pilot,
    run_requested_pilot,
    sample_documents,
)
from orchestration.freshness.policy import PastDecision
from orchestration.sensors import JOBS
from tests.live_example import BASE, collection_of, make_project, open_build, row

IDS = [f"document {i}" for i in range(40)]
BATCH = EventRange(1, 5)


@pytest.fixture
def project(tmp_path):
    """Two documents were trained on, four were added, three of them with queries, and one was
    deleted.
    """
    made = make_project(tmp_path)
    collection = collection_of(made)
    collection.receive(
        [row(one, one, queries=[f"about {one}"] * (one != "c")) for one in "abcd"], "api"
    )
    collection.remove(["a"], "api")
    collection.apply()
    parameters.write_overrides(
        made.params_file, ["drift.minimum_batch=10"]
    )  # 2 documents must be asked for
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

    qrels = {
        "1": {"b": 1},
        "2": {"b": 1, "d": 1},
        "3": {"d": 1, "numpy.sort": 1},
        "4": {"numpy.sort": 1},
    }
    monkeypatch.setattr(pilots, "make_workspace", make_workspace)
    monkeypatch.setattr(
        pilots, "_build", lambda workspace, target, show: done.append(("build", target))
    )
    live = SimpleNamespace(views=[SimpleNamespace(searchable="searched")])
    monkeypatch.setattr(
        pilots, "Searcher", lambda live_, generation, loaded: done.append("open") or live
    )
    judged = Judgements(dict.fromkeys(qrels, "?"), qrels, "qrels")
    monkeypatch.setattr(pilots, "gate_judgements", lambda artifacts: judged)
    monkeypatch.setattr(
        pilots, "evaluate_segments", lambda *given: done.append(("evaluate_segments", *given[1:3]))
    )
    monkeypatch.setattr(pilots, "load_gate_scores", lambda folder: folder.name)
    monkeypatch.setattr(pilots, "judge_pilot", judge)
    return done


@pytest.mark.parametrize("size", [2, 7, 20, 40, 99])
def test_a_sample_is_half_new_where_there_are_as_many_and_wastes_no_place(size):
    new = IDS[:12]
    drawn = sample_documents(IDS, new, size)
    assert len(drawn) == min(size, len(IDS))
    assert drawn & set(new) == set(new[: size // 2]), "the first of them first"
    assert drawn == sample_documents(reversed(IDS), new, size), "which old ones, ids alone say"


def test_where_old_documents_are_few_new_ones_take_their_places():
    drawn = sample_documents(IDS, IDS[4:], 20)
    assert drawn >= set(IDS[:4])
    assert len(drawn) == 20


def test_what_is_searched_is_that_of_the_start_and_judged_by_people_s_queries_for_new_documents(
    project, steps
):
    before = GenerationStore(project.live, "hce").current().number
    result = run_pilot(project, 100, print)
    margin = parameters.load(project.params_file).drift.quality_margin
    assert steps == [
        "open",
        ("sample", ["b", "c", "d", "numpy.sort", "str.split"]),
        ("build", "corpus"),
        ("build", "evaluate@hce"),
        ("evaluate_segments", "hce", ["searched"]),
        ("judge", "hce", "searched", {"1": "b", "2": "b", "3": "d"}, margin),
    ]
    assert (result.documents, result.new) == (5, 3)
    assert result.summary.startswith(
        "a retrain is due (trained on 5 documents, 3 of them new, 3 queries)"
    )
    assert told(project) == []
    assert GenerationStore(project.live, "hce").current().number == before
    assert not (project.state / FOLDER).exists()


def test_a_folder_to_start_from_is_the_one_that_the_workspace_names(project, steps, monkeypatch):
    parameters.write_overrides(
        project.params_file, ["retrievers={hce: {start: artifacts/train/first}}"]
    )
    make, starts = pilots.make_workspace, []

    def make_workspace(workspace, *given, **named):
        make(workspace, *given, **named)
        parameters.write_overrides(workspace.params_file, ["retrievers.hce.start=/whole/path"])

    def build(workspace, target, show):
        starts.append(parameters.load(workspace.params_file).retrievers["hce"].training.start)

    monkeypatch.setattr(pilots, "make_workspace", make_workspace)
    monkeypatch.setattr(pilots, "_build", build)
    run_pilot(project, 100, print)
    assert starts == ["/whole/path", "/whole/path"]


def test_new_documents_that_came_with_queries_are_taken_first_and_of_them_the_latest(
    project, steps
):
    assert pilots._ranked(project, plan_retrain(project, FOLDER)) == ["d", "b", "c"]
    run_pilot(project, 4, print)
    assert steps[1] == ("sample", ["b", "d", "numpy.sort", "str.split"])


def test_a_pilot_that_fails_leaves_nothing(project, steps, monkeypatch):
    def fail(workspace, target, show):
        assert (project.state / FOLDER).is_dir()
        raise FreshetError("the training stage failed")

    monkeypatch.setattr(pilots, "_build", fail)
    with pytest.raises(FreshetError, match="training stage"):
        run_pilot(project, 100, print)
    assert not (project.state / FOLDER).exists()


@pytest.mark.parametrize(
    ("settings", "judged", "told"),
    [
        (["drift.minimum_batch=15"], None, 2),
        ([], {}, 0),
        (["evaluation.max_queries=1"], {"1": {"b": 1}, "2": {"d": 1}}, 1),
    ],
)
def test_where_too_few_new_documents_are_asked_for_nothing_is_trained(
    project, steps, monkeypatch, settings, judged, told
):
    parameters.write_overrides(project.params_file, settings)
    if judged is not None:
        made = Judgements(dict.fromkeys(judged, "?"), judged, "qrels")
        monkeypatch.setattr(pilots, "gate_judgements", lambda artifacts: made)
    with pytest.raises(
        PilotNotPossible, match=f"ask for {told} of the 3 new documents.*arrive with `queries`"
    ):
        run_pilot(project, 100, print)
    assert [step for step in steps if step[0] in ("build", "evaluate_segments")] == [
        ("build", "corpus")
    ]


def test_where_too_few_documents_are_new_nothing_is_built(project, steps):
    parameters.write_overrides(project.params_file, ["drift.minimum_batch=20"])
    with pytest.raises(
        PilotNotPossible, match="ask for 3 of the 3 new documents at most, fewer than 4"
    ):
        run_pilot(project, 100, print)
    assert steps == ["open"], "and nothing more"


def test_what_a_killed_pilot_left_is_not_gone_on_with(project, steps):
    left = project.state / FOLDER / "project"
    left.mkdir(parents=True)
    run_pilot(project, 100, print)  # whose workspace refuses a folder that is there
    assert not left.exists()


@pytest.mark.parametrize("searched", ["untrained", "words", "unknown"])
def test_what_nothing_is_trained_for_has_no_pilot(project, steps, searched):
    parameters.write_overrides(project.params_file, ["fusions={words: {of: [bm25, zero_shot]}}"])
    open_build(project, BASE, retriever=searched)
    set_default_retriever(project.live, searched)
    with pytest.raises(
        PilotNotPossible, match=f"{searched} is searched, for which params.yaml trains nothing"
    ):
        run_pilot(project, 100, print)
    assert steps == []


@pytest.mark.parametrize(
    ("searched", "last", "retrievers", "fusions"),
    [("hce", "evaluate@hce", ["hce"], []), ("fused", "fuse@fused", ["hce", "small"], ["fused"])],
)
def test_a_pilot_trains_what_is_searched_and_nothing_else(
    project, searched, last, retrievers, fusions
):
    others = [
        "retrievers={hce: {epochs: 1}, small: {learning_rate: 2.0e-5}, other: {}}",
        "fusions={fused: {of: [hce, bm25, small], feedback: 0.3}, more: {of: [other, bm25]}}",
    ]
    parameters.write_overrides(project.params_file, others)
    before = parameters.load(project.params_file)
    address, settings = pilots._training(project, searched)
    parameters.write_overrides(project.params_file, settings)
    after = parameters.load(project.params_file)
    assert (address, list(after.retrievers), list(after.fusions)) == (last, retrievers, fusions)
    assert after.retrievers.items() <= before.retrievers.items()
    assert after.fusions.items() <= before.fusions.items()


def answering(monkeypatch, due=True, meanwhile=lambda: None):
    """Pilots that train nothing and say `due`; what happens while they train."""
    asked = []

    def run_pilot(project, documents, show):
        asked.append(documents)
        meanwhile()
        verdict = Verdict(due, ("as the test wants it",), 3, ())
        return PilotResult(plan_retrain(project, "pilot"), 9, 3, verdict)

    monkeypatch.setattr(pilots, "run_pilot", run_pilot)
    return asked


def ledger(project):
    return open_ledger(project, "hce")


def asked_by_drift(project):
    """The key under which the sensor starts it; the report is kept, too."""
    ledger(project).record_drift_report({"decision": {"action": "add", "pilot": True}}, (1, 5))
    ask(project, TaskKind.PILOT)
    (work,) = request_due_tasks(project)
    assert work.kind == TaskKind.PILOT
    return work.run_key


def ask(project, kind, about=BATCH):
    return ledger(project).tasks.request(kind, "hce", about, "domain_auc", requested_by="drift")


def told(project):
    """The work that there is, newest first."""
    return [(work.kind.value, work.state.value) for work in ledger(project).tasks.last("hce", 9)]


def kinds(project):
    return [work.kind for work in request_due_tasks(project)]


@pytest.mark.parametrize("due", [True, False])
def test_where_drift_asked_a_retrain_follows_if_it_is_due(project, monkeypatch, due):
    sizes = answering(monkeypatch, due)
    parameters.write_overrides(project.params_file, ["drift.pilot_documents=700"])
    answer = run_requested_pilot(project, asked_by_drift(project), print)
    assert sizes == [700]
    assert kinds(project) == ["retrain"] * due
    # in place of what its batch called for
    asked_for = PastDecision("retrain", carried_out=False, waits=True, pilot=True)
    assert past_decisions(ledger(project), 3) == [
        asked_for if due else PastDecision("add", pilot=True)
    ]
    assert answer == ledger(project).tasks.last("hce", 1, TaskKind.PILOT)[0].outcome


@pytest.mark.parametrize("due", [True, False])
def test_by_hand_it_asks_for_nothing_and_leaves_drift_s_own_to_be_made(project, monkeypatch, due):
    answering(monkeypatch, due)
    run_manual_pilot(project, 100, print)
    assert kinds(project) == []
    asked_by_drift(project)
    run_manual_pilot(project, 100, print)
    assert kinds(project) == ["pilot"]
    assert sorted(told(project)) == [("pilot", "done"), ("pilot", "done"), ("pilot", "open")]


@pytest.mark.parametrize("ended", [None, TaskState.DONE, TaskState.REFUSED])
def test_a_retrain_that_came_while_it_trained_is_not_asked_for_again(project, monkeypatch, ended):
    key = asked_by_drift(project)

    def meanwhile():
        ask(project, TaskKind.RETRAIN, EventRange(6, 7))
        if ended is not None:
            ledger(project).tasks.close_retrains("hce", ended, "harm", {})

    answering(monkeypatch, meanwhile=meanwhile)
    assert run_requested_pilot(project, key, print).startswith("a retrain is due")
    assert sorted(told(project)) == [
        ("pilot", "done"),
        ("retrain", ended.value if ended else "open"),
    ]


def test_one_that_is_settled_or_of_another_ledger_is_not_made(project, monkeypatch):
    sizes, key = answering(monkeypatch), asked_by_drift(project)
    assert run_requested_pilot(project, key + "0", print) == NOT_REQUESTED
    run_requested_pilot(project, key, print)
    assert run_requested_pilot(project, key, print) == NOT_REQUESTED, (
        "started again by hand in Dagster's pages"
    )
    assert len(sizes) == 1
    assert told(project).count(("retrain", "open")) == 1


def test_where_another_retriever_is_searched_meanwhile_the_one_that_asked_is_told(
    project, monkeypatch
):
    sizes, key = answering(monkeypatch), asked_by_drift(project)
    open_build(project, BASE, retriever="other")
    set_default_retriever(project.live, "other")
    record_run_end(project, key, "1", "out of memory", canceled=False)
    (again,) = ledger(project).tasks.open("hce")
    told_why = run_requested_pilot(project, again.run_key, print)
    assert told_why == "no pilot: other is searched now, and drift of hce called for it"
    assert (sizes, ledger(project).tasks.last("other", 9)) == ([], [])
    assert told(project) == [("pilot", "refused")]


@pytest.mark.parametrize("why", ["it would tell nothing", "it is switched off"])
def test_one_that_cannot_be_is_not_asked_for_again(project, monkeypatch, why):
    key = asked_by_drift(project)
    if why == "it is switched off":
        parameters.write_overrides(project.params_file, ["drift.pilot_documents=null"])

    def refuse(*_):
        raise PilotNotPossible(why)

    monkeypatch.setattr(pilots, "run_pilot", refuse)
    assert run_requested_pilot(project, key, print).startswith("no pilot: ")
    assert kinds(project) == []
    assert told(project) == [("pilot", "refused")]


def test_one_that_trains_for_long_is_heard_although_another_is_called_for(project, monkeypatch):
    key = asked_by_drift(project)
    answering(monkeypatch, meanwhile=lambda: ask(project, TaskKind.PILOT, EventRange(6, 9)))
    run_requested_pilot(project, key, print)
    assert sorted(told(project)) == [("pilot", "done"), ("pilot", "done"), ("retrain", "open")]
    assert kinds(project) == ["retrain"], "and the other one is not made"


def test_dagster_shows_its_answer(project, monkeypatch):
    answering(monkeypatch)
    key = asked_by_drift(project)
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(PILOTS.name, [key])
        done = dg.materialize(
            [retrain_pilot], resources={"project": project}, partition_key=key, instance=instance
        )
    assert (JOBS[TaskKind.PILOT].name, JOBS[TaskKind.PILOT].partitions_def) == ("pilot", PILOTS)
    (made,) = done.get_asset_materialization_events()
    assert made.materialization.metadata["what happened"].value.startswith("a retrain is due")
    assert kinds(project) == ["retrain"]
