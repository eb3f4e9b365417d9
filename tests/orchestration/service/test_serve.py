"""Guards `freshet serve` as a process with the real parts: what is added over HTTP or by another
process is found, the command line uses it, and SIGTERM ends it after what it had begun.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import pytest

from freshet import ChangeResult, Client, InvalidRequest
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.project_ledger import WRITER_LOCK
from model_code.project import Project, file_lock
from orchestration.cli.search import hit_record
from orchestration.running_service import find_running_service, service_registration
from orchestration.service import service
from orchestration.service.service import Service
from tests.model_code.collection.conftest import RULES, make_build

ROOT = Path(__file__).parents[3]
NEW = {
    "_id": "str.join",
    "title": "str.join",
    "text": "Join words of a list into a string.",
    "package": "str",
}


def make_project(root: Path) -> Project:
    settings = (
        f"{{retrievers: {{hce: {{}}}}, passages: {{words: {RULES.words}, stride: {RULES.stride}}}}}"
    )
    (root / "params.yaml").write_text(settings)
    (root / "dvc.yaml").touch()
    make_build(root / "build").open(root)
    return Project(root)


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Project:
    return make_project(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("FRESHET_")
    }
    return inherited | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def start(project, environment):
    """Starts the service, and returns once it has announced itself; what still runs at the end is
    killed.
    """
    processes = []

    def run(*command: str) -> subprocess.Popen[str]:
        started = subprocess.Popen(
            [sys.executable, *command, "serve", "--port", "0"],
            cwd=project.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(started)
        latest = time.monotonic() + 60
        while service_registration(project.state) is None:
            assert started.poll() is None, started.communicate()
            assert time.monotonic() < latest
            time.sleep(0.05)
        return started

    yield run
    for each in processes:
        each.kill()
        each.communicate()


@pytest.fixture(scope="module")
def process(start):
    return start("-m", "orchestration.cli")


@pytest.fixture
def client(project, process) -> Client:
    return find_running_service(project)


@pytest.fixture
def freshet(project, environment):
    """Runs a command of the command line, and gives what it printed."""

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "orchestration.cli", *arguments]
        done = subprocess.run(
            command, cwd=project.root, env=environment, capture_output=True, text=True
        )
        return done.stdout + done.stderr

    return run


def metrics(client: Client) -> str:
    with urlopen(f"{client.url}/metrics") as page:
        return page.read().decode()


def first(client: Client, text: str) -> str:
    return client.search(text, 1).hits[0].document_id


def test_changes_are_searchable_at_once(project, client):
    assert "freshet_lag_seconds 0.0" in metrics(client)
    assert not (project.live / "ledger.sqlite").exists()  # to look makes none
    added = client.add([NEW, {"_id": "bad"}])
    assert (added.searchable, added.generation, len(added.events)) == (True, 1, 1)
    assert [(each.row, each.document_id) for each in added.rejected] == [(2, "bad")]
    assert first(client, "join words of a list") == "str.join"
    assert client.add([NEW]) == ChangeResult(
        True, 1, received=1, unchanged=1, rejected=[], events=[], matched=[]
    )
    client.add([{**NEW, "text": "Wait for nothing."}])
    assert [
        hit.text for hit in client.search("nothing", 9).hits if hit.document_id == "str.join"
    ] == ["Wait for nothing."]
    assert client.delete(["str.join"]).generation == 3
    assert "str.join" not in [hit.document_id for hit in client.search("str.join", 100).hits]
    assert "freshet_lag_seconds 0.0" in metrics(client)
    with pytest.raises(InvalidRequest, match="answered by the service"):
        client.search("x", filters=["colour=red"])


def test_what_another_process_adds_is_swapped_in(project, client):
    before = client.status()["open"][0]["generation"]
    collection = LiveIndex(project)
    collection.receive(
        [{"_id": "os.walk", "title": "os.walk", "text": "Walk the tree below a folder."}], "other"
    )
    number = collection.apply().generation.number
    assert number > before
    latest = time.monotonic() + 30
    while client.status()["open"][0]["generation"] != number:
        assert time.monotonic() < latest
        time.sleep(0.02)
    assert first(client, "walk the tree below a folder") == "os.walk"
    assert client.status()["freshness"]["ledger"]["lag"]["pending"] == 0


def test_command_line_uses_the_service(project, client, freshet):
    printed = json.loads(
        freshet("search", "split a string", "--json", "-k", "3", "--filter", "tags=text")
    )
    hits = Searcher.open(project.live).search("split a string", 3, ["tags=text"])
    assert printed == json.loads(json.dumps([hit_record(hit) for hit in hits]))
    assert len(printed) == 2
    refused = freshet("search", "x", "--filter", "colour=red")
    assert refused.startswith("error: no document has a field 'colour'")
    assert refused.rstrip().endswith(f"(answered by the service at {client.url})")
    assert "this project is served already at " + client.url in freshet("serve", "--port", "0")


def test_searcher_and_index_share_the_encoder(tmp_path):
    service = Service(make_project(tmp_path))

    def writing():
        return service.index().builder.searcher

    assert writing().base is service.searchers.current().base
    service.index().receive([NEW], "test")
    service.index().apply()
    make_build(tmp_path / "other", seed=1).open(tmp_path)
    assert writing().base is service.searchers.current().base, "another build of the same retriever"
    make_build(tmp_path / "third", seed=2).open(tmp_path, "plain")
    assert writing().base is service.searchers.current().base, "another retriever"
    assert writing().generation.retriever == "plain"


def test_it_ends_gracefully(project, process, client):
    receipt = client.add(
        [
            {"_id": f"late.{i}", "title": "late", "text": f"Number {i} came late."}
            for i in range(50)
        ],
        wait=False,
    )
    assert (receipt.searchable, len(receipt.events)) == (False, 50)
    process.send_signal(signal.SIGTERM)
    printed, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert printed.splitlines()[-1] == "stopped; everything that was received is kept"
    assert not (project.state / "service.json").exists()
    assert find_running_service(project) is None
    collection = LiveIndex(project)
    assert collection.ledger_view.backlog().number == 0
    assert collection.apply() is None


def test_service_stops_in_time_despite_held_lock(project, start):
    hurry = "import orchestration.service.server as s; s.STOP_SECONDS, s.REQUEST_SECONDS = 3, 1\n"
    process = start("-c", hurry + "from orchestration.cli import main; main()")
    client = find_running_service(project)
    rows = [
        {"_id": f"held.{i}", "title": "held", "text": f"Number {i} is held up."} for i in range(2)
    ]
    with file_lock(project.live / WRITER_LOCK), ThreadPoolExecutor(1) as pool:
        assert client.add(rows[:1], wait=False).events
        waiting = pool.submit(client.add, rows[1:])
        while client.status()["freshness"]["ledger"]["lag"]["pending"] < 2:
            time.sleep(0.02)
        assert client.status()["ready"]
        process.send_signal(signal.SIGTERM)
        printed, errors = process.communicate(timeout=20)
        assert (waiting.result().searchable, len(waiting.result().events)) == (False, 1)
    assert process.returncode == 0
    assert printed.splitlines()[-1].startswith(
        "stopped; changes that could not be made searchable in time are in the ledger"
    )
    assert errors == "" or errors.startswith(f"waiting: process {os.getpid()} (")
    assert LiveIndex(project).ledger_view.backlog().number == 2


def test_inbox_is_received_without_the_sensor(tmp_path, monkeypatch):
    project = make_project(tmp_path)
    (project.root / "inbox").mkdir()
    (project.root / "inbox/new.jsonl").write_text(json.dumps(NEW) + "\n{\n")
    monkeypatch.setattr(service, "INBOX_SECONDS", 0.05)
    running = Service(project)
    running.start()
    try:
        deadline = time.monotonic() + 60
        while not (project.root / "inbox/done/new.jsonl").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        while "str.join" not in running.searchers.newest_of("hce").documents(["str.join"]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        assert running.stop(30)
