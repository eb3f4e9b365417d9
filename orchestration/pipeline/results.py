"""The finished comparison of all systems, and which retrievers were built."""

from __future__ import annotations

from typing import Any

from model_code.context import left_out
from model_code.errors import FreshetError
from model_code.files import read_json
from orchestration.parameters import Parameters
from orchestration.project import Project


def load_comparison(project: Project) -> dict[str, Any]:
    """`artifacts/comparison/comparison.json`; raises `FreshetError` before the first comparison."""
    path = project.artifacts / "comparison" / "comparison.json"
    if not path.exists():
        raise FreshetError("there are no results yet: run `freshet run` (or `make demo`)")
    return read_json(path)


def built(project: Project, settings: Parameters) -> list[str]:
    """The retrievers and fusions of the settings that were not left out for want of judgements."""
    return [name for name in settings.built if not left_out(project.artifacts / "evaluate" / name)]
