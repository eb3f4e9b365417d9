"""The tree of documents, and the untrained index that it is clustered from."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import dagster as dg

from assets.pages import index_page, picture
from assets.stage_assets import Page, stage_assets
from orchestration.pipeline.stages import Stage
from orchestration.project import Project


def preview_hierarchy(folder: Path) -> Mapping[str, str]:
    """The tree as a picture."""
    return {"tree": picture("hierarchy", (folder / "hierarchy.png").read_bytes())}


BASE_INDEX = Page("hierarchy", frozenset({"faiss"}), index_page)
HIERARCHY = Page("hierarchy", frozenset({"torch"}), preview_hierarchy)


def hierarchy_assets(project: Project, table: Sequence[Stage]) -> list[dg.AssetsDefinition]:
    """`base_index` and `document_hierarchy`."""
    return stage_assets(project, table, {"base_index": BASE_INDEX, "hierarchy": HIERARCHY})
