"""Encoders and their indexes: the untrained one, the tree of documents clustered from it, and those
of retrievers.
"""

from collections.abc import Sequence
from pathlib import Path

import dagster as dg

from assets.pages import Preview, index_page, learning_curve, picture, table
from assets.stage_assets import Page, stage_assets
from model_code.files import read_json
from model_code.hierarchy.tree import TOPICS
from model_code.stages.stage import Stage


def preview_hierarchy(folder: Path) -> Preview:
    """The sizes of each level, the names of the first, and the tree as a picture."""
    levels = read_json(folder / "statistics.json")["levels"]
    names = ("level", "nodes", "passages_min", "passages_median", "passages_max", "cosine_mean")
    return {
        "levels": table([{name: level[name] for name in names} for level in levels]),
        "topics": table([{"topic": name} for name in read_json(folder / TOPICS)[0]]),
        "tree": picture("hierarchy", (folder / "hierarchy.png").read_bytes()),
    }


PAGES = {
    "base_index": Page("hierarchy", frozenset({"faiss"}), index_page),
    "hierarchy": Page("hierarchy", frozenset({"torch"}), preview_hierarchy),
    "train": Page("retriever", frozenset({"torch"}), learning_curve),
    "index": Page("retriever", frozenset({"faiss"}), index_page),
}


def retriever_assets(table: Sequence[Stage]) -> list[dg.AssetsDefinition]:
    """`base_index`, `document_hierarchy`, and `NAME/encoder` and `NAME/index` of each retriever."""
    return stage_assets(table, PAGES)
