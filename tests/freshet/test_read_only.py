"""Guards that a project without permission to write is searched, served and shown."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import freshet
from model_code.collection.index.live_index import LiveIndex
from model_code.project import Project
from orchestration.cli.app import app

NOBODY = 65_534


@pytest.fixture
def read_only(project, tmp_path) -> Iterator[Project]:
    """A copy of the project with a ledger, whose folders this process may not write."""
    root = tmp_path / "project"
    shutil.copytree(project.root, root)
    with freshet.Project.open(root) as opened:
        opened.add([{"_id": "zip.open", "title": "zip.open", "text": "Open a zip archive."}])
    (root / "inbox").mkdir(exist_ok=True)
    (root / "inbox" / "late.jsonl").write_text('{"_id": "late", "text": "Late."}')
    paths = [root, *root.rglob("*")]
    for path in paths:
        mode = 0o555 if path.is_dir() else 0o444
        path.chmod(mode)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    tmp_path.chmod(0o755)

    user = os.geteuid()
    if user == 0:
        # The permissions of files do not bind root.
        os.seteuid(NOBODY)
    try:
        yield Project(root)
    finally:
        os.seteuid(user)
        for path in paths:
            if path.exists():
                path.chmod(0o755)


def test_read_only_project_is_searched_and_shown(read_only, monkeypatch):
    monkeypatch.chdir(read_only.root)
    assert read_only.is_read_only

    found = CliRunner().invoke(app, ["search", "open an archive", "-k", "1"])
    shown = CliRunner().invoke(app, ["status"])

    assert "zip.open" in found.output, found.exception
    assert "searched by default" in shown.output, shown.exception
    assert "lag         none waiting" in shown.output


def test_read_only_project_is_served_without_changes(read_only):
    with freshet.Project.open(read_only.root) as opened:
        assert opened.search("open an archive", 1).hits[0].document_id == "zip.open"
        assert opened.status()["ready"]
        with pytest.raises(freshet.InvalidRequest, match="cannot be written by the user of this"):
            opened.add([{"_id": "x", "text": "y"}])
        with pytest.raises(freshet.InvalidRequest, match="cannot be written by the user of this"):
            opened.sync(dry_run=True)
        with pytest.raises(freshet.InvalidRequest, match="cannot be written by this user"):
            opened.feedback("zip", "zip.open", "up")


def test_read_only_service_leaves_the_inbox_alone(read_only):
    with freshet.Project.open(read_only.root) as opened:
        # An error would be logged at every look into the inbox.
        opened.service.receive_inbox()

    assert (read_only.root / "inbox" / "late.jsonl").exists()


def test_read_only_project_refuses_changes_in_one_line(read_only):
    with pytest.raises(freshet.FreshetError, match="cannot be written"):
        LiveIndex(read_only).remove(["zip.open"], "test")
