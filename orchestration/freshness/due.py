"""What the live collection needs next, read from the ledger alone: documents to add, a pilot, or a retrain.

The sensor asks this at every tick, and so may anyone. A step has a key that changes only when there is something new to
do: a step that was asked for is not asked for twice, and one that failed is asked for again under a new one. Dagster
never forgets a key, and the ledger's numbers begin anew with another one: so a mark of what it is about is part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from model_code.files import hash_text
from orchestration.ledgers import existing_ledger
from orchestration.live.collection import subscribers
from orchestration.project import Project
from orchestration.watermark import mark_of

Decisions = Sequence[dict[str, Any]]
"""As the ledger lists them: newest first, with id, kind, reason, details and time recorded."""

ADD, RETRAIN = "add", "retrain"
PROMOTED, REFUSED, FAILED, CANCELED = "promoted", "refused", "failed", "canceled"
PILOT, PILOTED, NO_PILOT = "pilot", "piloted", "no pilot"  # asked for beside another step, its answer, or why none
ASKED_BY = "asked by"  # of a retrain that a pilot asked for: the decision that called for the pilot
NOT_ADDED, NOT_PILOTED = "addition failed", "pilot failed"
ATTEMPTS = 3  # of one retrain, or of adding the same documents; after so many failures a person must look
REMEMBERED = 200  # decisions that are looked back at


@dataclass(frozen=True)
class Step:
    """What to do, under which key, and why."""

    kind: Literal["add", "pilot", "retrain"]
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
    decisions = ledger.last_decisions(REMEMBERED)
    due = _due_addition(project, decisions), due_pilot(decisions), due_retrain(decisions)
    return [step for step in due if step is not None]


def _due_addition(project: Project, decisions: Decisions) -> Step | None:
    """An addition, if changes wait for the default retriever or, when it has them, for another one that follows it."""
    for number, name in enumerate(subscribers(project)):
        ledger = existing_ledger(project, name)
        pending = ledger.pending() if ledger else []
        if pending:
            what = f"{pending[0].id:08d}-{pending[-1].id:08d}-{mark_of(pending[-1])}" + f"-{name}" * (number > 0)
            reason = f"{len(pending)} changes wait" + f" for {name}" * (number > 0)
            return addition(what, reason, decisions)
    return None


def addition(what: str, reason: str, decisions: Decisions) -> Step | None:
    """The step that adds `what`, under a key of its own for each attempt; None after `ATTEMPTS` failures.

    >>> addition("1-9", "9 changes wait", []).key
    '1-9-1'
    """
    return _attempt("add", NOT_ADDED, what, reason, decisions)


def _attempt(
    kind: Literal["add", "pilot"], failed: str, what: str, reason: str, decisions: Decisions
) -> Step | None:  # fmt: skip
    keys = (one["details"]["key"] for one in decisions if one["kind"] == failed)
    failures = sum(key.rpartition("-")[0] == what for key in keys)
    return Step(kind, f"{what}-{failures + 1}", reason) if failures < ATTEMPTS else None


def due_pilot(decisions: Decisions) -> Step | None:
    """The pilot that drift asked for last, if it is open and was not tried `ATTEMPTS` times.

    >>> asked = {"id": 7, "kind": "add", "reason": "mmd", "details": {"pilot": True}, "recorded": 1718100000.5}
    >>> failed = {"id": 8, "kind": "pilot failed", "details": {"key": "7-55b18280-1"}}
    >>> due_pilot([asked]).key, due_pilot([failed, asked]).key
    ('7-55b18280-1', '7-55b18280-2')
    >>> due_pilot([{"id": 9, "kind": "piloted", "details": {"key": "7-55b18280-2"}}, failed, asked])
    """
    asked = open_pilot(decisions)
    return None if asked is None else _attempt(PILOT, NOT_PILOTED, pilot_name(asked), asked["reason"], decisions)


def open_pilot(decisions: Decisions) -> dict[str, Any] | None:
    """The decision of drift that called for a pilot last, if it has no answer yet and is not `settled`."""
    told = {pilot_of(one["details"].get("key", "")) for one in decisions if one["kind"] in (PILOTED, NO_PILOT)}
    asked = next((one for one in decisions if one["details"].get(PILOT)), None)
    return None if asked is None or pilot_name(asked) in told or settled(asked, decisions) else asked


def settled(asked: dict[str, Any], decisions: Decisions) -> bool:
    """Whether a retrain was asked for or ended since. What that leaves in doubt, a later report calls for again."""
    return any(one["id"] > asked["id"] and one["kind"] in (RETRAIN, PROMOTED, REFUSED) for one in decisions)


def pilot_name(asked: dict[str, Any]) -> str:
    """What the keys of all attempts at a pilot begin with."""
    return f"{asked['id']}-{hash_text(repr(asked['recorded']))[:8]}"


def pilot_of(key: str) -> str:
    """The `pilot_name` that the key of an attempt begins with.

    >>> pilot_of("7-55b18280-2")
    '7-55b18280'
    """
    return key.rpartition("-")[0]


def asking_retriever(project: Project, key: str) -> str | None:
    """The live retriever whose drift called for the pilot of this key; another one may be searched meanwhile."""
    from model_code.live.collection import retrievers

    for name in retrievers(project.live):
        ledger = existing_ledger(project, name)
        decisions = ledger.last_decisions(REMEMBERED) if ledger else []
        if any(one["details"].get(PILOT) and pilot_name(one) == pilot_of(key) for one in decisions):
            return name
    return None


def due_retrain(decisions: Decisions) -> Step | None:
    """The retrain that drift asked for last, if it was neither promoted, refused, canceled nor tried `ATTEMPTS` times.

    >>> asked = {"id": 7, "kind": "retrain", "reason": "topics moved", "details": {}, "recorded": 1718100000.5}
    >>> failed = {"id": 8, "kind": "failed", "details": {"key": "7-55b18280-1"}}
    >>> due_retrain([asked]).key, due_retrain([failed, asked]).key
    ('7-55b18280-1', '7-55b18280-2')
    >>> due_retrain([{"id": 9, "kind": "promoted", "details": {"key": "7-55b18280-2"}}, failed, asked])
    """
    asked = next((one for one in decisions if one["kind"] == RETRAIN), None)
    if asked is None:
        return None
    outcomes = retrain_outcomes(decisions)[asked["id"]]
    if not is_open(outcomes):
        return None
    mark = hash_text(repr(asked["recorded"]))[:8]
    return Step(RETRAIN, f"{asked['id']}-{mark}-{outcomes.count(FAILED) + 1}", asked["reason"])


def retrain_outcomes(decisions: Decisions) -> dict[int, list[str]]:
    """What became of each retrain that drift asked for: by the id of that decision `PROMOTED`, `REFUSED`, `FAILED` or
    `CANCELED` (by a person), oldest first, once per attempt."""
    found: dict[int, list[str]] = {}
    for one in reversed(decisions):
        if one["kind"] == RETRAIN:
            found[one["id"]] = []
        elif one["kind"] in (PROMOTED, REFUSED, FAILED, CANCELED):
            found.get(asked_by(one, found), []).append(one["kind"])
    return found


def asked_by(outcome: dict[str, Any], asked: dict[int, Any]) -> int | None:
    """Which of the retrains `asked` an outcome is of, by its key; one that a person started settles the last of them.

    >>> asked_by({"details": {"key": "7-55b18280-2"}}, {7: [], 9: []})
    7
    >>> asked_by({"details": {"key": "hce-000004"}}, {7: []})
    7
    """
    number = str(outcome["details"].get("key", "")).partition("-")[0]
    return int(number) if number.isdecimal() and int(number) in asked else next(reversed(asked), None)


def is_open(outcomes: Sequence[str]) -> bool:
    """Whether a retrain with these outcomes runs, or will be tried again."""
    return outcomes.count(FAILED) < ATTEMPTS and not {PROMOTED, REFUSED, CANCELED} & set(outcomes)
