"""What `freshet add`, `update` and `delete` do: read and check here, then record and make searchable.

If the service runs it does the latter, its encoder being warm; if not, this process does.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model_code.ledger.records import Receipt, Rejection
from model_code.live.collection import default_retriever
from orchestration import arrivals
from orchestration.freshening import Freshener
from orchestration.known_documents import forecast
from orchestration.ledgers import existing_ledger
from orchestration.service.client import ServiceClient
from orchestration.upkeep import Upkeep

STANDARD_INPUT = Path("-")
PART, PART_BYTES = 1000, 16_000_000  # documents and bytes in one request to the service, which takes 64 MB
SEPARATOR = 2  # bytes between two of them


@dataclass
class Outcome:
    """What came of a command: document ids by what became of them, refused rows as plain values, the generation.

    behind: which other live retrievers could not take the documents in, and why.
    """

    added: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    unchanged: int = 0
    rejected: list[dict[str, Any]] = field(default_factory=list)
    generation: int | None = None
    behind: dict[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether rows were refused and none was accepted."""
        return bool(self.rejected) and not (
            self.unchanged or self.added or self.updated or self.deleted or self.waiting
        )


def add_files(freshener: Freshener, files: Sequence[Path], suffix: str = ".jsonl", known_only: bool = False) -> Outcome:
    """Add the documents of files, "-" for standard input of the format `suffix`; known_only: refuse unknown ids."""
    client, receipts = _service(freshener), []
    for file in files:
        with _readable(file, suffix) as (path, name):
            if client is None:
                receipts.append((name, freshener.receive_file(path, name, known_only)))
            else:
                receipts.append((name, _send_file(freshener, client, path, name, known_only)))
    return _outcome(freshener, receipts, apply=client is None)


def delete_documents(freshener: Freshener, document_ids: Sequence[str], source: str = "freshet delete") -> Outcome:
    """Remove documents."""
    client = _service(freshener)
    if client is None:
        receipt = freshener.remove(document_ids, source)
    else:
        receipt = _receipt(client.delete(document_ids, source))
    return _outcome(freshener, [(source, receipt)], apply=client is None)


def preview_files(
    freshener: Freshener, files: Sequence[Path], suffix: str = ".jsonl", known_only: bool = False
) -> Outcome:
    """What `add_files` would come to; changes nothing."""
    found, documents = Outcome(), []
    for file in files:
        with _readable(file, suffix) as (path, name):
            read = arrivals.admit(arrivals.rows_of_file(path, freshener.settings, name), freshener.settings)
        documents += read.documents
        found.rejected += _plain(name, read.rejected)
    ledger = existing_ledger(freshener.project, freshener.retriever)
    told = forecast(ledger, freshener.collection.current(), documents)
    if known_only:
        found.rejected += [{"file": None, "row": None, "document_id": one, "reason": "unknown id"}
                           for one in told.pop("added")]  # fmt: skip
    found.added, found.updated = told.get("added", []), told["updated"]
    found.unchanged = len(documents) - len(found.added) - len(found.updated)
    return found


def outcome_text(outcome: Outcome) -> str:
    """The outcome in a line, and a line for each refused row."""
    lists = {name: len(getattr(outcome, name)) for name in ("added", "updated", "deleted", "waiting", "rejected")}
    parts = (lists | {"unchanged": outcome.unchanged}).items()
    line = ", ".join(f"{number:,} {what}" for what, number in parts if number) or "nothing to do"
    end = "" if outcome.generation is None else f" (generation {outcome.generation})"
    behind = (f"  behind    {name}  {reason}" for name, reason in sorted(outcome.behind.items()))
    return "\n".join([line + end, *map(_refused_text, outcome.rejected), *behind])


def _refused_text(one: dict[str, Any]) -> str:
    place = f"{one['file']}:{one['row']}  " if one["row"] is not None else ""
    return f"  rejected  {place}{one['document_id'] or '(no id)'}  {one['reason']}"


def _outcome(freshener: Freshener, receipts: Sequence[tuple[str, Receipt]], apply: bool) -> Outcome:
    """What became of the receipts' events, after everything that waits was made searchable if `apply`."""
    events = [event for _, receipt in receipts for event in receipt.events]
    found = Outcome(unchanged=sum(receipt.unchanged for _, receipt in receipts))
    if events and apply:
        freshener.apply_pending()
        found.behind = Upkeep(freshener.project, {freshener.retriever: freshener}.get).finish()
    for event in freshener.ledger.events(events):
        if event.reason == "unchanged":
            found.unchanged += 1
            continue
        into = getattr(found, event.reason if event.reason in ("added", "updated", "deleted") else "waiting")
        if event.document_id not in into:
            into.append(event.document_id)
    found.rejected = [one for name, receipt in receipts for one in _plain(name, receipt.rejected)]
    found.generation = freshener.collection.current().number
    return found


def _service(freshener: Freshener) -> ServiceClient | None:
    """The service, if one runs; it changes the default retriever's collection only."""
    default = default_retriever(freshener.project.live)
    return ServiceClient.of(freshener.project) if freshener.retriever == default else None


def _send_file(freshener: Freshener, client: ServiceClient, path: Path, name: str, known_only: bool) -> Receipt:
    """Let the service receive the sound rows of a file; those that are refused are recorded from here."""
    settings = freshener.settings
    documents, refused = freshener.sift(
        arrivals.admit(arrivals.rows_of_file(path, settings, name), settings), known_only
    )
    freshener.ledger.receive((), name, refused)
    rows = [arrivals.as_row(one, settings) for one in documents]
    parts = [_receipt(client.add(part, name)) for part in _parts(rows)]
    return Receipt(
        received=len(rows) + len(refused),
        unchanged=sum(part.unchanged for part in parts),
        rejected=(*refused, *(one for part in parts for one in part.rejected)),
        events=tuple(event for part in parts for event in part.events),
    )


def _parts(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The rows in requests that the service takes, by their number and by their bytes."""
    part: list[dict[str, Any]] = []
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


def _receipt(answer: Mapping[str, Any]) -> Receipt:
    """The receipt in the service's answer."""
    refused = tuple(Rejection(one["row"], one["document_id"], one["reason"]) for one in answer["rejected"])
    return Receipt(answer["received"], answer["unchanged"], refused, tuple(answer["events"]))


def _plain(name: str, refused: Iterable[Any]) -> list[dict[str, Any]]:
    return [{"file": name} | vars(one) for one in refused]


@contextmanager
def _readable(file: Path, suffix: str) -> Iterator[tuple[Path, str]]:
    """A file that can be read twice and tells its format by its name, and what to call it."""
    if file != STANDARD_INPUT:
        yield file, file.name
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"input{suffix}"
        path.write_bytes(sys.stdin.buffer.read())
        yield path, "standard input"
