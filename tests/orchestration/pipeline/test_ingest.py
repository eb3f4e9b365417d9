"""Guards that `corpus.lock.json` is written only for a reason, and that a broken one is named and
written anew.

Run: python -m pytest tests/orchestration/pipeline/test_ingest.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from model_code.errors import FreshetError
from model_code.files import read_json
from model_code.project import Project
from orchestration import parameters
from orchestration.cli.status import project_status
from orchestration.pipeline.ingest import ingest, read_lock

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
    assert ingest(project) == lock == read_lock(project)
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
    assert read_json(project.corpus_lock) == lock == read_lock(project)


def test_misspelt_column_is_refused_before_locking(project):
    parameters.write_overrides(project.params_file, ["corpus.columns.title=subjct"])
    with pytest.raises(
        FreshetError, match=r"no column 'subjct' \(corpus.columns.title\); it has: _id, text"
    ):
        ingest(project)
    assert not project.corpus_lock.exists()
