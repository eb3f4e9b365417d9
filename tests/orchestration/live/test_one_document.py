"""Holds the way of one document short: what `freshet add` passes through, and what a new process imports for it.

Aims are 30 files, 400 moves, 150 functions and 70 modules; the limits are what is reached, so that it only shortens.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestration.cli.app import app
from orchestration.project import Project

ROOT = Path(__file__).parents[3]
OURS = tuple(f"{ROOT / package}/" for package in ("model_code", "orchestration", "assets"))
FILES, MOVES, FUNCTIONS, MODULES = 33, 322, 261, 63

COLD = """
import json, sys
from typer.testing import CliRunner
from orchestration.cli.app import app
CliRunner().invoke(app, ["add", "one.jsonl"], catch_exceptions=False)
print(json.dumps(sorted(name for name in sys.modules if name.split(".")[0] in ("model_code", "orchestration"))))
"""


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The way that the body takes, in all of its threads: the project's files and named functions that were called, and
    how often a call lay in another file than the one before it of the same thread. It may start no process, whose way
    would not be seen.
    """
    way, last = SimpleNamespace(files=set(), functions=set(), moves=0), {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        file, thread = frame.f_code.co_filename, threading.get_ident()
        if event != "call" or not file.startswith(OURS):
            return
        way.files.add(file.removeprefix(f"{ROOT}/"))
        if not frame.f_code.co_name.startswith("<"):
            way.functions.add((file, frame.f_code.co_qualname))
        way.moves += last.get(thread, file) != file
        last[thread] = file

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
        before = sys.getprofile()
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            yield way
        finally:
            sys.setprofile(before)
            threading.setprofile(None)


@pytest.fixture
def drop(own: Project, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Writes a file with one document and returns the command that adds it."""
    monkeypatch.chdir(own.root)

    def write(name: str) -> list[str]:
        (own.root / "one.jsonl").write_text(json.dumps({"id": name, "title": name, "text": "some words of it"}) + "\n")
        return ["add", "one.jsonl"]

    return write


def add(arguments: list[str]) -> str:
    return CliRunner().invoke(app, arguments, catch_exceptions=False).output


def test_one_document_passes_few_files_and_functions(drop, monkeypatch):
    assert add(drop("warm")).startswith("1 added"), "every import is made"
    arguments = drop("one")
    with recorded(monkeypatch) as way:
        told = add(arguments)
    assert told.startswith("1 added")
    assert len(way.files) <= FILES, sorted(way.files)
    assert (way.moves <= MOVES, len(way.functions) <= FUNCTIONS) == (True, True), (way.moves, len(way.functions))


def test_a_new_process_imports_few_modules(drop):
    drop("one")
    done = subprocess.run([sys.executable, "-c", COLD], capture_output=True, text=True, check=True)
    modules = json.loads(done.stdout.splitlines()[-1])
    assert "orchestration.live.collection" in modules
    assert len(modules) <= MODULES, modules
