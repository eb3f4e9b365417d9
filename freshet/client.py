"""Ask a Freshet service over HTTP: `Client`, and `AsyncClient` with the same methods to await.

Only the standard library is imported here, as a cold `freshet search` passes through.
"""

from __future__ import annotations

import json
import threading
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from dataclasses import is_dataclass
from functools import lru_cache, partial, wraps
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from types import UnionType
from typing import (
    Any,
    Concatenate,
    ParamSpec,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
)
from urllib.parse import quote, urlencode, urlsplit

from freshet.errors import Unavailable, error_of
from model_code.collection.results import (
    ChangeResult,
    DocumentPage,
    FieldValues,
    SearchResult,
    StoredDocument,
    SyncResult,
)

SEARCH_SECONDS, CHANGE_SECONDS = 60.0, 3600.0
PAGE = 100  # documents that `documents` asks for at once
P = ParamSpec("P")
T = TypeVar("T")
Row = Mapping[str, Any]
"""A document to add: `_id` or `id`, `title`, `text`; `date`, `queries`, and whatever else becomes a
field.
"""


class SearchOptions(TypedDict, total=False):
    """What a search may say beside its text and `k`; see `POST /search`.

    filters: an object such as {"package": "numpy", "year": {">=": 2020}}, or texts such as
    "year>=2020". explain: say what each score is made of. retriever: another one that is live.
    min_generation: answer from this generation or a newer one, such as the one that an addition
    named.
    """

    filters: Mapping[str, Any] | Sequence[str]
    explain: bool
    retriever: str | None
    min_generation: int | None


