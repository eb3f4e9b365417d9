"""The tree of documents, and the untrained index that it is clustered from."""

from collections.abc import Sequence
from pathlib import Path

import dagster as dg

from assets.pages import Preview, index_page, picture, table
from assets.stage_assets import Page, stage_assets
from model_code.files import read_json
from model_code.hierarchy.tree import TOPICS
from orchestration.pipeline.stages import Stage
from orchestration.project import Project


def preview_hierarchy(folder: Path) -> Preview:
    """The sizes of each level, the names of the first, and the tree as a picture."""
    levels = read_json(folder / "statistics.json")["levels"]
    names = ("level", "nodes", "passages_min", "passages_median", "passages_max", "cosine_mean")
    shown = [{name: level[name] for name in names} for level in levels]
    topics = [{"topic": name} for name in read_json(folder / TOPICS)[0]]
    return {
        "levels": table(shown),
        "topics": table(topics),
        "tree": picture("hierarchy", (folder / "hierarchy.png").read_bytes()),
    }


BASE_INDEX = Page("hierarchy", frozenset({"faiss"}), index_page)
HIERARCHY = Page("hierarchy", frozenset({"torch"}), preview_hierarchy)


def hierarchy_assets(project: Project, table: Sequence[Stage]) -> list[dg.AssetsDefinition]:
    """`base_index` and `document_hierarchy`."""
    return stage_assets(project, table, {"base_index": BASE_INDEX, "hierarchy": HIERARCHY})
