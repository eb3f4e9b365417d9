"""Guards that `freshet rollback` does nothing with an option that it cannot heed."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from model_code.errors import SettingsError
from orchestration.cli import app
from orchestration.registry import release


def test_a_rollback_of_one_retriever_needs_its_generation(monkeypatch):
    monkeypatch.setattr(release, "rollback", lambda project: pytest.fail("the champion was rolled back"))
    with pytest.raises(SettingsError, match="--retriever hce says whose live generation.*name it with --generation"):
        CliRunner().invoke(app, ["rollback", "--retriever", "hce"], catch_exceptions=False)
