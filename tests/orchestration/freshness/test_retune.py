"""Choosing the weights of a live fusion again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from model_code.audit import AuditLog
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.project_ledger import open_ledger
from model_code.collection.ledger.tasks import EventRange, TaskKind, TaskState
from model_code.corpus.judgement_file import JudgedPair, record_judgements
from model_code.corpus.tables import Judgements
from model_code.evaluation.gate_power import GAIN_DEVIATION
from model_code.evaluation.metrics import evaluate_run
from model_code.evaluation.promotion import PairedDifference, Verdict
from model_code.evaluation.scores import SystemScores
from model_code.evaluation.settings import PromotionSettings
from model_code.project import Project
from model_code.retrieval.bm25_known import KnownWords
from model_code.stages.fusion import score_candidates
from orchestration.freshness import retune as retune_module
from orchestration.freshness.due_tasks import request_due_tasks
from orchestration.freshness.retune import (
    RetuneNotPossible,
    RetuneQueries,
    choose_live_weights,
    read_retune_queries,
    run_manual_retune,
    run_requested_retune,
)
from tests.model_code.collection.laws import OLD, make_encoder, open_build
from tests.orchestration.freshness.conftest import make_project

DOCUMENTS = sorted(OLD)


def own_words(document_id: str, first: int) -> str:
    """Return three words of a document, which BM25 finds it by."""
    return " ".join(OLD[document_id][1].split()[first : first + 3])


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A live fusion of a random encoder with BM25, and questions in the words of documents.

    The encoder weighs far more, so that further weight of BM25 helps clearly.
    """
    make_encoder("dense", tmp_path / "encoder")
    open_build("bm25_fusion", tmp_path, tmp_path / "encoder", OLD)
    project = make_project(tmp_path)
    judge_own_words(project)
    return project


def judge_own_words(project: Project) -> None:
    """Judge three dev queries and three gate queries for each document, in its own words."""
    pairs = []
    for document_id in DOCUMENTS:
        for first in range(6):
            split = "dev" if first < 3 else "gate"
            question = f"{own_words(document_id, first)} {first}"
            pairs.append(JudgedPair(question, document_id, 1, split))
    record_judgements(project.judgements, pairs)


def queries_of(number: int) -> Judgements:
    names = [str(i) for i in range(number)]
    return Judgements(dict(zip(names, names, strict=True)), {name: {"d": 1} for name in names}, "")


@pytest.mark.parametrize(
    ("learning", "gate", "obstacle"),
    [(29, 9, "fewer than 30"), (30, 0, "the gate has no judged queries"), (30, 1, None)],
)
def test_obstacle_is_named(learning: int, gate: int, obstacle: str | None) -> None:
    queries = RetuneQueries(queries_of(learning), queries_of(gate), at_build=0)

    if obstacle is None:
        assert queries.obstacle is None
    else:
        assert queries.obstacle is not None
        assert obstacle in queries.obstacle


@pytest.mark.parametrize(("gate", "is_refused"), [(5, True), (6, False)])
def test_few_gate_queries_would_refuse_new_weights(gate: int, is_refused: bool) -> None:
    queries = RetuneQueries(queries_of(30), queries_of(gate), at_build=0)

    assert (queries.gate_obstacle(PromotionSettings()) is not None) == is_refused


def test_queries_are_read_by_split(project: Project) -> None:
    queries = read_retune_queries(project, Searcher.open(project.live))

    assert len(queries.learning.queries) == 36
    assert len(queries.gate.queries) == 36
    assert queries.at_build == 0


def test_first_paragraph_of_an_answer_is_no_query(project: Project) -> None:
    document_id = DOCUMENTS[0]
    text = "A line that is asked.\n\nThe body."
    index = LiveIndex(project)
    index.receive([{"id": document_id, "title": "t", "text": text}], "test")
    index.apply()
    line = JudgedPair("A line that is asked.", document_id, 1, "dev")
    record_judgements(project.judgements, [line])

    queries = read_retune_queries(project, Searcher.open(project.live))

    assert line.question not in queries.learning.queries.values()


def test_choice_changes_nothing(project: Project) -> None:
    before = Searcher.open(project.live).generation

    choose_live_weights(project, Searcher.open(project.live))

    assert Searcher.open(project.live).generation == before


def move_weight(monkeypatch: pytest.MonkeyPatch, passed: bool) -> None:
    """Let the choice move one weight, and the gate decide as stated."""

    def choose(fusion: Any, *_: Any) -> Any:
        weights = {name: weight + 0.5 for name, weight in fusion.weights.items()}
        return retune_module.replace(fusion, weights=weights)

    row = PairedDifference("nDCG@10", 0.5, 0.6, 0.1, 0.0, 0.2, 0.01, 36, 100, deviation=0.3)

    def judge(*_: Any) -> Verdict:
        return Verdict(passed, ("as stated",), queries=36, intervals=(row,))

    monkeypatch.setattr(retune_module, "choose_weights", choose)
    monkeypatch.setattr(retune_module, "judge_promotion", judge)


