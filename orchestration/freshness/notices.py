"""Find the problems of a project, and notify the person who maintains it."""

from __future__ import annotations

import shutil
import smtplib
import socket
from collections.abc import Mapping, Sequence
from email.message import EmailMessage
from typing import Any
from urllib.parse import parse_qs, urlsplit

from model_code.collection.generations.generation_store import retrievers
from model_code.collection.index.project_ledger import WRITER_LOCK, open_ledger_if_exists
from model_code.collection.index.status import RECENT_ENTRIES, live_status
from model_code.collection.ledger.tasks import TaskState
from model_code.errors import FreshetError
from model_code.project import Project, lock_is_free, lock_owner
from orchestration import parameters
from orchestration.registry import history

# Seconds after which a change that is not searchable yet counts as a problem. The sensor that makes
# changes searchable runs every thirty seconds.
MAX_WAIT_SECONDS = 600.0
# Free space on the project's disk, in bytes, below which a problem is reported. The index of a
# large batch of documents needs about as much.
MIN_FREE_BYTES = 200e6
SEND_TIMEOUT_SECONDS = 10.0


def find_problems(project: Project) -> dict[str, str]:
    """Return the current problems of a project.

    Problems are a full disk, damaged collections, changes that wait too long to become searchable,
    drift, failed tasks, and a refused promotion.

    Returns:
        A message for each problem, by key. The key identifies one occurrence of a problem, so that
        one message is sent about it. If the same problem occurs again, it gets another key.
    """
    problems = {}
    free_bytes = shutil.disk_usage(project.root).free
    if free_bytes < MIN_FREE_BYTES:
        problems["disk"] = f"the disk of {project.root} has {free_bytes / 1e6:.0f} MB left"

    for retriever in retrievers(project.live):
        try:
            status = live_status(project, retriever)
        except FreshetError as error:
            # The ledger is lost or a generation is damaged. The other retrievers are still checked.
            problems[f"broken {retriever} {error}"] = f"{retriever}: {error}"
            continue
        if status["ledger"] is not None:
            problems.update(_ledger_problems(project, retriever, status["ledger"]))

    problems.update(_refused_promotion(project))
    return problems


def failed_task_runs(project: Project) -> set[str]:
    """Return the ids of the Dagster runs of those failed tasks that `find_problems` reports.

    The sensor `notices` does not report these failed runs a second time. The result is empty if the
    ledger is damaged, which `find_problems` reports instead.
    """
    run_ids: set[str] = set()
    try:
        ledger = open_ledger_if_exists(project)
    except FreshetError:
        return run_ids
    if ledger is None:
        return run_ids
    with ledger:
        for retriever in retrievers(project.live):
            for task in ledger.tasks.last(retriever, RECENT_ENTRIES):
                if task.state == TaskState.FAILED and task.run_id is not None:
                    run_ids.add(task.run_id)
    return run_ids


def _ledger_problems(project: Project, retriever: str, ledger: Mapping[str, Any]) -> dict[str, str]:
    """Return the problems that the ledger shows: waiting changes, drift and failed tasks.

    Args:
        project: The project.
        retriever: Name of a live retriever.
        ledger: The part `ledger` of the retriever's status; see `live_status`.
    """
    problems = {}
    problems.update(_stuck_changes(project, retriever, ledger["lag"]))
    problems.update(_drift(retriever, ledger["drift"]))

    for task in ledger["work"]:
        if task["state"] == TaskState.FAILED:
            message = f"{task['retriever']}: {task['kind']} failed, {task['outcome']}"
            problems[f"work {task['id']}"] = message
    return problems


def _stuck_changes(project: Project, retriever: str, lag: Mapping[str, Any]) -> dict[str, str]:
    """Return a problem if changes wait longer than `MAX_WAIT_SECONDS` to become searchable.

    The message tells whether no process applies the changes, or which process should apply them.
    """
    if not lag["pending"] or lag["seconds"] < MAX_WAIT_SECONDS:
        return {}

    # A process that changes the index holds this lock. If it is free, no process applies the
    # changes.
    lock = project.live / WRITER_LOCK
    if lock_is_free(lock):
        reason = "no process applies them"
    else:
        reason = f"{lock_owner(lock)} is the one writer"
    minutes = lag["seconds"] / 60
    message = (
        f"{retriever}: {lag['pending']:,} changes are waiting, the "
        f"oldest for {minutes:.0f} min: {reason}"
    )
    return {f"waiting {retriever}": message}


def _drift(retriever: str, newest_report: Mapping[str, Any] | None) -> dict[str, str]:
    """Return a problem if a measure of the newest drift report is beyond its threshold.

    Args:
        retriever: Name of the retriever.
        newest_report: Row of the ledger, whose key `report` holds the report and the decision; see
            `DriftCheck.as_dict`. None if there is none.
    """
    if newest_report is None:
        return {}
    measures = newest_report["report"]["report"]["measures"]
    exceeded = [measure["name"] for measure in measures if measure["tripped"]]
    if not exceeded:
        return {}
    key = f"drift {retriever} {newest_report['recorded']}"
    return {key: f"{retriever}: drift of {', '.join(exceeded)}"}


def _refused_promotion(project: Project) -> dict[str, str]:
    """Return a problem that shows the gate's verdict, if the gate refused the last promotion."""
    lines = history.read(project)
    if not lines:
        return {}
    last = lines[-1]
    verdict = last["verdict"]
    if verdict is None or verdict["passed"]:
        return {}

    reasons = "; ".join(verdict["reasons"])
    message = f"gate: {last['action']} version {last['to']}: {reasons}"
    return {f"gate {last['when']} {last['to']}": message}


def send_notice(project: Project, messages: Sequence[str]) -> None:
    """Send messages to the address in `live.webhook`; do nothing if there is none.

    A web address receives a POST of `{"text": "..."}`, the format of common chat systems. A
    `mailto:` address receives a mail.

    Args:
        project: The project whose settings name the address.
        messages: At least one message; each becomes a line.

    Raises:
        httpx.HTTPError: If the web server does not answer, or answers with an error.
        OSError: If the mail server does not answer.
    """
    address = parameters.load(project.params_file).live.webhook
    if address is None:
        return
    if address.startswith("mailto:"):
        _send_mail(address, messages)
        return

    # Imported here because the sensor loads this module every thirty seconds and rarely sends.
    import httpx

    body = {"text": "\n".join(messages)}
    response = httpx.post(address, json=body, timeout=SEND_TIMEOUT_SECONDS, follow_redirects=True)
    response.raise_for_status()


def _send_mail(address: str, messages: Sequence[str]) -> None:
    """Send a mail to an address such as `mailto:me@example.org?server=mail.example.org`."""
    target = urlsplit(address)
    server_name = parse_qs(target.query).get("server", ["localhost"])[0]

    mail = EmailMessage()
    mail["To"] = target.path
    mail["From"] = f"freshet@{socket.gethostname()}"
    first_line = messages[0].splitlines()[0]
    mail["Subject"] = f"Freshet: {first_line}"
    mail.set_content("\n".join(messages))

    with smtplib.SMTP(server_name, timeout=SEND_TIMEOUT_SECONDS) as server:
        server.send_message(mail)