class Client:
    """The service at `url`; `token` is what it demands where other machines reach it.

    Any number of threads may share one. Each keeps a connection open.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url, self._local = url.rstrip("/"), threading.local()
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def search(self, text: str, k: int = 10, **options: Unpack[SearchOptions]) -> SearchResult:
        """The k best documents for a text, best first."""
        return parse_answer(
            SearchResult, self._ask("POST", "/search", {"text": text, "k": k, **options})
        )

    def search_many(
        self, texts: Sequence[str], k: int = 10, **options: Unpack[SearchOptions]
    ) -> list[SearchResult]:
        """The results of several searches, in their order, all from one generation."""
        answer = self._ask("POST", "/search/batch", {"texts": list(texts), "k": k, **options})
        return [parse_answer(SearchResult, result) for result in answer["results"]]

    def get(self, document_id: str) -> StoredDocument:
        """One document, whole; NotFoundError if there is none of this id."""
        return parse_answer(
            StoredDocument, self._ask("GET", f"/documents/{quote(document_id, safe='')}")
        )

    def page(self, after: str = "", limit: int = PAGE) -> DocumentPage:
        """Documents beyond the id `after`, in the order of their ids."""
        return parse_answer(
            DocumentPage,
            self._ask("GET", "/documents?" + urlencode({"after": after, "limit": limit})),
        )

    def documents(self) -> Iterator[StoredDocument]:
        """All documents in the order of their ids, page by page: what is added meanwhile behind it
        is not seen.
        """
        after: str | None = ""
        while after is not None:
            page = self.page(after)
            yield from page.documents
            after = page.next

    def fields(self) -> FieldValues:
        """The fields that documents have, and their commonest values: what a filter can ask for."""
        return parse_answer(FieldValues, self._ask("GET", "/fields"))

    def add(
        self, documents: Iterable[Row], *, wait: bool = True, source: str = "client"
    ) -> ChangeResult:
        """Add documents, or update those that are there. wait: until they are searchable, else
        until they are safe.

        Rows that make no sense are among `rejected` of the answer; InvalidRequest if all are.
        """
        return self._change("/documents", {"documents": list(documents), "source": source}, wait)

    def update(
        self, documents: Iterable[Row], *, wait: bool = True, source: str = "client"
    ) -> ChangeResult:
        """Update documents as `add` does; those that are not there yet are refused."""
        return self._change(
            "/documents", {"documents": list(documents), "source": source, "only_known": True}, wait
        )

    def delete(
        self, document_ids: Iterable[str], *, wait: bool = True, source: str = "client"
    ) -> ChangeResult:
        """Delete documents; ids of none are among `rejected`, InvalidRequest if all are."""
        return self._change(
            "/documents/delete", {"ids": list(document_ids), "source": source}, wait
        )

    def apply(self) -> ChangeResult:
        """Make searchable what the ledger has already, such as what `freshet add` recorded."""
        return self._change("/documents/apply", None, True)

    def sync(self, *, force: bool = False, dry_run: bool = False) -> SyncResult:
        """Make the index hold what the project's own source holds now, as `freshet sync` does.

        InvalidRequest, and nothing is changed, if the source cannot be read or lacks much of what
        it held; then `force` deletes what is gone. dry_run: only say what would come of it.
        """
        return parse_answer(
            SyncResult,
            self._ask("POST", "/sync", {"force": force, "dry_run": dry_run}, CHANGE_SECONDS),
        )

    def feedback(
        self, query: str, document_id: str, verdict: str, *, rank: int = 1, who: str = ""
    ) -> str:
        """Say "up" or "down" of a hit, or "click" that it was opened; the verdict that counts now.

        rank: the hit's, by which clicks are discounted. Of one person, query and document the
        latest verdict counts, but a click takes no thumb back. Retrains learn from it.
        """
        said = {
            "query": query,
            "document_id": document_id,
            "verdict": verdict,
            "rank": rank,
            "who": who,
        }
        return self._ask("POST", "/feedback", said)["verdict"]

    def status(self) -> dict[str, Any]:
        """Where the service stands, as `GET /status` says."""
        return self._ask("GET", "/status")

    def close(self) -> None:
        """Close this thread's connection; the next request opens another."""
        if (connection := self._local.__dict__.pop("connection", None)) is not None:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _change(self, path: str, body: Any, wait: bool) -> ChangeResult:
        return parse_answer(
            ChangeResult,
            self._ask("POST", f"{path}?wait={str(wait).lower()}", body, CHANGE_SECONDS),
        )

    def _ask(
        self, method: str, path: str, body: Any = None, seconds: float = SEARCH_SECONDS
    ) -> Any:
        """What the service answers; ServiceError, of the kind that fits, if it refuses, fails, or
        is silent.
        """
        content = (
            None
            if body is None
            else json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
        )
        try:
            status, answered = self._exchange(method, path, content, seconds)
        except (OSError, HTTPException) as error:
            self.close()
            reason = str(error) or type(error).__name__
            message = (
                f"the service at {self.url} does not answer ({reason}); end it or start it again"
            )
            raise Unavailable(message) from None
        try:
            answer = json.loads(answered)
        except ValueError:
            message = f"{self.url} answers with something that is no JSON (status {status}); is it Freshet?"
            raise error_of(status, message) from None
        if status >= 400:
            raise error_of(
                status,
                f"{answer.get('error', answered[:200])} (answered by the service at {self.url})",
            )
        return answer

    def _exchange(
        self, method: str, path: str, content: bytes | None, seconds: float
    ) -> tuple[int, bytes]:
        """Send a request, once more over a new connection if a kept one fails: a service closes
        what was idle for long.

        To send a change twice changes nothing.
        """
        reused = "connection" in self._local.__dict__
        try:
            return self._send(method, path, content, seconds)
        except ConnectionError:
            self.close()
            if not reused:
                raise
            return self._send(method, path, content, seconds)

    def _send(
        self, method: str, path: str, content: bytes | None, seconds: float
    ) -> tuple[int, bytes]:
        at = urlsplit(self.url)
        if "connection" not in self._local.__dict__:
            kind = HTTPSConnection if at.scheme == "https" else HTTPConnection
            self._local.connection = kind(at.hostname or "", at.port)
        connection: HTTPConnection = self._local.connection
        connection.timeout = seconds
        if connection.sock is not None:
            connection.sock.settimeout(seconds)
        connection.request(method, at.path + path, content, self._headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


def _awaited(
    method: Callable[Concatenate[Client, P], T],
) -> Callable[Concatenate[AsyncClient, P], Awaitable[T]]:
    @wraps(method)
    async def call(self: AsyncClient, *arguments: P.args, **options: P.kwargs) -> T:
        from asyncio import get_running_loop  # whoever awaits has it; a cold search goes without

        request = partial(method, self._client, *arguments, **options)
        return await get_running_loop().run_in_executor(self._pool, request)

    return call


class AsyncClient:
    """`Client` with methods to await, each in one of 32 threads: `async with AsyncClient(url) as
    client`.
    """

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


def parse_answer(kind: type[T], value: Any) -> T:
    """Build an answer of type `kind` from parsed JSON.

    Keys that `kind` does not have are ignored, so that a client can ask a newer service.
    """
    if is_dataclass(kind):
        hints = _cached_type_hints(kind)
        arguments = {}
        for name, hint in hints.items():
            if name in value:
                arguments[name] = parse_answer(hint, value[name])
        return kind(**arguments)

    origin = get_origin(kind)
    arguments_of_type = get_args(kind)
    if origin is UnionType and value is not None:
        # The only unions here are "X | None".
        return parse_answer(arguments_of_type[0], value)
    if origin in (list, tuple):
        items = [parse_answer(arguments_of_type[0], item) for item in value]
        return origin(items)
    return value


_cached_type_hints = lru_cache(get_type_hints)
