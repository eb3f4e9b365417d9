"""What is remembered of one stage that ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class StageRecord:
    """One stage that ran to its end.

    `stage` is its address, such as `train@hce`; `key` identifies it by command, inputs and settings; `inputs` maps each
    path it read to a hash (the lineage); `artifacts` are small files to keep; each row of `curves` holds a "step" and
    values at that step; `started` and `ended` are seconds since the epoch.
    """

    stage: str
    key: str
    params: Mapping[str, Any]
    metrics: Mapping[str, float]
    inputs: Mapping[str, str]
    artifacts: Sequence[Path]
    curves: Sequence[Mapping[str, Any]]
    git_commit: str | None
    git_dirty: bool
    dagster_run_id: str | None
    started: float
    ended: float
