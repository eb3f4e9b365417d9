"""The addresses of the service: its page at `/`, `/search`, `/documents`, and `/status`, `/health`
and `/metrics`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from model_code.collection.generations.generation_store import retrievers
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.ledger.events import Feedback, Opinion, Receipt
from model_code.collection.results import (
    ChangeResult,
    DocumentPage,
    FieldValues,
    RejectedRow,
    SearchResult,
    StoredDocument,
    SyncResult,
)
from model_code.collection.sync.sync import sync
from model_code.files import MANIFEST
from model_code.settings import require
from model_code.text.documents import Document
from model_code.text.snippets import require_queries
from orchestration.service import models
from orchestration.service.errors import Busy, NotFound, NothingAccepted, NotReady, Refusal
from orchestration.service.service import Service
from orchestration.service.writer import Job

router = APIRouter()
MAX_RESULTS, MAX_CHARACTERS, MAX_FILTERS = 1000, 10_000, 50  # of a search
MAX_DOCUMENTS = 10_000  # in one request
MAX_VALUES = 20  # of a field, the commonest
MAX_TOGETHER = 10_000  # hits of all searches of a batch
GENERATION_SECONDS, POLL_SECONDS = 5.0, 0.05  # for a generation that a search demands
# until a request whose documents are not searchable yet is answered with its receipt only
CHANGE_SECONDS = 600.0
Wait = Annotated[
    bool,
    Query(description="Answer when the change is searchable (200), else once it is safe (202)."),
]


async def _served(request: Request) -> Service:
    return request.app.state.service


Served = Annotated[Service, Depends(_served)]
ALL_REFUSED = "Every row was refused; if the request makes no sense, `error` only"
REFUSED: dict[int | str, dict[str, Any]] = {
    422: {"model": models.RefusedResponse, "description": ALL_REFUSED}
}
SOON: dict[int | str, dict[str, Any]] = {
    202: {"model": ChangeResult, "description": "Received; searches show it soon"}
}
PAGE = Path(__file__).with_name("page.html").read_text(encoding="utf-8")


def _hashes(element: str) -> str:
    """The page's own inline content of a kind, as a Content-Security-Policy names what alone may
    run.
    """
    inline = re.findall(f"<{element}>(.*?)</{element}>", PAGE, re.DOTALL)
    return " ".join(
        f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in inline
    )


PAGE_HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src {_hashes('script')}; style-src {_hashes('style')}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


@router.get("/", include_in_schema=False)
async def show_page() -> HTMLResponse:
    """The page to search in."""
    return HTMLResponse(PAGE, headers=PAGE_HEADERS)


@router.post("/search", tags=["search"])
async def search(request: models.SearchRequest, service: Served) -> SearchResult:
    """Search the live collection."""
    (result,) = await _search(
        models.BatchRequest(texts=[request.text], **request.model_dump(exclude={"text"})), service
    )
    return result


@router.get("/search", tags=["search"])
async def search_by_address(
    query: Annotated[models.SearchQuery, Query()], service: Served
) -> SearchResult:
    """The same for a browser: `/search?text=sort+an+array&k=5&filter=package=numpy`."""
    return await search(query.request, service)


@router.post("/search/batch", tags=["search"])
async def search_batch(request: models.BatchRequest, service: Served) -> models.BatchResponse:
    """Several searches at once, answered from one generation."""
    return models.BatchResponse(results=await _search(request, service))


async def _search(request: models.BatchRequest, service: Served) -> list[SearchResult]:
    check(request)
    if request.min_generation is not None:
        await run_sync(await_generation, service, request)
    alike = request.retriever, request.k, request.explain, json.dumps(request.filters)
    return await service.pool.search(
        alike, request.texts, lambda texts: answers(service, request, texts)
    )


def check(request: models.BatchRequest) -> None:
    """Refuse what exceeds the service's bounds, by a `SettingsError` that names the bound."""
    require_queries(request.texts)
    written = (
        request.filters if isinstance(request.filters, list) else [json.dumps(request.filters)]
    )
    characters = max(map(len, request.texts)) + sum(map(len, written))
    filters, texts = len(request.filters), len(request.texts)
    require(
        request.k <= MAX_RESULTS,
        f"k is {request.k}, but this service gives at most {MAX_RESULTS} documents",
    )
    require(
        filters <= MAX_FILTERS, f"{filters} filters, but this service takes at most {MAX_FILTERS}"
    )
    require(
        texts * request.k <= MAX_TOGETHER,
        f"{texts} texts with k = {request.k} ask for {texts * request.k:,} hits, but this service gives at most "
        f"{MAX_TOGETHER:,} at once",
    )
    require(
        characters <= MAX_CHARACTERS,
        f"text and filters have {characters:,} characters, but this service takes at most {MAX_CHARACTERS:,}",
    )


def await_generation(service: Service, request: models.BatchRequest) -> None:
    """Wait for the generation that a search demands; Refusal if it is not searched after
    `GENERATION_SECONDS`.
    """
    latest, demanded = time.monotonic() + GENERATION_SECONDS, request.min_generation or 0
    while (current := service.searchers.current(request.retriever).generation).number < demanded:
        if time.monotonic() > latest:
            reason = f"generation {demanded} of {current.retriever} is not searchable: {current.number} is; try again"
            raise Refusal(reason, 409, retry_after=1)
        time.sleep(POLL_SECONDS)


