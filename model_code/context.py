"""The context of a stage: its input and output paths, settings, and folder for checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model_code.files import read_json, write_json
from model_code.progress import Progress, no_progress

# A file in the output of a stage that did nothing. Later stages that depend on this output also
# write it.
LEFT_OUT = "left_out.json"


@dataclass(frozen=True)
class StageContext:
    """Everything that a stage may use, so that its output depends on its inputs and settings only.

    Attributes:
        root: Folder of the project, for relative paths of the corpus.
        inputs: Folders or files to read, by the names of the stage's declaration.
        output: An empty folder to write. The caller moves it into place after the stage returns.
        settings: The parsed group of settings for each key of the declaration. `seed` is an int.
            The groups of a retriever and of a fusion are called `retriever` and `fusion`.
        checkpoints: A folder that survives a kill. It belongs to this stage with these inputs.
        name: Name of the retriever or fusion, if the stage runs once for each.
        progress: Makes a `Progress` for a label.
    """

    root: Path
    inputs: Mapping[str, Path]
    output: Path
    settings: Mapping[str, Any]
    checkpoints: Path
    name: str | None = None
    progress: Callable[[str], Progress] = field(default=lambda label: no_progress)


def mark_left_out(output: Path, reason: str) -> dict[str, Any]:
    """Record in a stage's output that the stage did nothing, and return the stage's report."""
    output.mkdir(parents=True, exist_ok=True)
    report = {"left_out": reason}
    write_json(output / LEFT_OUT, report)
    return report


def left_out_reason(folder: Path) -> str | None:
    """Return why the stage with this output did nothing, or None if it did its work."""
    file = folder / LEFT_OUT
    if not file.is_file():
        return None
    return str(read_json(file)["left_out"])
