"""Use a Freshet service over HTTP: `Client`, and `AsyncClient` with the same methods to await.

Requests are sent with `http.client` of the standard library. A client without dependencies installs
anywhere, and httpx takes longer to import than a whole `freshet search` by a running service.
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
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from freshet.errors import InvalidRequest, Unavailable, error_for_status
from freshet.json_values import read_id_value, replace_missing, to_json_value
from freshet.results import (
    ChangeResult,
    DocumentPage,
    FieldValues,
    SearchResult,
    StoredDocument,
    SyncResult,
)

# Seconds to wait for the answer to a search, and to a change of documents.
SEARCH_TIMEOUT_SECONDS = 60.0
CHANGE_TIMEOUT_SECONDS = 3600.0
# Number of documents that `documents` requests at once.
PAGE_SIZE = 100
# Number of requests that an `AsyncClient` sends at the same time.
ASYNC_THREADS = 32
# If an answer has no error message, at most this many of its characters are quoted instead.
MAX_QUOTED_CHARACTERS = 200
P = ParamSpec("P")
T = TypeVar("T")
Row = Mapping[str, Any]
"""A document to add: `_id` or `id`, `title`, `text`, `date`, `queries`; other keys become fields.

From the date in the field `expires` on, the document is not found. The key `if_version` refuses the
row unless the document has this version, or does not exist (`"absent"`).
"""


class SearchOptions(TypedDict, total=False):
    """Optional arguments of a search; see `POST /search`.

    Attributes:
        filters: Conditions on fields: an object such as {"package": "numpy", "year": {">=": 2020}},
            or texts such as "year>=2020".
        explain: Whether to return the contributions to each score.
        offset: Number of documents to skip, for the next page.
        window: Number of best documents that `sort`, `group_by`, `boost` and `facets` look at.
        sort: Fields to sort the window by, such as "year", or "-date" for the newest first.
        group_by: Return only the best document for each value of this field.
        facets: Fields whose values are counted in the window.
        boost: Fields that raise scores, such as {"date": {"half_life": "30d"}}.
        syntax: Whether "phrases", -excluded words and title:word are conditions; true by default.
            Otherwise they are text.
        typos: Whether one typo is tolerated in longer words that no document contains; true by
            default.
        prefix: Whether the last word may be unfinished, as while somebody types.
        min_score: Lowest score of a hit.
        diversity: How much documents that resemble better ones are moved down, from 0 (not at all)
            to 1.
        rerank: Whether the project's reranker, if it has one, reranks the best documents.
        retriever: Name of a live retriever; the champion by default.
        min_generation: Search this generation, a snapshot of the index, or a newer one. An addition
            returns the generation that contains it.
    """

    filters: Mapping[str, Any] | Sequence[str]
    explain: bool
    offset: int
    window: int
    sort: Sequence[str]
    group_by: str | None
    facets: Sequence[str]
    boost: Mapping[str, Any] | Sequence[str]
    rerank: bool
    syntax: bool
    typos: bool
    prefix: bool
    min_score: float | None
    diversity: float
    retriever: str | None
    min_generation: int | None


class Client:
    """A client of a Freshet service.

    Threads may share a client. Each thread keeps one connection open.

    All methods raise `ServiceError`: `InvalidRequest`, `NotAuthorised`, `NotFoundError` or
    `Unavailable`.

    Args:
        url: Address of the service, such as `http://127.0.0.1:8765`.
        token: Token that the service requires if other machines can reach it.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._thread_state = threading.local()
        self._headers = {"Content-Type": "application/json"}
        if token:
            # A token that was read from a file ends with a line break, which no header may have.
            self._headers["Authorization"] = f"Bearer {token.strip()}"

    def search(
        self,
        text: str | None = None,
        k: int = 10,
        *,
        like: str | None = None,
        vector: Iterable[float] | None = None,
        **options: Unpack[SearchOptions],
    ) -> SearchResult:
        """Search for the k best documents, by exactly one of a text, a document and a vector.

        Args:
            text: The query.
            k: Number of documents.
            like: Id of a document: find others that resemble it.
            vector: A vector of the retriever's encoder: find the nearest passages.
            **options: See `SearchOptions`.
        """
        body: dict[str, Any] = {"k": k, **options}
        if text is not None:
            body["text"] = text
        if like is not None:
            body["like"] = _require_id(like)
        if vector is not None:
            body["vector"] = _list_of(vector, "vector")
        answer = self._request("POST", "/search", body)
        return parse_answer(SearchResult, answer)

    def search_many(
        self, texts: Sequence[str], k: int = 10, **options: Unpack[SearchOptions]
    ) -> list[SearchResult]:
        """Answer several queries from one generation, a snapshot of the index.

        Args:
            texts: The queries.
            k: Number of documents for each query.
            **options: See `SearchOptions`.

        Returns:
            The results in the order of the queries.
        """
        body = {"texts": _list_of(texts, "texts"), "k": k, **options}
        answer = self._request("POST", "/search/batch", body)
        return [parse_answer(SearchResult, result) for result in answer["results"]]

    def get(self, document_id: str) -> StoredDocument:
        """Return one document.

        Raises:
            NotFoundError: If there is no document with this id.
        """
        # Slashes are escaped as well, because they would separate parts of the path.
        path = quote(_require_id(document_id).encode("utf-8", "surrogatepass"), safe="")
        answer = self._request("GET", f"/documents/{path}")
        return parse_answer(StoredDocument, answer)

    def page(self, after: str = "", limit: int = PAGE_SIZE) -> DocumentPage:
        """Return documents in the order of their ids.

        Args:
            after: An id. Only documents with greater ids are returned. For the next page, this is
                `next` of the last page.
            limit: Number of documents.
        """
        query = urlencode({"after": after, "limit": limit})
        return parse_answer(DocumentPage, self._request("GET", f"/documents?{query}"))

    def documents(self) -> Iterator[StoredDocument]:
        """Iterate over all documents in the order of their ids.

        Documents are requested page by page. A document that is added meanwhile is only returned if
        its id comes later.
        """
        after: str | None = ""
        while after is not None:
            page = self.page(after)
            yield from page.documents
            after = page.next

    def fields(self) -> FieldValues:
        """Return the fields of the documents with their most frequent values, for filters."""
        return parse_answer(FieldValues, self._request("GET", "/fields"))

    def add(
        self, documents: Iterable[Row], *, wait: bool = True, source: str = "client"
    ) -> ChangeResult:
        """Add documents, or update documents with the same id.

        Args:
            documents: The documents; see `Row`.
            wait: Whether to wait until the documents are searchable. Otherwise the call returns
                once they are recorded.
            source: Origin of the documents, for the ledger.

        Returns:
            The outcome. Rows that are not valid are in `rejected`.

        Raises:
            InvalidRequest: If all rows are rejected.
        """
        body = {"documents": _list_of(documents, "documents"), "source": source}
        return self._change("/documents", body, wait)

    def update(
        self,
        documents: Iterable[Row],
        *,
        partial: bool = False,
        wait: bool = True,
        source: str = "client",
    ) -> ChangeResult:
        """Update documents as `add` does, and reject unknown ids.

        Args:
            documents: The documents; see `Row`.
            partial: Whether the rows hold only the values to change. Fields are replaced one by
                one, and None removes a field.
            wait: Whether to wait until the changes are searchable.
            source: Origin of the changes, for the ledger.
        """
        body = {
            "documents": _list_of(documents, "documents"),
            "source": source,
            "only_known": True,
            "partial": partial,
        }
        return self._change("/documents", body, wait)

    def delete(
        self,
        document_ids: Iterable[str] = (),
        *,
        filters: Mapping[str, Any] | Sequence[str] = (),
        dry_run: bool = False,
        if_version: str | None = None,
        wait: bool = True,
        source: str = "client",
    ) -> ChangeResult:
        """Delete documents, either by their ids or by a filter.

        Args:
            document_ids: Ids of the documents.
            filters: Delete all documents that match; see `SearchOptions`.
            dry_run: Whether to only return the ids that the filter matches, in `matched`.
            if_version: Delete the only document if it has this version, see `get`.
            wait: Whether to wait until no search finds the documents.
            source: Origin of the deletion, for the ledger.

        Returns:
            The outcome. Unknown ids are in `rejected`.

        Raises:
            InvalidRequest: If all ids are unknown.
        """
        body: dict[str, Any] = {"source": source}
        ids = [_require_id(value) for value in _list_of(document_ids, "document_ids")]
        # Without ids and filters, the service refuses the empty list with a message.
        if ids or not filters:
            body["ids"] = ids
        if filters:
            body["filters"] = filters
        if dry_run:
            body["dry_run"] = True
        if if_version is not None:
            body["if_version"] = if_version
        return self._change("/documents/delete", body, wait)

    def apply(self) -> ChangeResult:
        """Make all recorded changes searchable, such as additions by `freshet add`.

        The ledger, the log of all changes, may hold changes that no search finds yet.
        """
        return self._change("/documents/apply", None, wait=True)

    def sync(
        self, *, force: bool = False, dry_run: bool = False, source: str | None = None
    ) -> SyncResult:
        """Make the index equal to a source, as `freshet sync` does.

        Args:
            force: Whether to delete documents even if much of the source is missing.
            dry_run: Whether to only return what would be changed.
            source: Name of a source that `freshet sync` has followed. None: the project's own one.

        Raises:
            InvalidRequest: If there is no such source, it cannot be read, or much of it is missing.
                Nothing is changed then.
        """
        body = {"force": force, "dry_run": dry_run, "source": source}
        answer = self._request("POST", "/sync", body, CHANGE_TIMEOUT_SECONDS)
        return parse_answer(SyncResult, answer)

    def feedback(
        self, query: str, document_id: str, verdict: str, *, rank: int = 1, who: str = ""
    ) -> str:
        """Record a person's opinion of a hit.

        Feedback becomes judgements, from which the next training learns.

        Args:
            query: The query that was searched.
            document_id: Id of the hit.
            verdict: "up", "down", or "click" if the hit was opened.
            rank: Rank of the hit, from 1. A click near the top of the list counts less.
            who: Identity of the person. The latest verdict per person, query and document counts,
                but a click does not replace a thumb.

        Returns:
            The verdict that counts now.
        """
        body = {
            "query": query,
            "document_id": _require_id(document_id),
            "verdict": verdict,
            "rank": rank,
            "who": who,
        }
        return self._request("POST", "/feedback", body)["verdict"]

    def status(self) -> dict[str, Any]:
        """Return the state of the service; see `GET /status`."""
        return self._request("GET", "/status")

    def close(self) -> None:
        """Close the connection of this thread. The next request opens a new one."""
        connection = self._thread_state.__dict__.pop("connection", None)
        if connection is not None:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _change(self, path: str, body: Any, wait: bool) -> ChangeResult:
        """Send a change of documents, and return its outcome."""
        query = urlencode({"wait": str(wait).lower()})
        answer = self._request("POST", f"{path}?{query}", body, CHANGE_TIMEOUT_SECONDS)
        return parse_answer(ChangeResult, answer)

    def _request(
        self, method: str, path: str, body: Any = None, timeout: float = SEARCH_TIMEOUT_SECONDS
    ) -> Any:
        """Send a request, and return the parsed answer.

        Raises:
            ServiceError: If the service refuses the request, fails or does not answer.
        """
        content = None
        if body is not None:
            # A text that is not valid UTF-8 is sent unchanged. The service then refuses it with a
            # message that names it.
            content = encode_json(body).encode("utf-8", "surrogatepass")

        try:
            status, answer_bytes = self._exchange(method, path, content, timeout)
        except (OSError, HTTPException) as error:
            self.close()
            reason = str(error) or type(error).__name__
            raise Unavailable(
                f"the service at {self.url} does not answer ({reason}); end it or start it again"
            ) from None

        try:
            answer = json.loads(answer_bytes)
        except ValueError:
            raise error_for_status(
                status, f"the answer of {self.url} (status {status}) is not JSON; is it Freshet?"
            ) from None
        if status >= 400:
            message = answer.get("error", answer_bytes[:MAX_QUOTED_CHARACTERS])
            raise error_for_status(status, f"{message} (answered by the service at {self.url})")
        return answer

    def _exchange(
        self, method: str, path: str, content: bytes | None, timeout: float
    ) -> tuple[int, bytes]:
        """Send a request, and return status and body of the answer.

        A service closes connections that were idle for long. If a request fails because of this,
        it is sent again over a new connection. This is safe: repeating a change has no effect.
        """
        is_reused = "connection" in self._thread_state.__dict__
        try:
            return self._send(method, path, content, timeout)
        except ConnectionError:
            self.close()
            if not is_reused:
                raise
            return self._send(method, path, content, timeout)

    def _send(
        self, method: str, path: str, content: bytes | None, timeout: float
    ) -> tuple[int, bytes]:
        """Send a request once, and return status and body of the answer.

        Args:
            method: HTTP method.
            path: Path and query of the address, below the service's own path.
            content: Body of the request; None for none.
            timeout: Seconds to wait for each part of the answer.
        """
        address = _parse_address(self.url)
        connection = self._thread_connection()
        connection.timeout = timeout
        # A connection uses its attribute `timeout` only when it connects. An open socket gets it
        # here.
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        connection.request(method, address.path + path, content, self._headers)
        response = connection.getresponse()
        return response.status, response.read()

    def _thread_connection(self) -> HTTPConnection:
        """Return the connection that this thread keeps; make it at the first request."""
        if "connection" not in self._thread_state.__dict__:
            address = _parse_address(self.url)
            host = address.hostname or ""
            if address.scheme == "https":
                self._thread_state.connection = HTTPSConnection(host, address.port)
            else:
                self._thread_state.connection = HTTPConnection(host, address.port)
        return self._thread_state.connection


