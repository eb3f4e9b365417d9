"""Guards what the command line says when it is interrupted, or given what no command can use."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys

import pytest
import typer
from mlflow.exceptions import MlflowException
from typer.testing import CliRunner

from model_code.errors import FreshetError, SettingsError
from model_code.text.words import print_message
from orchestration import cli
from orchestration.cli import pages
from orchestration.registry import release


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The folder of a project, in which commands run."""
    for name in ("params.yaml", "dvc.yaml"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def failing(monkeypatch):
    """Run a command line whose only command raises the given error; returns how it ended."""

    def run(error: BaseException, *arguments: str) -> SystemExit:
        app = typer.Typer(pretty_exceptions_enable=False)

        @app.command()
        def build() -> None:
            raise error

        monkeypatch.setattr(cli, "app", app)
        monkeypatch.setattr(sys, "argv", ["freshet", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value

    return run


@pytest.mark.parametrize("checkpoint", [False, True])
def test_ctrl_c_says_what_is_kept(project, failing, capsys, checkpoint):
    if checkpoint:
        (project / ".freshet" / "checkpoints" / "key" / "step_2").mkdir(parents=True)
    assert failing(KeyboardInterrupt()).code == 130
    resumes = ", training resumes from its last checkpoint" * checkpoint
    assert capsys.readouterr().err == f"stopped; finished stages are kept{resumes}\n"


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
def test_what_the_surroundings_refuse_is_one_line(failing, capsys, error):
    assert failing(error).code == 1
    words = " ".join(str(error).split())
    assert (
        capsys.readouterr().err == f"error: {type(error).__name__}: {words} (--debug shows where)\n"
    )


def test_a_fault_of_the_code_and_debug_show_a_traceback(failing):
    with pytest.raises(ZeroDivisionError):
        failing(ZeroDivisionError())
    with pytest.raises(OSError, match="full"):
        failing(OSError("full"), "--debug")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("ui --dagster-port 0", "--dagster-port"),
        ("ui --dagster-port 99999", "--dagster-port"),
        ("ui --mlflow-port 0", "--mlflow-port"),
        ("ui --mlflow-port 99999", "--mlflow-port"),
        ("retrain --pilot 100 --dry-run", "no --key and no --dry-run"),
        ("retrain --pilot 100 --key first", "no --key and no --dry-run"),
    ],
)
def test_an_option_that_no_command_can_heed_is_refused(project, monkeypatch, command, told):
    monkeypatch.setattr(pages, "serve_pages", lambda *ports: pytest.fail("the pages were started"))
    refused = CliRunner().invoke(cli.app, command.split())
    assert refused.exit_code == 2
    assert told in " ".join(refused.output.split())


def test_a_rollback_of_one_retriever_alone_names_rewind(monkeypatch):
    monkeypatch.setattr(
        release, "rollback", lambda project: pytest.fail("the champion was rolled back")
    )
    with pytest.raises(
        SettingsError, match="go back in all of them.*freshet rewind --retriever hce"
    ):
        CliRunner().invoke(cli.app, ["rollback", "--retriever", "hce"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["write-queries", "--limit", "3"],
            "freshet write-queries is gone: write queries yourself",
        ),
        (["tune-additions", "--trials", "3"], "freshet tune-additions is gone: docs/incdsi.md"),
        (
            ["tools", "documents", "scipy"],
            "freshet documents is gone: `freshet sync` follows the packages",
        ),
        (["gc"], "freshet gc is `freshet tools gc` now"),
    ],
)
def test_a_command_that_is_gone_or_moved_names_what_does_its_work(
    monkeypatch, capsys, arguments, told
):
    monkeypatch.setattr(sys, "argv", ["freshet", *arguments])
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    assert told in capsys.readouterr().err


def test_help_imports_nothing_slow():
    code = (
        "import sys; from typer.testing import CliRunner; from orchestration.cli import app;"
        "print(CliRunner().invoke(app, ['--help']).exit_code, sorted(set(sys.modules) & set(sys.argv[1:])))"
    )
    slow = [
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
    ]
    done = subprocess.run(
        [sys.executable, "-c", code, *slow], capture_output=True, text=True, check=True
    )
    assert done.stdout == "0 []\n"


def test_what_others_wrote_commands_no_terminal_and_json_stays_json(capsys):
    title = "a\x1b[2J\x07 \x9b31m \u202etxt.exe\u2066 \udce9 tab\t end\nline"
    print_message(title)
    assert (
        capsys.readouterr().out
        == r"a\u001b[2J\u0007 \u009b31m \u202etxt.exe\u2066 \udce9 tab	 end" + "\nline\n"
    )
    print_message(json.dumps({"title": title}, ensure_ascii=False))
    assert json.loads(capsys.readouterr().out) == {"title": title}


def test_an_error_that_quotes_a_title_is_escaped_too(failing, capsys):
    failing(FreshetError("no document '\x1b]0;gone\x07'"))
    assert capsys.readouterr().err == "error: no document '\\u001b]0;gone\\u0007'\n"
