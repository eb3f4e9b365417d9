"""Guards what the command line says when it is interrupted, or given what no command can use."""

from __future__ import annotations

import sys

import pytest
import typer
from typer.testing import CliRunner

from orchestration import cli, user_interfaces


def test_ctrl_c_says_what_is_kept(monkeypatch, capsys):
    app = typer.Typer()

    @app.command()
    def build() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(sys, "argv", ["freshet"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "stopped; finished stages are kept, training resumes from its last checkpoint\n"


@pytest.mark.parametrize("option", ["--dagster-port", "--mlflow-port"])
@pytest.mark.parametrize("port", ["0", "99999"])
def test_a_port_that_there_is_not_is_refused(monkeypatch, option, port):
    monkeypatch.setattr(user_interfaces, "serve", lambda *ports: pytest.fail("the pages were started"))
    refused = CliRunner().invoke(cli.app, ["ui", option, port])
    assert refused.exit_code == 2
    assert option in refused.output
