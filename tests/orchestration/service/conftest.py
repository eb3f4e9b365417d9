"""A service over a collection in memory, without encoder and files."""

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


def open_gate() -> threading.Event:
    gate = threading.Event()
    gate.set()
    return gate


@dataclass
class FakeLive:
    """A live collection in memory.

    Attributes:
        generations: Texts by document id of each generation.
        pending: Recorded changes that are not applied; text None deletes.
        batches: Size of each applied batch.
        can_apply: While cleared, applying changes and searching for "slow" wait.
        can_receive: While cleared, recording changes waits.
        is_broken: Whether opening a new generation fails.
        apply_error: Error of applying changes; empty if it succeeds.
        ledger_error: Error of reading the ledger; empty if it succeeds.
    """

    generations: list[dict[str, str]] = field(
        default_factory=lambda: [{"a": "apple", "b": "bread"}]
    )
    pending: list[tuple[str, str | None]] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    can_apply: threading.Event = field(default_factory=open_gate)
    can_receive: threading.Event = field(default_factory=open_gate)
    is_broken: bool = False
    apply_error: str = ""
    ledger_error: str = ""

    def change(self, *changes: tuple[str, str | None]) -> None:
        """Add a generation with these changes."""
        documents = dict(self.generations[-1])
        for document, text in changes:
            documents.pop(document, None)
            if text is not None:
                documents[document] = text
        self.generations.append(documents)


class FakeSearcher:
    """Find the documents that contain the text.

    The title of a hit names the generation that was searched.
    """

    can_explain = False

    def __init__(self, live: FakeLive, retriever: str = "hce") -> None:
        self.live = live
        self.retriever = retriever
        self.number = len(live.generations) - 1
        manifest = {"documents": len(self.texts), "provenance": {}}
        self.generation = SimpleNamespace(
            number=self.number, retriever=retriever, manifest=manifest, folder=Path("gone")
        )

    @property
    def texts(self) -> dict[str, str]:
        return self.live.generations[self.number]

    def ready(self):
        return self

    def renewed(self) -> FakeSearcher:
        if self.number == len(self.live.generations) - 1:
            return self
        if self.live.is_broken:
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
            assert self.live.can_apply.wait(30)
        if filters:
            raise FreshetError("no document has a field 'colour'; fields: package")
        if text == "bug":
            raise ZeroDivisionError
        ids = [name for name, body in sorted(self.texts.items()) if text in body]
        return [self._hit(rank, name) for rank, name in enumerate(ids[:k], 1)]

    def _hit(self, rank, document_id):
        text = self.texts[document_id]
        return Hit(
            rank=rank,
            score=1 / rank,
            document_id=document_id,
            title=f"generation {self.number}",
            text=text,
            start=0,
            end=len(text),
            section=None,
            snippet=text,
            marks=((0, len(text)),),
            fields={"kind": "food"},
            date=None,
            path=(0, 1),
            generation=self.number,
        )

    def known_queries(self, ids):
        """Return for each document its own query and a secret one of a user."""
        queries = []
        for name in ids:
            queries.append(KnownQuery(name, f"about {self.texts[name]}", QuerySource.ROW))
            queries.append(KnownQuery(name, "a secret", QuerySource.FEEDBACK))
        return queries

    def unexpired_documents(self, ids):
        return self.documents(ids)

    def documents(self, ids):
        documents = {}
        for name in ids:
            if name in self.texts:
                documents[name] = Document(name, name, self.texts[name], {"kind": "food"})
        return documents

    def ids_after(self, after, limit):
        return sorted(name for name in self.texts if name > after)[:limit]


