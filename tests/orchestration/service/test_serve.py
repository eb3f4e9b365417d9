"""Test `freshet serve` as a process with its real parts.

Changes over HTTP and of other processes become searchable, the command line uses the service, and
SIGTERM ends it after the work that it began.
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

import psutil
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
    passages = f"{{words: {RULES.words}, stride: {RULES.stride}}}"
    (root / "params.yaml").write_text(f"{{retrievers: {{hce: {{}}}}, passages: {passages}}}")
    (root / "dvc.yaml").touch()
    make_build(root / "build").open(root)
    return Project(root)


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Project:
    return make_project(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    environment = {}
    for name, value in os.environ.items():
        if not name.startswith("FRESHET_"):
            environment[name] = value
    environment["PYTHONPATH"] = str(ROOT)
    environment["OMP_NUM_THREADS"] = "1"
    return environment


@pytest.fixture(scope="module")
def start(project, environment):
    """Start the service and return once it is registered; remaining processes are killed."""
    processes = []

    def run(*command: str, served: Project = project) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *command, "serve", "--port", "0"],
            cwd=served.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        deadline = time.monotonic() + 60
        while service_registration(served.state) is None:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def process(start):
    return start("-m", "orchestration.cli")


@pytest.fixture
def client(project, process) -> Client:
    return find_running_service(project)


@pytest.fixture
def freshet(project, environment):
    """Run a command of the command line and return its output."""

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "orchestration.cli", *arguments]
        completed = subprocess.run(
            command, cwd=project.root, env=environment, capture_output=True, text=True
        )
        return completed.stdout + completed.stderr

    return run


def metrics(client: Client) -> str:
    with urlopen(f"{client.url}/metrics") as page:
        return page.read().decode()


def first_id(client: Client, text: str) -> str:
    return client.search(text, 1).hits[0].document_id


# The tests of this module share one service. This test runs before any change.
def test_reading_status_creates_no_ledger(project, client):
    assert "freshet_lag_seconds 0.0" in metrics(client)
    assert not (project.live / "ledger.sqlite").exists()


def test_added_document_is_searchable_at_once(client):
    added = client.add([NEW, {"_id": "bad"}])

    assert added.searchable is True
    assert added.generation == 1
    assert len(added.events) == 1
    (rejected,) = added.rejected
    assert rejected.row == 2
    assert rejected.document_id == "bad"
    assert first_id(client, "join words of a list") == "str.join"


def test_unchanged_document_makes_no_generation(client):
    client.add([NEW])
    generation = client.status()["open"][0]["generation"]

    added = client.add([NEW])

    assert added == ChangeResult(
        True, generation, received=1, unchanged=1, rejected=[], events=[], matched=[]
    )


def test_changed_document_is_searchable_at_once(client):
    client.add([NEW])

    client.add([{**NEW, "text": "Wait for nothing."}])

    hits = client.search("nothing", 9).hits
    texts = [hit.text for hit in hits if hit.document_id == "str.join"]
    assert texts == ["Wait for nothing."]


def test_deleted_document_is_gone_at_once(client):
    client.add([NEW])
    generation = client.status()["open"][0]["generation"]

    deleted = client.delete(["str.join"])

    assert deleted.generation > generation
    assert "str.join" not in [hit.document_id for hit in client.search("str.join", 100).hits]
    assert "freshet_lag_seconds 0.0" in metrics(client)


def test_client_raises_refusals_of_the_service(client):
    with pytest.raises(InvalidRequest, match="answered by the service"):
        client.search("x", filters=["colour=red"])


def test_changes_of_another_process_are_served(project, client):
    before = client.status()["open"][0]["generation"]
    row = {"_id": "os.walk", "title": "os.walk", "text": "Walk the tree below a folder."}
    index = LiveIndex(project)
    index.receive([row], "other")
    # The service also looks for waiting changes. If it was first, nothing is left to apply here.
    index.apply()

    deadline = time.monotonic() + 30
    while client.status()["open"][0]["generation"] <= before:
        assert time.monotonic() < deadline
        time.sleep(0.02)

    assert first_id(client, "walk the tree below a folder") == "os.walk"
    assert client.status()["freshness"]["ledger"]["lag"]["pending"] == 0


def test_command_line_finds_the_same_hits(project, client, freshet):
    output = freshet("search", "split a string", "--json", "-k", "3", "--filter", "tags=text")

    records = json.loads(output)
    hits = Searcher.open(project.live).search("split a string", 3, ["tags=text"])
    expected = [hit_record(hit) for hit in hits]
    assert records == json.loads(json.dumps(expected))
    assert len(records) == 2


def test_command_line_names_the_service_that_refused(client, freshet):
    output = freshet("search", "x", "--filter", "colour=red")

    assert output.startswith("error: no document has a field 'colour'")
    assert output.rstrip().endswith(f"(answered by the service at {client.url})")


def test_served_project_is_not_served_again(client, freshet):
    output = freshet("serve", "--port", "0")

    assert f"this project is served already at {client.url}" in output


def test_searcher_and_index_share_the_encoder(tmp_path):
    service = Service(make_project(tmp_path))

    def index_searcher() -> Searcher:
        return service.index().builder.searcher

    assert index_searcher().base is service.searchers.current().base
    service.index().receive([NEW], "test")
    service.index().apply()

    # Another build of the same retriever goes live.
    make_build(tmp_path / "other", seed=1).open(tmp_path)
    assert index_searcher().base is service.searchers.current().base

    # Another retriever goes live.
    make_build(tmp_path / "third", seed=2).open(tmp_path, "plain")
    assert index_searcher().base is service.searchers.current().base
    assert index_searcher().generation.retriever == "plain"


def test_service_applies_recorded_changes_before_it_ends(project, process, client):
    rows = []
    for i in range(50):
        rows.append({"_id": f"late.{i}", "title": "late", "text": f"Number {i} came late."})
    receipt = client.add(rows, wait=False)

    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=30)

    assert receipt.searchable is False
    assert len(receipt.events) == 50
    assert process.returncode == 0
    assert errors == ""
    assert output.splitlines()[-1] == "stopped; everything that was received is kept"
    assert not (project.state / "service.json").exists()
    assert find_running_service(project) is None
    index = LiveIndex(project)
    assert index.ledger_view.backlog().number == 0
    assert index.apply() is None


def test_first_change_starts_a_process_that_ends_with_the_service(tmp_path, start):
    served_project = make_project(tmp_path)
    process = start("-m", "orchestration.cli", served=served_project)
    client = find_running_service(served_project)
    service_process = psutil.Process(process.pid)
    client.search("split a string")
    assert service_process.children() == []

    client.add([NEW])
    (apply_process,) = service_process.children()
    assert "orchestration.service.apply_worker" in apply_process.cmdline()
    process.kill()

    _, alive = psutil.wait_procs([apply_process], timeout=30)
    assert alive == []


@pytest.mark.skipif(not Path("/proc/self/maps").is_file(), reason="needs Linux's /proc")
def test_service_does_not_import_pytorch(tmp_path, start):
    served_project = make_project(tmp_path)
    process = start("-m", "orchestration.cli", served=served_project)
    client = find_running_service(served_project)

    client.search("split a string")
    client.add([NEW])
    client.search("split a string")
    # The service opens the index for this, as it does to delete old generations.
    client.delete(filters={"package": "str"})

    assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()


# The same server with shorter limits.
IMPATIENT_SERVER = """
import orchestration.service.server as server
from orchestration.cli import main

