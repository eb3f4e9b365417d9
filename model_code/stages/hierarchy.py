"""The stage that clusters the passages of a corpus into a hierarchy, from the base encoder's
vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from model_code.context import StageContext
from model_code.distributed.clustering import make_lloyd
from model_code.errors import FreshetError
from model_code.files import atomic_write, write_json
from model_code.hierarchy.build import build_hierarchy, unit_vectors
from model_code.hierarchy.topics import topic_names
from model_code.hierarchy.tree import DOCUMENT_IDS, TOPICS, Hierarchy


def run(context: StageContext) -> dict[str, Any]:
    """Write the hierarchy, nodes' names, passages' documents, `statistics.json` and
    `hierarchy.png`; report sizes.
    """
    settings, seed = context.settings["hierarchy"], context.settings["seed"]
    passages = pq.read_table(
        context.inputs["corpus"] / "passages.parquet", columns=["document_id", "title", "text"]
    )
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
    topics = topic_names(
        tree, [f"{title} {text}" for title, text in zip(titles, texts, strict=True)]
    )
    write_json(context.output / TOPICS, topics)
    draw_hierarchy(tree, unit, context.output / "hierarchy.png", topics)
    report = {"passages": len(tree.leaves), "depth": tree.depth}
    for level in levels:
        report |= {
            f"level_{level['level']}_{key}": level[key]
            for key in ("nodes", "passages_max", "cosine_mean")
        }
    return report


DIGITS = 5
CHUNK = 8192
GAP = 0.06  # between two rows, in heights of a row
FINE = 0.003  # of the width: narrower boxes have no outline, or one would see nothing else
NAMED = 0.07  # wider boxes show their name, too
LABELLED = 0.03  # of the width: wider boxes name their number of passages


def cosines_at(tree: Hierarchy, level: int, vectors: np.ndarray) -> np.ndarray:
    """Cosine of each passage's unit vector (N, H) to the centroid of its node at `level`: (N,)
    float32.
    """
    nodes = tree.paths()[:, level - 1]
    parts = [slice(start, start + CHUNK) for start in range(0, len(vectors), CHUNK)]
    return np.concatenate(
        [np.vecdot(vectors[part], tree.centroids[level - 1][nodes[part]]) for part in parts]
    )


def level_statistics(tree: Hierarchy, vectors: np.ndarray) -> list[dict[str, Any]]:
    """One row per level: number of nodes, their passages, and how near to them their unit `vectors`
    (N, H) are.
    """
    rows = []
    for level in range(1, tree.depth + 1):
        sizes, cosines = tree.sizes(level), cosines_at(tree, level, vectors)
        row = {"level": level, "nodes": len(sizes), "passages_min": int(sizes.min())}
        row |= {"passages_median": float(np.median(sizes)), "passages_max": int(sizes.max())}
        rows.append(row | {"cosine_mean": round(float(cosines.mean(dtype=np.float64)), DIGITS)})
    return rows


def draw_hierarchy(
    tree: Hierarchy, vectors: np.ndarray, path: Path, topics: Sequence[Sequence[str]] = ()
) -> None:
    """Draw the tree over the passages' unit `vectors` (N, H) as a PNG at `path`; equal trees give
    equal bytes.

    An icicle plot: children under their parent, coloured by the mean cosine of a node's passages to
    its centroid. topics: the nodes' names, level by level, which large nodes show.
    """
    cosines = [cosines_at(tree, level, vectors) for level in range(1, tree.depth + 1)]
    figure = Figure(figsize=(11, 5), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    boxes = _draw_tree(axes, tree, cosines, topics)
    figure.colorbar(boxes, ax=axes, label="mean cosine to the centroid", fraction=0.03, pad=0.01)
    with atomic_write(path) as aside:
        figure.savefig(aside, format="png", metadata={"Software": None})


def _draw_tree(
    axes: Axes, tree: Hierarchy, cosines: list[np.ndarray], topics: Sequence[Sequence[str]]
) -> PolyCollection:
    total, corners, outlines, means = len(tree.leaves), [], [], []
    for level in range(1, tree.depth + 1):
        sizes = tree.sizes(level)
        ends = np.cumsum(sizes)
        means.append(np.bincount(tree.paths()[:, level - 1], cosines[level - 1]) / sizes)
        top, bottom = level, level + 1 - GAP
        for x0, x1 in zip(ends - sizes, ends, strict=True):
            corners.append([(x0, top), (x1, top), (x1, bottom), (x0, bottom)])
        outlines += np.where(sizes > FINE * total, 0.5, 0.0).tolist()
        names = topics[level - 1] if topics else [""] * len(sizes)
        for end, size, name in zip(ends, sizes, names, strict=True):
            if size > LABELLED * total:
                named = name.replace(", ", "\n") if size > NAMED * total else ""
                text = f"{named}\n{size:,}".strip()
                axes.text(
                    end - size / 2,
                    level + 0.5,
                    text,
                    ha="center",
                    va="center",
                    color="white",
                    size=8,
                )
    colours = np.concatenate(means)
    boxes = PolyCollection(
        corners, array=colours, edgecolors="white", linewidths=outlines, cmap="viridis"
    )
    axes.add_collection(boxes)
    axes.set(xlim=(0, total), ylim=(tree.depth + 1, 1 - GAP), xlabel="passages, node by node")
    names = [
        f"level {level}\n{len(parents):,} nodes"
        for level, parents in enumerate(tree.parents, start=1)
    ]
    axes.set_yticks(np.arange(tree.depth) + 1.5, names)
    axes.set_title(
        f"{total:,} passages in a hierarchy of {tree.depth} levels", loc="left", weight="bold"
    )
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    return boxes
