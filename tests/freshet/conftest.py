"""A project of ten passages, live in two retrievers, its service, and its pages in a browser."""

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
    """A project whose default retriever is hce."""
    root = tmp_path_factory.mktemp("application")
    settings = f"corpus: {{path: rows.jsonl}}, passages: {{words: {RULES.words}, stride: 5}}"
    (root / "params.yaml").write_text(f"{{retrievers: {{hce: {{}}}}, {settings}}}")
    (root / "dvc.yaml").touch()
    build = make_build(root / "build")
    # The last retriever is searched by default.
    for retriever in ("contrastive", "hce"):
        build.open(root, retriever)
    return Project(root)


@pytest.fixture(scope="module")
def url(project):
    """The address of the service of the project."""
    with serving(project) as address:
        yield address


class Visits:
    """Pages of a browser, with what went wrong on them and the addresses that they fetched."""

    def __init__(self, browser, url):
        self.browser = browser
        self.url = url
        self.contexts = []
        self.problems = []
        self.fetched = []

    def __call__(self, address: str = "/", **options):
        """Open an address of the service in a new context of the browser."""
        context = self.browser.new_context(**options)
        self.contexts.append(context)
        page = context.new_page()
        page.on("console", self.record_message)
        page.on("pageerror", self.record_error)
        page.on("request", self.record_request)
        page.goto(self.url + address)
        page.get_by_text("up to date").wait_for()
        return page

    def record_message(self, message) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def record_error(self, error) -> None:
        self.problems.append(str(error))

    def record_request(self, request) -> None:
        self.fetched.append(request.url)


@pytest.fixture
def visit(browser, url):
    """A function that opens a page.

    At the end, nothing went wrong on any page, and nothing was fetched from another address.
    """
    visits = Visits(browser, url)
    yield visits
    for context in visits.contexts:
        context.close()
    assert visits.problems == []
    for address in visits.fetched:
        assert address.startswith((url, "data:"))


@contextmanager
def serving(project: Project, **options) -> Iterator[str]:
    """Run a service of the project on a free port and yield its address."""
    config = uvicorn.Config(create_app(project, **options), port=0, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        _, port = server.servers[0].sockets[0].getsockname()
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
