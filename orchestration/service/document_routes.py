"""`/documents`: add, update and delete; answered when the change can be found, unless the client will not wait."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from orchestration.service.jobs import Job, addition, application, deletion
from orchestration.service.models import AddRequest, ChangeResponse, DeleteRequest, RefusedResponse, Rejected
from orchestration.service.refusals import Busy, NotFound, NothingAccepted, TooLarge
from orchestration.service.service import Service

router = APIRouter(tags=["documents"])
Wait = Annotated[bool, Query(description="Answer when the change is searchable (200), else once it is safe (202).")]
REFUSED: dict[int | str, dict[str, Any]] = {
    422: {"model": RefusedResponse, "description": "Every row was refused; if the request makes no sense, `error` only"}
}


@router.post(
    "/documents", responses=REFUSED | {202: {"model": ChangeResponse, "description": "Received, searchable soon"}}
)
async def add(wanted: AddRequest, request: Request, response: Response, wait: Wait = True) -> ChangeResponse:
    """Add documents, or update those that are there; 422 if every row was refused."""
    service: Service = request.app.state.service
    _check(len(wanted.documents), service)
    return await _change(service, addition(wanted.documents, wanted.source), response, wait)


@router.post("/documents/apply", responses={202: {"model": ChangeResponse, "description": "Searchable soon"}})
async def apply(request: Request, response: Response, wait: Wait = True) -> ChangeResponse:
    """Make searchable what the ledger has already, such as what `freshet add` recorded."""
    return await _change(request.app.state.service, application(), response, wait)


@router.post(
    "/documents/delete", responses=REFUSED | {202: {"model": ChangeResponse, "description": "Received, gone soon"}}
)
async def delete_all(wanted: DeleteRequest, request: Request, response: Response, wait: Wait = True) -> ChangeResponse:
    """Delete documents; ids that are unknown are among `rejected`, and 422 if all are."""
    service: Service = request.app.state.service
    _check(len(wanted.ids), service)
    return await _change(service, deletion(wanted.ids, wanted.source), response, wait)


@router.delete("/documents/{document_id:path}")
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
    seconds = service.settings.add_wait_seconds
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


def _check(documents: int, service: Service) -> None:
    most = service.settings.max_documents
    if documents > most:
        raise TooLarge(f"{documents:,} documents at once, but this service takes at most {most:,}; send them in parts")


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
