"""The append-only history of promotions: one line for each move of the champion, and for each
refused one.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from model_code.project import Project

# the actions after which another version is champion
CHAMPION_CHANGES = ("promote", "rollback", "moved by hand")


def append(
    project: Project,
    action: str,
    before: str | None,
    after: str | None,
    verdict: dict[str, Any] | None,
) -> None:
    """Add one line and wait until it is on the disk; of a move, unless the last line says the same:
    that one was cut off between its line and the alias.

    `action` is promote, refuse or rollback, or of an alias that was moved in MLflow `moved by hand`
    or `put back`; `before` and `after` are the versions that it goes from and to; `verdict` is the
    gate's, with its intervals.
    """
    last = (read(project) or [{}])[-1]
    if action in CHAMPION_CHANGES and [last.get(name) for name in ("action", "from", "to")] == [
        action,
        before,
        after,
    ]:
        return
    now = datetime.now(UTC).isoformat(timespec="seconds")
    line = {"when": now, "action": action, "from": before, "to": after, "verdict": verdict}
    path = project.promotions
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as stream:
        stream.seek(0)
        if not (stream.read() or b"\n").endswith(b"\n"):  # a crash left a last line without its end
            stream.write(b"\n")
        stream.write((json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n").encode())
        stream.flush()
        os.fsync(stream.fileno())


def read(project: Project) -> list[dict[str, Any]]:
    """All lines, oldest first; a line that a crash cut off is left out."""
    path, lines = project.promotions, []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(json.JSONDecodeError):
            lines.append(json.loads(line))
    return lines
