"""Trained encoders and their indexes."""

from collections.abc import Sequence

import dagster as dg

from assets.pages import index_page, learning_curve
from assets.stage_assets import Page, stage_assets
from orchestration.pipeline.stages import Stage
from orchestration.project import Project

TRAIN = Page("retriever", frozenset({"torch"}), learning_curve)
INDEX = Page("retriever", frozenset({"faiss"}), index_page)


def retriever_assets(project: Project, table: Sequence[Stage]) -> list[dg.AssetsDefinition]:
    """`NAME/encoder`, which waits for the one slot of its pool, and `NAME/index` of each retriever."""
    return stage_assets(project, table, {"train": TRAIN, "index": INDEX})
