"""The stage that clusters the passages of a corpus into a hierarchy, from the base encoder's vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.parquet as pq

from model_code.context import StageContext
from model_code.errors import FreshetError
from model_code.files import write_json
from model_code.hierarchy.build import build_hierarchy, unit_vectors
from model_code.hierarchy.report import draw_hierarchy, level_statistics
from model_code.hierarchy.topics import TOPICS, topic_names
from model_code.hierarchy.tree import DOCUMENT_IDS
from model_code.scale.clustering import make_lloyd


def run(context: StageContext) -> dict[str, Any]:
    """Write the hierarchy, nodes' names, passages' documents, `statistics.json` and `hierarchy.png`; report sizes."""
    settings, seed = context.settings["hierarchy"], context.settings["seed"]
    passages = pq.read_table(context.inputs["corpus"] / "passages.parquet", columns=["document_id", "title", "text"])
    documents, titles, texts = (column.to_pylist() for column in passages)
    vectors = np.load(context.inputs["base_index"] / "vectors.npy", mmap_mode="r")  # (N, H)
    if len(vectors) != len(documents):
        raise FreshetError(
            f"the base index has {len(vectors)} vectors, but the corpus {len(documents)} passages; "
            "encode the corpus again: freshet run base_index"
        )
    tree = build_hierarchy(vectors, settings, seed, context.progress("cluster"), make_lloyd)
    tree.save(context.output)
    write_json(context.output / DOCUMENT_IDS, documents)
    unit = unit_vectors(vectors, "cpu").numpy()
    levels = level_statistics(tree, unit)
    write_json(context.output / "statistics.json", {"levels": levels})
    topics = topic_names(tree, [f"{title} {text}" for title, text in zip(titles, texts, strict=True)])
    write_json(context.output / TOPICS, topics)
    draw_hierarchy(tree, unit, context.output / "hierarchy.png", topics)
    report = {"method": settings.method, "passages": len(tree.leaves), "depth": tree.depth}
    for level in levels:
        report |= {f"level_{level['level']}_{key}": level[key] for key in ("nodes", "passages_max", "cosine_mean")}
    return report
