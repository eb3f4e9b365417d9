"""Routes of the service: the page, search, documents, status, health and metrics."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, BackgroundTasks, Depends, Query, Request, Response, UploadFile
from fastapi.responses import FileResponse, HTMLResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from freshet.results import (
    ChangeResult,
    DocumentPage,
    FieldValues,
    RejectedRow,
    SearchResult,
    StoredDocument,
    SyncResult,
    UploadResult,
)
from model_code.collection.generations.generation_store import retrievers
from model_code.collection.generations.live_queries import ShownQueries
from model_code.collection.generations.query_options import QueryOptions
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.reading_notes_file import read_reading_notes, update_reading_notes
from model_code.collection.ledger.events import Feedback, Opinion, Receipt
from model_code.collection.ledger.ledger import VERSION_CONFLICT
from model_code.collection.sync.named_sources import source_states
from model_code.collection.sync.sync import sync
from model_code.corpus.reading_notes import sort_notes
from model_code.corpus.rows import Rejection
from model_code.corpus.settings import CorpusSettings
from model_code.files import MANIFEST
from model_code.retrieval.index_settings import KnownQuerySettings
from model_code.settings import require
from model_code.text.documents import Document
from model_code.text.query_syntax import parse_query
from model_code.text.snippets import require_queries
from orchestration.freshness.drift_page import newest_page
from orchestration.service import models
from orchestration.service.errors import Busy, NotFound, NothingAccepted, NotReady, Refusal
from orchestration.service.ingest_queue import IngestJob, apply_job
from orchestration.service.overview import make_overview
from orchestration.service.search_tasks import (
    AnswerPage,
    LikeSearch,
    RaisedCheck,
    SearchTask,
    TextSearch,
    VectorSearch,
)
from orchestration.service.service import Service
from orchestration.service.source_files import find_source_file, has_source_file
from orchestration.service.telemetry import describe_answers
from orchestration.service.uploads import READING_LIMITER, read_uploads, upload_name

router = APIRouter()
# Limits of one search: hits, characters of the query and its filters, and number of filters.
MAX_RESULTS = 1000
MAX_SEARCH_CHARACTERS = 10_000
MAX_FILTERS = 50
# Largest sum of the offset and the number of hits of a search.
MAX_DEPTH = 10_000
# Options of a search that are lists of fields, and the largest length of each list.
LIST_OPTIONS = ("sort", "facets", "boost")
MAX_FIELDS = 50
# Largest number of hits of all searches of a batch together.
MAX_BATCH_HITS = 10_000
# Largest number of documents in one request.
MAX_DOCUMENTS = 10_000
# Number of reading notes that `/status` returns, the most serious first.
MAX_READING_NOTES = 100
# Number of values of a field that `/fields` returns, the most frequent first.
MAX_FIELD_VALUES = 20
# Seconds that a search waits for the generation that it requires, and between two checks for it.
MAX_GENERATION_WAIT_SECONDS = 5.0
GENERATION_POLL_SECONDS = 0.05
# Seconds that a request waits until its change is searchable. After that, the answer says only
# that the change is recorded.
MAX_CHANGE_WAIT_SECONDS = 600.0


async def _get_service(request: Request) -> Service:
    """Return the service that the application was made for, to a route that depends on it.

    This is a coroutine, because FastAPI would call a function in a thread, which takes longer.
    """
    return request.app.state.service


ServiceDependency = Annotated[Service, Depends(_get_service)]
Wait = Annotated[
    bool,
    Query(description="Answer when the change is searchable (200), or once it is recorded (202)."),
]
ALL_REFUSED_RESPONSE: dict[int | str, dict[str, Any]] = {
    422: {
        "model": models.RefusedResponse,
        "description": "All rows were refused. For an invalid request, `error` only",
    }
}
RECORDED_RESPONSE: dict[int | str, dict[str, Any]] = {
    202: {"model": ChangeResult, "description": "Recorded; searchable soon"}
}
PAGE = Path(__file__).with_name("page.html").read_text(encoding="utf-8")


def _inline_hashes(element: str, page: str) -> str:
    """Return the hashes of a page's inline elements, as a Content-Security-Policy names them."""
    hashes = []
    for text in re.findall(f"<{element}>(.*?)</{element}>", page, re.DOTALL):
        digest = b64encode(sha256(text.encode()).digest()).decode()
        hashes.append(f"'sha256-{digest}'")
    return " ".join(hashes)


