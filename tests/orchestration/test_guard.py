"""Guards the guard: what another site's page can send is refused, what the page itself and programs send is not.

Run: python -m pytest tests/orchestration/test_guard.py
"""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from orchestration.guard import Guard

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
        ("GET", "/search?text=x", LINK, 403),  # would be kept in the query log
        ("GET", "/", {**LINK, "sec-fetch-dest": "iframe"}, 403),
        ("GET", "/search?text=x", IMAGE, 403),
        ("GET", "/search?text=x", {**IMAGE, "sec-fetch-site": "same-site"}, 403),  # another port of this machine
        ("GET", "/graphql?query=mutation{x}", {}, 403),
        ("GET", "/graphql?query=mutation{x}", OWN, 403),
        ("POST", "/graphql", {"origin": "http://evil.example"}, 403),
        ("POST", "/graphql", {"origin": "http://127.0.0.1:8000"}, 403),
        ("POST", "/graphql", {"origin": "null"}, 403),  # a file, or a sandboxed frame
        ("POST", "/graphql", {"host": "evil.example:3000"}, 403),  # a name that was made to mean this machine
        ("GET", "/", {"host": "evil.example"}, 403),
        ("GET", "/", {"host": ""}, 403),
        ("GET", "/", {"host": "localhost:3000"}, 200),
        ("GET", "/", {"host": "[::1]:3000"}, 200),
    ],
)
def test_a_request_is_let_in_by_what_its_browser_says(door, method, path, headers, status):
    answered = door.request(method, path, headers={**HERE, **headers})
    assert answered.status_code == status
    assert status == 200 or len(answered.text.splitlines()) == 1


@pytest.mark.parametrize("headers", [{"origin": "http://evil.example"}, IMAGE, {"host": "evil.example"}])
def test_a_connection_of_another_site_is_refused(door, headers):
    with pytest.raises(WebSocketDisconnect), door.websocket_connect("/talk", headers={**HERE, **headers}):
        pass


def test_the_page_itself_may_connect(door):
    with door.websocket_connect("/talk", headers={**HERE, **OWN}) as socket:
        assert socket.receive_text() == "done"


def test_where_others_may_listen_any_name_is_taken_but_no_other_site():
    door = TestClient(Guard(Starlette(routes=[Route("/", answer)]), hosts=None))
    assert door.get("/", headers={"host": "search.example"}).status_code == 200
    assert door.get("/", headers={"host": "search.example", "origin": "http://evil.example"}).status_code == 403