def answers(
    service: Service, request: models.BatchRequest, texts: Sequence[str]
) -> list[SearchResult]:
    """Search `texts` as the request says, in this thread: one searcher is taken once, and all
    answers come from it.
    """
    searcher = service.searchers.current(request.retriever)
    started = time.perf_counter()
    rankings = searcher.search_batch(texts, request.k, request.filters, request.explain)
    service.metrics.search.observe(time.perf_counter() - started)
    generation = searcher.generation
    return [SearchResult(generation.retriever, generation.number, hits) for hits in rankings]


@router.post("/feedback", tags=["search"])
async def give_feedback(
    request: models.FeedbackRequest, service: Served
) -> models.FeedbackResponse:
    """Say that a hit answers a search, or does not: retrains learn from it, and the gate judges by
    it.
    """
    return models.FeedbackResponse(verdict=Opinion(await run_sync(_judge, service, request)))


def _judge(service: Service, request: models.FeedbackRequest) -> str:
    require_queries([request.query])
    # which PostgreSQL keeps in no text
    require("\0" not in request.query, "the query holds a character 0")
    stored(service, request.document_id)
    said = request.model_dump() | {
        "query": " ".join(request.query.split()),
        "verdict": str(request.verdict),
    }
    return service.collection().ledger.record_feedback(Feedback(**said))


@router.get("/fields", tags=["search"])
async def list_fields(service: Served) -> FieldValues:
    """The fields that documents have, and their commonest values: what a filter can ask for."""

    def values() -> FieldValues:
        searcher = service.searchers.current()
        return FieldValues(searcher.generation.number, searcher.field_values(MAX_VALUES))

    return await service.pool.run(values)


@router.get("/documents", tags=["documents"])
async def list_documents(
    service: Served,
    after: Annotated[
        str, Query(description="The id that the page before ended with: its `next`.")
    ] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_RESULTS, description="How many documents.")] = 100,
) -> DocumentPage:
    """A page of all documents, in the order of their ids."""

    def page() -> DocumentPage:
        searcher = service.searchers.current()
        generation, ids = searcher.generation, searcher.ids_after(after, limit + 1)
        shown, documents = ids[:limit], searcher.documents(ids[:limit])
        return DocumentPage(
            generation=generation.number,
            total=generation.manifest["documents"],
            documents=[_stored(documents[id_]) for id_ in shown],
            next=shown[-1] if len(ids) > limit else None,
        )

    return await service.pool.run(page)


@router.get("/documents/{document_id:path}", tags=["documents"])
async def get_document(document_id: str, service: Served) -> StoredDocument:
    """One document as searches find it; 404 if there is none of this id."""
    return await service.pool.run(lambda: stored(service, document_id))


def stored(service: Service, document_id: str) -> StoredDocument:
    """See `get_document`."""
    documents = service.searchers.current().documents([document_id])
    if not documents:
        raise NotFound(f"there is no document {document_id!r}")
    return _stored(documents[document_id])


def _stored(document: Document) -> StoredDocument:
    return StoredDocument(
        document.document_id, document.title, document.text, document.fields, document.date
    )


@router.post("/documents", tags=["documents"], responses=REFUSED | SOON)
async def add_documents(
    request: models.AddRequest, service: Served, response: Response, wait: Wait = True
) -> ChangeResult:
    """Add documents, or update those that are there; 422 if every row was refused."""
    check_size(len(request.documents))
    rows, source, only_known = request.documents, request.source, request.only_known
    job = Job(len(rows), lambda live: live.receive(rows, source, only_known=only_known))
    return await _change(service, job, response, wait)


@router.post("/documents/apply", tags=["documents"], responses=SOON)
async def apply_changes(service: Served, response: Response, wait: Wait = True) -> ChangeResult:
    """Make searchable what the ledger has already, such as what `freshet add` recorded."""
    return await _change(service, _application(), response, wait)


def _application() -> Job:
    """A job that brings nothing: what the ledger has already becomes searchable."""
    return Job(0, lambda live: Receipt(0, 0, (), ()))


@router.post("/documents/delete", tags=["documents"], responses=REFUSED | SOON)
async def delete_documents(
    request: models.DeleteRequest, service: Served, response: Response, wait: Wait = True
) -> ChangeResult:
    """Delete documents; ids that are unknown are among `rejected`, and 422 if all are."""
    check_size(len(request.ids))
    return await _change(service, _deletion(request.ids, request.source), response, wait)


def _deletion(ids: Sequence[str], source: str) -> Job:
    return Job(len(ids), lambda live: live.remove(ids, source))


@router.delete("/documents/{document_id:path}", tags=["documents"])
async def delete_document(
    document_id: str, service: Served, response: Response, wait: Wait = True
) -> ChangeResult:
    """Delete one document; 404 if there is none of this id."""
    try:
        return await _change(service, _deletion([document_id], "service"), response, wait)
    except NothingAccepted:
        raise NotFound(f"there is no document {document_id!r}") from None


