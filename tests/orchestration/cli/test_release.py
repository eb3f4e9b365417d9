"""Guards that `freshet rollback` and `retrain` do nothing with options that they cannot heed."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from model_code.errors import SettingsError
from orchestration.cli import app
from orchestration.registry import release


def test_a_rollback_of_one_retriever_alone_names_rewind(monkeypatch):
    monkeypatch.setattr(release, "rollback", lambda project: pytest.fail("the champion was rolled back"))
    with pytest.raises(SettingsError, match="go back in all of them.*freshet rewind --retriever hce"):
        CliRunner().invoke(app, ["rollback", "--retriever", "hce"], catch_exceptions=False)


@pytest.mark.parametrize("option", [("--dry-run",), ("--key", "first")])
def test_a_pilot_takes_neither_a_key_nor_a_dry_run(tmp_path, monkeypatch, option):
    for name in ("params.yaml", "dvc.yaml"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(app, ["retrain", "--pilot", "100", *option])
    assert told.exit_code == 2
    assert "no --key and no --dry-run" in " ".join(told.output.split())
