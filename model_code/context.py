"""What a stage is given: where to read, where to write, its settings and a place for checkpoints.
Nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model_code.files import read_json, write_json
from model_code.progress import Progress, no_progress

# in the output of a stage that did nothing, and in those that stand on it
LEFT_OUT = "left_out.json"


@dataclass(frozen=True)
class StageContext:
    """The whole world of a stage function, so that a stage is a pure function of its inputs and
    settings.

    `inputs` maps input names to folders or files. `output` is an empty folder that the caller moves
    into place once the stage returns. `settings` maps each declared group of `params.yaml` to its
    parsed dataclass ("seed" to an int). `checkpoints` survives a kill and belongs to this stage
    with these inputs. `name` is the retriever of a stage that runs once per retriever. `root`
    resolves relative paths of the corpus.
    """

    root: Path
    inputs: Mapping[str, Path]
    output: Path
    settings: Mapping[str, Any]
    checkpoints: Path
    name: str | None = None
    progress: Callable[[str], Progress] = field(default=lambda label: no_progress)


def mark_left_out(output: Path, reason: str) -> dict[str, Any]:
    """Say in a stage's output that it did nothing, and why; what `run` then returns."""
    output.mkdir(parents=True, exist_ok=True)
    report = {"left_out": reason}
    write_json(output / LEFT_OUT, report)
    return report


def left_out_reason(folder: Path) -> str | None:
    """Why the stage did nothing whose output this is; None if it did its work."""
    file = folder / LEFT_OUT
    return str(read_json(file)["left_out"]) if file.is_file() else None