@router.post("/sync", tags=["documents"])
async def sync_source(request: models.SyncRequest, service: Served) -> SyncResult:
    """Make the index hold what the project's own source holds now; 422, and no change, if much of
    it is gone.
    """
    return await run_sync(_synced, service, request)


def _synced(service: Service, request: models.SyncRequest) -> SyncResult:

    def make() -> int | None:
        with suppress(TimeoutError):
            return service.writer.put(_application()).applied.result(CHANGE_SECONDS)
        return None

    live = LiveIndex(service.project, service.searchers.default())
    outcome = sync(live, None, request.force, request.dry_run, make=make)
    rejected = [
        RejectedRow(rejection.row, rejection.document_id, rejection.reason)
        for rejection in outcome.rejections
    ]
    return SyncResult(
        added=outcome.added,
        updated=outcome.updated,
        deleted=outcome.deleted,
        waiting=outcome.waiting,
        unchanged=outcome.unchanged,
        beside=outcome.beside,
        kept=outcome.kept,
        rejected=rejected,
        generation=outcome.generation,
    )


async def _change(service: Service, job: Job, response: Response, wait: bool) -> ChangeResult:
    """Queue the job and wait for its answers; a client that leaves stops nothing. Refused if every
    row was.
    """
    service.writer.put(job)
    seconds = CHANGE_SECONDS
    try:
        receipt = await asyncio.wait_for(asyncio.wrap_future(job.received), seconds)
    except TimeoutError:
        raise Busy(
            f"waiting to be received for {seconds:g} s, and still is; sent again, it changes nothing"
        ) from None
    if receipt.rejected and not (receipt.events or receipt.unchanged):
        first = receipt.rejected[0]
        message = (
            f"no row was accepted ({receipt.received:,} came); row {first.row}: {first.reason}"
        )
        raise NothingAccepted(message, details=asdict(change_result(receipt, None)))
    generation = None
    if wait:
        # it is safe in the ledger; the answer says that it cannot be found yet
        with suppress(TimeoutError):
            generation = await asyncio.wait_for(asyncio.wrap_future(job.applied), seconds)
    response.status_code = 202 if generation is None else 200
    return change_result(receipt, generation)


def check_size(documents: int) -> None:
    """Refuse more documents than are taken at once."""
    if documents > MAX_DOCUMENTS:
        most = f"{MAX_DOCUMENTS:,}"
        reason = f"{documents:,} documents at once, but this service takes at most {most}; send them in parts"
        raise Refusal(reason, 413)


def change_result(receipt: Any, generation: int | None) -> ChangeResult:
    """What became of a change; generation: one that contains it, None while no search finds it."""
    rejected = [RejectedRow(each.row, each.document_id, each.reason) for each in receipt.rejected]
    searchable = generation is not None
    return ChangeResult(
        searchable, generation, receipt.received, receipt.unchanged, rejected, list(receipt.events)
    )


@router.get("/status", tags=["state"])
async def status(service: Served) -> models.StatusResponse:
    """Generations, queues, and the ledger's account of documents and lag."""
    return await run_sync(_state, service)


@router.get("/health", tags=["state"])
async def health(service: Served, response: Response) -> models.HealthResponse:
    """200 if a search can be answered, else 503 and why."""
    reason = await run_sync(service.not_ready)
    response.status_code = 200 if reason is None else 503
    return models.HealthResponse(live=True, ready=reason is None, reason=reason)


@router.get("/health/live", tags=["state"])
async def liveness() -> models.HealthResponse:
    """200 as long as the process answers."""
    return models.HealthResponse(live=True, ready=False, reason="not looked at: ask /health")


@router.get("/metrics", tags=["state"], response_class=Response)
async def metrics(service: Served) -> Response:
    """Prometheus's text format."""
    return Response(
        await run_sync(generate_latest, service.metrics.registry), media_type=CONTENT_TYPE_LATEST
    )


def _state(service: Service) -> models.StatusResponse:
    not_ready, freshness, default = service.not_ready(), service.freshness(), None
    with suppress(NotReady):
        default = service.searchers.default()
    return models.StatusResponse(
        ready=not_ready is None,
        reason=not_ready or service.failure,
        pid=os.getpid(),
        started=service.started,
        default_retriever=default,
        live=retrievers(service.project.live),
        open=[_live_state(name, each) for name, each in sorted(service.searchers.opened().items())],
        swaps=service.searchers.swaps,
        waiting_documents=service.writer.documents,
        running_searches=service.pool.inside,
        behind=dict(service.upkeep.failures),
        freshness=freshness,
    )


def _live_state(name: str, searcher: Searcher) -> models.LiveState:
    generation, seconds = searcher.generation, None
    with suppress(FileNotFoundError):  # an old generation whose folder is deleted already
        seconds = max(0.0, time.time() - (generation.folder / MANIFEST).stat().st_mtime)
    return models.LiveState(
        retriever=name,
        generation=generation.number,
        documents=generation.manifest["documents"],
        seconds=seconds,
        explains=searcher.can_explain,
    )
