"""Guards the guard: what another site's page can send is refused, what the page itself and programs
send is not.
"""

from __future__ import annotations

import base64
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from model_code.errors import FreshetError
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


async def answer(request):
    return PlainTextResponse("done")


async def talk(socket):
    await socket.accept()
    await socket.send_text("done")
    await socket.close()


@pytest.fixture
def door():
    routes = [Route(path, answer, methods=["GET", "POST"]) for path in ("/", "/graphql", "/search")]
    return TestClient(Guard(Starlette(routes=[*routes, WebSocketRoute("/talk", talk)])))


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", {}, 200),  # curl
        ("POST", "/graphql", {}, 200),
        ("POST", "/graphql", OWN, 200),  # the page itself
        ("GET", "/search?text=x", {"sec-fetch-site": "none"}, 200),  # typed by a person
        ("GET", "/", LINK, 200),
        ("GET", "/search?text=x", LINK, 403),  # from another site
        ("GET", "/", {**LINK, "sec-fetch-dest": "iframe"}, 403),
        ("GET", "/search?text=x", IMAGE, 403),
        # another port of this machine
        ("GET", "/search?text=x", {**IMAGE, "sec-fetch-site": "same-site"}, 403),
        ("GET", "/graphql?query=mutation{x}", {}, 403),
        ("GET", "/graphql?query=mutation{x}", OWN, 403),
        ("POST", "/graphql", {"origin": "http://evil.example"}, 403),
        ("POST", "/graphql", {"origin": "http://127.0.0.1:8000"}, 403),
        ("POST", "/graphql", {"origin": "null"}, 403),  # a file, or a sandboxed frame
        # a name that was made to mean this machine
        ("POST", "/graphql", {"host": "evil.example:3000"}, 403),
        ("GET", "/", {"host": "evil.example"}, 403),
        ("GET", "/", {"host": ""}, 403),
        ("GET", "/", {"host": "localhost:3000"}, 200),
        ("GET", "/", {"host": "[::1]:3000"}, 200),
    ],
)
def test_request_is_checked_by_its_origin(door, method, path, headers, status):
    answered = door.request(method, path, headers={**HERE, **headers})
    assert answered.status_code == status
    assert status == 200 or len(answered.text.splitlines()) == 1


@pytest.mark.parametrize(
    "headers", [{"origin": "http://evil.example"}, IMAGE, {"host": "evil.example"}]
)
def test_websocket_of_another_site_is_refused(door, headers):
    with (
        pytest.raises(WebSocketDisconnect),
        door.websocket_connect("/talk", headers={**HERE, **headers}),
    ):
        pass
    with door.websocket_connect("/talk", headers={**HERE, **OWN}) as socket:
        assert socket.receive_text() == "done"


def test_any_host_name_is_allowed_beyond_this_machine():
    door = TestClient(Guard(Starlette(routes=[Route("/", answer)]), hosts=None))
    assert door.get("/", headers={"host": "search.example"}).status_code == 200
    assert (
        door.get(
            "/", headers={"host": "search.example", "origin": "http://evil.example"}
        ).status_code
        == 403
    )


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        ("Bearer secret", 200),
        ("bearer secret", 200),
        (basic("anybody:secret"), 200),  # a browser's password
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
    door = TestClient(Guard(Starlette(routes=[Route("/", answer)]), None, token="secret"))
    answered = door.get(
        "/", headers={"authorization": authorization} if authorization is not None else {}
    )
    assert answered.status_code == status
    assert ("www-authenticate" in answered.headers) == (status == 401)
    assert answered.text.endswith("\n") == (status == 401), (
        "a line, below which the prompt of a terminal stands"
    )


def test_token_does_not_help_another_site():
    door = TestClient(
        Guard(Starlette(routes=[WebSocketRoute("/talk", talk)]), None, token="secret")
    )
    known = {"authorization": "Bearer secret"}
    with door.websocket_connect("/talk", headers=known) as socket:
        assert socket.receive_text() == "done"
    for headers in ({}, known | IMAGE, known | {"origin": "http://evil.example"}):
        with pytest.raises(WebSocketDisconnect), door.websocket_connect("/talk", headers=headers):
            pass