def _parse_address(url: str) -> SplitResult:
    """Split the address of a service into its parts.

    Raises:
        InvalidRequest: If it is not an HTTP address.
    """
    try:
        address = urlsplit(url)
        # A port that is not a number raises an error when it is read.
        _ = address.port
    except ValueError:
        address = urlsplit("")
    if address.scheme not in ("http", "https") or not address.hostname:
        raise InvalidRequest(
            f"the address of the service is {url!r}; write it with http:// or https://, such as "
            "http://127.0.0.1:8765"
        )
    return address


def _list_of(values: Iterable[T], name: str) -> list[T]:
    """Return the members of a list, or the rows of a pandas DataFrame.

    A single text or object is refused. Python could iterate over it, but would yield the letters of
    the text or the keys of the object.

    Args:
        values: The list.
        name: Name of the argument, for the error message.

    Raises:
        InvalidRequest: If the value is not a list.
    """
    if isinstance(values, str | bytes | Mapping):
        kind = "one object" if isinstance(values, Mapping) else f"the text {values[:80]!r}"
        raise InvalidRequest(f"{name} is {kind}, but it must be a list; put it into brackets")
    if type(values).__name__ == "DataFrame" and hasattr(values, "to_dict"):
        return values.to_dict("records")
    if not isinstance(values, Iterable):
        kind = type(values).__name__
        raise InvalidRequest(f"{name} is of type {kind}, but it must be a list")
    return list(values)


