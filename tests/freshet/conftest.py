"""A project of ten passages, live in two retrievers, and its service on a port of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvicorn

from orchestration.project import Project
from orchestration.service.app import create_app
from tests.model_code.live.conftest import RULES, make_build


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


@contextmanager
def serving(project: Project, **options) -> Iterator[str]:
    """The address of a service of the project."""
    server = uvicorn.Server(uvicorn.Config(create_app(project, **options), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
