"""The append-only history of promotions: a line of JSON for each change and each refusal."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from model_code.audit import current_actor
from model_code.files import append_line
from model_code.project import Project

# Actions in the history after which another version is champion.
CHAMPION_CHANGES = ("promote", "rollback", "moved by hand")


def append(
    project: Project,
    action: str,
    before: str | None,
    after: str | None,
    verdict: dict[str, Any] | None,
) -> None:
    """Append a line to the history, and wait until it is on the disk.

    A promotion first appends its line and then moves the alias. If it is interrupted in between,
    the next call completes it. A change of the champion that repeats the last line is therefore not
    appended again.

    Args:
        project: The project.
        action: `promote`, `refuse` or `rollback`; for an alias that was moved in MLflow,
            `moved by hand` or `put back`.
        before: The version that was champion, if any.
        after: The version that is champion now, or that was refused.
        verdict: The gate's verdict as plain values.
    """
    if action in CHAMPION_CHANGES and _is_last_line(project, action, before, after):
        return

    line = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "action": action,
        "from": before,
        "to": after,
        "verdict": verdict,
        "actor": current_actor(),
    }
    append_line(project.promotions, json.dumps(line, ensure_ascii=False, allow_nan=False))


def read(project: Project) -> list[dict[str, Any]]:
    """Read all lines, oldest first. A line that a crash cut off is left out.

    Keys that verdicts of earlier versions lack are added with empty values.
    """
    path = project.promotions
    if not path.exists():
        return []

    lines = []
    # `splitlines` would also split at U+2028, which JSON allows within a text.
    for text in path.read_text(encoding="utf-8").split("\n"):
        with suppress(json.JSONDecodeError):
            line = json.loads(text)
            if line.get("verdict") is not None:
                line["verdict"] = {"by_known_queries": {}, "findings": [], **line["verdict"]}
            lines.append(line)
    return lines


def _is_last_line(project: Project, action: str, before: str | None, after: str | None) -> bool:
    """Return whether the last line of the history records this very change of the champion."""
    lines = read(project)
    if not lines:
        return False
    last = lines[-1]
    return last["action"] == action and last["from"] == before and last["to"] == after


def last_verdict(project: Project) -> dict[str, Any] | None:
    """Return the last line that has a verdict of the gate; None if the gate was never asked."""
    for line in reversed(read(project)):
        if line["verdict"] is not None:
            return line
    return None