PAGE_HEADERS = {
    # The browser runs only the script and applies only the style that stand in the page itself.
    "Content-Security-Policy": (
        "default-src 'none'; "
        f"script-src {_inline_hashes('script', PAGE)}; style-src {_inline_hashes('style', PAGE)}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


# Headers of files of documents. The browser runs no script of such a file.
FILE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@router.get("/", include_in_schema=False)
async def show_page() -> HTMLResponse:
    """Return the search page."""
    return HTMLResponse(PAGE, headers=PAGE_HEADERS)


@router.get("/drift", include_in_schema=False)
async def show_drift(service: ServiceDependency) -> HTMLResponse:
    """Return the newest drift report as a page; 404 if there is none."""

    def read_page() -> str | None:
        return newest_page(service.project, service.searchers.current())

    page = await service.pool.run(read_page)
    if page is None:
        raise NotFound(
            "there is no drift report yet; one is made when drift.minimum_batch documents were "
            "added, or by freshet tools drift"
        )
    policy = (
        f"default-src 'none'; style-src {_inline_hashes('style', page)}; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )
    headers = dict(PAGE_HEADERS)
    headers["Content-Security-Policy"] = policy
    return HTMLResponse(page, headers=headers)


@router.post("/search", tags=["search"], response_model=SearchResult)
async def search(
    request: models.SearchRequest, service: ServiceDependency, background: BackgroundTasks
) -> Response:
    """Search the documents."""
    if request.text is not None:
        # A search for a text is a batch of one text.
        options = request.model_dump(exclude={"text", "like", "vector"})
        batch = models.BatchRequest(texts=[request.text], **options)
        (page,) = await _search(batch, service)
        _shadow_later(batch, service, background)
        return _json_response(page.content)

    _check_search(request, [])
    if request.min_generation is not None:
        await run_sync(_wait_for_generation, service, request)
    with service.metrics.span("search", queries=1, k=request.k) as span:
        page = await service.pool.run(lambda: _search_without_text(service, request))
        describe_answers(span, [page])
        return _json_response(page.content)


def _json_response(content: bytes) -> Response:
    """Return a response with JSON that the search has made already."""
    return Response(content, media_type="application/json")


def _search_without_text(service: Service, request: models.SearchRequest) -> AnswerPage:
    """Search for documents like another one, or near to a vector."""
    options = _query_options(request)
    task: SearchTask[AnswerPage]
    if request.like is not None:
        task = LikeSearch(request.like, options)
    else:
        task = VectorSearch(request.vector or (), options)
    started = time.perf_counter()
    page = service.search(task, request.retriever)
    service.metrics.observe_search(time.perf_counter() - started)
    return page


@router.get("/search", tags=["search"], response_model=SearchResult)
async def search_by_address(
    query: Annotated[models.SearchQuery, Query()],
    service: ServiceDependency,
    background: BackgroundTasks,
) -> Response:
    """Search with an address: `/search?text=sort+an+array&k=5&filter=package=numpy`."""
    return await search(query.request, service, background)


@router.post("/search/batch", tags=["search"], response_model=models.BatchResponse)
async def search_batch(
    request: models.BatchRequest, service: ServiceDependency, background: BackgroundTasks
) -> Response:
    """Answer several searches from one generation, a snapshot of the index."""
    pages = await _search(request, service)
    _shadow_later(request, service, background)
    results = b",".join(page.content for page in pages)
    return _json_response(b'{"results":[' + results + b"]}")


def _shadow_later(
    request: models.BatchRequest, service: Service, background: BackgroundTasks
) -> None:
    """Offer the queries to shadow mode once the answer is sent.

    In shadow mode, the challenger searches for the same queries, and its rankings are compared with
    the champion's. Searches are left out whose answers depend on more than the ranking.
    """
    thread = service.shadow_thread
    depends_on_more = request.filters or request.sort or request.offset
    if thread is None or depends_on_more:
        return
    is_default = request.retriever in (None, service.searchers.default())
    # Conditions inside a text, such as package:numpy, are filters too.
    texts = [text for text in request.texts if not parse_query(text).conditions]
    if is_default and texts:
        background.add_task(thread.offer, texts)


async def _search(request: models.BatchRequest, service: Service) -> list[AnswerPage]:
    """Answer the texts of a request in a search thread, within the limits of the service."""
    _check_search(request, request.texts)
    if request.min_generation is not None:
        await run_sync(_wait_for_generation, service, request)

    def search_texts(texts: Sequence[str]) -> list[AnswerPage]:
        return _search_texts(service, request, texts)

    # Searches with equal options are of the same kind. Those that wait are answered together.
    kind = json.dumps(request.model_dump(exclude={"texts", "min_generation"}))
    with service.metrics.span("search", queries=len(request.texts), k=request.k) as span:
        pages = await service.pool.search(kind, request.texts, search_texts)
        describe_answers(span, pages)
        return pages


def _check_search(request: models.BaseSearchRequest, texts: Sequence[str]) -> None:
    """Raise `SettingsError` if a search exceeds a limit of the service.

    Args:
        request: Options of the search.
        texts: Queries of the search; none if it searches by a document or a vector.
    """
    require_queries(texts)
    require(
        request.k <= MAX_RESULTS,
        f"k is {request.k}, but this service returns at most {MAX_RESULTS} documents",
    )
    last = request.offset + request.k
    require(
        last <= MAX_DEPTH,
        f"offset + k is {last:,}, but this service returns at most the {MAX_DEPTH:,} best "
        "documents of a search; use a filter",
    )
    for name in LIST_OPTIONS:
        values = len(getattr(request, name))
        require(
            values <= MAX_FIELDS,
            f"{name} has {values} entries, but this service accepts at most {MAX_FIELDS}",
        )
    require(
        len(request.filters) <= MAX_FILTERS,
        f"the search has {len(request.filters)} filters, "
        f"but this service accepts at most {MAX_FILTERS}",
    )

    queries = len(texts)
    hits = queries * last
    require(
        hits <= MAX_BATCH_HITS,
        f"{queries} texts with offset + k = {last} ask for {hits:,} hits, "
        f"but this service returns at most {MAX_BATCH_HITS:,} at once",
    )

    filters = request.filters
    if not isinstance(filters, list):
        filters = [json.dumps(filters)]
    longest_text = max((len(text) for text in texts), default=0)
    characters = longest_text + sum(len(text) for text in filters)
    require(
        characters <= MAX_SEARCH_CHARACTERS,
        f"text and filters have {characters:,} characters, "
        f"but this service accepts at most {MAX_SEARCH_CHARACTERS:,}",
    )


def _wait_for_generation(service: Service, request: models.BaseSearchRequest) -> None:
    """Wait until the generation that a search requires is open, or a newer one.

    A client that has changed documents knows the generation that contains its changes.

    Raises:
        Refusal: If the generation is not open after `MAX_GENERATION_WAIT_SECONDS`.
    """
    required = request.min_generation or 0
    deadline = time.monotonic() + MAX_GENERATION_WAIT_SECONDS
    while True:
        generation = service.searchers.current(request.retriever).generation
        if generation.number >= required:
            return
        if time.monotonic() > deadline:
            raise Refusal(
                f"generation {required} of {generation.retriever} is not searchable yet, "
                f"the current one is {generation.number}; try again in a second",
                409,
                retry_after=1,
            )
        time.sleep(GENERATION_POLL_SECONDS)


def _search_texts(
    service: Service, request: models.BatchRequest, texts: Sequence[str]
) -> list[AnswerPage]:
    """Answer queries by one task, so that all answers come from one snapshot of the index."""
    task = TextSearch(texts, _query_options(request))
    started = time.perf_counter()
    pages = service.search(task, request.retriever)
    service.metrics.observe_search(time.perf_counter() - started)
    return pages


def _query_options(request: models.BaseSearchRequest) -> QueryOptions:
    """Return the options of a search.

    Raises:
        SettingsError: If an option is malformed.
    """
    return QueryOptions(
        k=request.k,
        filters=request.filters,
        explain=request.explain,
        offset=request.offset,
        window=request.window,
        sort=request.sort,
        group_by=request.group_by,
        facets=request.facets,
        boost=request.boost,
        rerank=request.rerank,
        syntax=request.syntax,
        typos=request.typos,
        prefix=request.prefix,
        min_score=request.min_score,
        diversity=request.diversity,
    )


@router.post("/feedback", tags=["search"])
async def give_feedback(
    request: models.FeedbackRequest, service: ServiceDependency, background: BackgroundTasks
) -> models.FeedbackResponse:
    """Record whether a hit answers a search.

    Feedback becomes judgements. The next training uses them, and so does the statistical test that
    decides whether a newly trained retriever replaces the present one.
    """
    verdict = await run_sync(_record_feedback, service, request)
    if service.shadow_thread is not None:
        query = _single_spaced(request.query)
        offer = service.shadow_thread.offer_feedback
        background.add_task(offer, query, request.document_id, verdict)
    return models.FeedbackResponse(verdict=Opinion(verdict))


def _record_feedback(service: Service, request: models.FeedbackRequest) -> str:
    """Record an opinion about a hit in the ledger, and return the verdict that counts now.

    Raises:
        NotFound: If the document does not exist.
        SettingsError: If the query cannot be searched or stored.
    """
    require_queries([request.query])
    # PostgreSQL, in which feedback may be stored, cannot store the character 0.
    require("\0" not in request.query, "the query contains a character 0; remove it")
    _find_document(service, request.document_id)

    query = _single_spaced(request.query)
    # The opinion records whether only known queries brought the hit up. It then says little about
    # how the retriever ranks the document. A thumb down counts in any case.
    raised = False
    if request.verdict != Opinion.DOWN:
        raised = service.search(RaisedCheck(query, request.document_id))
    feedback = Feedback(
        query=query,
        document_id=request.document_id,
        verdict=str(request.verdict),
        rank=request.rank,
        who=request.who,
        raised=raised,
    )
    return service.index().ledger.record_feedback(feedback)


@router.post("/feedback/withdraw", tags=["search"])
async def withdraw_feedback(
    request: models.WithdrawalRequest, service: ServiceDependency
) -> models.WithdrawalResponse:
    """Withdraw the opinion that was given about a hit."""

    def withdraw() -> bool:
        require_queries([request.query])
        query = _single_spaced(request.query)
        ledger = service.index().ledger
        return ledger.withdraw_feedback(request.who, query, request.document_id)

    return models.WithdrawalResponse(withdrawn=await run_sync(withdraw))


def _single_spaced(query: str) -> str:
    """Return a query with single spaces between its words, as feedback on it is recorded."""
    return " ".join(query.split())


@router.get("/fields", tags=["search"])
async def list_fields(service: ServiceDependency) -> FieldValues:
    """Return the fields of the documents with their most frequent values, for filters."""

    def read_fields() -> FieldValues:
        searcher = service.searchers.current()
        return FieldValues(searcher.generation.number, searcher.field_values(MAX_FIELD_VALUES))

    return await service.pool.run(read_fields)


@router.get("/documents", tags=["documents"])
async def list_documents(
    service: ServiceDependency,
    after: Annotated[
        str, Query(description="The `next` of the page before; empty for the first page.")
    ] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_RESULTS, description="Number of documents.")] = 100,
) -> DocumentPage:
    """Return a page of all documents, in the order of their ids."""
    return await service.pool.run(lambda: _read_document_page(service, after, limit))


def _read_document_page(service: Service, after: str, limit: int) -> DocumentPage:
    """Return the first `limit` documents whose ids come after the id `after`."""
    searcher = service.searchers.current()
    # One id more than the page needs is read. It tells whether there is another page.
    ids = searcher.ids_after(after, limit + 1)
    page_ids = ids[:limit]
    next_id = page_ids[-1] if len(ids) > limit else None

    documents_by_id = searcher.unexpired_documents(page_ids)
    documents = []
    for document_id in page_ids:
        if document_id in documents_by_id:
            documents.append(_stored_document(service, searcher, documents_by_id[document_id]))
    expired = len(searcher.expired_documents())
    return DocumentPage(
        generation=searcher.generation.number,
        total=searcher.generation.manifest["documents"] - expired,
        documents=documents,
        next=next_id,
    )


@router.get("/documents/{document_id:path}", tags=["documents"])
async def get_document(document_id: str, service: ServiceDependency) -> StoredDocument:
    """Return one document; 404 if there is none with this id."""
    document = await service.pool.run(lambda: _find_document(service, document_id))
    has_file = await run_sync(has_source_file, service.project, document_id)
    return replace(document, has_file=has_file)


def _find_document(service: Service, document_id: str) -> StoredDocument:
    """Return a document of the default retriever's index.

    Raises:
        NotFound: If there is none with this id.
    """
    searcher = service.searchers.current()
    documents = searcher.unexpired_documents([document_id])
    if not documents:
        raise NotFound(f"there is no document {document_id!r}")
    return _stored_document(service, searcher, documents[document_id])


def _stored_document(service: Service, searcher: Searcher, document: Document) -> StoredDocument:
    """Return a document with the texts of its known queries that may be shown.

    A known query is a query that the document is known to answer. Queries that users typed may be
    private, so a setting tells which ones are shown.
    """
    settings = service.project.settings("known_queries", KnownQuerySettings)
    known = ShownQueries.select(searcher.known_queries([document.document_id]), settings.show)
    return StoredDocument(
        document_id=document.document_id,
        title=document.title,
        text=document.text,
        fields=document.fields,
        date=document.date,
        known_queries=[query.text for query in known.queries],
        hidden_queries=known.hidden,
        version=document.content_hash,
    )


@router.post(
    "/documents", tags=["documents"], responses={**ALL_REFUSED_RESPONSE, **RECORDED_RESPONSE}
)
async def add_documents(
    request: models.AddRequest, service: ServiceDependency, response: Response, wait: Wait = True
) -> ChangeResult:
    """Add documents, or update documents with the same id; 422 if all rows were refused."""
    _check_document_count(len(request.documents))

    def record(index: LiveIndex) -> Receipt:
        if request.partial:
            return index.receive_partial(request.documents, request.source)
        return index.receive(request.documents, request.source, only_known=request.only_known)

    job = IngestJob(len(request.documents), record)
    return await _run_job(service, job, response, wait)


@router.post("/documents/files", tags=["documents"], responses=RECORDED_RESPONSE)
async def upload_files(
    files: list[UploadFile], service: ServiceDependency, response: Response, wait: Wait = True
) -> UploadResult:
    """Add the documents in files, such as a PDF or a CSV file; 422 if all rows were refused.

    The name of a file that is one document is the id of the document. `notes` states what of a
    file was not read.
    """
    _check_document_count(len(files))
    corpus_settings = service.project.settings("corpus", CorpusSettings)
    # One file at a time is read, so that uploads need a bounded amount of memory together.
    rows = await run_sync(read_uploads, files, corpus_settings, limiter=READING_LIMITER)
    _check_document_count(len(rows.documents))

    def record(index: LiveIndex) -> Receipt:
        receipt = index.receive(rows, "upload")
        names = [upload_name(file) for file in files]
        update_reading_notes(service.project, names, rows.notes)
        return receipt

    job = IngestJob(len(rows.documents), record)
    result = await _run_job(service, job, response, wait)
    return UploadResult(**vars(result), notes=sort_notes(rows.notes))


@router.post("/documents/apply", tags=["documents"], responses=RECORDED_RESPONSE)
async def apply_changes(
    service: ServiceDependency, response: Response, wait: Wait = True
) -> ChangeResult:
    """Make all recorded changes searchable, such as additions by `freshet add`."""
    return await _run_job(service, apply_job(), response, wait)


@router.post(
    "/documents/delete", tags=["documents"], responses={**ALL_REFUSED_RESPONSE, **RECORDED_RESPONSE}
)
async def delete_documents(
    request: models.DeleteRequest, service: ServiceDependency, response: Response, wait: Wait = True
) -> ChangeResult:
    """Delete documents by ids or by a filter. Unknown ids are in `rejected`; 422 if all are."""
    if request.ids:
        _check_document_count(len(request.ids))
        job = _delete_job(request.ids, request.source, request.if_version)
        return await _run_job(service, job, response, wait)

    if request.dry_run:
        return await run_sync(_forecast_deletion, service, request)
    matched: list[str] = []

    def record(index: LiveIndex) -> Receipt:
        ids, receipt = index.remove_matching(request.filters, request.source)
        matched.extend(ids)
        return receipt

    result = await _run_job(service, IngestJob(0, record), response, wait)
    return replace(result, matched=matched)


def _forecast_deletion(service: Service, request: models.DeleteRequest) -> ChangeResult:
    """Return the documents that a filter matches, without deleting them."""
    index = service.index()
    matched = list(index.matching_versions(request.filters))
    return ChangeResult(
        searchable=True,
        generation=index.generation.number,
        received=0,
        unchanged=0,
        rejected=[],
        events=[],
        matched=matched,
    )


def _delete_job(ids: Sequence[str], source: str, version: str | None = None) -> IngestJob:
    """Return a job that deletes documents.

    Args:
        ids: Ids of the documents.
        source: Origin of the deletion, for the ledger.
        version: Version that the only document must have to be deleted; None for any version.
    """
    versions = {}
    if version is not None:
        versions[ids[0]] = version

    def record(index: LiveIndex) -> Receipt:
        return index.remove(ids, source, versions)

    return IngestJob(len(ids), record)


@router.delete("/documents/{document_id:path}", tags=["documents"], responses=RECORDED_RESPONSE)
async def delete_document(
    document_id: str,
    service: ServiceDependency,
    response: Response,
    wait: Wait = True,
    if_version: Annotated[
        str | None, Query(description="Delete the document if it has this version.")
    ] = None,
) -> ChangeResult:
    """Delete one document; 404 if there is none with this id."""
    job = _delete_job([document_id], "service", if_version)
    try:
        return await _run_job(service, job, response, wait)
    except NothingAccepted as error:
        if VERSION_CONFLICT in str(error):
            raise
        raise NotFound(f"there is no document {document_id!r}") from None


@router.post("/sync", tags=["documents"])
async def sync_source(request: models.SyncRequest, service: ServiceDependency) -> SyncResult:
    """Make the index equal to a source; 422 if much of the source is missing."""
    return await run_sync(_sync, service, request)


def _sync(service: Service, request: models.SyncRequest) -> SyncResult:
    """Compare a source with the index, record the differences, and make them searchable."""

    def make_searchable() -> int | None:
        """Return the generation with the changes; None if it takes too long to wait for."""
        job = service.ingest_queue.put(apply_job())
        with suppress(TimeoutError):
            return job.applied.result(MAX_CHANGE_WAIT_SECONDS)
        return None

    # A sync takes a lock in the project's folder, which a read-only service cannot write.
    service.ingest_queue.require_changes_accepted()
    index = LiveIndex(service.project, service.searchers.default())
    report = sync(
        index,
        None,
        request.force,
        request.dry_run,
        publish=make_searchable,
        name=request.source,
    )
    return SyncResult(
        added=report.added,
        updated=report.updated,
        deleted=report.deleted,
        waiting=report.waiting,
        unchanged=report.unchanged,
        beside=report.beside,
        kept=report.kept,
        rejected=_rejected_rows(report.rejections),
        generation=report.generation,
        notes=sort_notes(report.notes),
        merged=report.merged,
        expired=report.expired,
        doubt=report.doubt,
    )


async def _run_job(
    service: Service, job: IngestJob, response: Response, wait: bool
) -> ChangeResult:
    """Queue a job, and wait for its answers. The job continues if the client disconnects.

    Args:
        service: The service.
        job: The change.
        response: Gets the status 200 if the change is searchable, or 202 if it is only recorded.
        wait: Whether to wait until the change is searchable.

    Raises:
        NothingAccepted: If all rows were refused.
        Busy: If the queue is full, or the job was not received in time.
    """
    service.ingest_queue.put(job)
    timeout = MAX_CHANGE_WAIT_SECONDS
    try:
        receipt = await asyncio.wait_for(asyncio.wrap_future(job.received), timeout)
    except TimeoutError:
        raise Busy(
            f"the change was not received within {timeout:g} s and still waits; "
            "sending it again is safe"
        ) from None

    has_accepted_rows = receipt.events or receipt.unchanged
    if receipt.rejected and not has_accepted_rows:
        first = receipt.rejected[0]
        raise NothingAccepted(
            f"none of {receipt.received:,} rows was accepted; row {first.row}: {first.reason}",
            details=asdict(_change_result(receipt, None)),
        )

    generation = None
    if wait:
        # After a timeout the change is still safe in the ledger. The answer says that it is not
        # searchable yet.
        with suppress(TimeoutError):
            generation = await asyncio.wait_for(asyncio.wrap_future(job.applied), timeout)
    response.status_code = 202 if generation is None else 200
    return _change_result(receipt, generation)


def _check_document_count(documents: int) -> None:
    """Refuse a request with more documents than `MAX_DOCUMENTS`."""
    if documents > MAX_DOCUMENTS:
        raise Refusal(
            f"the request has {documents:,} documents, but this service accepts at most "
            f"{MAX_DOCUMENTS:,}; send them in parts",
            413,
        )


def _change_result(receipt: Receipt, generation: int | None) -> ChangeResult:
    """Return the outcome of a change of documents, from what the ledger recorded.

    Args:
        receipt: Receipt of the ledger.
        generation: A generation that contains the change; None if no search finds it yet.
    """
    return ChangeResult(
        searchable=generation is not None,
        generation=generation,
        received=receipt.received,
        unchanged=receipt.unchanged,
        rejected=_rejected_rows(receipt.rejected),
        events=list(receipt.events),
        matched=[],
    )


def _rejected_rows(rejections: Sequence[Rejection]) -> list[RejectedRow]:
    rows = []
    for rejection in rejections:
        rows.append(RejectedRow(rejection.row, rejection.document_id, rejection.reason))
    return rows


@router.get("/status", tags=["state"])
async def status(service: ServiceDependency) -> models.StatusResponse:
    """Return generations, queues, and the state of the ledger."""
    return await run_sync(_status, service)


def _status(service: Service) -> models.StatusResponse:
    """Collect the state of all parts of the service. Nothing is opened or changed by it."""
    not_ready_reason = service.not_ready_reason()
    # The ledger is read before `failure`, which also reports a failed read.
    freshness = service.freshness()
    default = None
    with suppress(NotReady):
        default = service.searchers.default()

    open_retrievers = []
    for name, searcher in sorted(service.searchers.opened().items()):
        open_retrievers.append(_live_state(name, searcher))
    notes = read_reading_notes(service.project)
    publish_failure = None
    if service.publish_thread is not None:
        publish_failure = service.publish_thread.failure
    return models.StatusResponse(
        ready=not_ready_reason is None,
        reason=not_ready_reason or service.failure,
        pid=os.getpid(),
        started=service.started,
        default_retriever=default,
        live=retrievers(service.project.live),
        open=open_retrievers,
        swaps=service.searchers.swaps,
        waiting_documents=service.ingest_queue.documents,
        running_searches=service.pool.inside,
        search_processes=service.ready_search_processes,
        behind=dict(service.maintenance.failures),
        freshness=freshness,
        sources=source_states(service.project),
        reading_notes=notes[:MAX_READING_NOTES],
        reading_notes_total=len(notes),
        following=_following_state(service),
        publish_failure=publish_failure,
        shadow=_shadow_state(service),
    )


def _shadow_state(service: Service) -> models.ShadowState | None:
    """Return the state of shadow mode; None if it is off.

    Shadow mode compares the challenger with the champion on a share of the live queries.
    """
    thread = service.shadow_thread
    if thread is None:
        return None
    finding = None if thread.record is None else thread.record.text
    return models.ShadowState(
        share=thread.share, finding=finding, dropped=thread.dropped, failure=thread.failure
    )


def _following_state(service: Service) -> models.FollowingState | None:
    """Return how far this copy of a collection is behind; None if it is no copy.

    The writer is the machine that changes the collection. Copies follow what it publishes.
    """
    if service.follow_thread is None:
        return None
    follower = service.follow_thread.follower
    lag = follower.lag()
    return models.FollowingState(
        target=follower.state.target,
        sequence=lag.sequence,
        behind=lag.behind,
        lag_seconds=lag.seconds,
        unchecked_seconds=lag.unchecked_seconds,
        failure=lag.failure,
    )


def _live_state(name: str, searcher: Searcher) -> models.LiveState:
    """Return which generation of a retriever is searched, its size, and its age in seconds."""
    generation = searcher.generation
    manifest = generation.folder / MANIFEST
    age = None
    # The folder of an old generation may be deleted already.
    with suppress(FileNotFoundError):
        age = max(0.0, time.time() - manifest.stat().st_mtime)
    return models.LiveState(
        retriever=name,
        generation=generation.number,
        documents=generation.manifest["documents"],
        seconds=age,
        explains=searcher.can_explain,
    )


@router.get("/overview", tags=["state"])
async def overview(service: ServiceDependency) -> models.OverviewResponse:
    """Return example questions, new documents, counts of judgements, and the freshness loop."""
    return await run_sync(make_overview, service.project)


@router.get("/files/{document_id:path}", tags=["documents"], response_class=FileResponse)
async def get_file(document_id: str, service: ServiceDependency) -> FileResponse:
    """Return the file of a document; 404 if the document is not a file of the project's folder."""
    path = await run_sync(find_source_file, service.project, document_id)
    if path is None:
        raise NotFound(f"{document_id!r} is no file of the project's source")
    # A browser shows text and PDF. Everything else is text, so that no file runs as a page.
    media_type = "application/pdf" if path.suffix.lower() == ".pdf" else "text/plain"
    return FileResponse(path, media_type=media_type, headers=FILE_HEADERS)


@router.get("/health", tags=["state"])
async def health(service: ServiceDependency, response: Response) -> models.HealthResponse:
    """Return 200 if searches can be answered, and 503 with a reason if not."""
    reason = await run_sync(service.not_ready_reason)
    response.status_code = 200 if reason is None else 503
    return models.HealthResponse(live=True, ready=reason is None, reason=reason)


@router.get("/health/live", tags=["state"])
async def liveness() -> models.HealthResponse:
    """Return 200 as long as the process answers."""
    return models.HealthResponse(live=True, ready=False, reason="not checked; ask /health")


@router.get("/metrics", tags=["state"], response_class=Response)
async def metrics(service: ServiceDependency) -> Response:
    """Return metrics in the text format of Prometheus."""
    text = await run_sync(generate_latest, service.metrics.registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)
