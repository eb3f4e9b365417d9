"""Create the builder of a retriever's generations, as the settings of the project ask for.

IncDSI solves the vector of a document so that queries find it. It needs a builder that knows the
kind of the retriever.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from model_code.collection.generations.generation import Generation
from model_code.collection.generations.generation_builder import GenerationBuilder
from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.index.project_ledger import read_later_evidence
from model_code.collection.ledger.ledger import Ledger
from model_code.collection.segments.documents import INDEX
from model_code.files import MANIFEST, read_json
from model_code.incdsi.settings import AdditionSettings
from model_code.project import Project
from model_code.retrieval.kinds import TRAINED_KINDS, trained_kind


def additions_folder(project: Project) -> Path:
    """Return the folder in which IncDSI caches data between additions."""
    return project.state / "additions"


def make_generation_builder(
    project: Project,
    retriever: str,
    find_ledger: Callable[[], Ledger | None],
    opened: Generation | None = None,
) -> GenerationBuilder:
    """Create the builder of a retriever's generations.

    The settings of the project and the kind of the retriever decide whether the builder solves
    vectors by IncDSI.

    Args:
        project: The project.
        retriever: Name of the retriever.
        find_ledger: Returns the open ledger of the project, or None if there is none.
        opened: Generation of a build that is not current yet. None means the current generation.
    """
    builder = _make_builder(project, retriever, opened)
    builder.later_evidence = lambda: read_later_evidence(find_ledger())
    return builder


def _make_builder(project: Project, retriever: str, opened: Generation | None) -> GenerationBuilder:
    """Create the builder that suits the settings and the retriever; see `make_generation_builder`.

    A retriever that learns vectors of documents needs another kind of IncDSI than a fusion.
    """
    settings = project.settings("additions", AdditionSettings)
    folder = additions_folder(project)
    if not settings.refine:
        return GenerationBuilder(project.live, retriever)

    # The imports are inside because they load the solver, which searches do not need.
    generation = opened
    if generation is None:
        generation = GenerationStore(project.live, retriever).current()
    if learns_documents(generation):
        from model_code.incdsi.dsi_builder import DsiIncDsiBuilder

        return DsiIncDsiBuilder(project.live, retriever, settings.learned, folder)

    from model_code.incdsi.fused_builder import FusedIncDsiBuilder

    return FusedIncDsiBuilder(project.live, retriever, settings, folder)


def learns_documents(generation: Generation) -> bool:
    """Return whether the retriever of a generation is of a kind that learns document vectors.

    An example is the kind `dsi`.
    """
    base_index = generation.sibling(generation.base) / INDEX
    kind = read_json(base_index / MANIFEST)["kind"]
    return kind in TRAINED_KINDS and trained_kind(kind).learns_documents
