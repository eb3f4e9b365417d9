"""Trained encoders and their indexes."""

from collections.abc import Iterator, Sequence

import dagster as dg

from assets.pages import index_page, learning_curve
from assets.stage_assets import Page, Result, StageAssets
from orchestration.pipeline.stages import Stage
from orchestration.project import Project

TRAIN = Page("retriever", frozenset({"torch"}), learning_curve)
INDEX = Page("retriever", frozenset({"faiss"}), index_page)


def retriever_assets(project: Project, table: Sequence[Stage]) -> list[dg.AssetsDefinition]:
    """`NAME/encoder`, which waits for the one slot of its pool, and `NAME/index` of each retriever."""
    encoders = StageAssets(project, table, {"train": TRAIN})
    indexes = StageAssets(project, table, {"index": INDEX})

    @dg.multi_asset(name="training", **encoders.options())
    def training(context: dg.AssetExecutionContext) -> Iterator[Result]:
        yield from encoders.materialize(context)

    @dg.multi_asset(name="indexing", **indexes.options())
    def indexing(context: dg.AssetExecutionContext) -> Iterator[Result]:
        yield from indexes.materialize(context)

    return [training, indexing]