def _require_id(value: Any) -> str:
    """Return the id that a value means, such as `12` for a number of numpy or pandas.

    Raises:
        InvalidRequest: If the value is neither a text nor a whole number.
    """
    plain_value = value
    if not isinstance(value, str | int | float):
        try:
            plain_value = to_json_value(value)
        except TypeError:
            plain_value = None
    document_id = read_id_value(plain_value)
    if document_id is None:
        raise InvalidRequest(f"the id is {value!r}; an id is a text or a whole number")
    return document_id


def encode_json(body: Any) -> str:
    """Return a request body as JSON. Values of numpy and pandas are converted by `to_json_value`.

    >>> from datetime import date
    >>> from decimal import Decimal
    >>> encode_json({"day": date(2024, 5, 1), "price": Decimal("9.90"), "tags": {"new"}})
    '{"day": "2024-05-01", "price": 9.9, "tags": ["new"]}'

    Raises:
        InvalidRequest: If a value has no form in JSON.
    """
    try:
        return json.dumps(replace_missing(body), ensure_ascii=False, default=to_json_value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"the request cannot be written as JSON: {error}; use texts, numbers, true, false, "
            "null, lists, and objects whose keys are texts"
        ) from None


def _run_in_thread(
    method: Callable[Concatenate[Client, P], T],
) -> Callable[Concatenate[AsyncClient, P], Awaitable[T]]:
    """Return a coroutine method of `AsyncClient` that calls a method of `Client` in a thread."""

    @wraps(method)
    async def call(self: AsyncClient, *arguments: P.args, **options: P.kwargs) -> T:
        # A client without asyncio starts faster, so the import is not at the top of the module.
        from asyncio import get_running_loop

        request = partial(method, self._client, *arguments, **options)
        return await get_running_loop().run_in_executor(self._threads, request)

    return call


