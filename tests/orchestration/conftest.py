"""One MLflow store for all tests of tracking and registry, as making one takes seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from model_code.project import LOCK_HELD, Project
from orchestration import TELEMETRY_OFF
from orchestration.instance import DATABASE
from orchestration.pipeline.dvc import RECORDER

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


@pytest.fixture(autouse=True)
def _own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the developer's environment names, or another test left in it, is left alone."""
    for name in ("MLFLOW_TRACKING_URI", DATABASE, LOCK_HELD, RECORDER):
        monkeypatch.delenv(name, raising=False)
    for name in ("LEDGER", "STATE", "TRACKING", "PROJECT"):
        monkeypatch.delenv(f"FRESHET_{name}", raising=False)
