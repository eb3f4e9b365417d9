"""What the live collection needs next, read from the ledger alone: documents to add, or a retrain that is due.

The sensor asks this at every tick, and so may anyone. A step has a key that changes only when there is something new to
do: a step that was asked for is not asked for twice, and a retrain that failed is asked for again under a new one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from orchestration.followed import followed
from orchestration.ledgers import existing_ledger
from orchestration.project import Project

ADD, RETRAIN, RECLUSTER, RECLUSTERED = "add", "retrain", "recluster", "reclustered"
PROMOTED, REFUSED, FAILED = "promoted", "refused", "failed"
ATTEMPTS = 3  # of one retrain; after so many failures a person must look
REMEMBERED = 200  # decisions that are looked back at


@dataclass(frozen=True)
class Step:
    """What to do, under which key, and why."""

    kind: Literal["add", "retrain"]
    key: str
    reason: str


def next_steps(project: Project) -> list[Step]:
    """The steps that wait, additions first; none where nothing is live or nothing arrived. Reads only."""
    from model_code.live.collection import default_retriever, retrievers

    if not retrievers(project.live):
        return []
    ledger = existing_ledger(project, default_retriever(project.live))
    if ledger is None:
        return []
    due = due_retrain(ledger.last_decisions(REMEMBERED))
    return [step for step in (_due_addition(project), due) if step is not None]


def _due_addition(project: Project) -> Step | None:
    """An addition, if changes wait for the default retriever or, when it has them, for another one that follows it."""
    for number, name in enumerate(followed(project)):
        ledger = existing_ledger(project, name)
        pending = ledger.pending() if ledger else []
        if pending:
            key = f"{pending[0].id:08d}-{pending[-1].id:08d}" + f"-{name}" * (number > 0)
            return Step(ADD, key, f"{len(pending)} changes wait" + f" for {name}" * (number > 0))
    return None


def due_recluster(decisions: list[dict[str, Any]]) -> bool:
    """Whether the last step that drift asked for is a new hierarchy, which nobody has made yet; newest first.

    >>> due_recluster([{"kind": "recluster"}]), due_recluster([{"kind": "reclustered"}, {"kind": "recluster"}])
    (True, False)
    """
    steps = (one["kind"] for one in decisions if one["kind"] in (ADD, RETRAIN, RECLUSTER, RECLUSTERED))
    return next(steps, ADD) == RECLUSTER


def due_retrain(decisions: list[dict[str, Any]]) -> Step | None:
    """The retrain that drift asked for and that was neither promoted, refused nor tried `ATTEMPTS` times.

    decisions: newest first, as the ledger lists them.

    >>> asked = {"id": 7, "kind": "retrain", "reason": "topics moved"}
    >>> due_retrain([asked]).key, due_retrain([{"id": 8, "kind": "failed"}, asked]).key
    ('7-1', '7-2')
    >>> due_retrain([{"id": 8, "kind": "promoted"}, asked])
    """
    failures = 0
    for decision in decisions:
        if decision["kind"] in (PROMOTED, REFUSED):
            return None
        failures += decision["kind"] == FAILED
        if decision["kind"] == RETRAIN:
            key = f"{decision['id']}-{failures + 1}"
            return Step(RETRAIN, key, decision["reason"]) if failures < ATTEMPTS else None
    return None
