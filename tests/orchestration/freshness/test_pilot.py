"""Guards a pilot: what it trains on, how it is judged, what it leaves behind, and what follows."""

from __future__ import annotations

import dagster as dg
import pytest

from assets.live import PILOTS, retrain_pilot
from model_code.collection.generations.generation_store import (
    GenerationStore,
    set_default_retriever,
)
from model_code.collection.generations.refinements import documents_solved_with
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.project_ledger import open_ledger
from model_code.collection.index.retrain_plan import plan_retrain
from model_code.collection.ledger.tasks import EventRange, TaskKind, TaskState
from model_code.corpus.corpus_queries import KNOWN_QUERIES, CorpusQueries, query_hash
from model_code.corpus.tables import Judgements
from model_code.errors import FreshetError
from model_code.evaluation.promotion import Verdict
from model_code.project import Project
from model_code.retrieval.bm25_known import KnownWords
from orchestration import parameters
from orchestration.freshness import pilot as pilot_module
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
from orchestration.freshness.policy import Action, PastDecision
from orchestration.jobs import TASK_JOBS
from tests.live_example import BASE, collection_of, make_project, open_build, row
from tests.model_code.collection.laws import OLD, make_encoder
from tests.model_code.collection.laws import open_build as open_fusion

IDS = [f"document {i}" for i in range(40)]
EVENTS = EventRange(1, 5)
LATER_EVENTS = EventRange(6, 7)
QRELS = {
    "1": {"b": 1},
    "2": {"b": 1, "d": 1},
    "3": {"d": 1, "numpy.sort": 1},
    "4": {"numpy.sort": 1},
}
JUDGING = "word22 word23"


@pytest.fixture
def project(tmp_path):
    """Two documents were trained on. Four were added, three with queries, and one was deleted.

    Two new documents must be asked for.
    """
    made = make_project(tmp_path)
    collection = collection_of(made)
    rows = []
    for name in "abcd":
        queries = [] if name == "c" else [f"about {name}"]
        rows.append(row(name, name, queries=queries))
    collection.receive(rows, "api")
    collection.remove(["a"], "api")
    collection.apply()
    set_settings(made, "drift.minimum_batch=10")
    return made


def set_settings(project, *assignments):
    parameters.write_overrides(project.params_file, assignments)


def set_judgements(monkeypatch, qrels):
    """Set the judged queries of the gate."""
    judgements = Judgements(dict.fromkeys(qrels, "?"), qrels, "qrels")
    monkeypatch.setattr(pilot_module, "gate_judgements", lambda artifacts: judgements)


@pytest.fixture
def steps(project, monkeypatch):
    """The steps of a pilot in their order. Nothing is trained, and queries ask for b and d."""
    done = []

    def open_searcher(live, generation, loaded):
        done.append("open")
        return "live"

    def make_workspace(workspace, write_snapshot, share_cache):
        workspace.root.mkdir(parents=True)
        workspace.params_file.write_bytes(project.params_file.read_bytes())
        done.append(("sample", sorted(write_snapshot.keywords["only"])))

    def build(workspace, target, show):
        done.append(("build", target))

    def evaluate(workspace, system, segments, output, known_documents):
        done.append(("evaluate", system, segments))

    def judge(trained, live, promotion, targets, margin, seed):
        done.append(("judge", trained, live, targets, margin))
        return Verdict(True, ("as the test wants it",), len(targets), ())

    def judging_segments(searcher, held_out, folder, with_feedback):
        assert not with_feedback
        return [searcher, held_out]

    monkeypatch.setattr(pilot_module, "Searcher", open_searcher)
    monkeypatch.setattr(pilot_module, "judging_segments", judging_segments)
    monkeypatch.setattr(pilot_module, "make_workspace", make_workspace)
    monkeypatch.setattr(pilot_module, "_build", build)
    monkeypatch.setattr(pilot_module, "evaluate_segments", evaluate)
    monkeypatch.setattr(pilot_module, "judging_queries", lambda workspace: frozenset({"hash"}))
    monkeypatch.setattr(pilot_module, "load_gate_scores", lambda folder: folder.name)
    monkeypatch.setattr(pilot_module, "judge_pilot", judge)
    set_judgements(monkeypatch, QRELS)
    return done


