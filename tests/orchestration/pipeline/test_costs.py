"""Guards costs on tiny built retrievers: which systems are opened, and that each cost is what it says."""

from __future__ import annotations

import dataclasses
import json

import pytest
import typer
from typer.testing import CliRunner

from model_code.corpus.tables import load_corpus, passage_texts
from model_code.encoding.encoder import Encoder
from model_code.files import read_json, write_json, write_text
from model_code.fusion import reciprocal_rank_fusion
from model_code.index.dense_index import DenseIndex
from orchestration.cli import build
from orchestration.parameters import load
from orchestration.pipeline import costs, runs, stage_key
from orchestration.pipeline.costs import StageCost, folder_bytes, latencies, open_systems, stage_costs
from orchestration.pipeline.runs import StageRecord, run_store
from orchestration.pipeline.stages import Stage
from orchestration.project import Project
from tests.model_code.evaluation.tiny_corpus import TEXTS, write_corpus, write_pseudo_queries
from tests.tiny_encoder import make_tiny_encoder

NAMES = ("bm25", "zero_shot", "zero_shot.rrf", "zero_shot.bm25_rerank", "hce", "hce.rrf", "hce.bm25_rerank")
RECORDED = {
    "base_index": StageCost(3.0, 300.0), "train@hce": StageCost(20.0, 900.0), "index@hce": StageCost(4.0, 400.0)
}  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """`hce` is built, `mlr` only compared."""
    root = tmp_path_factory.mktemp("project")
    artifacts = root / "artifacts"
    passages = load_corpus(write_corpus(artifacts / "corpus")).passages
    write_pseudo_queries(artifacts / "pseudo_queries")
    folders = {"base": "artifacts/base_index", "artifacts/train/hce/encoder": "artifacts/index/hce"}
    for seed, (encoder, index) in enumerate(folders.items()):
        loaded = Encoder.load(
            make_tiny_encoder(root / encoder, TEXTS.values(), seed), 32, precision="float32", device="cpu"
        )
        vectors = loaded.encode(passage_texts(passages, include_title=True))
        built = DenseIndex.build(vectors, passages["document_id"].tolist(), loaded.fingerprint())
        built.save(root / index / "index")
    cells = {name: {"nDCG@10": {"value": 0.1 * i, "low": 0.0, "high": 1.0}} for i, name in enumerate([*NAMES, "mlr"])}
    facts = {"split": "test", "source": "qrels", "queries": 48, "main_metric": "nDCG@10", "systems": cells}
    write_json(artifacts / "comparison" / "comparison.json", facts | {"dev": {"systems": {"hce": cells["hce"]}}})
    encoder = {"base": str(root / "base"), "max_tokens": 32, "precision": "float32", "device": "cpu"}
    write_text(root / "params.yaml", json.dumps({"retrievers": {"hce": {}, "mlr": {}}, "encoder": encoder}))
    write_text(root / "dvc.yaml", "")
    return Project(root)


@pytest.fixture
def _recorded(monkeypatch):
    monkeypatch.setattr(costs, "stage_costs", lambda project, stages: RECORDED)


@pytest.fixture(scope="module")
def systems(project):
    return {system.name: system for system in open_systems(project, load(project.params_file))}


def test_every_built_system_is_opened_with_its_hybrids(systems):
    assert tuple(systems) == NAMES


def test_hybrids_search_as_they_are_evaluated(systems):
    text = " ".join(TEXTS["music-03"].split()[3:])
    bm25 = systems["bm25"].search([text], 100)[0]
    for name in ("zero_shot", "hce"):
        own = systems[name].search([text], 100)[0]
        assert systems[f"{name}.rrf"].search([text], 5)[0] == reciprocal_rank_fusion([own, bm25], 5)
        found = dict(bm25)
        assert systems[f"{name}.bm25_rerank"].search([text], 5)[0] == [hit for hit in own if hit[0] in found][:5]


@pytest.mark.usefixtures("_recorded")
def test_each_cost_is_what_it_says(project, systems):
    found = costs.compare_costs(project, queries=4)
    rows = {one.system: one for one in found.systems}
    assert (found.timed, found.documents, found.absent) == (4, 48, ("mlr",))
    assert list(rows)[:3] == ["bm25", "zero_shot", "hce"]
    hce, bm25, hybrid = rows["hce"], rows["bm25"], rows["hce.rrf"]
    assert (hce.train_seconds, hce.index_seconds, hce.searchable_seconds, hce.memory_mb) == (20.0, 4.0, 24.0, 900.0)
    assert hce.index_ms == pytest.approx(1000 * 4.0 / 48)
    assert hce.bytes_per_document == folder_bytes(project.artifacts / "index" / "hce" / "index") / 48
    assert hybrid.bytes_per_document == pytest.approx(hce.bytes_per_document + bm25.bytes_per_document)
    assert hybrid.index_seconds == pytest.approx(hce.index_seconds + bm25.index_seconds, abs=1.0)
    assert (rows["zero_shot"].train_seconds, rows["zero_shot"].memory_mb) == (0, 300.0)
    assert (bm25.train_seconds, bm25.memory_mb) == (0, None)
    assert 0 < bm25.index_seconds < 5
    assert all(0 < one.p50_ms <= one.p95_ms for one in found.systems)
    assert (hce.dev, bm25.dev) == (hce.value, None)


