"""A project of ten passages, live in two retrievers, its service on a port of its own, and pages of
it in a browser.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvicorn

from model_code.project import Project
from orchestration.service.app import create_app
from tests.model_code.collection.conftest import RULES, make_build


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Project:
    root = tmp_path_factory.mktemp("application")
    settings = f"corpus: {{path: rows.jsonl}}, passages: {{words: {RULES.words}, stride: 5}}"
    (root / "params.yaml").write_text(f"{{retrievers: {{hce: {{}}}}, {settings}}}")
    (root / "dvc.yaml").touch()
    build = make_build(root / "build")
    for retriever in ("contrastive", "hce"):  # the last one is searched by default
        build.open(root, retriever)
    return Project(root)


@pytest.fixture(scope="module")
def url(project):
    with serving(project) as address:
        yield address


@pytest.fixture
def visit(browser, url):
    """Opens the page; at the end, nothing went wrong on it and nothing was fetched from elsewhere."""
    contexts, wrong, asked = [], [], []

    def visit(address: str = "/", **options):
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.on(
            "console",
            lambda message: (
                wrong.append(message.text) if message.type in ("error", "warning") else None
            ),
        )
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(url + address)
        page.get_by_text("up to date").wait_for()
        return page

    yield visit
    for context in contexts:
        context.close()
    assert wrong == []
    assert [address for address in asked if not address.startswith((url, "data:"))] == []


@contextmanager
def serving(project: Project, **options) -> Iterator[str]:
    """The address of a service of the project."""
    server = uvicorn.Server(
        uvicorn.Config(create_app(project, **options), port=0, log_level="warning")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
