"""Guards the output of commands on terminals of other encodings than UTF-8."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


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