@pytest.mark.parametrize("size", [2, 7, 20, 40, 99])
def test_half_of_sample_is_new(size):
    new = IDS[:12]

    sample = sample_documents(IDS, new, size)

    assert len(sample) == min(size, len(IDS))
    assert sample & set(new) == set(new[: size // 2])


@pytest.mark.parametrize("size", [2, 7, 20, 40, 99])
def test_sample_does_not_depend_on_order(size):
    new = IDS[:12]

    assert sample_documents(IDS, new, size) == sample_documents(reversed(IDS), new, size)


def test_new_documents_replace_missing_old_ones():
    sample = sample_documents(IDS, IDS[4:], 20)

    assert sample >= set(IDS[:4])
    assert len(sample) == 20


def test_pilot_compares_training_with_live_retriever(project, steps):
    margin = parameters.load(project.params_file).drift.quality_margin

    run_pilot(project, 100)

    assert steps == [
        "open",
        ("sample", ["b", "c", "d", "numpy.sort", "str.split"]),
        ("build", "corpus"),
        ("build", "evaluate@hce"),
        ("evaluate", "hce", ["live", frozenset({"hash"})]),
        ("judge", "hce", "searched", {"1": "b", "2": "b", "3": "d"}, margin),
    ]


@pytest.fixture
def known_project(tmp_path):
    """A live fusion with two new documents, one of which arrived with the query `JUDGING`."""
    make_encoder("dense", tmp_path / "encoder")
    words = KnownWords(1.0, in_length=False)
    open_fusion("bm25_fusion", tmp_path, tmp_path / "encoder", OLD, known_words=words)
    (tmp_path / "params.yaml").write_text("{retrievers: {r: {}}, drift: {minimum_batch: 10}}\n")
    (tmp_path / "dvc.yaml").touch()
    made = Project(tmp_path)
    index = LiveIndex(made)
    asked_row = {"id": "n", "title": "word1", "text": "word2", "queries": [JUDGING]}
    index.receive([asked_row, row("m", "word3", queries=["word9"])], "api")
    index.apply()
    return made


def test_live_retriever_is_judged_without_queries_of_gate(known_project, monkeypatch):
    judging_hash = query_hash(JUDGING)
    searcher = Searcher.open(known_project.live)
    assert searcher.retriever.explain(JUDGING, "n")[0].known
    assert documents_solved_with(searcher.generation, hashes={judging_hash}) == ["m", "n"]
    found = {}

    def make_workspace(workspace, write_snapshot, share_cache):
        workspace.root.mkdir(parents=True)
        workspace.params_file.write_bytes(known_project.params_file.read_bytes())

    def build(workspace, target, show):
        # The corpus stage writes which queries judge.
        corpus = workspace.artifacts / "corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        CorpusQueries((), frozenset({judging_hash})).save(corpus / KNOWN_QUERIES)

    def evaluate(workspace, system, segments, output, known_documents):
        joined = type(segments[0].retriever).join_segments(segments)
        found["known"] = any(match.known for match in joined.explain(JUDGING, "n"))
        found["vector"] = joined.components["dense"].vectors_of(["n"]).vectors[0]
        found["documents"] = known_documents

    def judge(*arguments):
        return Verdict(True, ("as the test wants it",), 1, ())

    monkeypatch.setattr(pilot_module, "make_workspace", make_workspace)
    monkeypatch.setattr(pilot_module, "_build", build)
    monkeypatch.setattr(pilot_module, "evaluate_segments", evaluate)
    monkeypatch.setattr(pilot_module, "load_gate_scores", lambda folder: folder.name)
    monkeypatch.setattr(pilot_module, "judge_pilot", judge)
    set_judgements(monkeypatch, {"1": {"n": 1}, "2": {"m": 1}})

    run_pilot(known_project, 100)

    encoding = searcher.retriever.components["dense"].encoder.encode_documents(["word1 word2"])
    assert found["known"] is False
    assert found["documents"] == {"m"}
    assert found["vector"] == pytest.approx(encoding[0], abs=1e-6)


def test_result_describes_sample(project, steps):
    result = run_pilot(project, 100)

    assert result.documents == 5
    assert result.new == 3
    assert result.summary.startswith(
        "a retrain is due (trained on 5 documents, 3 of them new, 3 queries)"
    )


def test_pilot_changes_nothing_live(project, steps):
    generation = GenerationStore(project.live, "hce").current().number

    run_pilot(project, 100)

    assert GenerationStore(project.live, "hce").current().number == generation
    assert recorded_tasks(project) == []
    assert not (project.state / FOLDER).exists()


def test_settings_are_read_from_workspace(project, steps, monkeypatch):
    """A workspace names folders by absolute paths."""
    set_settings(project, "retrievers={hce: {start: artifacts/train/first}}")
    make = pilot_module.make_workspace
    starts = []

    def make_workspace(workspace, *arguments, **keywords):
        make(workspace, *arguments, **keywords)
        set_settings(workspace, "retrievers.hce.start=/whole/path")

    def build(workspace, target, show):
        settings = parameters.load(workspace.params_file)
        starts.append(settings.retrievers["hce"].training.start)

    monkeypatch.setattr(pilot_module, "make_workspace", make_workspace)
    monkeypatch.setattr(pilot_module, "_build", build)
    run_pilot(project, 100)

    assert starts == ["/whole/path", "/whole/path"]


def test_latest_documents_with_queries_are_ranked_first(project):
    plan = plan_retrain(project, FOLDER)

    assert pilot_module._rank_new(project, plan) == ["d", "b", "c"]


def test_best_ranked_new_documents_are_sampled(project, steps):
    run_pilot(project, 4)

    assert steps[1] == ("sample", ["b", "d", "numpy.sort", "str.split"])


def test_failed_pilot_leaves_no_files(project, steps, monkeypatch):
    def fail(workspace, target, show):
        assert (project.state / FOLDER).is_dir()
        raise FreshetError("the training stage failed")

    monkeypatch.setattr(pilot_module, "_build", fail)

    with pytest.raises(FreshetError, match="training stage"):
        run_pilot(project, 100)
    assert not (project.state / FOLDER).exists()


def test_files_of_killed_pilot_are_deleted(project, steps):
    left = project.state / FOLDER / "project"
    left.mkdir(parents=True)

    # Making the workspace fails if its folder exists.
    run_pilot(project, 100)

    assert not left.exists()


@pytest.mark.parametrize(
    ("settings", "qrels", "targets"),
    [
        (["drift.minimum_batch=15"], QRELS, 2),
        ([], {}, 0),
        (["evaluation.max_queries=1"], {"1": {"b": 1}, "2": {"d": 1}}, 1),
    ],
)
def test_nothing_is_trained_with_too_few_targets(
    project, steps, monkeypatch, settings, qrels, targets
):
    set_settings(project, *settings)
    set_judgements(monkeypatch, qrels)
    message = f"ask for at most {targets} of 3 new documents.*arrive with `queries`"

    with pytest.raises(PilotNotPossible, match=message):
        run_pilot(project, 100)

    assert steps[2:] == [("build", "corpus")]


def test_nothing_is_built_with_too_few_new_documents(project, steps):
    set_settings(project, "drift.minimum_batch=20")
    message = "ask for at most 3 of 3 new documents, and a pilot needs 4"

    with pytest.raises(PilotNotPossible, match=message):
        run_pilot(project, 100)

    assert steps == ["open"]


@pytest.mark.parametrize("retriever", ["untrained", "words", "unknown"])
def test_untrained_retriever_has_no_pilot(project, steps, retriever):
    set_settings(project, "fusions={words: {of: [bm25, zero_shot]}}")
    open_build(project, BASE, retriever=retriever)
    set_default_retriever(project.live, retriever)
    message = f"{retriever} is searched by default, and no part of it is trained"

    with pytest.raises(PilotNotPossible, match=message):
        run_pilot(project, 100)

    assert steps == []


@pytest.mark.parametrize(
    ("retriever", "last_stage", "retrievers", "fusions"),
    [
        ("hce", "evaluate@hce", ["hce"], []),
        ("fused", "fuse@fused", ["hce", "small"], ["fused"]),
    ],
)
def test_pilot_trains_only_live_retriever(project, retriever, last_stage, retrievers, fusions):
    set_settings(
        project,
        "retrievers={hce: {epochs: 1}, small: {learning_rate: 2.0e-5}, other: {}}",
        "fusions={fused: {of: [hce, bm25, small], feedback: 0.3}, more: {of: [other, bm25]}}",
    )
    before = parameters.load(project.params_file)

    stage, assignments = pilot_module._stage_and_settings(project, retriever)
    set_settings(project, *assignments)
    after = parameters.load(project.params_file)

    assert stage == last_stage
    assert list(after.retrievers) == retrievers
    assert list(after.fusions) == fusions
    assert after.retrievers.items() <= before.retrievers.items()
    assert after.fusions.items() <= before.fusions.items()


def replace_pilot(monkeypatch, passed=True, while_it_trains=None):
    """Replace pilots by ones that train nothing; return the sizes of their samples."""
    sizes = []

    def run(project, max_documents, show):
        sizes.append(max_documents)
        if while_it_trains is not None:
            while_it_trains()
        verdict = Verdict(passed, ("as the test wants it",), 3, ())
        return PilotResult(plan_retrain(project, "pilot"), 9, 3, verdict)

    monkeypatch.setattr(pilot_module, "run_pilot", run)
    return sizes


def ledger(project):
    return open_ledger(project, "hce")


def request(project, kind, events=EVENTS):
    """Request a task as a drift check does."""
    return ledger(project).tasks.request(kind, "hce", events, "domain_auc", requested_by="drift")


def request_pilot(project):
    """Record a drift report and its pilot; return the key under which the sensor starts it."""
    ledger(project).record_drift_report({"decision": {"action": "pilot"}}, (1, 5))
    request(project, TaskKind.PILOT)
    (task,) = request_due_tasks(project)
    assert task.kind == TaskKind.PILOT
    return task.run_key


def recorded_tasks(project):
    """Kind and state of all tasks, in ascending order."""
    tasks = ledger(project).tasks.last("hce", 9)
    return sorted((task.kind.value, task.state.value) for task in tasks)


def due_kinds(project):
    return [task.kind for task in request_due_tasks(project)]


def test_requested_pilot_has_size_of_settings(project, monkeypatch):
    sizes = replace_pilot(monkeypatch)
    set_settings(project, "drift.pilot_documents=700")

    run_requested_pilot(project, request_pilot(project))

    assert sizes == [700]


def test_passed_pilot_requests_retrain(project, monkeypatch):
    replace_pilot(monkeypatch, passed=True)

    run_requested_pilot(project, request_pilot(project))

    assert due_kinds(project) == [TaskKind.RETRAIN]
    # The retrain takes the place of the report that requested the pilot.
    assert past_decisions(ledger(project), 3) == [
        PastDecision(Action.RETRAIN, is_open=True, after_pilot=True)
    ]


def test_failed_pilot_requests_nothing(project, monkeypatch):
    replace_pilot(monkeypatch, passed=False)

    run_requested_pilot(project, request_pilot(project))

    assert due_kinds(project) == []
    assert past_decisions(ledger(project), 3) == [PastDecision(Action.PILOT)]


@pytest.mark.parametrize("passed", [True, False])
def test_answer_of_requested_pilot_is_recorded(project, monkeypatch, passed):
    replace_pilot(monkeypatch, passed)

    answer = run_requested_pilot(project, request_pilot(project))

    (task,) = ledger(project).tasks.last("hce", 1, TaskKind.PILOT)
    assert task.outcome == answer


@pytest.mark.parametrize("passed", [True, False])
def test_manual_pilot_requests_nothing(project, monkeypatch, passed):
    replace_pilot(monkeypatch, passed)

    run_manual_pilot(project, 100)

    assert due_kinds(project) == []
    assert recorded_tasks(project) == [("pilot", "done")]


@pytest.mark.parametrize("passed", [True, False])
def test_manual_pilot_does_not_replace_requested_one(project, monkeypatch, passed):
    replace_pilot(monkeypatch, passed)
    request_pilot(project)

    run_manual_pilot(project, 100)

    assert due_kinds(project) == [TaskKind.PILOT]
    assert recorded_tasks(project) == [("pilot", "done"), ("pilot", "open")]


@pytest.mark.parametrize("outcome", [None, TaskState.DONE, TaskState.REFUSED])
def test_retrain_during_pilot_is_not_requested_again(project, monkeypatch, outcome):
    key = request_pilot(project)

    def request_retrain():
        request(project, TaskKind.RETRAIN, LATER_EVENTS)
        if outcome is not None:
            ledger(project).tasks.close_retrains("hce", outcome, "harm", {})

    replace_pilot(monkeypatch, while_it_trains=request_retrain)

    answer = run_requested_pilot(project, key)

    assert answer.startswith("a retrain is due")
    retrain_state = "open" if outcome is None else outcome.value
    assert recorded_tasks(project) == [("pilot", "done"), ("retrain", retrain_state)]


def test_pilot_of_unknown_task_does_nothing(project, monkeypatch):
    sizes = replace_pilot(monkeypatch)
    key = request_pilot(project)

    assert run_requested_pilot(project, f"{key}0") == NOT_REQUESTED
    assert sizes == []


def test_ended_pilot_is_not_run_again(project, monkeypatch):
    """A person may start its run again on Dagster's pages."""
    sizes = replace_pilot(monkeypatch)
    key = request_pilot(project)
    run_requested_pilot(project, key)

    assert run_requested_pilot(project, key) == NOT_REQUESTED
    assert len(sizes) == 1
    assert recorded_tasks(project).count(("retrain", "open")) == 1


def test_pilot_of_another_retriever_is_refused(project, monkeypatch):
    sizes = replace_pilot(monkeypatch)
    key = request_pilot(project)
    open_build(project, BASE, retriever="other")
    set_default_retriever(project.live, "other")
    record_run_end(project, key, "1", "out of memory", canceled=False)
    (task,) = ledger(project).tasks.open("hce")

    outcome = run_requested_pilot(project, task.run_key)

    assert outcome == "no pilot: drift of hce requested it, and other is searched by default now"
    assert sizes == []
    assert recorded_tasks(project) == [("pilot", "refused")]
    assert ledger(project).tasks.last("other", 9) == []


def test_impossible_pilot_is_refused(project, monkeypatch):
    key = request_pilot(project)

    def refuse(*_):
        raise PilotNotPossible("it cannot answer")

    monkeypatch.setattr(pilot_module, "run_pilot", refuse)

    assert run_requested_pilot(project, key) == "no pilot: it cannot answer"
    assert due_kinds(project) == []
    assert recorded_tasks(project) == [("pilot", "refused")]


def test_pilot_is_refused_if_switched_off(project, monkeypatch):
    sizes = replace_pilot(monkeypatch)
    key = request_pilot(project)
    set_settings(project, "drift.pilot_documents=null")

    assert run_requested_pilot(project, key).startswith("no pilot: ")
    assert sizes == []
    assert recorded_tasks(project) == [("pilot", "refused")]


def test_answer_of_long_pilot_counts(project, monkeypatch):
    """Another pilot may have been requested while it trained, which the retrain replaces."""
    key = request_pilot(project)

    def request_another_pilot():
        request(project, TaskKind.PILOT, LATER_EVENTS)

    replace_pilot(monkeypatch, while_it_trains=request_another_pilot)
    run_requested_pilot(project, key)

    assert recorded_tasks(project) == [("pilot", "done"), ("pilot", "done"), ("retrain", "open")]
    assert due_kinds(project) == [TaskKind.RETRAIN]


def test_job_of_pilots_has_their_partitions():
    job = TASK_JOBS[TaskKind.PILOT]

    assert job.name == "pilot"
    assert job.partitions_def == PILOTS


def test_dagster_shows_answer(project, monkeypatch):
    replace_pilot(monkeypatch)
    key = request_pilot(project)

    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(PILOTS.name, [key])
        run = dg.materialize(
            [retrain_pilot], resources={"project": project}, partition_key=key, instance=instance
        )

    (event,) = run.get_asset_materialization_events()
    shown = event.materialization.metadata["what happened"].value
    assert shown.startswith("a retrain is due")
    assert due_kinds(project) == [TaskKind.RETRAIN]
