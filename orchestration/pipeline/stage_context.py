"""The context of a stage: its inputs, settings and output folder.

A stage runs in this context. The check of its output against the stage's contract uses it too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_code.context import StageContext
from model_code.errors import FreshetError
from model_code.progress import LineProgress
from model_code.project import Project
from model_code.stages.stage import Stage
from orchestration import parameters
from orchestration.parameters import Parameters


def stage_context(
    stage: Stage, project: Project, settings: Parameters, output: Path, checkpoints: Path
) -> StageContext:
    """Return the context of a stage, with its inputs, its settings and the folder `output`.

    The stage writes to this folder. The check of the stage's contract reads it.
    """
    return StageContext(
        root=project.root,
        inputs={name: project.root / path for name, path in stage.inputs.items()},
        output=output,
        settings=declared_settings(stage, settings),
        checkpoints=checkpoints,
        name=stage.retriever,
        progress=LineProgress,
    )


def declared_settings(stage: Stage, settings: Parameters) -> dict[str, Any]:
    """Return the groups of settings that a stage declares, and no others.

    A group such as `retrievers.hce` is returned under the key "retriever", and the group of a
    fusion under the key "fusion". Other dotted groups keep their whole name.

    Raises:
        FreshetError: If the settings lack a group.
    """
    short_names = {
        f"retrievers.{stage.retriever}": "retriever",
        f"fusions.{stage.retriever}": "fusion",
    }
    # None is a possible value of a setting, so another object marks a missing one.
    absent = object()
    groups = {}
    missing = []
    for group in stage.groups:
        value = parameters.get_by_path(settings, group, absent)
        if value is absent:
            missing.append(group)
        groups[short_names.get(group, group)] = value
    if missing:
        raise FreshetError(
            f"stage {stage.address} reads what the settings do not have: {', '.join(missing)}"
        )
    return groups
