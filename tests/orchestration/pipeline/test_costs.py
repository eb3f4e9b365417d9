"""Guards costs: a row per built system, times of queries asked alone, seconds of the run with
today's inputs.
"""

from __future__ import annotations

import dataclasses
import json

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
    recorded_seconds,
)
from orchestration.pipeline.runs import StageRecord, run_store
from tests.model_code.evaluation.tiny_corpus import TEXTS, write_corpus
from tests.tiny_encoder import make_tiny_encoder


def test_a_row_per_built_system(tmp_path, monkeypatch):
    """`hce` is built, `mlr` is not."""
    artifacts = tmp_path / "artifacts"
    passages = load_corpus(write_corpus(artifacts / "corpus")).passages
    folder = make_tiny_encoder(artifacts / "train" / "hce" / "encoder", TEXTS.values())
    encoder = Encoder.load(folder, 32, precision="float32", device="cpu")
    vectors = encoder.encode(passage_texts(passages, include_title=True))
    index = artifacts / "index" / "hce" / "index"
    DenseIndex.build(vectors, passages["document_id"].tolist(), encoder.fingerprint()).save(index)
    stated = {"base": str(folder), "max_tokens": 32, "precision": "float32", "device": "cpu"}
    settings = {"retrievers": {"hce": {}, "mlr": {}}, "fusions": {}, "encoder": stated}
    write_text(tmp_path / "params.yaml", json.dumps(settings))
    seconds = {"train@hce": 20.0}
    monkeypatch.setattr(
        costs, "recorded_seconds", lambda project, stage: seconds.get(stage.address)
    )
    (row,) = cost_table(Project(tmp_path), "test", 4).to_dict("records")
    assert (row["system"], row["training (s)"], row["indexing (s)"]) == (
        "hce",
        "20.0",
        NOT_RECORDED,
    )
    assert row["index (bytes)"] == f"{folder_bytes(index):,}"
    assert 0 < float(row["query p50 (ms)"]) <= float(row["query p95 (ms)"])


def test_warm_up_queries_are_not_measured(monkeypatch):
    now, spent, asked = [0.0], iter([99, 99, 99, 2, 4, 3, 5]), []

    def search(texts, k):
        asked.append(texts)
        now[0] += next(spent)
        return [[]]

    monkeypatch.setattr("orchestration.pipeline.costs.time.perf_counter", lambda: now[0])
    assert latency(search, ["a", "b", "c", "d"]) == pytest.approx((3500, 4850))
    assert asked == [["a"], ["b"], ["c"], ["a"], ["b"], ["c"], ["d"]]


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


def made(project, seconds):
    key = stage_key.read_stage_inputs(STAGE, project.root).key
    metrics = {"seconds": seconds, "peak_memory_mb": 512.0}
    return StageRecord(
        STAGE.address, key, {}, metrics, {}, [], [], None, False, None, seconds, seconds + 1
    )


def test_newest_run_counts_even_if_spooled(tracked_project):
    project = tracked_project
    params, corpus = project.root / "params.yaml", project.root / "artifacts" / "costs" / "table"
    params.write_text("seed: 0\n")
    assert recorded_seconds(project, None) is None
    assert recorded_seconds(project, STAGE) is None, "its input is not there"
    corpus.parent.mkdir(parents=True)
    corpus.write_text("one")
    assert recorded_seconds(project, STAGE) is None
    for seconds in (5.0, 7.0):
        run_store(project).record_stage(made(project, seconds))
    assert recorded_seconds(project, STAGE) == 7.0
    assert recorded_seconds(project, dataclasses.replace(STAGE, retriever="mlr")) is None
    params.write_text("seed: 1\n")
    assert recorded_seconds(project, STAGE) is None
    corpus.write_text("two")
    assert recorded_seconds(project, STAGE) is None
    runs.spool_record(project, made(project, 9.0))
    assert recorded_seconds(project, STAGE) == 9.0
    assert not [*(project.state / "spool").glob("*/record.json")]
