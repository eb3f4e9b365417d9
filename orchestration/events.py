"""One line per finished stage, so that whoever started DVC learns of each stage as it ends."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

EVENTS_FILE = "FRESHET_EVENTS"


@dataclass(frozen=True)
class StageEnded:
    """A stage that ran to its end, its key and its MLflow run."""

    address: str
    key: str
    tracking_run: str


def write(address: str, key: str, tracking_run: str) -> None:
    """Append a line to the file that the environment names; nothing if it names none."""
    name = os.environ.get(EVENTS_FILE)
    if name:
        line = json.dumps({"address": address, "key": key, "tracking_run": tracking_run}) + "\n"
        with Path(name).open("a", encoding="utf-8") as stream:
            stream.write(line)


def read(path: Path) -> list[StageEnded]:
    """All whole lines so far."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [StageEnded(**json.loads(line)) for line in lines]
