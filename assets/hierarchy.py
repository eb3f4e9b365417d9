"""The tree of documents, and the untrained index that it is clustered from."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import dagster as dg

from assets.pages import index_page, picture
from assets.stage_assets import Page, Result, StageAssets
from orchestration.pipeline.stages import Stage
from orchestration.project import Project


def preview_hierarchy(folder: Path) -> Mapping[str, str]:
    """The tree as a picture."""
    return {"tree": picture("hierarchy", (folder / "hierarchy.png").read_bytes())}


BASE_INDEX = Page("hierarchy", frozenset({"faiss"}), index_page)
HIERARCHY = Page("hierarchy", frozenset({"torch"}), preview_hierarchy)


def hierarchy_assets(project: Project, table: Sequence[Stage]) -> list[dg.AssetsDefinition]:
    """`base_index` and `document_hierarchy`."""
    family = StageAssets(project, table, {"base_index": BASE_INDEX, "hierarchy": HIERARCHY})

    @dg.multi_asset(name="hierarchy", **family.options())
    def hierarchy(context: dg.AssetExecutionContext) -> Iterator[Result]:
        yield from family.materialize(context)

    return [hierarchy]
