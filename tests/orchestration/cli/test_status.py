"""Tests of the text of `freshet status`: what exists, what is missing, and what to do about it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from model_code.corpus.tables import make_table
from model_code.files import write_json
from model_code.project import Project
from orchestration.cli.status import project_status, status_text
from orchestration.pipeline.runs import store_folder
from orchestration.registry import read_only
from orchestration.registry.read_only import DATABASE
from tests.live_example import add, collection_of, make_project, row

ROOT = Path(__file__).parents[3]
SLOW_MODULES = {
    "torch",
    "mlflow",
    "dvc",
    "dagster",
    "pandas",
    "scipy",
    "faiss",
    "transformers",
    "model_code.collection.generations.searcher",
    "orchestration.registry.built_retriever",
    "sqlalchemy.dialects.postgresql",
}

EMPTY_STATUS: dict[str, Any] = {
    "corpus": None,
    "judgements": None,
    "stages": {"corpus": "not built"},
    "champion": None,
    "challenger": None,
    "previous": None,
    "registry_problem": None,
    "moved_by_hand": None,
    "shadow": None,
    "live": [],
    "service": None,
    "moves": [],
    "reading_notes": [],
    "sources": [],
    "sources_problem": None,
}
MEASURES = [
    {"name": "topics", "value": 0.25, "threshold": 0.1},
    {"name": "growth", "value": 0.1, "threshold": 0.5},
]


def test_stages_out_of_date_are_counted():
    status = {**EMPTY_STATUS, "stages": {"corpus": "out of date", "index@hce": "built"}}

    line = status_text(status).splitlines()[1]

    assert line == (
        "stages      1 of 2 built, 1 out of date (freshet plan shows which are out of date)"
    )


def live_retriever(name: str, default: bool, **changes) -> dict[str, Any]:
    state = {
        "retriever": name,
        "default": default,
        "generation": 2,
        "documents": 1234,
        "fingerprint": "f",
        "freshness": {"ledger": None},
    }
    return {**state, **changes}


def ledger_status(topics_exceeded: bool) -> dict[str, Any]:
    """The state of a ledger after additions, a drift check and a request for a retrain."""
    measures = [
        {**MEASURES[0], "tripped": topics_exceeded},
        {**MEASURES[1], "tripped": False},
    ]
    unmeasured = {"name": "protected_old", "why": "3 are fewer than 20", "scope": "batch"}
    task = {
        "kind": "retrain",
        "state": "open",
        "reason": "topics 0.25 is above 0.1",
        "outcome": None,
    }
    return {
        "documents": {"pending": 2, "live": 1200, "superseded": 0, "rolled_back": 3},
        "lag": {"pending": 2, "seconds": 300.0},
        "drift": {"report": {"report": {"measures": measures, "unmeasured": [unmeasured]}}},
        "work": [task],
    }


def test_empty_project_names_what_is_missing():
    assert status_text(EMPTY_STATUS).splitlines() == [
        "corpus      not ingested yet",
        "stages      0 of 1 built (freshet plan shows which are out of date)",
        "champion    none",
        "challenger  none",
        "previous    none",
        "live        nothing; freshet promote opens the champion",
    ]


def test_finding_of_shadow_mode_is_shown():
    status = {**EMPTY_STATUS, "shadow": {"text": "version 4 (fused) on 8 live queries"}}

    assert "shadow      version 4 (fused) on 8 live queries" in status_text(status)


def test_built_project_names_versions_and_generations():
    status = {
        **EMPTY_STATUS,
        "corpus": {"source": "files", "content_hash": "0123456789abcdef"},
        "judgements": {"text": "41 of about 75 judged questions; 17 train, 30 are needed"},
        "stages": {"corpus": "built", "train@hce": "built", "index@hce": "not built"},
        "champion": {"version": "3", "retriever": "hce"},
        "previous": {"version": "1", "retriever": "contrastive"},
        "registry_problem": None,
        "moved_by_hand": "moved by hand from version 1 to version 3",
        "service": {"pid": 1, "url": "http://127.0.0.1:8765"},
        "live": [live_retriever("hce", default=True), live_retriever("other", default=False)],
    }

    assert status_text(status).splitlines() == [
        "corpus      files, content 0123456789ab",
        "judgements  41 of about 75 judged questions; 17 train, 30 are needed",
        "stages      2 of 3 built (freshet plan shows which are out of date)",
        "champion    version 3 (hce)",
        "            moved by hand from version 1 to version 3; "
        "freshet promote settles this, and so does a sensor of freshet ui",
        "challenger  none",
        "previous    version 1 (contrastive)",
        "live        hce generation 2, 1,234 documents, searched by default",
        "live        other generation 2, 1,234 documents",
        "service     http://127.0.0.1:8765",
    ]


@pytest.mark.parametrize(
    ("topics_exceeded", "drift"),
    [
        (True, "topics 0.25 is past its threshold 0.1"),
        (False, "none of 2 measures is past its threshold"),
    ],
)
def test_status_shows_freshness(topics_exceeded, drift):
    ledger = ledger_status(topics_exceeded)
    other_ledger = {**ledger, "lag": {"pending": 14, "seconds": 7300.0}}
    default = live_retriever("hce", True, freshness={"watermark": 17, "ledger": ledger})
    other = live_retriever("other", False, freshness={"watermark": 3, "ledger": other_ledger})

    lines = status_text({**EMPTY_STATUS, "live": [default, other]}).splitlines()

    assert lines[5:] == [
        "live        hce generation 2, 1,234 documents, searched by default",
        "arrived     2 pending, 1,200 live, 3 rolled back (after event 17)",
        "lag         2 waiting, the oldest for 5 min",
        f"drift       {drift}",
        "            whether additions push old documents down was not measured: 3 are fewer than "
        "20",
        "work        retrain (open): topics 0.25 is above 0.1",
        "live        other generation 2, 1,234 documents",
        "lag         14 waiting, the oldest for 2 h",
    ]


def test_damaged_retriever_is_a_problem():
    damaged = live_retriever("hce", True, documents=None, freshness=None, problem="file is cut off")

    lines = status_text({**EMPTY_STATUS, "live": [damaged]}).splitlines()

    assert lines[5:] == ["live        hce, searched by default", "problem     file is cut off"]


def test_locked_store_leaves_the_rest_of_the_status(tmp_path, monkeypatch):
    (tmp_path / "params.yaml").write_text("{retrievers: {hce: {}}}")
    (tmp_path / "dvc.yaml").touch()
    project = Project(tmp_path)
    store = store_folder(project) / DATABASE
    store.parent.mkdir(parents=True)
    monkeypatch.setattr(read_only, "LOCK_TIMEOUT_SECONDS", 0.0)
    with closing(sqlite3.connect(store)) as writer:
        writer.execute("CREATE TABLE registered_models (name TEXT)")
        writer.commit()
        writer.execute("BEGIN EXCLUSIVE")

        lines = status_text(project_status(project)).splitlines()

    assert lines[0] == "corpus      not ingested yet"
    assert lines[2] == (
        f"versions    unknown: MLflow's store {store} does not answer: database is locked; "
        "end the program that uses it, then try again"
    )
    assert lines[3] == "live        nothing; freshet promote opens the champion"


def test_status_of_a_new_project_creates_nothing(tmp_path):
    (tmp_path / "params.yaml").write_text("{retrievers: {hce: {}}}")
    (tmp_path / "dvc.yaml").touch()

    status = project_status(Project(tmp_path))

    assert status["champion"] is None
    assert status["live"] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dvc.yaml", "params.yaml"]


def test_stage_without_its_output_is_not_built(tmp_path):
    project = make_project(tmp_path)
    output = {"path": "artifacts/corpus", "md5": "0"}
    lock = {"schema": "2.0", "stages": {"corpus": {"cmd": "true", "outs": [output]}}}
    write_json(project.root / "dvc.lock", lock)
    assert project_status(project)["stages"]["corpus"] == "not built"

    (project.artifacts / "corpus").mkdir(parents=True)

    assert project_status(project)["stages"]["corpus"] == "built"


def test_status_names_what_of_files_was_not_read():
    notes = [
        {"file": "a.docx", "kind": "lost text", "detail": "text was not read", "share": 0.25},
        {"file": "b.png", "kind": "unread file", "detail": "it is a picture", "share": None},
    ]
    text = status_text({**EMPTY_STATUS, "reading_notes": notes})
    assert "2 files have notes from reading" in text
    assert "a.docx  text was not read (25 % of its words)" in text
    assert "b.png  it is a picture" in text


def test_status_imports_nothing_slow(tmp_path):
    """`freshet status` takes at most one CPU second, which these modules alone would take."""
    project = make_project(tmp_path)
    project.judgements.write_text('{"question": "how?", "document_id": "str.split"}\n')
    write_json(project.corpus_lock, {"source": "files", "content_hash": "0" * 64})
    folder = project.artifacts / "corpus"
    folder.mkdir(parents=True)
    for name in ("queries", "qrels"):
        make_table(name, []).to_parquet(folder / f"{name}.parquet")
    add(collection_of(project), row("a"))
    code = (
        "import sys; from orchestration.cli.app import app; app(['status'], standalone_mode=False); "
        f"print(sorted({SLOW_MODULES!r} & sys.modules.keys()))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )

    lines = done.stdout.splitlines()
    assert "judgements  1 of about 75 judged questions; 1 train, 30 are needed" in lines
    assert lines[-1] == "[]"


def test_a_command_ends_without_freeing_its_objects():
    """Python takes a fifth of the time of `freshet status` to free the objects of libraries."""
    code = (
        "import json, sys; from freshet.command import main; sys.argv = ['freshet', '--help']; "
        "json.kept = type('Kept', (), {'__del__': lambda self: print('freed')})(); main()"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert "Usage: freshet" in done.stdout
    assert "freed" not in done.stdout
