"""Tell a person what goes wrong."""

from __future__ import annotations

import json
import shutil
import smtplib
import socket
import urllib.request
from collections.abc import Mapping, Sequence
from email.message import EmailMessage
from typing import Any
from urllib.parse import parse_qs, urlsplit

from model_code.collection.generations.generation_store import (
    retrievers,
)
from model_code.collection.index.project_ledger import WRITER_LOCK
from model_code.collection.index.status import live_status
from model_code.collection.ledger.tasks import TaskState
from model_code.errors import FreshetError
from model_code.project import Project, lock_is_free, lock_owner
from orchestration import parameters
from orchestration.registry import history

# seconds that a document may wait before it counts as stuck: the sensor looks every thirty
LONGEST_WAIT = 600.0


LEAST_FREE = 200e6  # bytes on the project's disk: what a generation of a large batch takes


TIMEOUT = 10.0  # seconds for the receiver to answer


def find_problems(project: Project) -> dict[str, str]:
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
            if row["state"] == TaskState.FAILED:
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
    why = "nobody applies them" if lock_is_free(lock) else f"{lock_owner(lock)} is the one writer"
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


def send_notice(project: Project, texts: Sequence[str]) -> None:
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
