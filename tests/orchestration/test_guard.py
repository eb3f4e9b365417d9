"""Tests of the guard: DNS rebinding, requests of other sites, tokens, and slow or idle clients."""

from __future__ import annotations

import base64
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from model_code.errors import FreshetError
from orchestration import guard
from orchestration.guard import (
    TOKEN_FILE_VARIABLE,
    Guard,
    _guard_page,
    check_origins,
    read_or_create_token,
    required_token,
)
from tests.orchestration.service.conftest import until

ROOT = Path(__file__).parents[2]
SERVE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
import uvicorn
from orchestration import guard

async def app(scope, receive, send):
    more = True
    while more:
        more = (await receive()).get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"done"})

guard.PHASE_TIMEOUT_SECONDS |= {"head": 1.0, "body": 1.0}
guard.PHASE_CHECK_SECONDS = 0.2
uvicorn.run(app, port=int(sys.argv[1]), lifespan="off", log_level="warning", **guard.connection_limits())
"""
HERE = {"host": "127.0.0.1:3000"}
IMAGE = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
OWN = {"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:3000"}
TOKEN = {"authorization": "Bearer secret"}


async def answer(request):
    return PlainTextResponse("done")


async def talk(socket):
    await socket.accept()
    await socket.send_text("done")
    await socket.close()


def guarded_client(*routes: Route | WebSocketRoute, **options) -> TestClient:
    """A client of an application with these routes, behind a guard with these options."""
    return TestClient(Guard(Starlette(routes=routes), **options))


def websocket_is_accepted(client: TestClient, headers: dict[str, str]) -> bool:
    try:
        with client.websocket_connect("/talk", headers=headers) as websocket:
            return websocket.receive_text() == "done"
    except WebSocketDisconnect:
        return False


@pytest.fixture
def client():
    routes = [Route(path, answer, methods=["GET", "POST"]) for path in ("/", "/graphql", "/search")]
    return guarded_client(*routes, WebSocketRoute("/talk", talk))


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        # A program such as curl.
        ("GET", "/", {}, 200),
        ("POST", "/graphql", {}, 200),
        # The page itself.
        ("POST", "/graphql", OWN, 200),
        # An address typed by a person.
        ("GET", "/search?text=x", {"sec-fetch-site": "none"}, 200),
        # A link of another site.
        ("GET", "/", LINK, 200),
        ("GET", "/search?text=x", LINK, 403),
        ("GET", "/", {**LINK, "sec-fetch-dest": "iframe"}, 403),
        # An image of another site, and of another port of this machine.
        ("GET", "/search?text=x", IMAGE, 403),
        ("GET", "/search?text=x", {**IMAGE, "sec-fetch-site": "same-site"}, 403),
        # GraphQL by GET, which an image could send.
        ("GET", "/graphql?query=mutation{x}", {}, 403),
        ("GET", "/graphql?query=mutation{x}", OWN, 403),
        # Another origin; "null" is a file or a sandboxed frame.
        ("POST", "/graphql", {"origin": "http://evil.example"}, 403),
        ("POST", "/graphql", {"origin": "http://127.0.0.1:8000"}, 403),
        ("POST", "/graphql", {"origin": "null"}, 403),
        # DNS rebinding: a foreign name that resolves to this machine.
        ("POST", "/graphql", {"host": "evil.example:3000"}, 403),
        ("GET", "/", {"host": "evil.example"}, 403),
        ("GET", "/", {"host": ""}, 403),
        # Other names of this machine.
        ("GET", "/", {"host": "localhost:3000"}, 200),
        ("GET", "/", {"host": "[::1]:3000"}, 200),
    ],
)
def test_request_is_checked_by_its_origin(client, method, path, headers, status):
    response = client.request(method, path, headers={**HERE, **headers})

    assert response.status_code == status
    if status != 200:
        assert len(response.text.splitlines()) == 1


@pytest.mark.parametrize(
    "headers", [{"origin": "http://evil.example"}, IMAGE, {"host": "evil.example"}]
)
def test_websocket_of_another_site_is_refused(client, headers):
    assert not websocket_is_accepted(client, {**HERE, **headers})


def test_websocket_of_the_page_is_accepted(client):
    assert websocket_is_accepted(client, {**HERE, **OWN})


def test_any_host_name_is_allowed_beyond_this_machine():
    client = guarded_client(Route("/", answer), hosts=None)

    assert client.get("/", headers={"host": "search.example"}).status_code == 200


def test_other_sites_are_refused_beyond_this_machine():
    client = guarded_client(Route("/", answer), hosts=None)
    headers = {"host": "search.example", "origin": "http://evil.example"}

    assert client.get("/", headers=headers).status_code == 403


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        ("Bearer secret", 200),
        ("bearer secret", 200),
        # What a browser sends after it has asked for a password.
        (basic("anybody:secret"), 200),
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        ("Bearer ", 401),
        ("Bearer secre", 401),
        ("Bearer secret ", 401),
        ("secret", 401),
        ("Digest secret", 401),
        (basic("secret:"), 401),
        ("Basic ?", 401),
    ],
)
def test_request_needs_the_token(authorization, status):
    client = guarded_client(Route("/", answer), hosts=None, token="secret")
    headers = {} if authorization is None else {"authorization": authorization}

    response = client.get("/", headers=headers)

    assert response.status_code == status
    is_refused = status == 401
    assert ("www-authenticate" in response.headers) == is_refused
    # The prompt of a terminal then begins on its own line.
    assert response.text.endswith("\n") == is_refused


@pytest.mark.parametrize(
    ("headers", "is_accepted"),
    [
        (TOKEN, True),
        ({}, False),
        ({**TOKEN, **IMAGE}, False),
        ({**TOKEN, "origin": "http://evil.example"}, False),
    ],
)
def test_token_does_not_help_another_site(headers, is_accepted):
    client = guarded_client(WebSocketRoute("/talk", talk), hosts=None, token="secret")

    assert websocket_is_accepted(client, headers) == is_accepted


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://app.example", 200),
        ("http://app.example", 403),
        ("https://app.example.evil", 403),
    ],
)
def test_only_named_origins_are_allowed(origin, status):
    client = guarded_client(Route("/", answer), origins=["https://app.example"])
    headers = {**HERE, "sec-fetch-site": "cross-site", "sec-fetch-mode": "cors", "origin": origin}

    assert client.get("/", headers=headers).status_code == status


@pytest.mark.parametrize("origin", ["*", "app.example", "https://app.example/", "null"])
def test_impossible_origin_is_refused(origin):
    with pytest.raises(FreshetError, match="name one site"):
        check_origins([origin])


def test_loopback_address_needs_no_token(tmp_path):
    file = tmp_path / "state" / "token"

    assert required_token("127.0.0.1", file) is None
    assert not file.exists()


def test_token_is_created_once_and_private(tmp_path):
    file = tmp_path / "state" / "token"

    token = required_token("0.0.0.0", file)

    assert len(token) > 40
    assert read_or_create_token(file) == token
    assert required_token("localhost", file, always=True) == token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert {path.name for path in file.parent.iterdir()} == {"token", "token.lock"}


def test_two_that_create_a_token_agree(tmp_path, monkeypatch):
    file = tmp_path / "token"
    create_token = guard._create_token
    both_create = threading.Barrier(2)

    def create_late(path):
        with suppress(threading.BrokenBarrierError):
            both_create.wait(timeout=0.3)
        path.unlink(missing_ok=True)
        create_token(path)

    monkeypatch.setattr(guard, "_create_token", create_late)
    with ThreadPoolExecutor(2) as pool:
        tokens = set(pool.map(read_or_create_token, [file, file]))

    assert tokens == {file.read_text().strip()}


def test_readable_token_is_refused(tmp_path):
    file = tmp_path / "token"
    read_or_create_token(file)
    file.chmod(0o640)

    with pytest.raises(FreshetError, match="other users can read it"):
        read_or_create_token(file)


def test_empty_token_is_refused(tmp_path):
    file = tmp_path / "token"
    read_or_create_token(file)
    file.write_text("\n")

    with pytest.raises(FreshetError, match="is empty"):
        read_or_create_token(file)


def test_page_needs_no_token_by_default():
    assert _guard_page(answer).token is None


def test_page_requires_token_under_any_name(tmp_path, monkeypatch):
    monkeypatch.setenv(TOKEN_FILE_VARIABLE, str(tmp_path / "token"))

    page = _guard_page(answer)

    assert page.hosts is None
    assert page.token == read_or_create_token(tmp_path / "token")


@pytest.fixture(scope="module")
def limited_server():
    """The port and the process of a server that may open 300 files and waits one second."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(port)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert until(lambda: response_status(port), 60)
    yield port, process
    process.terminate()
    _, errors = process.communicate(timeout=30)
    assert set(errors.splitlines()) <= {"WARNING:  Invalid HTTP request received."}


