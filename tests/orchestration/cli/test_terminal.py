"""Guards the output of commands on terminals of other encodings than UTF-8."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from orchestration.cli import decode_argument


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-16"])
def test_letters_that_the_terminal_lacks_are_escaped(encoding, tmp_path):
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    command = "import sys; sys.argv = ['freshet', 'search', 'x']; import orchestration.cli as c"
    fake = "c.app = lambda arguments: print('Größe 🐟 排'); c.main()"

    finished = subprocess.run(
        [sys.executable, "-c", f"{command}; {fake}"], env=environment, capture_output=True
    )

    assert finished.returncode == 0, finished.stderr
    expected = "Größe 🐟 排".encode(encoding, "backslashreplace").decode(encoding)
    assert finished.stdout.decode(encoding).strip() == expected


def test_query_is_understood_in_a_locale_without_utf8():
    environment = {**os.environ, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "POSIX"}
    command = "import orchestration.cli as c; c.app = lambda a: print(ascii(a)); c.main()"

    finished = subprocess.run(
        [sys.executable, "-c", command, "search", "Straße", "--filter=name=Größe", b"\xff"],
        env=environment,
        capture_output=True,
    )

    expected = ascii(["search", "Straße", "--filter=name=Größe", "\udcff"])
    assert finished.stdout.decode().strip() == expected


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_command_runs_without_its_output_streams(closed, tmp_path):
    script = tmp_path / "run.py"
    script.write_text("import freshet.command as c; c.main()")
    errors = tmp_path / "errors"

    finished = subprocess.run(
        ["sh", "-c", f"({sys.executable} {script} --version {closed}) 2>{errors}"]
    )

    assert finished.returncode == 0
    assert errors.read_text() == ""


def test_names_of_files_are_not_decoded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode("größe.md".encode("latin-1"))
    (tmp_path / name).write_text("text")

    assert decode_argument(name) == name
    assert decode_argument(f"--from={name}") == f"--from={name}"
