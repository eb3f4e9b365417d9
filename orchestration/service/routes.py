"""The addresses of the service: `/search`, `/documents`, and `/status`, `/health` and `/metrics`."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from model_code.errors import FreshetError
from model_code.live.generation import Generation
from model_code.live.texts import require_queries
from model_code.settings import require
from orchestration import parameters
from orchestration.service.errors import Busy, NotFound, NothingAccepted, NotReady, TooLarge
from orchestration.service.models import (
    AddRequest,
    ChangeResponse,
    DeleteRequest,
    Found,
    HealthResponse,
    LiveState,
    RefusedResponse,
    Rejected,
    SearchQuery,
    SearchRequest,
    SearchResponse,
    StatusResponse,
)
from orchestration.service.service import Service
from orchestration.service.writer import Job, addition, application, deletion

router = APIRouter()
MAX_RESULTS, MAX_CHARACTERS, MAX_FILTERS = 1000, 10_000, 50  # of a search
MAX_DOCUMENTS = 10_000  # in one request
CHANGE_SECONDS = 600.0  # until a request whose documents are not searchable yet is answered with its receipt only
Wait = Annotated[bool, Query(description="Answer when the change is searchable (200), else once it is safe (202).")]
REFUSED: dict[int | str, dict[str, Any]] = {
    422: {"model": RefusedResponse, "description": "Every row was refused; if the request makes no sense, `error` only"}
}


@router.post("/search", tags=["search"])
async def search(wanted: SearchRequest, request: Request) -> SearchResponse:
    """Search the live collection."""
    service: Service = request.app.state.service
    check(wanted)
    return await service.pool.run(lambda: answer(service, wanted))


@router.get("/search", tags=["search"])
async def search_by_address(wanted: Annotated[SearchQuery, Query()], request: Request) -> SearchResponse:
    """The same for a browser: `/search?text=sort+an+array&k=5&filter=package=numpy`."""
    return await search(wanted.request, request)


def check(wanted: SearchRequest) -> None:
    """Refuse what exceeds the service's bounds, by a `SettingsError` that names the bound."""
    require_queries([wanted.text])
    characters, filters = len(wanted.text) + sum(map(len, wanted.filters)), len(wanted.filters)
    require(wanted.k <= MAX_RESULTS, f"k is {wanted.k}, but this service gives at most {MAX_RESULTS} documents")
    require(filters <= MAX_FILTERS, f"{filters} filters, but this service takes at most {MAX_FILTERS}")
    require(
        characters <= MAX_CHARACTERS,
        f"text and filters have {characters:,} characters, but this service takes at most {MAX_CHARACTERS:,}",
    )


def answer(service: Service, wanted: SearchRequest) -> SearchResponse:
    """Search in this thread: one searcher is taken once, and all of the answer comes from it."""
    searcher = service.searchers.current(wanted.retriever)
    started = time.perf_counter()
    hybrid = parameters.load(service.project.params_file).hybrid if wanted.hybrid else None
    hits = searcher.search(wanted.text, wanted.k, wanted.filters, hybrid)
    answers = [Found(**asdict(hit)) for hit in hits]
    if wanted.explain:
        for hit in answers:
            hit.tokens = [asdict(match) for match in searcher.explain(wanted.text, hit.document_id)]  # type: ignore[misc]
    service.metrics.search.observe(time.perf_counter() - started)
    generation = searcher.generation
    response = SearchResponse(retriever=generation.retriever, generation=generation.number, hits=answers)
    service.log_query(_entry(wanted, response))
    return response


def _entry(wanted: SearchRequest, response: SearchResponse) -> dict[str, object]:
    """What the query log keeps: the search, and what came first."""
    search = {"text": wanted.text, "k": wanted.k, "filters": wanted.filters, "hybrid": wanted.hybrid}
    top = response.hits[0] if response.hits else None
    best = {"hits": len(response.hits), "first": top and top.document_id, "score": top and top.score}
    return {"retriever": response.retriever, "generation": response.generation} | search | best


@router.post(
    "/documents",
    tags=["documents"],
    responses=REFUSED | {202: {"model": ChangeResponse, "description": "Received, searchable soon"}},
)
async def add(wanted: AddRequest, request: Request, response: Response, wait: Wait = True) -> ChangeResponse:
    """Add documents, or update those that are there; 422 if every row was refused."""
    service: Service = request.app.state.service
    _check(len(wanted.documents))
    return await _change(service, addition(wanted.documents, wanted.source), response, wait)


@router.post(
    "/documents/apply", tags=["documents"], responses={202: {"model": ChangeResponse, "description": "Searchable soon"}}
)
async def apply(request: Request, response: Response, wait: Wait = True) -> ChangeResponse:
    """Make searchable what the ledger has already, such as what `freshet add` recorded."""
    return await _change(request.app.state.service, application(), response, wait)


