"""Guards drift as it is watched: batches by the ledger's events, small ones left to grow, dry runs kept nowhere."""

from __future__ import annotations

import json
import random

import numpy as np
import pandas as pd
import pytest

from model_code.encoding.encoder import Encoder
from model_code.files import write_json, write_text
from model_code.hierarchy.tree import DOCUMENT_IDS, Hierarchy
from model_code.index.dense_index import DenseIndex
from model_code.live.collection import open_generation_zero
from model_code.live.text_rules import TextRules
from orchestration.freshening import Freshener
from orchestration.project import Project
from orchestration.watching.watch import past, watch
from tests.tiny_encoder import make_tiny_encoder

SEA = ["wave", "tide", "harbour", "sail", "anchor", "gull", "reef", "current", "deck", "mast", "rope", "keel"]
SPACE = ["orbit", "comet", "lunar", "rocket", "galaxy", "probe", "star", "crater", "solar", "nebula", "dust", "ring"]
PARAMS = {
    "retrievers": {"hce": {}},
    "encoder": {"include_title": False},
    "drift": {"minimum_batch": 20, "largest_batch": 40, "reference_documents": 60, "draws": 399, "window": 2},
}


def documents(words, count, name, seed):
    draw = random.Random(seed)
    return {f"{name}-{i:03}": " ".join(draw.sample(words, 8)) for i in range(count)}


def rows(texts):
    return [{"id": name, "title": name, "text": text} for name, text in texts.items()]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A live collection of 150 documents about the sea, of an encoder that knows both vocabularies."""
    root = tmp_path_factory.mktemp("watched")
    texts = documents(SEA, 150, "sea", 0)
    encoder = Encoder.load(make_tiny_encoder(root / "encoder", [*texts.values(), " ".join(SPACE)]), device="cpu")
    vectors = encoder.encode(list(texts.values()))
    DenseIndex.build(vectors, list(texts), encoder.fingerprint()).save(root / "index")
    leaves = np.arange(150, dtype=np.int32) % 3
    centroids = np.stack([vectors[leaves == leaf].mean(axis=0) for leaf in range(3)])
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
    (root / "hierarchy").mkdir()
    Hierarchy((centroids,), (np.zeros(3, np.int32),), leaves).save(root / "hierarchy")
    write_json(root / "hierarchy" / DOCUMENT_IDS, list(texts))
    table = pd.DataFrame({"document_id": list(texts), "title": list(texts), "text": list(texts.values())})
    table.assign(fields="{}", part="initial").to_parquet(root / "documents.parquet", index=False)
    return root


@pytest.fixture
def project(built, tmp_path):
    folders = {name: built / name for name in ("encoder", "index", "hierarchy")}
    rules = TextRules(include_title=False, words=0, stride=1)
    open_generation_zero(tmp_path, "hce", **folders, documents=built / "documents.parquet", provenance={}, text=rules)
    write_text(tmp_path / "params.yaml", json.dumps(PARAMS))
    write_text(tmp_path / "dvc.yaml", "stages: {}")
    return Project(tmp_path)


def add(project, texts):
    freshener = Freshener(project)
    freshener.receive(rows(texts), "test")
    freshener.apply_pending()
    return freshener.ledger


def test_before_anything_arrives_there_is_nothing_to_measure(project):
    assert watch(project) is None
    assert not (project.live / "ledger.sqlite").exists(), "looking makes no ledger"


def test_documents_like_the_old_ones_are_only_added(project):
    ledger = add(project, documents(SEA, 24, "more", 1))
    watched = watch(project)
    assert watched.decision.action == "add"
    assert watched.tripped == ()
    assert watched.report.documents == 24
    assert ledger.last_drift(1)[0]["last_event"] == 24
    assert watch(project) is None, "the same documents are not reported twice"


def test_other_documents_trip_and_the_report_says_which_measures(project):
    add(project, documents(SPACE, 24, "space", 2))
    watched = watch(project, record=False)
    assert {"domain_auc", "mmd"} <= set(watched.tripped)
    assert "TRIPPED" in watched.text


def test_a_dry_run_keeps_nothing(project):
    ledger = add(project, documents(SPACE, 24, "space", 2))
    first, second = watch(project, record=False), watch(project, record=False)
    assert first.decision.dry_run
    assert first.report == second.report
    assert ledger.last_drift(5) == []
    assert ledger.last_decisions(5) == []


def test_a_small_batch_waits_for_more(project):
    ledger = add(project, documents(SEA, 12, "few", 3))
    assert watch(project) is None
    assert "too few documents" in watch(project, record=False).decision.reasons[0]
    assert ledger.last_drift(1) == []
    add(project, documents(SEA, 12, "others", 4))
    assert watch(project).report.documents == 24


def test_the_window_holds_the_last_batches(project):
    add(project, documents(SEA, 24, "one", 5))
    watch(project)
    add(project, documents(SEA, 24, "two", 6))
    report = watch(project).report
    assert (report.batches, report.window_documents) == (2, 48)


def test_what_was_deleted_meanwhile_is_not_measured(project):
    add(project, documents(SEA, 24, "one", 5))
    freshener = Freshener(project)
    freshener.remove(["one-000", "one-001"], "test")
    freshener.apply_pending()
    assert watch(project).report.documents == 22


def test_the_cooldown_counts_retrains_that_were_carried_out(project):
    ledger = add(project, documents(SEA, 24, "one", 5))
    ledger.record_decision("retrain", "topics moved", {"batch": [1, 24]})
    assert [(one.action, one.carried_out) for one in past(ledger)] == [("retrain", False)]
    ledger.record_decision("failed", "disk full", {})
    ledger.record_decision("promoted", "better", {})
    assert [(one.action, one.carried_out) for one in past(ledger)] == [("retrain", True)]
