"""Stage `hierarchy`: cluster the passages into a tree, by the vectors of the base encoder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_code.context import StageContext
from model_code.stages.stage import BASE_VECTORS, Stage, artifact_paths, code_paths

if TYPE_CHECKING:
    import numpy as np

STAGE = Stage(
    name="hierarchy",
    description="The documents clustered into a tree by spherical k-means.",
    groups=("hierarchy", "seed"),
    inputs=artifact_paths("corpus", base_index=BASE_VECTORS),
    output="artifacts/hierarchy",
    code=code_paths(
        "corpus",
        "distributed",
        "encoding/hardware.py",
        "hierarchy",
        "stages/hierarchy_plot.py",
        "text",
    ),
)
REPORTED_STATISTICS = ("nodes", "passages_max", "cosine_mean")


def run(context: StageContext) -> dict[str, Any]:
    """Write the tree with node names, statistics, a picture, and the document of each passage.

    Returns:
        The number of passages, the depth, and statistics of each level.
    """
    import pyarrow.parquet as pq

    from model_code.distributed.clustering import make_lloyd
    from model_code.files import write_json
    from model_code.hierarchy.build import build_hierarchy
    from model_code.hierarchy.topics import topic_names
    from model_code.hierarchy.tree import DOCUMENT_IDS, TOPICS
    from model_code.stages.hierarchy_plot import draw_hierarchy, level_statistics

    passages = pq.read_table(
        context.inputs["corpus"] / "passages.parquet", columns=["document_id", "title", "text"]
    )
    document_ids = passages["document_id"].to_pylist()
    titles = passages["title"].to_pylist()
    texts = passages["text"].to_pylist()

    vectors = _load_vectors(context.inputs["base_index"], len(document_ids))
    tree = build_hierarchy(
        vectors,
        context.settings["hierarchy"],
        context.settings["seed"],
        context.progress("cluster"),
        make_lloyd,
    )
    tree.save(context.output)
    write_json(context.output / DOCUMENT_IDS, document_ids)

    levels = level_statistics(tree, vectors)
    write_json(context.output / "statistics.json", {"levels": levels})

    titled_texts = [f"{title} {text}" for title, text in zip(titles, texts, strict=True)]
    topics = topic_names(tree, titled_texts)
    write_json(context.output / TOPICS, topics)
    draw_hierarchy(tree, vectors, context.output / "hierarchy.png", topics)

    report = {"passages": len(tree.leaves), "depth": tree.depth}
    for level in levels:
        for key in REPORTED_STATISTICS:
            report[f"level_{level['level']}_{key}"] = level[key]
    return report


def _load_vectors(index: Path, passages: int) -> np.ndarray:
    """Return the vectors (N, H) of the corpus's passages.

    They are mapped into memory, because they may be larger than the memory.

    Args:
        index: Folder of the base index.
        passages: Number N of the passages of the corpus.

    Raises:
        FreshetError: If the index has another number of vectors.
    """
    import numpy as np

    from model_code.errors import FreshetError

    vectors = np.load(index / "vectors.npy", mmap_mode="r")
    if len(vectors) != passages:
        raise FreshetError(
            f"the base index has {len(vectors)} vectors, but the corpus {passages} "
            "passages; encode the corpus again: freshet run base_index"
        )
    return vectors


def check(context: StageContext) -> None:
    """Require a leaf per passage, unit centroids, node names, and statistics of every level.

    `Hierarchy.load` itself raises an error if the arrays do not describe a tree.
    """
    from model_code.checks.indexes import check_document_order
    from model_code.checks.rules import require, require_files, require_unit
    from model_code.checks.tables import passage_documents
    from model_code.files import read_json
    from model_code.hierarchy.tree import DOCUMENT_IDS, SUMMARY, TENSORS, TOPICS, Hierarchy

    folder = context.output
    require_files(
        folder, [TENSORS, SUMMARY, DOCUMENT_IDS, TOPICS, "statistics.json", "hierarchy.png"]
    )
    documents = passage_documents(context.inputs["corpus"])
    tree = Hierarchy.load(folder)
    require(
        len(tree.leaves) == len(documents),
        f"{TENSORS} places {len(tree.leaves)} passages; the corpus has {len(documents)}",
    )
    check_document_order(folder, documents)
    for level, centroids in enumerate(tree.centroids, start=1):
        require_unit(f"{TENSORS}: centroids.{level}", centroids)

    node_counts = [len(parents) for parents in tree.parents]
    name_counts = []
    for names in read_json(folder / TOPICS):
        name_counts.append(len([name for name in names if name]))
    require(name_counts == node_counts, f"{TOPICS} must name each node of each level")

    levels = read_json(folder / "statistics.json")["levels"]
    require(
        [level["nodes"] for level in levels] == node_counts,
        f"statistics.json must have every level, with its {node_counts} nodes",
    )
