"""One line when a stage starts and one when it has ended, so that whoever started DVC can follow."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

EVENTS_FILE = "FRESHET_EVENTS"


@dataclass(frozen=True)
class StageEnded:
    """A stage that ran to its end, and its key."""

    address: str
    key: str


def followed() -> bool:
    """Whether somebody follows: whoever does also records the stages that have ended."""
    return EVENTS_FILE in os.environ


def write_start(address: str) -> None:
    """Say that a stage starts, which tells that DVC has recorded all before it; nothing if nobody follows."""
    _append({"started": address})


def write_end(ended: StageEnded) -> None:
    """Say that a stage has ended; nothing if nobody follows."""
    _append({"ended": asdict(ended)})


def _append(event: dict[str, object]) -> None:
    name = os.environ.get(EVENTS_FILE)
    if name:
        with Path(name).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(event) + "\n")


def read_ended(path: Path, running: bool) -> list[StageEnded]:
    """The stages that have ended so far, in their order; while DVC is `running`, only those it has recorded too.

    DVC writes a stage to `dvc.lock` after the stage's process has ended, so the last one of a running DVC may be
    missing there: it counts once another stage has started.
    """
    if not path.exists():
        return []
    events = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    settled = events[:-1] if running else events
    return [StageEnded(**event["ended"]) for event in settled if "ended" in event]
