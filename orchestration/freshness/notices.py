"""What a person should hear of, and telling it: a full disk, changes that wait, drift, failed work, a refused gate."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterable, Mapping
from typing import Any

from model_code.errors import FreshetError
from model_code.ledger.work import WorkState
from model_code.live.collection import Collection, retrievers
from orchestration import parameters
from orchestration.live.ledger import WRITER_LOCK, own_ledger
from orchestration.live.status import live_status
from orchestration.project import Project, holder, is_free
from orchestration.registry import history

LONGEST_WAIT = 600.0  # seconds that a document may wait before it counts as stuck: the sensor looks every thirty
LEAST_FREE = 200e6  # bytes on the project's disk: what a generation of a large batch takes
TIMEOUT = 10.0  # seconds for the receiver to answer


def problems(project: Project) -> dict[str, str]:
    """Everything that is wrong now, in words, by a key that another occurrence of the same does not have."""
    free, found = shutil.disk_usage(project.root).free, {}
    if free < LEAST_FREE:
        found["disk"] = f"the disk of {project.root} has {free / 1e6:.0f} MB left"
    for name in retrievers(project.live):
        try:
            if (own := own_ledger(project, Collection(project.live, name).current())) is None:
                continue
            own.close()
            ledger = live_status(project, name)["ledger"]
        except FreshetError as error:  # a lost log, a damaged generation: what is asked of the others is asked on
            found[f"broken {name} {error}"] = f"{name}: {error}"
            continue
        found |= _waiting(project, name, ledger["lag"]) | _drifted(name, ledger["drift"])
        for row in ledger["work"]:
            if row["state"] == WorkState.FAILED:
                found[f"work {row['id']}"] = f"{row['retriever']}: {row['kind']} failed, {row['outcome']}"
    for line in history.read(project)[-1:]:
        if line["verdict"] and not line["verdict"]["passed"]:
            why = "; ".join(line["verdict"]["reasons"])
            found[f"gate {line['when']} {line['to']}"] = f"gate: {line['action']} version {line['to']}: {why}"
    return found


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
    return {f"drift {name} {drift['recorded']}": f"{name}: drift of {', '.join(over)}"} if drift and over else {}


def tell(project: Project, texts: Iterable[str]) -> bool:
    """Post `texts` to `live.webhook` as JSON, {"text": ...}, which chat systems take; whether there is an address.

    OSError if nobody answers there, or with an error.
    """
    address = parameters.load(project.params_file).live.webhook
    if address is None:
        return False
    body = json.dumps({"text": "\n".join(texts)}).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(address, body, headers), timeout=TIMEOUT):
        return True
