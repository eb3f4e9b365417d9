"""One MLflow store for all tests of tracking and registry, as making one takes seconds."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from model_code.project import LOCK_HELD, Project
from orchestration import TELEMETRY_OFF
from orchestration.instance import DATABASE
from orchestration.pipeline.dvc import RECORDER
from orchestration.pipeline.warm_python import program

RECORD = """
import sys
from pathlib import Path
from model_code import project
from model_code.project import Project
project.PATIENCE = 900.0  # a busy machine takes longer to make the store than the 15 s after which who waits says so
from orchestration.pipeline.runs import StageRecord
from orchestration.pipeline.runs import run_store
record = StageRecord("train@hce", sys.argv[2], {}, {}, {}, [], [], None, False, None, 0.0, 1.0)
print(run_store(Project(Path(sys.argv[1]))).record_stage(record))
"""


@pytest.fixture(scope="session")
def tracked_project(tmp_path_factory) -> Project:
    """A project whose fresh store two processes opened at the same time; what they printed lies in
    `started.json`.

    Its folder has the signs that URLs and SQL have to quote, but for those that MLflow fails at.
    """
    root = tmp_path_factory.mktemp("tracked") / 'it\'s "so" ü'
    root.mkdir()
    unwanted = {*TELEMETRY_OFF, "MLFLOW_TRACKING_URI", "FRESHET_STATE"}
    environment = {name: value for name, value in os.environ.items() if name not in unwanted}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RECORD, str(root), key],
            cwd=root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for key in ("first", "second")
    ]
    printed = [[*process.communicate(timeout=900), process.returncode] for process in processes]
    (root / "started.json").write_text(json.dumps(printed))
    return Project(root)


def copy_database(source: Path, target: Path) -> None:
    """Copy all tables of a SQLite database."""
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


@pytest.fixture(scope="session", autouse=True)
def _copied_mlflow_tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Copy MLflow's tables from the first new store to all later ones.

    MLflow makes the tables of a new store with all its migrations, which takes over a second.
    """
    if "mlflow" not in sys.modules:
        # Only tests that import MLflow open many stores.
        yield
        return
    from mlflow.store.db import utils

    template = tmp_path_factory.mktemp("mlflow") / "template.db"
    migrate = utils._initialize_tables

    def make_tables(engine: Any) -> None:
        if engine.dialect.name != "sqlite":
            migrate(engine)
            return
        database = Path(engine.url.database)
        if template.exists():
            copy_database(template, database)
        else:
            migrate(engine)
            copy_database(database, template)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "_initialize_tables", make_tables)
        yield


@pytest.fixture(autouse=True)
def _quick_warm_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a warm Python import DVC only, because the stages of these tests need no libraries."""
    libraries = tuple(name for name in program.LIBRARIES if name.startswith("dvc"))
    monkeypatch.setattr(program, "LIBRARIES", libraries)


@pytest.fixture(autouse=True)
def _own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the developer's environment names, or another test left in it, is left alone."""
    for name in ("MLFLOW_TRACKING_URI", DATABASE, LOCK_HELD, RECORDER):
        monkeypatch.delenv(name, raising=False)
    for name in ("LEDGER", "STATE", "TRACKING", "PROJECT"):
        monkeypatch.delenv(f"FRESHET_{name}", raising=False)
