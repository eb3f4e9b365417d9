"""Guards that `corpus.lock.json` is written only for a reason, and that a broken one is named and
written anew.

Run: python -m pytest tests/orchestration/pipeline/test_ingest.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from model_code.collection.sync.sync import synced_source_file
from model_code.corpus.sources.base import make_source_lock
from model_code.errors import FreshetError
from model_code.files import read_json, write_json
from model_code.project import Project
from orchestration import parameters
from orchestration.cli.status import project_status
from orchestration.pipeline.ingest import adopt_synced_source, ingest, lock_judgements, read_lock

BROKEN = [
    b'<<<<<<< HEAD\n{"source": "files"}\n=======\n',
    b"",
    b'{"source": "fi',
    b"[]",
    b"{}",
    b"\xff",
]


@pytest.fixture
def project(tmp_path) -> Project:
    shutil.copy(Path(__file__).parents[3] / "params.yaml", tmp_path)
    (tmp_path / "documents.jsonl").write_text('{"_id": 1, "text": "moss"}\n')
    parameters.write_overrides(
        tmp_path / "params.yaml", ["corpus.source=files", "corpus.path=documents.jsonl"]
    )
    return Project(tmp_path)


def test_unchanged_source_keeps_its_lock(project):
    assert read_lock(project) is None

    lock = ingest(project)
    written = project.corpus_lock.stat().st_mtime_ns

    assert ingest(project) == lock
    assert read_lock(project) == lock
    assert project.corpus_lock.stat().st_mtime_ns == written


@pytest.mark.parametrize("content", BROKEN)
def test_broken_source_lock_is_reported_with_remedy(project, content):
    project.corpus_lock.write_bytes(content)
    for act in (read_lock, project_status):
        with pytest.raises(
            FreshetError, match="^corpus.lock.json is damaged: run `freshet ingest`"
        ):
            act(project)

    lock = ingest(project)
    assert read_json(project.corpus_lock) == lock
    assert read_lock(project) == lock


def test_misspelt_column_is_refused_before_locking(project):
    parameters.write_overrides(project.params_file, ["corpus.columns.title=subjct"])

    with pytest.raises(
        FreshetError, match=r"no column 'subjct' \(corpus.columns.title\); it has: _id, text"
    ):
        ingest(project)
    assert not project.corpus_lock.exists()


def record_sync(project, content_hash):
    write_json(synced_source_file(project), {"content_hash": content_hash})


def change_source(project):
    (project.root / "documents.jsonl").write_text('{"_id": 1, "text": "fern"}\n')
    settings = parameters.load(project.params_file).corpus
    return make_source_lock(settings, project.root)["content_hash"]


def test_synced_source_needs_no_ingest(project):
    ingest(project)
    content_hash = change_source(project)
    record_sync(project, content_hash)

    assert adopt_synced_source(project)
    assert read_lock(project)["content_hash"] == content_hash


def test_source_that_changed_after_sync_is_not_adopted(project):
    lock = ingest(project)
    record_sync(project, change_source(project))
    (project.root / "documents.jsonl").write_text('{"_id": 1, "text": "moor"}\n')

    assert not adopt_synced_source(project)
    assert read_lock(project) == lock


def test_project_that_never_synced_adopts_nothing(project):
    ingest(project)
    change_source(project)

    assert not adopt_synced_source(project)


def test_judgements_are_locked_without_the_source(project):
    lock = ingest(project)
    change_source(project)
    project.judgements.write_text('{"question": "moss?", "document_id": "1"}\n')

    lock_judgements(project)

    locked = read_lock(project)
    assert locked["judgements"]
    assert locked["content_hash"] == lock["content_hash"]
