"""How searches are fused with BM25: as the evaluation's `rrf`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestration import parameters

if TYPE_CHECKING:
    from model_code.live.hybrid import HybridSettings
    from orchestration.project import Project


def hybrid_settings(project: Project) -> HybridSettings:
    """BM25's settings, depth and constant of `params.yaml`."""
    from model_code.live.hybrid import HybridSettings

    settings = parameters.load(project.params_file)
    return HybridSettings(settings.bm25, settings.evaluation.depth, settings.evaluation.fusion_constant)
