"""A service over a collection in memory: what it does with searchers, queues and bounds, without
encoder or disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient

from freshet.results import Hit, SearchResult
from model_code.collection.generations.searcher import Searcher
from model_code.corpus.clean_rows import CleanRows
from model_code.corpus.rows import Rejection
from model_code.errors import FreshetError
from model_code.project import Project
from model_code.text.documents import Document
from model_code.text.known_queries import KnownQuery, QuerySource
from orchestration.service import app, ingest_queue, routes, searchers, service


@dataclass
class FakeLive:
    """The collection on the disk, as it were: generations of documents, and what the ledger has
    beyond them.
    """

    generations: list[dict[str, str]] = field(
        default_factory=lambda: [{"a": "apple", "b": "bread"}]
    )
    pending: list[tuple[str, str | None]] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    # cleared: applying and searching "slow" wait
    gate: threading.Event = field(default_factory=threading.Event)
    broken: bool = False  # new generations cannot be opened
    failing: str = ""  # why pending documents cannot be applied
    silent: str = ""  # why the ledger does not answer
    door: threading.Event = field(default_factory=threading.Event)  # cleared: receiving waits

    def __post_init__(self) -> None:
        self.gate.set()
        self.door.set()

    def change(self, *changes: tuple[str, str | None]) -> None:
        """A new generation."""
        documents = dict(self.generations[-1])
        for document, text in changes:
            documents.pop(document, None)
            if text is not None:
                documents[document] = text
        self.generations.append(documents)


class FakeSearcher:
    """Finds the documents that hold the text; each title names the generation that it was read
    from.
    """

    can_explain = False

    def __init__(self, live: FakeLive, retriever: str = "hce") -> None:
        self.live, self.retriever, self.number = live, retriever, len(live.generations) - 1
        manifest = {"documents": len(live.generations[self.number]), "provenance": {}}
        self.generation = SimpleNamespace(
            number=self.number, retriever=retriever, manifest=manifest, folder=Path("gone")
        )

    def ready(self):
        return self

    def renewed(self) -> FakeSearcher:
        if self.number == len(self.live.generations) - 1:
            return self
        if self.live.broken:
            raise FreshetError("generation is damaged")
        return FakeSearcher(self.live, self.retriever)

    def search_batch(self, texts, k=10, filters=(), explain=False):
        if explain:
            raise FreshetError("a dense retriever does not score by token")
        return [self.search(text, k, filters) for text in texts]

    def expired_documents(self):
        return set()

    def search_pages(self, texts, options):
        pages = []
        for hits in self.search_batch(texts, options.k, options.filters, options.explain):
            pages.append(SearchResult(self.retriever, self.number, hits, len(hits), {}))
        return pages

    def search(self, text, k=10, filters=()):
        if text == "slow":
            assert self.live.gate.wait(30)
        if filters:
            raise FreshetError("no document has a field 'colour'; fields: package")
        if text == "bug":
            raise ZeroDivisionError
        documents = self.live.generations[self.number]
        found = [name for name, body in sorted(documents.items()) if text in body]
        return [self._hit(rank, name, documents[name]) for rank, name in enumerate(found[:k], 1)]

    def _hit(self, rank, name, text):
        title, marks, fields = f"generation {self.number}", ((0, len(text)),), {"kind": "food"}
        return Hit(
            rank,
            1 / rank,
            name,
            title,
            text,
            0,
            len(text),
            None,
            text,
            marks,
            fields,
            None,
            (0, 1),
            self.number,
        )

    def known_queries(self, ids):
        """Each document answers its own text, and a thumb says that it answers a secret."""
        queries = []
        for name in ids:
            text = self.live.generations[self.number][name]
            queries.append(KnownQuery(name, f"about {text}", QuerySource.ROW))
            queries.append(KnownQuery(name, "a secret", QuerySource.FEEDBACK))
        return queries

    def documents(self, ids):
        there = self.live.generations[self.number]
        return {
            name: Document(name, name, there[name], {"kind": "food"})
            for name in ids
            if name in there
        }

    def ids_after(self, after, limit):
        return sorted(name for name in self.live.generations[self.number] if name > after)[:limit]


class FakeCollection:
    """Receives and applies as `LiveIndex` does; rows without text are rejected."""

    def __init__(self, live: FakeLive, retriever: str = "hce") -> None:
        self.live, self.retriever, self.events = live, retriever, 0

    ledger_view = None

    def warm(self):
        pass

    def receive(self, rows, source, only_known=False):
        assert self.live.door.wait(30)
        if source == "refused":
            raise FreshetError("the ledger refuses this source")
        if isinstance(rows, CleanRows):
            return self._receive_clean(rows)
        good = [
            row
            for row in rows
            if row.get("text") and (not only_known or row["_id"] in self.live.generations[-1])
        ]
        self.live.pending += [(row["_id"], row["text"]) for row in good]
        return self._receipt(rows, [i for i, row in enumerate(rows, 1) if row not in good])

    def _receive_clean(self, rows):
        self.live.pending += [(one.document_id, one.text) for one in rows.documents]
        receipt = self._receipt(rows.documents, [])
        receipt.received += len(rows.refused)
        receipt.rejected = rows.rejected
        return receipt

    def remove(self, ids, source, versions=()):
        known = [name for name in ids if name in self.live.generations[-1]]
        self.live.pending += [(name, None) for name in known]
        return self._receipt(ids, [i for i, name in enumerate(ids, 1) if name not in known])

    def _receipt(self, rows, bad):
        events = tuple(range(self.events, self.events + len(rows) - len(bad)))
        self.events += len(events)
        rejected = tuple(Rejection(i, None, "empty text") for i in bad)
        return SimpleNamespace(received=len(rows), unchanged=0, rejected=rejected, events=events)

    def apply(self, limit=None):
        if not (pending := list(self.live.pending)):
            return None
        assert self.live.gate.wait(30)
        if self.live.failing:
            raise FreshetError(self.live.failing)
        self.live.batches.append(len(pending))
        self.live.change(*pending)
        del self.live.pending[: len(pending)]
        return SimpleNamespace()


def status_of(live: FakeLive) -> dict[str, int]:
    if live.silent:
        raise OSError(live.silent)
    return {"pending": len(live.pending)}


@pytest.fixture
def live() -> FakeLive:
    return FakeLive()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with a live retriever "hce", as far as its pointers say so."""
    (tmp_path / "live" / "hce").mkdir(parents=True)
    (tmp_path / "live" / "hce" / "current").write_text("0\n")
    (tmp_path / "live" / "current").write_text("hce\n")
    (tmp_path / "params.yaml").write_text("{retrievers: {hce: {}}}")
    (tmp_path / "dvc.yaml").touch()
    return Project(tmp_path)


