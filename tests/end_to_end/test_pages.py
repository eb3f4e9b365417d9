"""Guards `freshet ui` and `freshet serve`: a hostile page gets nothing from any port, their own pages all they ask for.

Run: python -m pytest tests/end_to_end/test_pages.py
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.end_to_end.tiny_project import environment, make_project


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


DAGSTER, MLFLOW, SERVICE = _free_ports(3)
EVIL = {"origin": "http://evil.example", "sec-fetch-site": "cross-site"}
UPGRADE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}
HOSTILE = {
    "image": ("GET", "/graphql?query={version}", {"sec-fetch-site": "cross-site", "sec-fetch-dest": "image"}),
    "image of a search": ("GET", "/search?text=x", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}),
    "frame": ("GET", "/", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}),
    "GET that changes": ("GET", "/graphql?query=mutation{x}", {}),
    "form": ("POST", "/graphql", EVIL | {"content-type": "application/x-www-form-urlencoded"}),
    "form of a sandboxed frame": ("POST", "/documents/apply", {"origin": "null", "sec-fetch-site": "cross-site"}),
    "fetch no-cors": ("POST", "/documents", EVIL | {"content-type": "text/plain", "sec-fetch-mode": "no-cors"}),
    "another port": ("POST", "/ajax-api/2.0/mlflow/experiments/create", {"origin": "http://127.0.0.1:8000"}),
    "preflight": ("OPTIONS", "/documents/a", EVIL | {"access-control-request-method": "DELETE"}),
    "connection": ("GET", "/graphql", EVIL | UPGRADE),
    "rebound name": ("POST", "/graphql", {"host": "evil.example", "sec-fetch-site": "same-origin"}),
    "rebound name, opened": ("GET", "/", {"host": "evil.example"}),
}


@pytest.fixture(scope="module")
def ports(tmp_path_factory):
    """The three doors' ports, which are all that the processes of `freshet ui` and `freshet serve` listen on."""
    project = make_project(tmp_path_factory.mktemp("pages") / "project")
    told = project.parent / "told"
    family = [_start(project, told, "ui", "--dagster-port", str(DAGSTER), "--mlflow-port", str(MLFLOW)),
              _start(project, project.parent / "served", "serve", "--port", str(SERVICE))]  # fmt: skip
    try:
        for port, process in ((DAGSTER, family[0]), (MLFLOW, family[0]), (SERVICE, family[1])):
            path = "health/live" if port == SERVICE else ""
            _wait(lambda page=f"{port}/{path}": httpx.get(f"http://127.0.0.1:{page}").status_code == 200, process)
        _wait(lambda: "freshness" in _ask("{sensorsOrError(repositorySelector:{repositoryName:\"__repository__\","
              "repositoryLocationName:\"freshet\"}){... on Sensors{results{name}}}}").text, family[0])  # fmt: skip
        processes = [psutil.Process(each.pid) for each in family]
        yield {
            connection.laddr.port
            for one in [*processes, *(child for each in processes for child in each.children(recursive=True))]
            for connection in one.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
    finally:
        before = told.read_text()
        for process in family:
            process.send_signal(signal.SIGINT)
        assert [process.wait(30) for process in family] == [0, 0]
        assert told.read_text().removeprefix(before) == "stopped\n"


def _start(project: Path, told: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "orchestration.cli", *arguments]
    with told.open("wb") as output:
        return subprocess.Popen(command, cwd=project, env=environment(), stdout=output, stderr=output)


def _ask(query: str) -> httpx.Response:
    return httpx.post(
        f"http://127.0.0.1:{DAGSTER}/graphql", json={"query": query}, headers={"origin": f"http://127.0.0.1:{DAGSTER}"}
    )


def _wait(condition, process, seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        assert process.poll() is None
        try:
            if condition():
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_the_three_doors_are_there_and_nothing_else_listens(ports):
    assert ports == {DAGSTER, MLFLOW, SERVICE}


@pytest.mark.parametrize("attempt", HOSTILE)
def test_a_hostile_page_is_refused_at_every_port(ports, attempt):
    method, path, headers = HOSTILE[attempt]
    for port in ports:
        body = b"{}" if method == "POST" else None
        answered = httpx.request(method, f"http://127.0.0.1:{port}{path}", headers=headers, content=body)
        assert answered.status_code == 403


def test_what_the_page_itself_asks_is_answered(ports):
    assert _ask("{version}").json()["data"]["version"]
    own = {"origin": f"http://127.0.0.1:{SERVICE}", "sec-fetch-site": "same-origin"}
    asked = httpx.post(f"http://127.0.0.1:{SERVICE}/search", json={"text": "x"}, headers=own)
    assert (asked.status_code, "nothing is live" in asked.text) == (503, True)
