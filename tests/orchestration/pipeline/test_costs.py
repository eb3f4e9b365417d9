"""Test costs: a row per built system, query times, and seconds of the run with today's inputs."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest

from model_code.corpus.tables import load_corpus, passage_texts
from model_code.encoding.encoder import Encoder
from model_code.files import write_text
from model_code.project import Project
from model_code.retrieval.dense_index import DenseIndex
from model_code.stages.stage import Stage
from orchestration.pipeline import costs, runs, stage_key
from orchestration.pipeline.costs import (
    NOT_RECORDED,
    cost_table,
    folder_bytes,
    latency,
    measure_costs,
    recorded_seconds,
)
from orchestration.pipeline.runs import StageRecord, run_store
from tests.model_code.evaluation.tiny_corpus import TEXTS, write_corpus
from tests.tiny_encoder import make_tiny_encoder


def test_cost_table_has_a_row_per_built_system(tmp_path, monkeypatch):
    """`hce` is built, `mlr` is not."""
    artifacts = tmp_path / "artifacts"
    passages = load_corpus(write_corpus(artifacts / "corpus")).passages
    folder = make_tiny_encoder(artifacts / "train" / "hce" / "encoder", TEXTS.values())
    encoder = Encoder.load(folder, 32, precision="float32", device="cpu")
    vectors = encoder.encode_documents(passage_texts(passages, include_title=True))
    index = artifacts / "index" / "hce" / "index"
    DenseIndex.build(vectors, passages["document_id"].tolist(), encoder.fingerprint()).save(index)
    settings = {
        "retrievers": {"hce": {}, "mlr": {}},
        "fusions": {},
        "encoder": {
            "base": str(folder),
            "max_tokens": 32,
            "precision": "float32",
            "device": "cpu",
        },
    }
    write_text(tmp_path / "params.yaml", json.dumps(settings))
    seconds = {"train@hce": 20.0}

    def read_seconds(project, stage):
        return seconds.get(stage.address)

    monkeypatch.setattr(costs, "recorded_seconds", read_seconds)

    measured = measure_costs(Project(tmp_path), "test", 4)
    (row,) = cost_table(measured).to_dict("records")

    assert row["system"] == "hce"
    assert row["training (s)"] == "20.0"
    assert row["indexing (s)"] == NOT_RECORDED
    assert row["index (bytes)"] == f"{folder_bytes(index):,}"
    assert 0 < float(row["query p50 (ms)"]) <= float(row["query p95 (ms)"])


class SlowSearch:
    """Search whose duration is added to a clock.

    Attributes:
        now: Time of the clock, in seconds.
        texts: Texts of each search.
    """

    def __init__(self, durations: list[float]) -> None:
        self.durations = iter(durations)
        self.now = 0.0
        self.texts: list[list[str]] = []

    def clock(self) -> float:
        return self.now

    def search(self, texts: list[str], k: int) -> list[list]:
        self.texts.append(texts)
        self.now += next(self.durations)
        return [[]]


def test_warm_up_queries_are_not_measured(monkeypatch):
    slow = SlowSearch([99, 99, 99, 2, 4, 3, 5])
    monkeypatch.setattr("orchestration.pipeline.costs.time.perf_counter", slow.clock)

    p50, p95 = latency(slow.search, ["a", "b", "c", "d"])

    assert p50 == pytest.approx(3500)
    assert p95 == pytest.approx(4850)
    assert slow.texts == [["a"], ["b"], ["c"], ["a"], ["b"], ["c"], ["d"]]


pytestmark = pytest.mark.usefixtures("_own_store")
STAGE = Stage(
    "train",
    "",
    ("seed",),
    {"corpus": "artifacts/costs"},
    "artifacts/train/hce",
    (),
    retriever="hce",
)


def record_of(project: Project, seconds: float) -> StageRecord:
    """Return a record of `STAGE` with today's inputs. Longer runs are newer."""
    key = stage_key.read_stage_inputs(STAGE, project.root).key
    return StageRecord(
        stage=STAGE.address,
        key=key,
        params={},
        metrics={"seconds": seconds, "peak_memory_mb": 512.0},
        inputs={},
        artifacts=[],
        curves=[],
        git_commit=None,
        git_dirty=False,
        dagster_run_id=None,
        started=seconds,
        ended=seconds + 1,
    )


@pytest.fixture
def project(tracked_project) -> Project:
    """Return a project with the inputs of `STAGE`."""
    (tracked_project.root / "params.yaml").write_text("seed: 0\n")
    table = tracked_project.root / "artifacts" / "costs" / "table"
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_text("one")
    return tracked_project


def test_no_seconds_without_a_stage(project):
    assert recorded_seconds(project, None) is None


def test_no_seconds_without_the_input(project):
    shutil.rmtree(project.root / "artifacts" / "costs")

    assert recorded_seconds(project, STAGE) is None


def test_no_seconds_without_a_run(project):
    (project.root / "artifacts" / "costs" / "table").write_text("never seen")

    assert recorded_seconds(project, STAGE) is None


@pytest.fixture
def project_with_runs(project) -> Project:
    """Return a project with two runs of `STAGE`, of 5 and 7 seconds."""
    for seconds in (5.0, 7.0):
        run_store(project).record_stage(record_of(project, seconds))
    return project


def test_newest_run_counts(project_with_runs):
    assert recorded_seconds(project_with_runs, STAGE) == 7.0


def test_runs_of_another_retriever_do_not_count(project_with_runs):
    other_stage = dataclasses.replace(STAGE, retriever="mlr")

    assert recorded_seconds(project_with_runs, other_stage) is None


def test_runs_with_another_setting_do_not_count(project_with_runs):
    (project_with_runs.root / "params.yaml").write_text("seed: 1\n")

    assert recorded_seconds(project_with_runs, STAGE) is None


def test_runs_with_another_input_do_not_count(project_with_runs):
    (project_with_runs.root / "artifacts" / "costs" / "table").write_text("two")

    assert recorded_seconds(project_with_runs, STAGE) is None


def test_spooled_run_is_recorded_and_counts(project):
    (project.root / "artifacts" / "costs" / "table").write_text("spooled")
    runs.spool_record(project, record_of(project, 9.0))

    assert recorded_seconds(project, STAGE) == 9.0
    assert not list((project.state / "spool").glob("*/record.json"))
