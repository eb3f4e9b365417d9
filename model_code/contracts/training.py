"""Contracts of what training needs and leaves: the hierarchy, a learning curve, and a model that its loader can read.

Models are read without torch, whose import alone takes longer than all other contracts together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from model_code.context import StageContext
from model_code.contracts.index import check_folder
from model_code.contracts.rules import (
    WHOLE,
    passage_documents,
    require,
    require_files,
    require_finite,
    validate,
)
from model_code.evaluation.plots import metrics_among
from model_code.files import read_json
from model_code.hierarchy.settings import HierarchySettings, default_branching, level_sizes
from model_code.hierarchy.topics import TOPICS
from model_code.hierarchy.tree import DOCUMENT_IDS, SUMMARY, TENSORS, Hierarchy
from model_code.retrievers.kinds import Kind

if TYPE_CHECKING:
    import pandera.pandas as pa


TRANSFORMER = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
LAYOUT = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json")
WITH_WEIGHTS = ("Dense", "LexicalHead")
WITHOUT_FILES = ("Transformer", "Normalize")  # the transformer's lie at the top


def check_encoder(folder: Path, kind: Kind) -> None:
    """A trained encoder."""
    require(folder.is_dir(), f"{folder.name}/ is missing")
    require_files(folder, (*TRANSFORMER, *LAYOUT, *(("lexical.json",) if kind == "lexical" else ())))
    for name, module in _modules(folder).items():
        if module not in WITHOUT_FILES:
            weights = ("model.safetensors",) if module in WITH_WEIGHTS else ()
            require_files(folder / name, ("config.json", *weights))
    _check_weights(folder)


def check_sequence_model(folder: Path) -> None:
    """A model that writes queries, with its tokenizer."""
    require(folder.is_dir(), f"{folder.name}/ is missing")
    require_files(folder, (*TRANSFORMER, "generation_config.json"))
    _check_weights(folder)


def _modules(folder: Path) -> dict[str, str]:
    """Folder -> kind of module."""
    return {module["path"]: module["type"].rsplit(".", 1)[-1] for module in read_json(folder / "modules.json")}


def _check_weights(folder: Path) -> None:
    """Every tensor can be read, and of floating-point ones every number is finite."""
    from safetensors import SafetensorError, safe_open

    for path in sorted(folder.rglob("*.safetensors")):
        name = path.relative_to(folder.parent).as_posix()
        try:
            with safe_open(path, framework="numpy") as weights:
                for tensor in weights.keys():  # noqa: SIM118  it is no mapping
                    if weights.get_slice(tensor).get_dtype().startswith("F"):
                        require_finite(f"{name}: {tensor}", weights.get_tensor(tensor))
        except SafetensorError as error:
            require(False, f"{name} cannot be read: {error}")


def check_query_generator(context: StageContext) -> None:
    """A curve and a model if one was to be trained; else neither, so that nobody takes it for one."""
    model, history = context.output / "model", context.output / "history.json"
    if context.settings["pseudo_queries.training"].base is None:
        require(not model.exists() and not history.exists(), "no generator is trained, so model/ must not be there")
        return
    check_history(history)
    check_sequence_model(model)


def check_train(context: StageContext) -> None:
    """The curve, the encoder's folder, and what the retriever's kind has beside it."""
    retriever = context.settings["retriever"]
    check_history(context.output / "history.json")
    check_encoder(context.output / "encoder", retriever.kind)
    if retriever.kind == "dsi":
        check_folder(context.output / "document_vectors", "dsi", context)


def check_history(path: Path) -> None:
    """Rows of rising steps, one of them with a loss, every value a finite number: what MLflow and the plots draw."""
    require_files(path.parent, [path.name])
    rows: list[Mapping[str, Any]] = read_json(path)
    require(len(rows) > 0, f"{path.name} must hold at least one row")
    table = pd.DataFrame(rows)
    for name in map(str, table):  # a column is empty where nothing was logged; what is there must be a number
        given = [name in row for row in rows]
        rule = f"{path.name}: {name} must be a number where it is given, but it is null or NaN"
        require(bool(table.loc[given, name].notna().all()), rule)
    validate(_history_schema(path.name, [str(name) for name in table]), table)


def _history_schema(file: str, names: Iterable[str]) -> pa.DataFrameSchema:
    import pandera.pandas as pa

    finite, share = pa.Check(np.isfinite, error="finite numbers"), pa.Check.in_range(0, WHOLE)
    logged = {"loss", *names} - {"step"}
    metrics = set(metrics_among(logged))
    columns = {
        name: pa.Column(float, [finite, share] if name in metrics else [finite], nullable=True, coerce=True)
        for name in sorted(logged)
    }
    rising = pa.Check(lambda steps: steps.diff().fillna(1) > 0, error="steps that rise from row to row")
    return pa.DataFrameSchema({"step": pa.Column(int, [pa.Check.ge(0), rising]), **columns}, name=file)


ROUNDING = 1e-3  # of a unit vector's norm, in float32


def check_hierarchy(context: StageContext) -> None:
    """`Hierarchy` refuses what is no tree; here are its place in the corpus, its size, its centroids and statistics."""
    folder, documents = context.output, passage_documents(context.inputs["corpus"])
    require_files(folder, [TENSORS, SUMMARY, DOCUMENT_IDS, TOPICS, "statistics.json", "hierarchy.png"])
    tree = Hierarchy.load(folder)
    passages = len(documents)
    require(len(tree.leaves) == passages, f"{TENSORS} places {len(tree.leaves)} passages; the corpus has {passages}")
    require(
        read_json(folder / DOCUMENT_IDS) == documents,
        f"{DOCUMENT_IDS} must name the document of each passage, in the order of the corpus's passages",
    )
    _check_sizes(tree, context.settings["hierarchy"])
    for level, centroids in enumerate(tree.centroids, start=1):
        _check_centroids(f"{TENSORS}: centroids.{level}", centroids)
    _check_summary(tree, read_json(folder / SUMMARY))
    topics = read_json(folder / TOPICS)
    counts = [sum(map(bool, names)) for names in topics]
    require(counts == [len(each) for each in tree.parents], f"{TOPICS} must name each node of each level")
    _check_statistics(tree, read_json(folder / "statistics.json")["levels"])


def _check_sizes(tree: Hierarchy, settings: HierarchySettings) -> None:
    """`branching` is a mean, so it bounds the nodes of a level; k-means may leave a cluster without points out."""
    most = level_sizes(len(tree.leaves), settings.branching or default_branching(len(tree.leaves)))
    nodes = [len(parents) for parents in tree.parents]
    fit = len(nodes) == len(most) and all(count <= bound for count, bound in zip(nodes, most, strict=True))
    require(fit, f"{TENSORS} has {nodes} nodes on its levels, where the settings' branching allows {most}")


def _check_centroids(name: str, centroids: np.ndarray) -> None:
    require_finite(name, centroids)
    far = float(np.abs(np.linalg.norm(centroids, axis=1) - 1).max())
    require(far <= ROUNDING, f"{name} must have unit norm, but one is off by {far:.3g}")


def _check_summary(tree: Hierarchy, summary: dict[str, object]) -> None:
    nodes = [len(parents) for parents in tree.parents]
    facts = {"depth": tree.depth, "dimension": tree.dimension, "passages": len(tree.leaves), "nodes": nodes}
    wrong = [name for name, value in facts.items() if summary.get(name) != value]
    require(not wrong, f"{SUMMARY} must state the tree's own {', '.join(wrong)}")


def _check_statistics(tree: Hierarchy, levels: list[dict[str, float]]) -> None:
    require([row["level"] for row in levels] == list(range(1, tree.depth + 1)), "statistics.json must have every level")
    for row in levels:
        sizes = tree.sizes(int(row["level"]))
        facts = {"nodes": len(sizes), "passages_min": int(sizes.min()), "passages_max": int(sizes.max())}
        wrong = [name for name, value in facts.items() if row[name] != value]
        require(not wrong, f"statistics.json, level {row['level']}: {', '.join(wrong)} must be the tree's own")
        sound = -1 - ROUNDING <= row["cosine_mean"] <= 1 + ROUNDING
        require(sound, f"statistics.json, level {row['level']}: cosines must lie between -1 and 1")
