"""How documents are added to the project's live collection: the settings and the writer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from model_code.additions.settings import AdditionSettings
from model_code.live.generation import Generation
from orchestration import parameters
from orchestration.project import Project

if TYPE_CHECKING:
    from model_code.live.writer import LiveWriter


def folder_of(project: Project) -> Path:
    """Where the project remembers additions."""
    return project.state / "additions"


def settings_of(project: Project) -> AdditionSettings:
    """The group `additions` of `params.yaml`."""
    return parameters.load(project.params_file).additions


def writer_of(project: Project, retriever: str) -> LiveWriter:
    """The writer of a retriever's live collection; plain where the settings leave encodings as they are."""
    from model_code.live.writer import LiveWriter

    chosen = settings_of(project)
    if not chosen.refine:
        return LiveWriter(project.live, retriever)
    from model_code.additions.writer import RefiningWriter  # with all of IncDSI

    return RefiningWriter(project.live, retriever, chosen, folder_of(project))


def statuses_of(project: Project, generation: Generation) -> dict[str, str]:
    """The name of the IncDSI `Status` of each document that was added by refinement, for the drift measure."""
    from model_code.additions.store import statuses

    return statuses(folder_of(project), generation, settings_of(project).spans)
