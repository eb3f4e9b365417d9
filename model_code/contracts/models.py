"""Contracts of what a search is made of: hierarchy, learning curves, models that their loaders can
read, and indexes.

Of an index every file is the one that its manifest names; the sizes of files are known from there,
so it is asked whether they are the right rows of sound numbers. Models are read without torch,
whose import alone takes longer than all other contracts together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pandera.pandas as pa
from safetensors import SafetensorError, safe_open

from model_code.context import StageContext
from model_code.contracts.rules import (
    WHOLE,
    passage_documents,
    require,
    require_files,
    require_finite,
    require_unit,
    validate,
)
from model_code.evaluation.metrics import filter_metrics
from model_code.files import MANIFEST, read_json, verify_checksums
from model_code.hierarchy.tree import DOCUMENT_IDS, SUMMARY, TENSORS, TOPICS, Hierarchy
from model_code.retrieval.kinds import trained_kind

Facts = Mapping[str, Any]
TRANSFORMER = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
LAYOUT = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json")
WITH_WEIGHTS = ("Dense",)
WITHOUT_FILES = ("Transformer", "Normalize")  # the transformer's lie at the top


def check_index_folder(folder: Path, kind_name: str, context: StageContext) -> None:
    """Check the folder of an index over the corpus's passages, and what its kind demands of it.

    Args:
        folder: Folder of the index.
        kind_name: Kind of the retriever by the settings.
        context: Context of the stage, with the corpus among its inputs.
    """
    kind = trained_kind(kind_name)
    documents = passage_documents(context.inputs["corpus"])
    manifest = check_sealed(folder)
    name = f"{folder.name}/{MANIFEST}"
    require(
        manifest["kind"] == kind_name,
        f"{name} states the kind {manifest['kind']!r}; the settings say {kind_name!r}",
    )

    document_count = len(set(documents))
    passage_count = document_count if kind.one_row_per_document else len(documents)
    wrong = []
    for key, count in (("documents", document_count), ("passages", passage_count)):
        if manifest[key] != count:
            wrong.append(f"{count:,} {key}, not {manifest[key]:,}")
    require(not wrong, f"{name} must state the corpus's {' and '.join(wrong)}")

    kind.check_index(folder, manifest, documents)


def check_sealed(folder: Path) -> Facts:
    """What the manifest of a folder states, whose files are those that it names."""
    require_files(folder, [MANIFEST])
    facts: Facts = read_json(folder / MANIFEST)
    verify_checksums(folder, dict(facts))
    return facts


def check_document_order(folder: Path, rows: Sequence[str]) -> None:
    """Require the folder's `document_ids.json` to name the document of each row, in this order."""
    require_files(folder, [DOCUMENT_IDS])
    rule = "must name the document of each row, in the order of the corpus's passages"
    require(read_json(folder / DOCUMENT_IDS) == list(rows), f"{folder.name}/{DOCUMENT_IDS} {rule}")


def load_array(folder: Path, name: str) -> np.ndarray:
    """Memory-map an array that must be in the folder."""
    require_files(folder, [name])
    array: np.ndarray = np.load(folder / name, mmap_mode="r")
    return array


def check_query_generator(context: StageContext) -> None:
    """A curve and a model if one was to be trained; else neither, so that nobody takes it for one."""
    model, history = context.output / "model", context.output / "history.json"
    if context.settings["pseudo_queries.training"].base is None:
        require(
            not model.exists() and not history.exists(),
            "no generator is trained, so model/ must not be there",
        )
        return
    check_history(history)
    check_model(model, (*TRANSFORMER, "generation_config.json"))


def check_train(context: StageContext) -> None:
    """Check the training curve, the encoder's folder, and what the retriever's kind adds."""
    encoder = context.output / "encoder"
    check_history(context.output / "history.json")
    check_model(encoder, (*TRANSFORMER, *LAYOUT))

    for module in read_json(encoder / "modules.json"):
        name = module["type"].rpartition(".")[2]
        if name not in WITHOUT_FILES:
            weights = ("model.safetensors",) if name in WITH_WEIGHTS else ()
            require_files(encoder / module["path"], ("config.json", *weights))

    trained_kind(context.settings["retriever"].kind).check_trained(context)


def check_model(folder: Path, names: tuple[str, ...]) -> None:
    """Check that the files are there, that every tensor can be read, and that all floating-point
    numbers are finite.
    """
    require_files(folder, names)
    for path in sorted(folder.rglob("*.safetensors")):
        name = path.relative_to(folder.parent).as_posix()
        try:
            with safe_open(path, framework="numpy") as weights:
                for tensor in weights.keys():  # noqa: SIM118  it is no mapping
                    if weights.get_slice(tensor).get_dtype().startswith("F"):
                        require_finite(f"{name}: {tensor}", weights.get_tensor(tensor))
        except SafetensorError as error:
            require(False, f"{name} cannot be read: {error}")


def check_history(path: Path) -> None:
    """Rows of rising steps, one of them with a loss, every value a finite number: what MLflow and
    the plots draw.
    """
    require_files(path.parent, [path.name])
    rows: list[Mapping[str, Any]] = read_json(path)
    require(bool(rows), f"{path.name} has no rows: at least one with `step` and `loss` is wanted")
    table, names = pd.DataFrame(rows), {name for row in rows for name in row}
    # a column is empty where nothing was logged; what is there must be a number
    for name in sorted(names):
        values = table.loc[[name in row for row in rows], name]
        rule = f"{path.name}: {name} must be a number where it is given, but it is null or NaN"
        require(bool(values.notna().all()), rule)
    finite, share = pa.Check(np.isfinite, error="finite numbers"), pa.Check.in_range(0, WHOLE)
    metrics = filter_metrics(names)
    rising = pa.Check(
        lambda steps: steps.diff().fillna(1) > 0, error="steps that rise from row to row"
    )
    columns = {"step": pa.Column(int, [pa.Check.ge(0), rising])} | {
        name: pa.Column(
            float, [finite, share] if name in metrics else [finite], nullable=True, coerce=True
        )
        for name in sorted({"loss", *names} - {"step"})
    }
    validate(pa.DataFrameSchema(columns, name=path.name), table)


def check_hierarchy(context: StageContext) -> None:
    """Check its place in the corpus, its centroids and its names; `Hierarchy` itself refuses what
    is no tree.
    """
    folder, documents = context.output, passage_documents(context.inputs["corpus"])
    require_files(
        folder, [TENSORS, SUMMARY, DOCUMENT_IDS, TOPICS, "statistics.json", "hierarchy.png"]
    )
    tree, passages = Hierarchy.load(folder), len(documents)
    require(
        len(tree.leaves) == passages,
        f"{TENSORS} places {len(tree.leaves)} passages; the corpus has {passages}",
    )
    check_document_order(folder, documents)
    for level, centroids in enumerate(tree.centroids, start=1):
        require_unit(f"{TENSORS}: centroids.{level}", centroids)
    nodes = [len(parents) for parents in tree.parents]
    names = [sum(map(bool, level)) for level in read_json(folder / TOPICS)]
    require(names == nodes, f"{TOPICS} must name each node of each level")
    stated = [row["nodes"] for row in read_json(folder / "statistics.json")["levels"]]
    require(stated == nodes, f"statistics.json must have every level, with its {nodes} nodes")
