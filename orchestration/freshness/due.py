"""Work that is due: what the sensor starts next, and what is noted when a run of it fails or is
canceled.

And what a person should hear of, and telling it: a full disk, changes that wait, drift, failed
work, a refused gate.
"""

from __future__ import annotations

import json
import shutil
import smtplib
import socket
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Any
from urllib.parse import parse_qs, urlsplit

from model_code.collection.generations.generation_store import (
    Collection,
    default_retriever,
    retrievers,
)
from model_code.collection.index.live_index import live_retrievers
from model_code.collection.index.project_ledger import (
    WRITER_LOCK,
    backlog_of,
    open_ledger_if_exists,
    open_matching_ledger,
    standing_of,
)
from model_code.collection.index.status import live_status
from model_code.collection.ledger.ledger import Ledger
from model_code.collection.ledger.tasks import EventRange, Work, WorkKind, WorkState
from model_code.errors import FreshetError
from model_code.project import Project, holder, is_free
from orchestration import parameters
from orchestration.registry import history

LAST_LOOKS = 9  # at drift, of which the last that brought too few documents is wanted


@dataclass(frozen=True)
class IngestBacklog:
    """What stands between arrival and being found: changes that wait, and for how many seconds the
    oldest does.

    measured: the last event that a drift report looked at, that was looked at and brought too few
    documents for one, or that the retriever was trained with; unmeasured: changes that are
    searched, and that none has looked at yet.
    """

    generation: int
    documents: int
    waiting: int = 0
    oldest: float = 0.0
    measured: int = 0
    unmeasured: int = 0


def ingest_backlog(project: Project) -> IngestBacklog | None:
    """That of the default retriever; None where nothing is live. FreshetError if its log is lost."""
    if not retrievers(project.live):
        return None
    current = Collection(project.live, default_retriever(project.live)).current()
    numbers = current.number, current.manifest["documents"]
    ledger = open_matching_ledger(project, current)
    if ledger is None:
        return IngestBacklog(*numbers)
    with ledger:
        standing, waits = standing_of(ledger, current), backlog_of(ledger, current)
        looked = [report["last_event"] for report in ledger.last_drift(1)]
        looks = ledger.work.last(current.retriever, LAST_LOOKS, WorkKind.DRIFT)
        looked += [
            look.about.last for look in looks if look.about and look.state == WorkState.REFUSED
        ]
        measured = max(standing.trained, *looked, 0)
        number, seconds = (waits.number, waits.seconds) if waits else (0, None)
        return IngestBacklog(
            *numbers, number, seconds or 0.0, measured, max(0, current.watermark - measured)
        )


def due_work(project: Project) -> list[Work]:
    """The work that waits or runs, additions first; none where nothing is live or nothing arrived.

    Where changes wait, an addition is asked for; where nothing is due, a look at drift of what
    nobody looked at. What one retriever's drift called for is not due while another one is searched
    by default.
    """
    if not retrievers(project.live):
        return []
    ledger, default = open_ledger_if_exists(project), default_retriever(project.live)
    if ledger is None:
        return []
    with ledger:
        addition, work = _due_addition(project, ledger), ledger.work
        due = [
            *addition,
            *work.open(default, WorkKind.PILOT),
            *work.open(default, WorkKind.RETRAIN),
        ]
        return due or _due_look(project, ledger, default)


def _due_addition(project: Project, ledger: Ledger) -> list[Work]:
    """An addition, if changes wait for the default retriever or, when it has them, for another one
    that follows it.
    """
    for number, name in enumerate(live_retrievers(project)):
        backlog = backlog_of(ledger, Collection(project.live, name).current())
        about = EventRange(backlog.first, backlog.last) if backlog else None
        ledger.work.keep_only(WorkKind.ADD, name, about)
        if backlog and about:
            reason = f"{backlog.number} changes wait" + f" for {name}" * (number > 0)
            work = ledger.work.ask(WorkKind.ADD, name, about, reason, asked_by="sensor")
            return [] if work is None else [work]
    return []


def _due_look(project: Project, ledger: Ledger, retriever: str) -> list[Work]:
    """A look at drift of the default `retriever`, if enough changes wait for one; with as many more
    it is another.
    """
    stands, minimum = (
        ingest_backlog(project),
        parameters.load(project.params_file).drift.minimum_batch,
    )
    number = stands.unmeasured // minimum * minimum if stands else 0
    about = EventRange(stands.measured + 1, stands.measured + number) if stands and number else None
    for name in {retriever, *(look.retriever for look in ledger.work.open(None, WorkKind.DRIFT))}:
        ledger.work.keep_only(WorkKind.DRIFT, name, about if name == retriever else None)
    reason = f"{number} changes or more since the last look at drift"
    work = about and ledger.work.ask(WorkKind.DRIFT, retriever, about, reason, asked_by="sensor")
    return [work] if work else []


