"""Guards the service of a copy that follows a published collection, and a service that publishes.

Run: python -m pytest tests/freshet/test_following.py
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from model_code.collection.follow.follower import Follower
from model_code.collection.follow.head import read_head
from model_code.collection.follow.publish import publish
from model_code.collection.follow.signature import KEY_VARIABLE
from model_code.collection.follow.storage import SharedStorage
from model_code.collection.index.live_index import LiveIndex
from model_code.project import Project
from orchestration.cli.app import app
from orchestration.service import following
from orchestration.service.app import create_app
from orchestration.service.following import FollowThread, PublishThread

KEY = "a key of both sides, which is long"


@pytest.fixture
def writer(project, tmp_path) -> Project:
    """A copy of the project, which is changed and published."""
    return Project(Path(shutil.copytree(project.root, tmp_path / "writer")))


@pytest.fixture
def target(tmp_path) -> str:
    return str(tmp_path / "shared")


@pytest.fixture
def follower(writer, target, tmp_path) -> Follower:
    publish(writer, target, KEY.encode())
    follower = Follower(tmp_path / "copy", target, KEY.encode(), "reader")
    follower.update()
    return follower


@pytest.fixture
def client(follower, monkeypatch):
    # Updates are made by the test, so that it need not wait for them.
    monkeypatch.setattr(FollowThread, "start", lambda self: None)
    with TestClient(create_app(follower.project, follower=follower)) as client:
        yield client


def add(project: Project, document_id: str, text: str) -> None:
    index = LiveIndex(project)
    index.receive([{"_id": document_id, "title": document_id, "text": text}], "test")
    index.apply()


def test_copy_is_searched_and_follows(client, follower, writer, target):
    add(writer, "zip.open", "Open a zip archive and read its members.")
    publish(writer, target, KEY.encode())

    FollowThread(follower).update_once()
    client.app.state.service.searchers.refresh()

    found = client.post("/search", json={"text": "zip archive members", "k": 1}).json()
    assert found["hits"][0]["document_id"] == "zip.open"


def test_copy_refuses_changes_and_feedback(client):
    row = {"_id": "x", "text": "y"}
    opinion = {"query": "zip", "document_id": "str.split", "verdict": "up"}

    added = client.post("/documents", json={"documents": [row]})
    thumb = client.post("/feedback", json=opinion)

    assert added.status_code >= 400
    assert "its writer" in added.json()["error"]
    assert thumb.status_code >= 400
    assert "its writer" in thumb.json()["error"]


def test_status_of_copy_reports_its_lag(client, target):
    status = client.get("/status").json()

    assert status["ready"]
    assert status["reason"] is None
    assert status["following"]["target"] == target
    assert status["following"]["sequence"] == 1
    assert status["following"]["behind"] == 0


def test_metrics_of_copy_report_a_failure(client, follower, tmp_path):
    (tmp_path / "shared/head.json").write_text("torn")
    FollowThread(follower).update_once()

    metrics = client.get("/metrics").text

    assert "freshet_follow_failing 1.0" in metrics
    assert re.search(r"freshet_follow_lag_seconds 0\.0", metrics)
    assert "is torn" in client.get("/status").json()["following"]["failure"]


def test_service_publishes_each_generation(writer, target):
    thread = PublishThread(writer, target, KEY.encode())
    thread.publish_once()
    add(writer, "zip.open", "Open a zip archive.")

    thread.publish_once()

    head = read_head(SharedStorage(target), KEY.encode())
    assert head.sequence == 2
    assert head.generation == 1


def test_failed_publication_is_reported_and_repeated(writer, target, tmp_path):
    thread = PublishThread(writer, target, KEY.encode())
    (tmp_path / "shared").write_text("a file where the folder should be")
    thread.publish_once()
    assert "shared failed at" in thread.failure
    (tmp_path / "shared").unlink()

    thread.publish_once()

    assert thread.failure is None


def test_unexpected_error_of_a_publication_is_reported(writer, target, monkeypatch):
    def fail(*arguments):
        raise ValueError("no JSON")

    monkeypatch.setattr(following, "publish", fail)
    thread = PublishThread(writer, target, KEY.encode())

    thread.publish_once()

    assert thread.failure == "no JSON"


def test_setting_makes_the_service_publish(writer, target, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.setattr(PublishThread, "start", lambda self: self.publish_once())
    text = writer.params_file.read_text().rstrip().removesuffix("}")
    writer.params_file.write_text(f"{text}, live: {{publish: {target!r}}}}}")

    with TestClient(create_app(writer)) as client:
        assert client.get("/status").json()["publish_failure"] is None

    assert read_head(SharedStorage(target), KEY.encode()).sequence == 1


def test_command_publishes(writer, target, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.chdir(writer.root)

    done = CliRunner().invoke(app, ["publish", target])

    assert "now has generation 0 of hce (number 1); folders: 1 uploaded" in done.output


def test_copy_shows_its_status_without_a_ledger(follower, writer, target, monkeypatch):
    add(writer, "zip.open", "Open a zip archive.")
    publish(writer, target, KEY.encode())
    follower.update()
    monkeypatch.chdir(follower.project.root)

    shown = CliRunner().invoke(app, ["status"])

    assert shown.exception is None, shown.output
