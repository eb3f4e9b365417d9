"""Which of the live retrievers get what arrives."""

from __future__ import annotations

from orchestration import parameters
from orchestration.project import Project


def followed(project: Project) -> list[str]:
    """The retrievers that get what arrives, by `live.follow`; the one that is searched by default first."""
    from model_code.live.collection import default_retriever, retrievers

    default = default_retriever(project.live)
    if parameters.load(project.params_file).live.follow == "default":
        return [default]
    return [default, *(name for name in retrievers(project.live) if name != default)]