server.STOP_SECONDS = 3
server.REQUEST_SECONDS = 1
main()
"""


def test_service_stops_in_time_despite_held_lock(project, start):
    process = start("-c", IMPATIENT_SERVER)
    client = find_running_service(project)
    first_row = {"_id": "held.0", "title": "held", "text": "Number 0 is held up."}
    second_row = {"_id": "held.1", "title": "held", "text": "Number 1 is held up."}

    with file_lock(project.live / WRITER_LOCK), ThreadPoolExecutor(1) as pool:
        assert client.add([first_row], wait=False).events
        pending_change = pool.submit(client.add, [second_row])
        while client.status()["freshness"]["ledger"]["lag"]["pending"] < 2:
            time.sleep(0.02)
        assert client.status()["ready"]
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=20)
        receipt = pending_change.result()

    assert receipt.searchable is False
    assert len(receipt.events) == 1
    assert process.returncode == 0
    assert output.splitlines()[-1].startswith(
        "stopped; changes that could not be made searchable in time are in the ledger"
    )
    assert errors == "" or errors.startswith(f"waiting: process {os.getpid()} (")
    assert LiveIndex(project).ledger_view.backlog().number == 2


def test_inbox_is_received_without_the_sensor(tmp_path, monkeypatch):
    project = make_project(tmp_path)
    (project.root / "inbox").mkdir()
    (project.root / "inbox/new.jsonl").write_text(json.dumps(NEW) + "\n{\n")
    monkeypatch.setattr(service, "INBOX_SECONDS", 0.05)
    running_service = Service(project)
    running_service.start()
    try:
        deadline = time.monotonic() + 60
        while not (project.root / "inbox/done/new.jsonl").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        while "str.join" not in running_service.searchers.newest_of("hce").documents(["str.join"]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        assert running_service.stop(30)