def response_status(port: int) -> int | None:
    """Send a request; returns the status, or None if the connection fails."""
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("POST", "/", b"x" * 100_000)
        return connection.getresponse().status
    except ConnectionError:
        return None
    finally:
        connection.close()


def open_idle_connection(port: int, number: int) -> socket.socket:
    """Connect, and send nothing, half a head, or half a body, by turns."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    if number % 2:
        request = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"
        if number % 4 > 1:
            request += b"\r\n12"
        connection.sendall(request)
    return connection


def test_idle_connections_keep_nobody_out(limited_server):
    port, process = limited_server
    connections = []
    for batch in range(16):
        # The stopped server accepts 25 connections at once, as on a busy machine.
        os.kill(process.pid, signal.SIGSTOP)
        for number in range(25):
            connections.append(open_idle_connection(port, 25 * batch + number))
        os.kill(process.pid, signal.SIGCONT)
        assert response_status(port) == 200

    assert [response_status(port) for _ in range(3)] == [200] * 3
    for connection in connections:
        connection.close()


@pytest.mark.parametrize(
    "request_bytes",
    [b"", b"GET / HTTP/1.1\r\nHost:", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"],
    ids=["nothing", "one byte at a time", "no body"],
)
def test_slow_client_is_disconnected(limited_server, request_bytes):
    port, _ = limited_server
    is_slow_head = request_bytes.startswith(b"G")
    with socket.create_connection(("127.0.0.1", port), timeout=20) as slow:
        slow.settimeout(0.2)
        started = time.monotonic()
        remaining = request_bytes
        is_closed = False
        while not is_closed and time.monotonic() - started < 20:
            size = 1 if is_slow_head else len(remaining)
            try:
                slow.sendall(remaining[:size])
                remaining = remaining[size:]
                is_closed = slow.recv(1) == b""
            except TimeoutError:
                pass
            except ConnectionError:
                is_closed = True
        seconds = time.monotonic() - started

    assert 0.5 < seconds < 20


def test_endless_head_is_refused(limited_server):
    port, _ = limited_server
    with socket.create_connection(("127.0.0.1", port), timeout=20) as endless:
        endless.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000)

        assert endless.recv(100).startswith(b"HTTP/1.1 400")