class AsyncClient:
    """`Client` with methods to await, as in `async with AsyncClient(url) as client`.

    Requests run in `ASYNC_THREADS` threads.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self._client = Client(url, token)
        self._threads = ThreadPoolExecutor(ASYNC_THREADS, "freshet")

    search = _run_in_thread(Client.search)
    search_many = _run_in_thread(Client.search_many)
    get = _run_in_thread(Client.get)
    page = _run_in_thread(Client.page)
    fields = _run_in_thread(Client.fields)
    add = _run_in_thread(Client.add)
    update = _run_in_thread(Client.update)
    delete = _run_in_thread(Client.delete)
    apply = _run_in_thread(Client.apply)
    sync = _run_in_thread(Client.sync)
    feedback = _run_in_thread(Client.feedback)
    status = _run_in_thread(Client.status)

    async def documents(self) -> AsyncIterator[StoredDocument]:
        """Iterate over all documents; see `Client.documents`."""
        after: str | None = ""
        while after is not None:
            page = await self.page(after)
            for document in page.documents:
                yield document
            after = page.next

    async def close(self) -> None:
        """Finish the running requests, and close all connections."""
        self._threads.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def parse_answer(kind: type[T], value: Any) -> T:
    """Build an answer of type `kind` from parsed JSON.

    Keys that `kind` does not have are ignored, so that a client works with a newer service.

    Args:
        kind: A dataclass, a list, a tuple, or an optional type. Other types stay as JSON has them.
        value: The parsed JSON.
    """
    if is_dataclass(kind):
        arguments = {}
        for name, hint in _cached_type_hints(kind).items():
            if name in value:
                arguments[name] = parse_answer(hint, value[name])
        return kind(**arguments)

    origin = get_origin(kind)
    type_arguments = get_args(kind)
    if origin is UnionType and value is not None:
        # The result types have no other unions than "X | None". The first argument is X.
        return parse_answer(type_arguments[0], value)
    if origin in (list, tuple):
        items = [parse_answer(type_arguments[0], item) for item in value]
        return origin(items)
    return value


_cached_type_hints = lru_cache(get_type_hints)
