"""Guards how a service is found: while it lives, and never by what a dead one left; and the
client's plain errors.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from freshet import Client, InvalidRequest, NotFoundError, ServiceError, Unavailable
from model_code.errors import FreshetError
from model_code.project import Project
from orchestration.running_service import (
    REGISTRATION_FILE,
    find_running_service,
    register_service,
    service_registration,
)
from orchestration.service.server import _Server

ROOT = Path(__file__).parents[2]
HOLD = """
import sys
from pathlib import Path
from orchestration.running_service import register_service
with register_service(Path(sys.argv[1])) as registration:
    registration.announce("http://127.0.0.1:1", "now")
    print("announced", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that is registered."""
    command, environment = (
        [sys.executable, "-c", HOLD, str(tmp_path)],
        {**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "announced\n"
        yield process
        process.kill()


def test_service_is_registered_once_while_it_runs(tmp_path, holder):
    found = service_registration(tmp_path)
    assert found == {"pid": holder.pid, "url": "http://127.0.0.1:1", "started": "now"}
    message = rf"served already at http://127.0.0.1:1 \(process {holder.pid}\)"
    with pytest.raises(FreshetError, match=message), register_service(tmp_path):
        pass
    assert service_registration(tmp_path) == found


def test_what_a_killed_service_left_is_ignored(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / REGISTRATION_FILE).exists()
    assert service_registration(tmp_path) is None
    with register_service(tmp_path) as registration:
        assert service_registration(tmp_path) is None, (
            "the new one is not ready, and the dead one's address leads nowhere"
        )
        registration.announce("http://127.0.0.1:2", "later")
        assert service_registration(tmp_path)["pid"] == os.getpid()
    assert not (tmp_path / REGISTRATION_FILE).exists()
    assert service_registration(tmp_path) is None


def test_registration_ends_when_the_service_stops(tmp_path, monkeypatch):
    found = []

    async def shutdown(self, sockets):
        found.append(service_registration(tmp_path))

    monkeypatch.setattr("uvicorn.Server.shutdown", shutdown)
    assert find_running_service(Project(tmp_path)) is None
    assert not (tmp_path / ".freshet").exists()
    with register_service(tmp_path) as registration:
        assert service_registration(tmp_path) is None
        registration.announce("http://127.0.0.1:1", "now")
        assert service_registration(tmp_path)["url"] == "http://127.0.0.1:1"
        server = object.__new__(_Server)  # whose beginning takes the signals of this process
        server.registration, server.service = registration, SimpleNamespace(ingest_queue=Mock())
        asyncio.run(server.shutdown())
    assert found == [None]


def test_silent_service_is_one_line():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(Unavailable, match=f"the service at {url} does not answer"):
            Client(url).search("x")


@pytest.mark.parametrize(
    ("status", "body", "message", "kind"),
    [
        (
            503,
            b'{"error": "come later"}',
            r"come later \(answered by the service at http",
            Unavailable,
        ),
        (422, b'{"error": "no field"}', "no field", InvalidRequest),
        (404, b'{"error": "no document"}', "no document", NotFoundError),
        (200, b"<html>", "is not JSON", ServiceError),
    ],
)
def test_what_a_service_refuses_is_one_line(status, body, message, kind):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(kind, match=message) as caught:
            Client(f"http://127.0.0.1:{server.server_port}").add([{"_id": "ü"}])
        thread.join()
    assert (type(caught.value), caught.value.status) == (kind, status)
    assert caught.value.exit_code == (2 if status == 422 else 1)
    assert "\n" not in str(caught.value)


def test_the_client_imports_nothing_slow():
    code = (
        "import sys; import freshet, orchestration.running_service, orchestration.cli.search;"
        "freshet.Client('http://x'); freshet.AsyncClient('http://x');"
        "slow = {'numpy', 'torch', 'dagster', 'mlflow', 'fastapi', 'pydantic', 'httpx', 'sqlalchemy', 'ruamel.yaml'};"
        "print(sorted(slow & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"
