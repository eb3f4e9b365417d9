"""Guards that each of ten faults is told at the next look, by policy, page or message, and none
where all is well.
"""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import dagster as dg
import numpy as np
import pytest
from filelock import FileLock

from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.project_ledger import WRITER_LOCK
from model_code.encoding.encoder import Encoder
from model_code.errors import FreshetError
from orchestration.freshness import notices
from orchestration.registry import history
from tests.model_code.collection.conftest import texts
from tests.model_code.collection.laws import WORDS, make_encoder
from tests.orchestration.dagster_page import Page, at

START = datetime.now(UTC).replace(minute=0, second=5, microsecond=0)


def receive(project, *document_ids):
    rows = [
        {"id": each, "title": WORDS[0], "text": " ".join(WORDS[: 3 + i])}
        for i, each in enumerate(document_ids)
    ]
    LiveIndex(project).receive(rows, "api")


def add(page):
    """The runs that the sensor asks for."""
    return [
        page.run(request.job_name, request.partition_key) for request in page.look().run_requests
    ]


def dead_sensor(page, project, patch):
    return 11


def full_disk(page, project, patch):
    patch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=3e6))
    return 1


def stuck_writer(page, project, patch):
    receive(project, "new")
    # The lock is held as long as the test needs it.
    page.held = FileLock(project.live / WRITER_LOCK)
    page.held.acquire()
    (project.live / WRITER_LOCK).write_text("process 7 (freshet serve)\n")
    return 11


def wrong_encoder(page, project, patch):
    make_encoder("lexical", project.root / "another")
    encoder = project.live / "r" / "generations" / "000000" / "encoder"
    shutil.rmtree(encoder)
    shutil.copytree(project.root / "another.base", encoder)
    receive(project, "new")
    assert not add(page)[0].success
    return 1


def failing_source(page, project, patch):
    (project.root / "rows.jsonl").unlink()
    assert not page.run("sync").success
    return 1


def refused_gate(page, project, patch):
    history.append(project, "refuse", "1", "2", {"passed": False, "reasons": ["worse: hit@1"]})
    return 1


def growing_lag(page, project, patch):
    receive(project, *"abcdef")
    LiveIndex(project).apply(2)
    return 12


def empty_vectors(page, project, patch):
    patch.setattr(
        Encoder,
        "encode_documents",
        lambda self, texts, *_: np.zeros((len(texts), self.dimension), "float32"),
    )
    receive(project, "new")
    assert not add(page)[0].success
    return 1


def lost_ledger(page, project, patch):
    receive(project, "new")
    assert add(page)[0].success
    (project.live / "ledger.sqlite").unlink()
    with pytest.raises(FreshetError, match="there is none here"):
        page.look()
    return 1


def expired_schedule(page, project, patch):
    assert page.run("sync").success
    return 126


FAULTS = {
    dead_sensor: "searchable_documents: not fresh since",
    full_disk: "has 3 MB left",
    stuck_writer: "1 changes are waiting, the oldest for 11 min: process 7 (freshet serve) is the "
    "one writer",
    wrong_encoder: "of add_documents failed: {root}/live/r/generations/000000: its encoder has "
    "fingerprint ",
    failing_source: "of sync failed: not synced: default: {root}/rows.jsonl does not exist",
    refused_gate: "gate: refuse version 2: worse: hit@1",
    growing_lag: "4 changes are waiting, the oldest for 12 min",
    empty_vectors: "of add_documents failed: the new generation is refused: document 'new' is of "
    "an empty vector",
    lost_ledger: "holds the documents up to event 1 of its ledger, but there is none here",
    expired_schedule: "synced_source: not fresh since",
}


@pytest.fixture
def page(own):
    rows = [{"id": name, "title": title, "text": text} for name, (title, text) in texts().items()]
    (own.root / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with dg.DagsterInstance.ephemeral() as instance, at(START):
        page = Page(own, instance, "live.sync=0 * * * *", "corpus.path=rows.jsonl")
        page.look()
        assert page.told() == "nothing is wrong"
        yield page


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_told_at_the_next_look(page, own, monkeypatch, fault):
    minutes = fault(page, own, monkeypatch)
    with at(START + timedelta(minutes=minutes)):
        assert FAULTS[fault].format(root=own.root) in page.told()


def test_normal_operation_reports_no_problem(page, own):
    assert page.run("sync").success

    for minute in range(1, 11, 3):
        with at(START + timedelta(minutes=minute)):
            receive(own, f"{minute}a", f"{minute}b")
            assert [run.success for run in add(page)] == [True]
            assert page.look().run_requests == []
            assert page.told() == "nothing is wrong"
    assert notices.find_problems(own) == {}
