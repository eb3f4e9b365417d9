"""Guards `freshet retrain`: what a pilot is not asked together with.

pytest tests/orchestration/cli/test_freshness.py
"""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from orchestration.cli.app import app


@pytest.mark.parametrize("option", [("--dry-run",), ("--key", "first")])
def test_a_pilot_takes_neither_a_key_nor_a_dry_run(tmp_path, monkeypatch, option):
    for name in ("params.yaml", "dvc.yaml"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(app, ["retrain", "--pilot", "100", *option])
    assert told.exit_code == 2
    assert "no --key and no --dry-run" in " ".join(told.output.split())
