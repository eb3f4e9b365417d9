"""`/search`: documents for a text, all from one generation."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query, Request

from model_code.live.query_text import require_queries
from model_code.settings import require
from orchestration import parameters
from orchestration.service.models import Found, SearchQuery, SearchRequest, SearchResponse
from orchestration.service.service import Service
from orchestration.service.settings import ServiceSettings

router = APIRouter(tags=["search"])


@router.post("/search")
async def search(wanted: SearchRequest, request: Request) -> SearchResponse:
    """Search the live collection."""
    service: Service = request.app.state.service
    check(wanted, service.settings)
    return await service.pool.run(lambda: answer(service, wanted))


@router.get("/search")
async def search_by_address(wanted: Annotated[SearchQuery, Query()], request: Request) -> SearchResponse:
    """The same for a browser: `/search?text=sort+an+array&k=5&filter=package=numpy`."""
    return await search(wanted.request, request)


def check(wanted: SearchRequest, settings: ServiceSettings) -> None:
    """Refuse what exceeds the service's bounds, by a `SettingsError` that names the bound."""
    require_queries([wanted.text])
    characters, most = len(wanted.text), settings.max_text_characters
    require(wanted.k <= settings.max_k, f"k is {wanted.k}, but this service gives at most {settings.max_k} documents")
    require(characters <= most, f"text has {characters:,} characters, but this service takes at most {most:,}")
    filters = len(wanted.filters)
    require(
        filters <= settings.max_filters, f"{filters} filters, but this service takes at most {settings.max_filters}"
    )


def answer(service: Service, wanted: SearchRequest) -> SearchResponse:
    """Search in this thread: one searcher is taken once, and all of the answer comes from it."""
    searcher = service.searchers.current(wanted.retriever)
    started = time.perf_counter()
    hits = searcher.search(
        wanted.text,
        wanted.k,
        wanted.filters,
        parameters.load(service.project.params_file).hybrid if wanted.hybrid else None,
    )
    found = [Found(**asdict(hit)) for hit in hits]
    if wanted.explain:
        for hit in found:
            hit.tokens = [asdict(match) for match in searcher.explain(wanted.text, hit.document_id)]  # type: ignore[misc]
    service.metrics.search.observe(time.perf_counter() - started)
    generation = searcher.generation
    response = SearchResponse(retriever=generation.retriever, generation=generation.number, hits=found)
    service.log_query(_entry(wanted, response))
    return response


def _entry(wanted: SearchRequest, response: SearchResponse) -> dict[str, object]:
    """What the query log keeps: the search, and what came first."""
    asked = {"text": wanted.text, "k": wanted.k, "filters": wanted.filters, "hybrid": wanted.hybrid}
    top = response.hits[0] if response.hits else None
    found = {"hits": len(response.hits), "first": top and top.document_id, "score": top and top.score}
    return {"retriever": response.retriever, "generation": response.generation} | asked | found