def test_queries_of_a_retune_are_no_known_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_encoder("dense", tmp_path / "encoder")
    words = KnownWords(1.0, in_length=False)
    open_build("bm25_fusion", tmp_path, tmp_path / "encoder", OLD, known_words=words)
    project = make_project(tmp_path)
    judge_own_words(project)
    learned = "violet apple"
    judging = "purple cherry"
    index = LiveIndex(project)
    row = {"id": "n", "title": "t", "text": "word1", "queries": [learned, judging]}
    index.receive([row], "test")
    index.apply()
    pairs = [JudgedPair(learned, "n", 1, "dev"), JudgedPair(judging, "n", 1, "gate")]
    record_judgements(project.judgements, pairs)
    best_hits: dict[str, str] = {}

    def watch_learning(search: Any, learning: Judgements) -> Any:
        assert learned in learning.queries.values()
        ((best, *_),) = search.search([learned], 1)
        best_hits[learned] = best[0]
        return score_candidates(search, learning)

    def watch_gate(run: Any, qrels: Any, metrics: Any) -> Any:
        (query_id,) = [query_id for query_id, grades in qrels.items() if "n" in grades]
        best_hits[judging] = run[query_id][0][0]
        return evaluate_run(run, qrels, metrics)

    move_weight(monkeypatch, passed=False)
    monkeypatch.setattr(retune_module, "score_candidates", watch_learning)
    monkeypatch.setattr(retune_module, "evaluate_run", watch_gate)
    searcher = Searcher.open(project.live)
    for text in (learned, judging):
        assert searcher.search(text, 1)[0].document_id == "n"

    choose_live_weights(project, searcher)

    assert best_hits.keys() == {learned, judging}
    assert "n" not in best_hits.values()


def test_gate_queries_are_grouped_by_live_known_queries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_encoder("dense", tmp_path / "encoder")
    known = DOCUMENTS[0]
    open_build("bm25_fusion", tmp_path, tmp_path / "encoder", OLD, queries={known: ["word3"]})
    project = make_project(tmp_path)
    judge_own_words(project)
    compared: list[SystemScores] = []

    def judge(challenger: SystemScores, champion: SystemScores, *_: Any) -> Verdict:
        compared.extend([challenger, champion])
        return Verdict(False, ("as stated",), queries=36, intervals=())

    move_weight(monkeypatch, passed=False)
    monkeypatch.setattr(retune_module, "judge_promotion", judge)
    searcher = Searcher.open(project.live)
    gate = read_retune_queries(project, searcher).gate
    asked = {query_id for query_id, grades in gate.qrels.items() if known in grades}

    choose_live_weights(project, searcher)

    assert len(asked) == 3
    assert [scores.with_known for scores in compared] == [asked, asked]


def test_choice_is_reported_for_both_groups(tmp_path: Path) -> None:
    make_encoder("dense", tmp_path / "encoder")
    known = {DOCUMENTS[0]: ["word3"]}
    words = KnownWords(1.0, in_length=True)
    encoder = tmp_path / "encoder"
    open_build("bm25_fusion", tmp_path, encoder, OLD, queries=known, known_words=words)
    project = make_project(tmp_path)
    judge_own_words(project)

    result = choose_live_weights(project, Searcher.open(project.live))

    report = result.details["on_learning"]
    assert report["queries"] == {"with_known": 3, "without_known": 33}
    before, after = report["variants"]
    assert before["weights"] == result.before
    assert after["weights"] == result.after
    assert 0 < before["without_known"] <= 1
    statement = f"choice on documents with known queries: {before['with_known']:.4f} -> "
    assert statement in result.summary


def test_accepted_weights_are_searched_and_recorded(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    move_weight(monkeypatch, passed=True)

    result = run_manual_retune(project)

    searcher: Any = Searcher.open(project.live)
    assert dict(searcher.retriever.fusion.weights) == result.after
    assert searcher.generation.number == result.generation
    last_change = AuditLog(project.audit).read()[-1]
    assert last_change.action == "retune"
    assert last_change.detail == f"generation {result.generation}"
    with open_ledger(project, "r") as ledger:
        (task,) = ledger.tasks.last("r", 5, TaskKind.RETUNE)
    assert task.state == TaskState.DONE
    assert task.details["queries"] == 36
    assert task.details[GAIN_DEVIATION] == 0.3
    assert task.outcome is not None
    assert task.outcome.startswith("new weights (")


def test_refused_weights_are_recorded_only(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    move_weight(monkeypatch, passed=False)
    before = Searcher.open(project.live).generation

    run_manual_retune(project)

    assert Searcher.open(project.live).generation == before
    with open_ledger(project, "r") as ledger:
        (task,) = ledger.tasks.last("r", 5, TaskKind.RETUNE)
    assert task.state == TaskState.REFUSED


def test_requested_retune_runs_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    move_weight(monkeypatch, passed=True)
    with open_ledger(project, "r") as ledger:
        ledger.tasks.request(TaskKind.RETUNE, "r", EventRange(1, 2), "because", "drift")
    (task,) = request_due_tasks(project)

    outcome = run_requested_retune(project, task.run_key)

    assert outcome.startswith("new weights (")
    assert request_due_tasks(project) == []
    assert "not requested" in run_requested_retune(project, task.run_key)


def test_single_retriever_has_no_weights(tmp_path: Path) -> None:
    make_encoder("dense", tmp_path / "encoder")
    open_build("dense", tmp_path, tmp_path / "encoder", OLD)
    project = make_project(tmp_path)

    with pytest.raises(RetuneNotPossible, match="no fusion"):
        choose_live_weights(project, Searcher.open(project.live))
