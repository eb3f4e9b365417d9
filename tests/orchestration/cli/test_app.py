"""Tests of the command line as a whole: help, errors, interrupts, and escaped output."""

from __future__ import annotations

import inspect
import json
import sqlite3
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from mlflow.exceptions import MlflowException
from typer.testing import CliRunner

from model_code.errors import FreshetError
from model_code.text.words import print_message
from orchestration import cli
from orchestration.cli import pages
from orchestration.cli.app import COMMANDS as PANELS
from orchestration.cli.app import command_name

ROOT = Path(__file__).parents[3]
SLOW_MODULES = (
    "torch",
    "transformers",
    "mlflow",
    "dagster",
    "faiss",
    "pandas",
    "dvc",
    "sklearn",
    "scipy",
    "sqlalchemy",
)
COMMANDS = [command for panel in PANELS.values() for command in panel]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The folder of a project, which is the working directory."""
    for name in ("params.yaml", "dvc.yaml"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run_failing_command(monkeypatch):
    """Run a command line whose only command raises an error; returns the exit."""

    def run(error: BaseException, *arguments: str) -> SystemExit:
        failing_app = typer.Typer(pretty_exceptions_enable=False)

        @failing_app.command()
        def build() -> None:
            raise error

        monkeypatch.setattr(cli, "app", failing_app)
        monkeypatch.setattr(sys, "argv", ["freshet", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return caught.value

    return run


def test_interrupt_says_that_stages_are_kept(project, run_failing_command, capsys):
    exit_request = run_failing_command(KeyboardInterrupt())

    assert exit_request.code == 130
    assert capsys.readouterr().err == "stopped; finished stages are kept\n"


def test_interrupt_mentions_the_last_checkpoint(project, run_failing_command, capsys):
    (project / ".freshet" / "checkpoints" / "key" / "step_2").mkdir(parents=True)

    run_failing_command(KeyboardInterrupt())

    assert "training resumes from its last checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        PermissionError(13, "Permission denied", "live"),
        sqlite3.OperationalError("database is\nlocked"),
        subprocess.CalledProcessError(1, ["dvc", "init"]),
        MlflowException("no such server"),
    ],
)
def test_environment_error_is_one_line(run_failing_command, capsys, error):
    exit_request = run_failing_command(error)

    text = " ".join(str(error).split())
    expected = f"error: {type(error).__name__}: {text} (--debug shows where)\n"
    assert exit_request.code == 1
    assert capsys.readouterr().err == expected


def test_error_of_the_code_keeps_its_traceback(run_failing_command):
    with pytest.raises(ZeroDivisionError):
        run_failing_command(ZeroDivisionError())


def test_debug_shows_a_traceback(run_failing_command):
    with pytest.raises(OSError, match="full"):
        run_failing_command(OSError("full"), "--debug")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("ui --dagster-port 0", "--dagster-port"),
        ("ui --dagster-port 99999", "--dagster-port"),
        ("ui --mlflow-port 0", "--mlflow-port"),
        ("ui --mlflow-port 99999", "--mlflow-port"),
        ("retrain --weights --pilot 100", "--weights cannot be combined with --key or --pilot"),
        ("retrain --weights --key first", "--weights cannot be combined with --key or --pilot"),
        ("retrain --pilot 100 --dry-run", "cannot be combined with --key or --dry-run"),
        ("retrain --pilot 100 --key first", "cannot be combined with --key or --dry-run"),
        ("export --feedback --known-queries", "--feedback and --known-queries cannot be combined"),
        ("export --to qdrant place --all all", "--to and --all cannot be combined"),
    ],
)
def test_impossible_option_is_refused(project, monkeypatch, command, message):
    monkeypatch.setattr(pages, "serve_pages", lambda *ports: pytest.fail("the pages were started"))

    result = CliRunner().invoke(cli.app, command.split())

    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_command_help_has_summary_use_and_example(command):
    paragraphs = inspect.getdoc(command).split("\n\n")

    assert paragraphs[0].endswith(".")
    assert paragraphs[1].startswith("Use it")
    assert paragraphs[-1].startswith(f"Example: freshet {command_name(command)}")


def test_help_groups_commands_into_panels():
    output = CliRunner().invoke(cli.app, ["--help"]).output

    for panel in PANELS:
        assert panel in output


@pytest.mark.parametrize("command", ["", "search", "tools", "tools gc", "sources list"])
def test_help_names_no_type_for_options_without_a_value(command):
    output = CliRunner().invoke(cli.app, [*command.split(), "--help"]).output

    assert "--help" in output
    assert "bool" not in output


def test_version_is_the_one_in_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    output = CliRunner().invoke(cli.app, ["--version"]).output

    assert output == f"freshet {project['version']}\n"


def test_help_imports_nothing_slow():
    code = (
        "import sys; from typer.testing import CliRunner; from orchestration.cli import app;"
        "result = CliRunner().invoke(app, ['--help']);"
        "print(result.exit_code, sorted(set(sys.modules) & set(sys.argv[1:])))"
    )

    result = subprocess.run(
        [sys.executable, "-c", code, *SLOW_MODULES], capture_output=True, text=True, check=True
    )

    assert result.stdout == "0 []\n"


def test_control_characters_are_escaped_and_json_stays_json(capsys):
    title = "a\x1b[2J\x07 \x9b31m \u202etxt.exe\u2066 \udce9 tab\t end\nline"
    escaped = r"a\u001b[2J\u0007 \u009b31m \u202etxt.exe\u2066 \udce9 tab	 end" + "\nline\n"

    print_message(title)
    assert capsys.readouterr().out == escaped

    print_message(json.dumps({"title": title}, ensure_ascii=False))
    assert json.loads(capsys.readouterr().out) == {"title": title}


def test_control_characters_of_errors_are_escaped(run_failing_command, capsys):
    run_failing_command(FreshetError("no document '\x1b]0;gone\x07'"))

    assert capsys.readouterr().err == "error: no document '\\u001b]0;gone\\u0007'\n"
