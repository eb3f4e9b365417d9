"""Tests that clients find a running service, never a killed one, and get plain errors."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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
SLOW_MODULES = (
    "numpy",
    "torch",
    "pandas",
    "dagster",
    "mlflow",
    "fastapi",
    "pydantic",
    "httpx",
    "sqlalchemy",
    "ruamel.yaml",
)
# Registers a service until its standard input is closed.
REGISTER = """
import sys
from pathlib import Path
from orchestration.running_service import register_service
with register_service(Path(sys.argv[1])) as registration:
    registration.announce("http://127.0.0.1:1", "now")
    print("announced", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other_process(tmp_path):
    """Another process that is registered as the service."""
    process = subprocess.Popen(
        [sys.executable, "-c", REGISTER, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout.readline() == "announced\n"
        yield process
        process.kill()


@pytest.fixture
def killed_process(other_process):
    other_process.send_signal(signal.SIGKILL)
    other_process.wait()
    return other_process


def test_running_service_is_found(tmp_path, other_process):
    assert service_registration(tmp_path) == {
        "pid": other_process.pid,
        "url": "http://127.0.0.1:1",
        "started": "now",
    }


def test_second_service_is_refused(tmp_path, other_process):
    message = rf"served already at http://127.0.0.1:1 \(process {other_process.pid}\)"

    with pytest.raises(FreshetError, match=message), register_service(tmp_path):
        pass

    assert service_registration(tmp_path)["pid"] == other_process.pid


def test_killed_service_is_not_found(tmp_path, killed_process):
    assert (tmp_path / REGISTRATION_FILE).exists()
    assert service_registration(tmp_path) is None


def test_new_service_replaces_a_killed_one(tmp_path, killed_process):
    with register_service(tmp_path) as registration:
        # The address of the killed service is not used until the new one is ready.
        assert service_registration(tmp_path) is None
        registration.announce("http://127.0.0.1:2", "later")
        assert service_registration(tmp_path)["pid"] == os.getpid()

    assert not (tmp_path / REGISTRATION_FILE).exists()
    assert service_registration(tmp_path) is None


def test_search_for_a_service_creates_nothing(tmp_path):
    assert find_running_service(Project(tmp_path)) is None
    assert not (tmp_path / ".freshet").exists()


def test_registration_ends_when_the_service_stops(tmp_path, monkeypatch):
    registrations = []

    async def shutdown(self, sockets):
        registrations.append(service_registration(tmp_path))

    monkeypatch.setattr("uvicorn.Server.shutdown", shutdown)
    # The constructor would replace the signal handlers of this process.
    server = object.__new__(_Server)
    server.service = SimpleNamespace(ingest_queue=Mock())

    with register_service(tmp_path) as registration:
        registration.announce("http://127.0.0.1:1", "now")
        server.registration = registration
        asyncio.run(server.shutdown())

    assert registrations == [None]


def test_silent_service_is_one_line():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(Unavailable, match=f"the service at {url} does not answer"):
            Client(url).search("x")


@contextmanager
def answering_server(status: int, body: bytes) -> Iterator[str]:
    """The address of a server that gives one answer."""

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
        yield f"http://127.0.0.1:{server.server_port}"
        thread.join()


@pytest.mark.parametrize(
    ("status", "body", "message", "error_class"),
    [
        (503, b'{"error": "come later"}', r"come later \(answered by .* http", Unavailable),
        (422, b'{"error": "no field"}', "no field", InvalidRequest),
        (404, b'{"error": "no document"}', "no document", NotFoundError),
        (200, b"<html>", "is not JSON", ServiceError),
    ],
)
def test_refusal_is_an_error_of_one_line(status, body, message, error_class):
    with (
        answering_server(status, body) as url,
        pytest.raises(error_class, match=message) as caught,
    ):
        Client(url).add([{"_id": "ü"}])

    assert type(caught.value) is error_class
    assert caught.value.status == status
    expected = 2 if status == 422 else 1
    assert caught.value.exit_code == expected
    assert "\n" not in str(caught.value)


def test_client_imports_nothing_slow():
    code = (
        "import sys; import freshet, orchestration.running_service, orchestration.cli.search;"
        "freshet.Client('http://x'); freshet.AsyncClient('http://x');"
        "print(sorted(set(sys.argv[1:]) & set(sys.modules)))"
    )

    result = subprocess.run(
        [sys.executable, "-c", code, *SLOW_MODULES],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )

    assert result.stdout.strip() == "[]"


def test_client_imports_no_orchestration():
    code = (
        "import sys; import freshet;"
        "print(sorted(name for name in sys.modules if name.startswith('orchestration.')))"
    )

    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )

    assert result.stdout.strip() == "[]"
