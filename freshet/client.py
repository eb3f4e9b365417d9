"""Ask a Freshet service over HTTP: `Client`, and `AsyncClient` with the same methods to await.

Only the standard library is imported here, as a cold `freshet search` passes through.
"""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, wraps
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypedDict, TypeVar, Unpack
from urllib.parse import quote, urlencode, urlsplit

from freshet.errors import ServiceError, Unavailable, error_of
from freshet.results import (
    ChangeResult,
    DocumentPage,
    FieldValues,
    SearchResult,
    StoredDocument,
    SyncResult,
    all_documents,
    answer_of,
)

SEARCH_SECONDS, CHANGE_SECONDS = 60.0, 3600.0
PAGE = 100  # documents that `documents` asks for at once
T = TypeVar("T")
Row = Mapping[str, Any]
"""A document to add: `_id` or `id`, `title`, `text`; `date`, `queries`, and whatever else becomes a field."""


class SearchOptions(TypedDict, total=False):
    """What a search may say beside its text and `k`; see `POST /search`.

    filters: an object such as {"package": "numpy", "year": {">=": 2020}}, or texts such as "year>=2020". explain: say
    what each score is made of. retriever: another one that is live. min_generation: answer from this generation or a
    newer one, such as the one that an addition named.
    """

    filters: Mapping[str, Any] | Sequence[str]
    explain: bool
    retriever: str | None
    min_generation: int | None


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and how its answer is read."""

    method: str
    path: str
    read: Callable[[Any], T]
    body: Any = None
    seconds: float = SEARCH_SECONDS

    @property
    def content(self) -> bytes | None:
        """The body as it is sent."""
        if self.body is None:
            return None
        return json.dumps(self.body, ensure_ascii=False).encode("utf-8", "surrogatepass")

    def answer(self, status: int, content: bytes, url: str) -> T:
        """What the service at `url` answered; ServiceError, of the kind that fits, if it refused or failed."""
        try:
            answer = json.loads(content)
        except ValueError:
            message = f"{url} answers with something that is no JSON (status {status}); is it Freshet?"
            raise error_of(status, message) from None
        if status >= 400:
            raise error_of(status, f"{answer.get('error', content[:200])} (answered by the service at {url})")
        return self.read(answer)

    def silent(self, error: Exception, url: str) -> ServiceError:
        """What to say of a service that does not answer."""
        reason = str(error) or type(error).__name__
        return Unavailable(f"the service at {url} does not answer ({reason}); end it or start it again")


def _search(text: str, k: int, options: SearchOptions) -> Call[SearchResult]:
    return Call("POST", "/search", answer_of(SearchResult), {"text": text, "k": k, **options})


def _search_many(texts: Sequence[str], k: int, options: SearchOptions) -> Call[list[SearchResult]]:
    read = lambda answer: list(map(answer_of(SearchResult), answer["results"]))  # noqa: E731
    return Call("POST", "/search/batch", read, {"texts": list(texts), "k": k, **options})


def _get(document_id: str) -> Call[StoredDocument]:
    return Call("GET", f"/documents/{quote(document_id, safe='')}", answer_of(StoredDocument))


def _page(after: str, limit: int) -> Call[DocumentPage]:
    return Call("GET", "/documents?" + urlencode({"after": after, "limit": limit}), answer_of(DocumentPage))


def _put(documents: Iterable[Row], source: str, wait: bool, only_known: bool = False) -> Call[ChangeResult]:
    body = {"documents": list(documents), "source": source, "only_known": only_known}
    return _change("/documents", wait, body)


def _delete(document_ids: Iterable[str], source: str, wait: bool) -> Call[ChangeResult]:
    return _change("/documents/delete", wait, {"ids": list(document_ids), "source": source})


def _change(path: str, wait: bool, body: Any) -> Call[ChangeResult]:
    return Call("POST", f"{path}?wait={str(wait).lower()}", answer_of(ChangeResult), body, CHANGE_SECONDS)


def _sync(force: bool, dry_run: bool) -> Call[SyncResult]:
    return Call("POST", "/sync", answer_of(SyncResult), {"force": force, "dry_run": dry_run}, CHANGE_SECONDS)


def _feedback(query: str, document_id: str, verdict: str, rank: int, who: str) -> Call[str]:
    body = {"query": query, "document_id": document_id, "verdict": verdict, "rank": rank, "who": who}
    return Call("POST", "/feedback", lambda answer: answer["verdict"], body)


STATUS: Call[dict[str, Any]] = Call("GET", "/status", dict)
FIELDS = Call("GET", "/fields", answer_of(FieldValues))


def _headers(token: str | None) -> dict[str, str]:
    return {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})


class Client:
    """The service at `url`; `token` is what it demands where other machines reach it.

    Any number of threads may share one. Each keeps a connection open.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url, self._headers, self._local = url.rstrip("/"), _headers(token), threading.local()

    def search(self, text: str, k: int = 10, **options: Unpack[SearchOptions]) -> SearchResult:
        """The k best documents for a text, best first."""
        return self._send(_search(text, k, options))

    def search_many(self, texts: Sequence[str], k: int = 10, **options: Unpack[SearchOptions]) -> list[SearchResult]:
        """The results of several searches, in their order, all from one generation."""
        return self._send(_search_many(texts, k, options))

    def get(self, document_id: str) -> StoredDocument:
        """One document, whole; NotFoundError if there is none of this id."""
        return self._send(_get(document_id))

    def page(self, after: str = "", limit: int = PAGE) -> DocumentPage:
        """Documents beyond the id `after`, in the order of their ids."""
        return self._send(_page(after, limit))

    def documents(self) -> Iterator[StoredDocument]:
        """All documents in the order of their ids, page by page: what is added meanwhile behind it is not seen."""
        return all_documents(self.page)

    def fields(self) -> FieldValues:
        """The fields that documents have, and their commonest values: what a filter can ask for."""
        return self._send(FIELDS)

    def add(self, documents: Iterable[Row], *, wait: bool = True, source: str = "client") -> ChangeResult:
        """Add documents, or update those that are there. wait: until they are searchable, else until they are safe.

        Rows that make no sense are among `rejected` of the answer; InvalidRequest if all are.
        """
        return self._send(_put(documents, source, wait))

    def update(self, documents: Iterable[Row], *, wait: bool = True, source: str = "client") -> ChangeResult:
        """The same, but documents that are not there yet are refused."""
        return self._send(_put(documents, source, wait, only_known=True))

    def delete(self, document_ids: Iterable[str], *, wait: bool = True, source: str = "client") -> ChangeResult:
        """Delete documents; ids of none are among `rejected`, InvalidRequest if all are."""
        return self._send(_delete(document_ids, source, wait))

    def apply(self) -> ChangeResult:
        """Make searchable what the ledger has already, such as what `freshet add` recorded."""
        return self._send(_change("/documents/apply", True, None))

    def sync(self, *, force: bool = False, dry_run: bool = False) -> SyncResult:
        """Make the index hold what the project's own source holds now, as `freshet sync` does.

        InvalidRequest, and nothing is changed, if the source cannot be read or lacks much of what it held; then `force`
        deletes what is gone. dry_run: only say what would come of it.
        """
        return self._send(_sync(force, dry_run))

    def feedback(self, query: str, document_id: str, verdict: str, *, rank: int = 1, who: str = "") -> str:
        """Say "up" or "down" of a hit, or "click" that it was opened; the verdict that counts now.

        rank: the hit's, by which clicks are discounted. Of one person, query and document the latest verdict counts,
        but a click takes no thumb back. Retrains learn from it.
        """
        return self._send(_feedback(query, document_id, verdict, rank, who))

    def status(self) -> dict[str, Any]:
        """Where the service stands, as `GET /status` says."""
        return self._send(STATUS)

    def close(self) -> None:
        """Close this thread's connection; the next request opens another."""
        if (connection := self._local.__dict__.pop("connection", None)) is not None:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _send(self, call: Call[T]) -> T:
        try:
            status, content = self._exchange(call)
        except (OSError, HTTPException) as error:
            self.close()
            raise call.silent(error, self.url) from None
        return call.answer(status, content, self.url)

    def _exchange(self, call: Call[Any]) -> tuple[int, bytes]:
        """A service closes a connection that was idle for long, so one that was kept may fail: the next is new.

        To send a change twice changes nothing.
        """
        kept = "connection" in self._local.__dict__
        try:
            return self._ask(call)
        except ConnectionError:
            self.close()
            if not kept:
                raise
            return self._ask(call)

    def _ask(self, call: Call[Any]) -> tuple[int, bytes]:
        connection = self._connection()
        connection.timeout = call.seconds
        if connection.sock is not None:
            connection.sock.settimeout(call.seconds)
        connection.request(call.method, urlsplit(self.url).path + call.path, call.content, self._headers)
        answer = connection.getresponse()
        return answer.status, answer.read()

    def _connection(self) -> HTTPConnection:
        if "connection" not in self._local.__dict__:
            at = urlsplit(self.url)
            kind = HTTPSConnection if at.scheme == "https" else HTTPConnection
            self._local.connection = kind(at.hostname or "", at.port)
        return self._local.connection