class FakeCollection:
    """Record and apply changes as `LiveIndex` does. Rows without text are rejected."""

    ledger_view = None

    def __init__(self, live: FakeLive, retriever: str = "hce") -> None:
        self.live = live
        self.retriever = retriever
        self.event_count = 0

    def warm(self):
        pass

    def receive(self, rows, source, only_known=False):
        assert self.live.can_receive.wait(30)
        if source == "refused":
            raise FreshetError("the ledger refuses this source")
        if isinstance(rows, CleanRows):
            return self._receive_clean(rows)

        rejected_numbers = []
        for number, row in enumerate(rows, 1):
            is_known = row["_id"] in self.live.generations[-1]
            if not row.get("text") or (only_known and not is_known):
                rejected_numbers.append(number)
            else:
                self.live.pending.append((row["_id"], row["text"]))
        return self._receipt(rows, rejected_numbers)

    def _receive_clean(self, rows):
        for document in rows.documents:
            self.live.pending.append((document.document_id, document.text))
        receipt = self._receipt(rows.documents, [])
        receipt.received += len(rows.refused)
        receipt.rejected = rows.rejected
        return receipt

    def remove(self, ids, source, versions=()):
        rejected_numbers = []
        for number, name in enumerate(ids, 1):
            if name in self.live.generations[-1]:
                self.live.pending.append((name, None))
            else:
                rejected_numbers.append(number)
        return self._receipt(ids, rejected_numbers)

    def _receipt(self, rows, rejected_numbers):
        accepted = len(rows) - len(rejected_numbers)
        events = tuple(range(self.event_count, self.event_count + accepted))
        self.event_count += accepted
        rejected = tuple(Rejection(number, None, "empty text") for number in rejected_numbers)
        return SimpleNamespace(received=len(rows), unchanged=0, rejected=rejected, events=events)

    def apply(self, limit=None):
        changes = list(self.live.pending)
        if not changes:
            return None
        assert self.live.can_apply.wait(30)
        if self.live.apply_error:
            raise FreshetError(self.live.apply_error)
        self.live.batches.append(len(changes))
        self.live.change(*changes)
        del self.live.pending[: len(changes)]
        return SimpleNamespace()


def fake_live_status(live: FakeLive) -> dict[str, int]:
    if live.ledger_error:
        raise OSError(live.ledger_error)
    return {"pending": len(live.pending)}


@pytest.fixture
def live() -> FakeLive:
    return FakeLive()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a project whose pointers name a live retriever "hce"."""
    (tmp_path / "live" / "hce").mkdir(parents=True)
    (tmp_path / "live" / "hce" / "current").write_text("0\n")
    (tmp_path / "live" / "current").write_text("hce\n")
    (tmp_path / "params.yaml").write_text("{retrievers: {hce: {}}}")
    (tmp_path / "dvc.yaml").touch()
    return Project(tmp_path)


# The constants that tests of the service change, by a name of ours.
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
    """Start a service and return its client; services stop at the end of the test.

    Args:
        others: Collections of retrievers other than "hce".
        bounds: Values of constants, by the names in `BOUNDS`.
    """
    clients = []

    def start(
        others: dict[str, FakeLive] | None = None,
        token: str | None = None,
        origins: tuple[str, ...] = (),
        **bounds,
    ) -> TestClient:
        collections = {"hce": live}
        collections.update(others or {})
        bounds.setdefault("poll_seconds", 0.02)
        bounds.setdefault("retry_seconds", 0.02)
        for name, value in bounds.items():
            module, constant = BOUNDS[name]
            monkeypatch.setattr(module, constant, value)

        def open_index(project, name, loaded, note_recorded) -> FakeCollection:
            return FakeCollection(collections[name], name)

        def read_status(project, name) -> dict[str, int]:
            return fake_live_status(collections[name])

        def open_searcher(folder, name) -> FakeSearcher:
            return FakeSearcher(collections[name], name)

        monkeypatch.setattr(service, "LiveIndex", open_index)
        monkeypatch.setattr(service, "live_status", read_status)
        monkeypatch.setattr(Searcher, "open", open_searcher)
        created = app.create_app(project, "127.0.0.1", token, origins)
        client = TestClient(created, raise_server_exceptions=False)
        client.__enter__()
        clients.append(client)
        return client

    yield start
    live.can_apply.set()
    live.can_receive.set()
    for client in clients:
        client.__exit__(None, None, None)


def until(condition: Callable[[], object], seconds: float = 30.0) -> bool:
    """Return whether the condition came true within the time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