def test_a_site_that_was_named_may_ask():
    door = TestClient(
        Guard(Starlette(routes=[Route("/", answer)]), origins=["https://app.example"])
    )
    asked = HERE | {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}
    assert door.get("/", headers=asked | {"origin": "https://app.example"}).status_code == 200
    for other in ("http://app.example", "https://app.example.evil"):
        assert door.get("/", headers=asked | {"origin": other}).status_code == 403
    for wrong in ("*", "app.example", "https://app.example/", "null"):
        with pytest.raises(FreshetError, match="name one site"):
            check_origins([wrong])


def test_token_is_created_once_and_private(tmp_path):
    file = tmp_path / "state" / "token"
    assert required_token("127.0.0.1", file) is None
    assert not file.exists()
    token = required_token("0.0.0.0", file)
    assert len(token) > 40
    assert token == read_or_create_token(file) == required_token("localhost", file, always=True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in file.parent.iterdir()] == ["token"]
    file.chmod(0o640)
    with pytest.raises(FreshetError, match="other users can read it"):
        read_or_create_token(file)
    file.chmod(0o600)
    file.write_text("\n")
    with pytest.raises(FreshetError, match="is empty"):
        read_or_create_token(file)


def test_page_requires_token_under_any_name(tmp_path, monkeypatch):
    assert _guard_page(answer).token is None
    monkeypatch.setenv(TOKEN_FILE_VARIABLE, str(tmp_path / "token"))
    page = _guard_page(answer)
    assert (page.hosts, page.token) == (None, read_or_create_token(tmp_path / "token"))


@pytest.fixture(scope="module")
def bounded():
    """The port of a server that may have 300 files, and gives nobody more than a second."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command, variables = (
        [sys.executable, "-c", SERVE, str(port)],
        {**os.environ, "PYTHONPATH": str(ROOT)},
    )
    process = subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True)
    assert until(lambda: _answers(port), 60)
    yield port, process
    process.terminate()
    assert set(process.communicate(timeout=30)[1].splitlines()) <= {
        "WARNING:  Invalid HTTP request received."
    }


def _answers(port: int) -> int | None:
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("POST", "/", b"x" * 100_000)
        return connection.getresponse().status
    except ConnectionError:
        return None
    finally:
        connection.close()


def test_four_hundred_idle_connections_keep_nobody_out(bounded):
    port, process = bounded
    opened = []
    for number in range(400):
        # so that 25 are taken in at once, as on a machine that has much else to do
        if number % 25 == 0:
            os.kill(process.pid, signal.SIGSTOP)
        opened.append(socket.create_connection(("127.0.0.1", port), timeout=20))
        if number % 2:
            opened[-1].sendall(
                b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"
                + b"\r\n12" * (number % 4 > 1)
            )
        if number % 25 == 24:
            os.kill(process.pid, signal.SIGCONT)
            assert _answers(port) == 200
    assert [_answers(port) for _ in range(3)] == [200] * 3
    for each in opened:
        each.close()


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HTTP/1.1\r\nHost:", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"],
)
def test_who_sends_too_slowly_is_let_go(bounded, sent):
    with socket.create_connection(("127.0.0.1", bounded[0]), timeout=20) as slow:
        started = time.monotonic()
        while time.monotonic() - started < 20:
            try:
                # one byte after the other helps nobody
                slow.sendall(sent[:1] if sent.startswith(b"G") else sent)
                sent = sent[1:] if sent.startswith(b"G") else b""
                slow.settimeout(0.2)
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                pass
            except ConnectionError:
                break
        assert 0.5 < time.monotonic() - started < 20


def test_a_head_that_does_not_end_is_refused(bounded):
    with socket.create_connection(("127.0.0.1", bounded[0]), timeout=20) as endless:
        endless.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000)
        assert endless.recv(100).startswith(b"HTTP/1.1 400")
