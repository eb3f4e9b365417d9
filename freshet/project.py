"""A project in this process: the methods of `Client`, without a service between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, Self, Unpack

from pydantic import ValidationError

from freshet.client import CHANGE_SECONDS, PAGE, Row, SearchOptions
from freshet.errors import InvalidRequest, error_of
from freshet.results import (
    ChangeResult,
    DocumentPage,
    FieldValues,
    SearchResult,
    StoredDocument,
    SyncResult,
    all_documents,
)
from model_code.errors import FreshetError
from orchestration.project import Project
from orchestration.service import routes
from orchestration.service.errors import Refusal
from orchestration.service.models import BatchRequest, FeedbackRequest, SyncRequest
from orchestration.service.service import Service
from orchestration.service.writer import Job, addition, application, deletion


class LocalProject:
    """A project that is open, encoder and index in memory, as `freshet.Project`; any number of threads may share it.

    What other processes add is seen, and a service of the same project may run beside it.
    """

    def __init__(self, service: Service) -> None:
        """service: one that runs."""
        self._service = service

    @classmethod
    def open(cls, path: str | PathLike[str] = ".") -> Self:
        """Open the project that the folder `path` lies in; FreshetError outside of one."""
        service = Service(Project.find(Path(path)))
        service.start()
        return cls(service)

    def search(self, text: str, k: int = 10, **options: Unpack[SearchOptions]) -> SearchResult:
        """See `Client.search`."""
        return self.search_many([text], k, **options)[0]

    def search_many(self, texts: Sequence[str], k: int = 10, **options: Unpack[SearchOptions]) -> list[SearchResult]:
        """See `Client.search_many`."""
        with _one_kind_of_errors():
            wanted = BatchRequest(texts=list(texts), k=k, **options)
            routes.await_generation(self._service, wanted)
            return routes.answers(self._service, wanted)

    def get(self, document_id: str) -> StoredDocument:
        """See `Client.get`."""
        with _one_kind_of_errors():
            return routes.stored(self._service, document_id)

    def page(self, after: str = "", limit: int = PAGE) -> DocumentPage:
        """See `Client.page`."""
        with _one_kind_of_errors():
            return routes.page(self._service, after, limit)

    def documents(self) -> Iterator[StoredDocument]:
        """See `Client.documents`."""
        return all_documents(self.page)

    def fields(self) -> FieldValues:
        """See `Client.fields`."""
        with _one_kind_of_errors():
            return routes.field_values(self._service)

    def add(self, documents: Iterable[Row], *, wait: bool = True, source: str = "python") -> ChangeResult:
        """See `Client.add`."""
        return self._change(addition(list(documents), source), wait)

    def update(self, documents: Iterable[Row], *, wait: bool = True, source: str = "python") -> ChangeResult:
        """See `Client.update`."""
        return self._change(addition(list(documents), source, only_known=True), wait)

    def delete(self, document_ids: Iterable[str], *, wait: bool = True, source: str = "python") -> ChangeResult:
        """See `Client.delete`."""
        return self._change(deletion(list(document_ids), source), wait)

    def apply(self) -> ChangeResult:
        """See `Client.apply`."""
        return self._change(application(), wait=True)

    def sync(self, *, force: bool = False, dry_run: bool = False) -> SyncResult:
        """See `Client.sync`."""
        with _one_kind_of_errors():
            return routes.synced(self._service, SyncRequest(force=force, dry_run=dry_run))

    def feedback(self, query: str, document_id: str, verdict: str, *, rank: int = 1, who: str = "") -> str:
        """See `Client.feedback`."""
        with _one_kind_of_errors():
            said = {"query": query, "document_id": document_id, "verdict": verdict, "rank": rank, "who": who}
            return routes.judge(self._service, FeedbackRequest.model_validate(said))

    def status(self) -> dict[str, Any]:
        """See `Client.status`."""
        return routes.state(self._service).model_dump()

    def close(self) -> None:
        """Finish what waits, then free what is in memory."""
        self._service.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _change(self, job: Job, wait: bool) -> ChangeResult:
        with _one_kind_of_errors():
            self._service.queue.put(job)
            receipt = job.received.result(CHANGE_SECONDS)
            routes.require_accepted(receipt)
            generation = job.applied.result(CHANGE_SECONDS).generation if wait else None
            return routes.change_result(receipt, generation)


@contextmanager
def _one_kind_of_errors() -> Iterator[None]:
    """Raise what a client of a service would raise."""
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidRequest(f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}") from None
    except Refusal as refusal:
        raise error_of(refusal.status, str(refusal)) from refusal
    except FreshetError as error:
        raise error_of(422, str(error)) from error