def note_end(project: Project, run_key: str, run_id: str, outcome: str, canceled: bool) -> None:
    """Note that the run of this key failed, so that its work is tried again, or that a person
    canceled it.

    A canceled addition is tried again, as what arrived is to be found. Runs of other work, and of
    what ended already (such as a retrain that the gate refused), are nobody's business.
    """
    ledger = open_ledger_if_exists(project, "")
    if ledger is None:
        return
    with ledger:
        work = ledger.work.of_run(run_key)
        if work is None:
            return
        if canceled and work.kind != WorkKind.ADD:
            ledger.work.end(work, WorkState.CANCELED, outcome, run_id)
        else:
            ledger.work.fail(work, outcome, run_id)


# seconds that a document may wait before it counts as stuck: the sensor looks every thirty
LONGEST_WAIT = 600.0
LEAST_FREE = 200e6  # bytes on the project's disk: what a generation of a large batch takes
TIMEOUT = 10.0  # seconds for the receiver to answer


def problems(project: Project) -> dict[str, str]:
    """Everything that is wrong now, in words, by a key that another occurrence of the same does not
    have.
    """
    free, messages = shutil.disk_usage(project.root).free, {}
    if free < LEAST_FREE:
        messages["disk"] = f"the disk of {project.root} has {free / 1e6:.0f} MB left"
    for name in retrievers(project.live):
        try:
            ledger = live_status(project, name)["ledger"]
        # a lost log, a damaged generation: what is asked of the others is asked on
        except FreshetError as error:
            messages[f"broken {name} {error}"] = f"{name}: {error}"
            continue
        if ledger is None:
            continue
        messages |= _waiting(project, name, ledger["lag"]) | _drifted(name, ledger["drift"])
        for row in ledger["work"]:
            if row["state"] == WorkState.FAILED:
                messages[f"work {row['id']}"] = (
                    f"{row['retriever']}: {row['kind']} failed, {row['outcome']}"
                )
    for line in history.read(project)[-1:]:
        if line["verdict"] and not line["verdict"]["passed"]:
            why = "; ".join(line["verdict"]["reasons"])
            messages[f"gate {line['when']} {line['to']}"] = (
                f"gate: {line['action']} version {line['to']}: {why}"
            )
    return messages


def _waiting(project: Project, name: str, lag: Mapping[str, Any]) -> dict[str, str]:
    if not lag["pending"] or lag["seconds"] < LONGEST_WAIT:
        return {}
    lock = project.live / WRITER_LOCK
    why = "nobody applies them" if is_free(lock) else f"{holder(lock)} is the one writer"
    text = f"{name}: {lag['pending']:,} changes wait, the oldest for {lag['seconds'] / 60:.0f} min: {why}"
    return {f"waiting {name}": text}


def _drifted(name: str, drift: Mapping[str, Any] | None) -> dict[str, str]:
    report = drift["report"].get("report", drift["report"]) if drift else {}
    over = [measure["name"] for measure in report.get("measures", ()) if measure["tripped"]]
    return (
        {f"drift {name} {drift['recorded']}": f"{name}: drift of {', '.join(over)}"}
        if drift and over
        else {}
    )


def tell(project: Project, texts: Sequence[str]) -> None:
    """Post `texts` to `live.webhook` as JSON, {"text": ...}, which chat systems take, or mail them
    to it, if there is an address.

    OSError if nobody answers there, or with an error.
    """
    address = parameters.load(project.params_file).live.webhook
    if address is not None and address.startswith("mailto:"):
        _mail(address, texts)
    elif address is not None:
        body = json.dumps({"text": "\n".join(texts)}).encode()
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=TIMEOUT).close()


def _mail(address: str, texts: Sequence[str]) -> None:
    target, message = urlsplit(address), EmailMessage()
    message["To"], message["From"] = target.path, f"freshet@{socket.gethostname()}"
    message["Subject"] = f"Freshet: {texts[0].splitlines()[0]}"
    message.set_content("\n".join(texts))
    with smtplib.SMTP(
        parse_qs(target.query).get("server", ["localhost"])[0], timeout=TIMEOUT
    ) as server:
        server.send_message(message)
