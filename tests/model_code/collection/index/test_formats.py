"""Tests that a ledger or a generation of another format is refused and stays as it is."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from model_code.collection.backup.repair import find_damage, repair
from model_code.collection.generations.generation import FORMAT
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.ledger.database import LEDGER_FORMAT
from model_code.errors import FreshetError
from model_code.files import MANIFEST, hash_path, read_json, write_json
from model_code.project import Project
from tests.live_example import make_project, receive


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = make_project(tmp_path)
    receive(project, "new-1")
    return project


def assert_refuses_format(project: Project, number: int) -> None:
    """Every way to use the project is refused in one line that names both commands."""
    message = re.compile(rf"format {number}\b.*freshet export --all.*freshet import$")
    assert message.search(next(iter(find_damage(project))))
    with pytest.raises(FreshetError, match=message):
        LiveIndex(project).apply()
    with pytest.raises(FreshetError, match=message):
        repair(project)


@pytest.mark.parametrize("number", [LEDGER_FORMAT - 1, LEDGER_FORMAT + 1])
def test_ledger_of_another_format_is_refused(project: Project, number: int) -> None:
    ledger = project.live / "ledger.sqlite"
    with closing(sqlite3.connect(ledger)) as connection, connection:
        connection.execute(f"UPDATE ledger_version SET version = {number}")
    with closing(sqlite3.connect(ledger)) as connection:
        before = list(connection.iterdump())

    assert_refuses_format(project, number)

    with closing(sqlite3.connect(ledger)) as connection:
        assert list(connection.iterdump()) == before


@pytest.mark.parametrize("number", [FORMAT - 1, FORMAT + 1])
def test_generation_of_another_format_is_refused(project: Project, number: int) -> None:
    folder = LiveIndex(project).generation.folder
    write_json(folder / MANIFEST, {**read_json(folder / MANIFEST), "format": number})
    before = hash_path(project.live / "hce")

    assert_refuses_format(project, number)
    with pytest.raises(FreshetError, match=f"format {number}"):
        Searcher.open(project.live)

    assert hash_path(project.live / "hce") == before


def test_manifest_keys_are_those_of_format_8(project: Project) -> None:
    """A change of the keys needs a new number: another version could not read the manifest."""
    manifest = LiveIndex(project).generation.manifest

    assert FORMAT == 8
    assert set(manifest) == {
        "base",
        "build",
        "checksums",
        "documents",
        "fingerprint",
        "format",
        "known",
        "parent",
        "passages",
        "position",
        "provenance",
        "removed",
        "replay",
        "retriever",
        "segments",
        "text",
        "trained",
        "tuned",
    }