@router.post(
    "/documents/delete",
    tags=["documents"],
    responses=REFUSED | {202: {"model": ChangeResponse, "description": "Received, gone soon"}},
)
async def delete_all(wanted: DeleteRequest, request: Request, response: Response, wait: Wait = True) -> ChangeResponse:
    """Delete documents; ids that are unknown are among `rejected`, and 422 if all are."""
    service: Service = request.app.state.service
    _check(len(wanted.ids))
    return await _change(service, deletion(wanted.ids, wanted.source), response, wait)


@router.delete("/documents/{document_id:path}", tags=["documents"])
async def delete(document_id: str, request: Request, response: Response, wait: Wait = True) -> ChangeResponse:
    """Delete one document; 404 if there is none of this id."""
    service: Service = request.app.state.service
    try:
        return await _change(service, deletion([document_id], "service"), response, wait)
    except NothingAccepted:
        raise NotFound(f"there is no document {document_id!r}") from None


async def _change(service: Service, job: Job, response: Response, wait: bool) -> ChangeResponse:
    """Queue the job and wait for its answers; a client that leaves stops nothing."""
    service.queue.put(job)
    seconds = CHANGE_SECONDS
    try:
        receipt = await asyncio.wait_for(asyncio.wrap_future(job.received), seconds)
    except TimeoutError:
        raise Busy(f"waiting to be received for {seconds:g} s, and still is; sent again, it changes nothing") from None
    if receipt.rejected and not (receipt.events or receipt.unchanged):
        raise _nothing_accepted(receipt)
    generation = None
    if wait:
        with suppress(TimeoutError):  # it is safe in the ledger; the answer says that it cannot be found yet
            generation = (await asyncio.wait_for(asyncio.wrap_future(job.applied), seconds)).generation
    response.status_code = 202 if generation is None else 200
    return _response(receipt, generation)


def _check(documents: int) -> None:
    if documents > MAX_DOCUMENTS:
        most = f"{MAX_DOCUMENTS:,}"
        raise TooLarge(f"{documents:,} documents at once, but this service takes at most {most}; send them in parts")


def _nothing_accepted(receipt: Any) -> NothingAccepted:
    first = receipt.rejected[0]
    message = f"no row was accepted ({receipt.received:,} came); row {first.row}: {first.reason}"
    return NothingAccepted(message, _response(receipt, None).model_dump())


def _response(receipt: Any, generation: int | None) -> ChangeResponse:
    rejected = [Rejected(row=each.row, document_id=each.document_id, reason=each.reason) for each in receipt.rejected]
    return ChangeResponse(
        searchable=generation is not None,
        generation=generation,
        received=receipt.received,
        unchanged=receipt.unchanged,
        rejected=rejected,
        events=list(receipt.events),
    )


@router.get("/status", tags=["state"])
async def status_page(request: Request) -> StatusResponse:
    """Generations, queues, and the ledger's account of documents and lag."""
    return await run_sync(_status, request.app.state.service)


@router.get("/health", tags=["state"])
async def health(request: Request, response: Response) -> HealthResponse:
    """200 if a search can be answered, else 503 and why."""
    reason = await run_sync(_not_ready, request.app.state.service)
    response.status_code = 200 if reason is None else 503
    return HealthResponse(live=True, ready=reason is None, reason=reason)


@router.get("/health/live", tags=["state"])
async def live() -> HealthResponse:
    """200 as long as the process answers."""
    return HealthResponse(live=True, ready=False, reason="not looked at: ask /health")


@router.get("/metrics", tags=["state"], response_class=Response)
async def metrics(request: Request) -> Response:
    """Prometheus's text format."""
    service: Service = request.app.state.service
    return Response(await run_sync(service.metrics.text), media_type=CONTENT_TYPE_LATEST)


def _not_ready(service: Service) -> str | None:
    """A collection that cannot be opened is an answer here, not an error."""
    try:
        return service.not_ready()
    except FreshetError as error:
        return str(error)


def _status(service: Service) -> StatusResponse:
    not_ready, freshness = _not_ready(service), service.freshness()
    return StatusResponse(
        ready=not_ready is None,
        reason=not_ready or service.failure,
        pid=service.pid,
        started=service.started,
        default_retriever=_default(service),
        open=[_live_state(name, each.generation) for name, each in sorted(service.searchers.opened().items())],
        swaps=service.searchers.swaps,
        waiting_documents=service.queue.documents,
        running_searches=service.pool.inside,
        behind=dict(service.upkeep.failures),
        freshness=freshness,
    )


def _default(service: Service) -> str | None:
    try:
        return service.searchers.default()
    except NotReady:
        return None


def _live_state(name: str, generation: Generation) -> LiveState:
    return LiveState(retriever=name, generation=generation.number, documents=generation.manifest["documents"])