P = ParamSpec("P")


def _awaited(method: Callable[Concatenate[Client, P], T]) -> Callable[Concatenate[AsyncClient, P], Awaitable[T]]:
    @wraps(method)
    async def call(self: AsyncClient, *arguments: P.args, **options: P.kwargs) -> T:
        from asyncio import get_running_loop

        return await get_running_loop().run_in_executor(
            self._pool, partial(method, self._client, *arguments, **options)
        )

    return call


class AsyncClient:
    """`Client` with methods to await, each in one of 32 threads: `async with AsyncClient(url) as client`."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._client, self._pool = Client(url, token), ThreadPoolExecutor(32, "freshet")

    search = _awaited(Client.search)
    search_many = _awaited(Client.search_many)
    get = _awaited(Client.get)
    page = _awaited(Client.page)
    fields = _awaited(Client.fields)
    add = _awaited(Client.add)
    update = _awaited(Client.update)
    delete = _awaited(Client.delete)
    apply = _awaited(Client.apply)
    sync = _awaited(Client.sync)
    feedback = _awaited(Client.feedback)
    status = _awaited(Client.status)

    async def documents(self) -> AsyncIterator[StoredDocument]:
        """See `Client.documents`."""
        after: str | None = ""
        while after is not None:
            page = await self.page(after)
            for document in page.documents:
                yield document
            after = page.next

    async def close(self) -> None:
        """Close all connections, once what is asked for is answered; each ends with its thread."""
        self._pool.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
