"""The jobs: everything from the source to the live collection, or only the evaluation of what is trained."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from orchestration.asset_graph import asset_key
from orchestration.stages import Stage

EVALUATION_STAGES = ("baselines", "evaluate", "comparison")


def jobs(table: Sequence[Stage]) -> list[dg.UnresolvedAssetJobDefinition]:
    """`full_build` and `evaluate`. Selections are typed: they do not depend on the installed ANTLR version."""
    evaluation = [asset_key(stage) for stage in table if stage.name in EVALUATION_STAGES]
    return [
        dg.define_asset_job(
            "full_build",
            selection=dg.AssetSelection.all(),
            description="From the corpus's source to a promoted retriever and its live collection.",
        ),
        dg.define_asset_job(
            "evaluate",
            selection=dg.AssetSelection.assets(*evaluation),
            description="Baselines, evaluation of every trained retriever, and the comparison.",
        ),
    ]
