"""`/status`, `/health` and `/metrics`: how the service is."""

from __future__ import annotations

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from model_code.errors import FreshetError
from model_code.live.generation import Generation
from orchestration.service.models import HealthResponse, LiveState, StatusResponse
from orchestration.service.refusals import NotReady
from orchestration.service.service import Service

router = APIRouter(tags=["state"])


@router.get("/status")
async def status(request: Request) -> StatusResponse:
    """Generations, queues, and the ledger's account of documents and lag."""
    return await run_sync(_status, request.app.state.service)


@router.get("/health")
async def health(request: Request, response: Response) -> HealthResponse:
    """200 if a search can be answered, else 503 and why."""
    reason = await run_sync(_not_ready, request.app.state.service)
    response.status_code = 200 if reason is None else 503
    return HealthResponse(live=True, ready=reason is None, reason=reason)


@router.get("/health/live")
async def live() -> HealthResponse:
    """200 as long as the process answers."""
    return HealthResponse(live=True, ready=False, reason="not looked at: ask /health")


@router.get("/metrics", response_class=Response)
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