def test_without_records_the_costs_are_unknown(project, monkeypatch):
    monkeypatch.setattr(costs, "stage_costs", lambda project, stages: {"index@hce": RECORDED["index@hce"]})
    rows = {one.system: one for one in costs.compare_costs(project, queries=1).systems}
    unknown = [rows["hce"].train_seconds, rows["hce"].index_seconds, rows["hce"].searchable_seconds]
    assert unknown == [None] * 3
    assert rows["bm25"].searchable_seconds is not None


@pytest.mark.usefixtures("_recorded")
def test_the_command_prints_a_choice_and_writes_the_report(project, monkeypatch):
    monkeypatch.chdir(project.root)
    monkeypatch.delenv("FRESHET_STATE", raising=False)
    app = typer.Typer()
    app.command()(build.compare)
    printed = CliRunner().invoke(app, ["--queries", "1"], catch_exceptions=False).output
    assert "best nDCG@10 on test" in printed
    assert (project.state / "comparison" / "comparison.html").is_file()
    told = json.loads(CliRunner().invoke(app, ["--queries", "1", "--json"], catch_exceptions=False).output)
    assert set(told["systems"]) == set(NAMES)
    assert told["choices"][0]["system"] == "hce.bm25_rerank"
    assert not (project.artifacts / "comparison" / "comparison.html").exists()
    assert read_json(project.state / "comparison" / "comparison.json")["timed"] == 1


def test_latency_is_the_median_over_rounds_in_turns(monkeypatch):
    asked = []
    spent = {"a": [1, 9, 2, 4, 3, 5], "b": [0.5] * 6}  # round by round, both texts
    now = [0.0]

    def search(name, durations):
        def run(texts, k):
            asked.append((name, tuple(texts)))
            if len([one for one in asked if one[0] == name]) > 1:  # the first is the warm-up
                now[0] += durations.pop(0)
            return [[]]

        return run

    monkeypatch.setattr("orchestration.pipeline.costs.time.perf_counter", lambda: now[0])
    found = latencies({name: search(name, list(values)) for name, values in spent.items()}, ["x", "y"], 10, rounds=3)
    assert found["a"] == pytest.approx((1000 * 3.5, 1000 * (2 + 0.95 * 3)))  # medians 2 (x) and 5 (y)
    assert found["b"] == pytest.approx((500, 500))
    assert [name for name, _ in asked[2:]] == ["a", "a", "b", "b"] * 3


def test_a_variant_is_timed_with_its_own_encoding():
    made = []

    class Lexical:
        """Variants that were made together share what they encode."""

        def variants(self):
            made.append({})
            cache = made[-1]
            return {"beta": lambda texts, k: cache.setdefault(tuple(texts), object())}

    search = costs._variant(Lexical(), "beta")
    assert search(["a"], 3) is not search(["a"], 3)
    assert len(made) == 2


pytestmark = pytest.mark.usefixtures("_own_store")
STAGE = Stage("train", "", ("seed",), {"corpus": "artifacts/costs"}, "artifacts/train/hce", (), retriever="hce")


def made(project, seconds):
    key = stage_key.read(STAGE, project.root).key
    metrics = {"seconds": seconds, "peak_memory_mb": 512.0}
    return StageRecord(STAGE.address, key, {}, metrics, {}, [], [], None, False, None, seconds, seconds + 1)


def record(project, seconds):
    run_store(project).record_stage(made(project, seconds))


def test_the_newest_run_of_the_same_inputs_counts(tracked_project):
    project = tracked_project
    params, corpus = project.root / "params.yaml", project.root / "artifacts" / "costs" / "table"
    params.write_text("seed: 0\n")
    assert stage_costs(project, [STAGE]) == {}  # its input is not there
    corpus.parent.mkdir(parents=True)
    corpus.write_text("one")
    assert stage_costs(project, [STAGE]) == {}
    for seconds in (5.0, 7.0):
        record(project, seconds)
    found = {"train@hce": StageCost(7.0, 512.0)}
    other = dataclasses.replace(STAGE, retriever="mlr")
    assert stage_costs(project, [STAGE, other]) == found
    corpus.write_text("two")
    assert stage_costs(project, [STAGE]) == {}
    corpus.write_text("one")
    params.write_text("seed: 1\n")
    assert stage_costs(project, [STAGE]) == {}


def test_a_run_that_is_still_spooled_counts(tracked_project):
    project = tracked_project
    (project.root / "params.yaml").write_text("seed: 0\n")
    corpus = project.root / "artifacts" / "costs" / "table"
    corpus.parent.mkdir(parents=True, exist_ok=True)
    corpus.write_text("three")
    runs.keep(project, made(project, 9.0))
    assert stage_costs(project, [STAGE]) == {"train@hce": StageCost(9.0, 512.0)}
    assert not [*(project.state / "spool").glob("*/record.json")]
