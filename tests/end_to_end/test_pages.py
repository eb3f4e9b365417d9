"""Guards `freshet ui`: a hostile page gets nothing from any port that it opens, and its own pages go on working.

Run: python -m pytest tests/end_to_end/test_pages.py
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import httpx
import psutil
import pytest

from tests.end_to_end.tiny_project import environment, make_project

HOSTILE = [
    ("GET", "/graphql?query={version}", {"sec-fetch-site": "cross-site", "sec-fetch-dest": "image"}),
    ("GET", "/graphql?query=mutation{x}", {}),
    ("POST", "/graphql", {"origin": "http://evil.example", "content-type": "text/plain"}),
    ("POST", "/ajax-api/2.0/mlflow/experiments/create", {"origin": "http://evil.example"}),
    ("POST", "/graphql", {"host": "evil.example"}),
    ("GET", "/", {"host": "evil.example"}),
]


@pytest.fixture(scope="module")
def ports(tmp_path_factory):
    """The two pages' ports, and every port that the processes of `freshet ui` listen on."""
    project = make_project(tmp_path_factory.mktemp("pages") / "project")
    command = [sys.executable, "-m", "orchestration.cli", "ui", "--dagster-port", "3971", "--mlflow-port", "5971"]
    process = subprocess.Popen(command, cwd=project, env=environment(), stdout=subprocess.PIPE)
    try:
        for port in (3971, 5971):
            _wait(lambda port=port: httpx.get(f"http://127.0.0.1:{port}/").status_code == 200, process)
        _wait(lambda: "freshness" in _ask("{sensorsOrError(repositorySelector:{repositoryName:\"__repository__\","
              "repositoryLocationName:\"freshet\"}){... on Sensors{results{name}}}}").text, process)  # fmt: skip
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        yield {
            connection.laddr.port
            for one in family
            for connection in one.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def _ask(query: str) -> httpx.Response:
    return httpx.post(
        "http://127.0.0.1:3971/graphql", json={"query": query}, headers={"origin": "http://127.0.0.1:3971"}
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


def test_both_pages_are_there_and_nothing_else_listens(ports):
    assert ports == {3971, 5971}


@pytest.mark.parametrize(("method", "path", "headers"), HOSTILE)
def test_a_hostile_page_is_refused_at_every_port(ports, method, path, headers):
    for port in ports:
        answered = httpx.request(
            method, f"http://127.0.0.1:{port}{path}", headers=headers, content=b"{}" * (method == "POST")
        )
        assert answered.status_code == 403


def test_what_the_page_itself_asks_is_answered(ports):
    assert _ask("{version}").json()["data"]["version"]
