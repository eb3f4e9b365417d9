"""What a stage is given: where to read, where to write, its settings and a place for checkpoints. Nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model_code.progress import Progress, silent


@dataclass(frozen=True)
class StageContext:
    """The whole world of a stage function, so that a stage is a pure function of its inputs and settings.

    `inputs` maps input names to folders or files. `output` is an empty folder that the caller moves into place once the
    stage returns. `settings` maps each declared group of `params.yaml` to its parsed dataclass ("seed" to an int).
    `checkpoints` survives a kill and belongs to this stage with these inputs. `name` is the retriever of a stage that
    runs once per retriever. `root` resolves relative paths of the corpus.
    """

    root: Path
    inputs: Mapping[str, Path]
    output: Path
    settings: Mapping[str, Any]
    checkpoints: Path
    name: str | None = None
    progress: Callable[[str], Progress] = field(default=lambda label: silent)
