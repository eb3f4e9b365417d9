"""Dagster assets (outputs that Dagster tracks) of the retrievers that a build trains.

All retrievers share two assets: `base_index`, the passages encoded before any training, and
`document_hierarchy`, the tree that clusters them. Each retriever adds two: its encoder and index.
"""

from collections.abc import Sequence
from pathlib import Path

import dagster as dg

from assets.pages import Preview, index_page, learning_curve, picture, table
from assets.stage_assets import AssetPage, stage_assets
from model_code.files import read_json
from model_code.hierarchy.tree import TOPICS
from model_code.stages.stage import Stage


def preview_hierarchy(folder: Path) -> Preview:
    """Show the tree of passages: sizes by level, topics of the first level, and a picture."""
    names = ("level", "nodes", "passages_min", "passages_median", "passages_max", "cosine_mean")
    level_rows = []
    for level in read_json(folder / "statistics.json")["levels"]:
        level_rows.append({name: level[name] for name in names})
    first_level_topics = read_json(folder / TOPICS)[0]
    return {
        "levels": table(level_rows),
        "topics": table([{"topic": topic} for topic in first_level_topics]),
        "tree": picture("hierarchy", (folder / "hierarchy.png").read_bytes()),
    }


PAGES = {
    "base_index": AssetPage("hierarchy", frozenset({"faiss"}), index_page),
    "hierarchy": AssetPage("hierarchy", frozenset({"torch"}), preview_hierarchy),
    "train": AssetPage("retriever", frozenset({"torch"}), learning_curve),
    "index": AssetPage("retriever", frozenset({"faiss"}), index_page),
}


def retriever_assets(table: Sequence[Stage]) -> list[dg.AssetsDefinition]:
    """Return the assets `base_index` and `document_hierarchy`, and two for each retriever NAME.

    These are `NAME/encoder` and `NAME/index`.

    Args:
        table: Stages of the build. Stages without a page in `PAGES` are left out.
    """
    return stage_assets(table, PAGES)