BOUNDS = {
    "max_k": (routes, "MAX_RESULTS"),
    "max_text_characters": (routes, "MAX_SEARCH_CHARACTERS"),
    "max_documents": (routes, "MAX_DOCUMENTS"),
    "add_wait_seconds": (routes, "MAX_CHANGE_WAIT_SECONDS"),
    "max_body_bytes": (app, "MAX_BODY_BYTES"),
    "search_threads": (searchers, "SEARCH_THREADS"),
    "waiting_searches": (searchers, "MAX_WAITING_SEARCHES"),
    "search_wait_seconds": (searchers, "MAX_WAIT_SECONDS"),
    "poll_seconds": (searchers, "POLL_SECONDS"),
    "queued_documents": (ingest_queue, "MAX_QUEUED_DOCUMENTS"),
    "retry_seconds": (ingest_queue, "RETRY_SECONDS"),
}


@pytest.fixture
def serve(project: Project, live: FakeLive, monkeypatch: pytest.MonkeyPatch):
    """Starts the service with other bounds; gives a client. All are stopped at the end.

    others: what other retrievers than "hce" have.
    """
    clients = []

    def start(
        others: dict[str, FakeLive] | None = None,
        token: str | None = None,
        origins: tuple[str, ...] = (),
        **bounds,
    ) -> TestClient:
        lives = others or {}
        for name, value in ({"poll_seconds": 0.02, "retry_seconds": 0.02} | bounds).items():
            monkeypatch.setattr(*BOUNDS[name], value)
        monkeypatch.setattr(
            service,
            "LiveIndex",
            lambda project, name, loaded: FakeCollection(lives.get(name, live), name),
        )
        monkeypatch.setattr(
            service, "live_status", lambda project, name: status_of(lives.get(name, live))
        )
        monkeypatch.setattr(
            Searcher, "open", lambda folder, name: FakeSearcher(lives.get(name, live), name)
        )
        served = app.create_app(project, "127.0.0.1", token, origins)
        client = TestClient(served, raise_server_exceptions=False)
        client.__enter__()
        clients.append(client)
        return client

    yield start
    live.gate.set()
    live.door.set()
    for client in clients:
        client.__exit__(None, None, None)


def until(condition: Callable[[], object], seconds: float = 30.0) -> bool:
    """Whether it came true in time."""
    latest = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > latest:
            return False
        time.sleep(0.01)
    return True
