"""What `freshet add`, `update` and `delete` do: read and check here, then record and make searchable.

If the service runs it does the latter, its encoder being warm; if not, this process does.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from model_code.corpus.rows import printable
from model_code.documents import Document
from model_code.ledger.records import Receipt, Rejection
from model_code.live.collection import default_retriever
from orchestration import arrivals
from orchestration.freshening import Freshener
from orchestration.known_documents import forecast, known
from orchestration.ledgers import existing_ledger
from orchestration.outcome import Outcome
from orchestration.service.client import ServiceClient
from orchestration.upkeep import Upkeep

T = TypeVar("T")
STANDARD_INPUT = Path("-")
PART, PART_BYTES = 1000, 16_000_000  # documents and bytes in one request to the service, which takes 64 MB
SEPARATOR = 2  # bytes between two of them


def add_files(freshener: Freshener, files: Sequence[Path], suffix: str = ".jsonl", known_only: bool = False) -> Outcome:
    """Add the documents of files, "-" for standard input of the format `suffix`; known_only: refuse unknown ids."""
    client, waited = _service(freshener), _waiting(freshener)
    receipts: list[tuple[str, Receipt]] = []
    named: set[str] = set()
    for file in files:
        name, found = _read(freshener, file, suffix)
        documents, refused = freshener.sift(found, known_only)
        named |= {one.document_id for one in documents}
        if client is None:
            receipts.append((name, freshener.ledger.receive(documents, name, refused)))
        else:
            receipts.append((name, _send(freshener, client, documents, name, refused)))
    return _outcome(freshener, receipts, _of(waited, named), apply=client is None)


def delete_documents(freshener: Freshener, document_ids: Sequence[str], source: str = "freshet delete") -> Outcome:
    """Remove documents."""
    client, waited = _service(freshener), _waiting(freshener)
    if client is None:
        receipt = freshener.remove(document_ids, source)
    else:
        receipt = _sent(document_ids, lambda part: client.delete(part, source))
    return _outcome(freshener, [(source, receipt)], _of(waited, document_ids), apply=client is None)


def preview_files(
    freshener: Freshener, files: Sequence[Path], suffix: str = ".jsonl", known_only: bool = False
) -> Outcome:
    """What `add_files` would come to; changes nothing."""
    found, documents = Outcome(), []
    for file in files:
        name, read = _read(freshener, file, suffix)
        documents += read.documents
        found.rejected += _plain(name, read.rejected)
    ledger, current = existing_ledger(freshener.project, freshener.retriever), freshener.collection.current()
    if known_only:
        there = known(ledger, current, (one.document_id for one in documents))
        unknown = sorted({one.document_id for one in documents} - there)
        found.rejected += [{"file": None, "row": None, "document_id": one, "reason": "unknown id"} for one in unknown]
        documents = [one for one in documents if one.document_id in there]
    told = forecast(current, documents, ledger)
    found.added, found.updated = told["added"], told["updated"]
    found.unchanged = len(documents) - len(found.added) - len(found.updated)
    return found


def _waiting(freshener: Freshener) -> dict[str, int]:
    """The newest event of each document that is in the ledger, but not searchable yet, before anything is done."""
    return {event.document_id: event.id for event in freshener.ledger.pending()}


def _of(waited: Mapping[str, int], document_ids: Iterable[str]) -> set[int]:
    """The events among those that waited which are of these documents."""
    return {waited[one] for one in set(document_ids) & waited.keys()}


def _outcome(freshener: Freshener, receipts: Sequence[tuple[str, Receipt]], waited: set[int], apply: bool) -> Outcome:
    """What became of the receipts' events, after everything that waits was made searchable if `apply`.

    waited: events of the same documents from before, such as those that a process recorded which was killed then. Where
    the receipts have no newer one, the rows said nothing new, but the document becomes searchable only now.
    """
    found = Outcome(unchanged=sum(receipt.unchanged for _, receipt in receipts))
    if apply and (waited or any(receipt.events for _, receipt in receipts)):
        freshener.apply_pending()
        found.behind = Upkeep(freshener.project, {freshener.retriever: freshener}.get).finish()
    new = freshener.ledger.events([event for _, receipt in receipts for event in receipt.events])
    newer = {event.document_id for event in new}
    old = [event for event in freshener.ledger.events(sorted(waited)) if event.document_id not in newer]
    found.unchanged -= len(old)
    found.count([*old, *new])
    found.rejected = [one for name, receipt in receipts for one in _plain(name, receipt.rejected)]
    found.generation = freshener.collection.current().number
    return found


def _service(freshener: Freshener) -> ServiceClient | None:
    """The service, if one runs; it changes the default retriever's collection only."""
    default = default_retriever(freshener.project.live)
    return ServiceClient.of(freshener.project) if freshener.retriever == default else None


def _send(
    freshener: Freshener, client: ServiceClient, documents: Iterable[Document], name: str, refused: Sequence[Rejection]
) -> Receipt:  # fmt: skip
    """Let the service receive documents; the rows that were refused are recorded from here."""
    freshener.ledger.receive((), name, refused)
    rows = [arrivals.as_row(one, freshener.settings) for one in documents]
    sent = _sent(rows, lambda part: client.add(part, name))
    return replace(sent, received=len(rows) + len(refused), rejected=(*refused, *sent.rejected))


def _sent(rows: Sequence[T], send: Callable[[list[T]], Mapping[str, Any]]) -> Receipt:
    """The receipts of the requests that `rows` are sent in, as one: a refused row has its number among all of them."""
    receipts: list[Receipt] = []
    before = 0
    for part in _parts(rows):
        receipts.append(receipt_of(send(part), before))
        before += len(part)
    return Receipt(
        received=sum(one.received for one in receipts),
        unchanged=sum(one.unchanged for one in receipts),
        rejected=tuple(refused for one in receipts for refused in one.rejected),
        events=tuple(event for one in receipts for event in one.events),
    )


def _parts(rows: Iterable[T]) -> Iterator[list[T]]:
    """The rows in requests that the service takes, by their number and by their bytes."""
    part: list[T] = []
    size = 0
    for row in rows:
        own = len(json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass"))
        if part and (len(part) == PART or size + own > PART_BYTES):
            yield part
            part, size = [], 0
        part.append(row)
        size += own + SEPARATOR
    if part:
        yield part


def receipt_of(answer: Mapping[str, Any], before: int) -> Receipt:
    """The receipt in the service's answer to a request, before which `before` rows were sent."""
    refused = tuple(Rejection(before + one["row"], one["document_id"], one["reason"]) for one in answer["rejected"])
    return Receipt(answer["received"], answer["unchanged"], refused, tuple(answer["events"]))


def _plain(name: str, refused: Iterable[Any]) -> list[dict[str, Any]]:
    return [{"file": name} | vars(one) for one in refused]


def _read(freshener: Freshener, file: Path, suffix: str) -> tuple[str, arrivals.Arrivals]:
    """What to call a file, and its rows, sound and refused ones."""
    settings = freshener.settings
    with _readable(file, suffix) as (path, name):
        return name, arrivals.admit(arrivals.rows_of_file(path, settings, name), settings)


@contextmanager
def _readable(file: Path, suffix: str) -> Iterator[tuple[Path, str]]:
    """A file that can be read twice and tells its format by its name, and what to call it."""
    if file != STANDARD_INPUT:
        yield file, printable(file.name, len(file.name))  # a name that any ledger can hold
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"input{suffix}"
        path.write_bytes(sys.stdin.buffer.read())
        yield path, "standard input"
