"""Contracts of what a search is made of: hierarchy, learning curves, models that their loaders can
read, and indexes.

Of an index every file is the one that its manifest names; the sizes of files are known from there,
so it is asked whether they are the right rows of sound numbers. Models are read without torch,
whose import alone takes longer than all other contracts together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from model_code.encoding.token_signs import BITS, STARTS, TokenSigns
from model_code.evaluation.metrics import filter_metrics
from model_code.files import MANIFEST, read_json, verify
from model_code.hierarchy.tree import DOCUMENT_IDS, SUMMARY, TENSORS, TOPICS, Hierarchy
from model_code.lexical.settings import EMBEDDED
from model_code.retrieval.kinds import Kind

LEARNED = ("vectors.npy", "representatives.npy")
Facts = Mapping[str, Any]
TRANSFORMER = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
LAYOUT = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json")
WITH_WEIGHTS = ("Dense", "LexicalHead")
WITHOUT_FILES = ("Transformer", "Normalize")  # the transformer's lie at the top


def check_folder(folder: Path, kind: Kind, context: StageContext) -> None:
    """The folder of an index of a kind, over the passages of the corpus."""
    documents, facts = passage_documents(context.inputs["corpus"]), check_sealed(folder)
    stated = f"{folder.name}/{MANIFEST}"
    require(
        facts["kind"] == kind,
        f"{stated} states the kind {facts['kind']!r}; the settings say {kind!r}",
    )
    counts = {
        "documents": len(set(documents)),
        "passages": len(set(documents) if kind == "dsi" else documents),
    }
    wrong = [
        f"{counts[name]:,} {name}, not {facts[name]:,}"
        for name in counts
        if facts[name] != counts[name]
    ]
    require(not wrong, f"{stated} must state the corpus's {' and '.join(wrong)}")
    if kind in KINDS:
        KINDS[kind](folder, facts, documents)


def check_sealed(folder: Path) -> Facts:
    """What the manifest of a folder states, whose files are those that it names."""
    require_files(folder, [MANIFEST])
    facts: Facts = read_json(folder / MANIFEST)
    verify(folder, dict(facts))
    return facts


def _dense(folder: Path, facts: Facts, documents: list[str]) -> None:
    """Rows of one passage next to each other, in the order of passages; unit vectors."""
    _check_order(
        folder, [document for document in documents for _ in range(facts["vectors_per_passage"])]
    )
    vectors = _array(folder, "vectors.npy")
    shape = facts["passages"] * facts["vectors_per_passage"], facts["dimension"]
    sound = vectors.shape == shape and vectors.dtype == np.float32
    require(
        sound, f"index/vectors.npy must be {shape} float32, not {vectors.shape} {vectors.dtype}"
    )
    require_unit("index/vectors.npy", vectors)
    late = facts["settings"]["late_interaction"] and facts["vectors_per_passage"] == 1
    rule = f"index/{BITS} must {'' if late else 'not '}be there, by index.late_interaction"
    require((folder / BITS).is_file() == late, rule)
    if late:
        tokens = TokenSigns.load(folder)
        require(
            tokens.bits.dtype == np.uint64, f"index/{BITS} must be uint64, not {tokens.bits.dtype}"
        )
        rising = (
            tokens.starts[0] == 0
            and (np.diff(tokens.starts) > 0).all()
            and tokens.starts[-1] == len(tokens.bits)
        )
        rule = f"index/{STARTS} must say where in {BITS} the tokens of each of {facts['passages']:,} passages are"
        require(bool(rising) and len(tokens) == facts["passages"], rule)


def _dsi(folder: Path, facts: Facts, documents: list[str]) -> None:
    """One vector of any norm per document, with the representatives and the scale that additions
    need.
    """
    ids = read_json(folder / DOCUMENT_IDS)
    rule = f"{folder.name}/{DOCUMENT_IDS} must name each document once"
    require(sorted(ids) == sorted(set(documents)), rule)
    for name in LEARNED:
        array = _array(folder, name)
        require(
            len(array) == len(ids),
            f"{folder.name}/{name} must have {len(ids):,} rows, not {len(array):,}",
        )
        require_finite(f"{folder.name}/{name}", array)
    require(
        facts["encoding_scale"] > 0,
        f"{folder.name}/{MANIFEST} must state an encoding_scale above 0",
    )


def _lexical(folder: Path, facts: Facts, documents: list[str]) -> None:
    """Tokens of each passage, and beside them what the search reads: embeddings or texts."""
    search = facts["search"]
    parts = {"tokens": True, "embeddings": search in EMBEDDED, "passages": search == "beta_rerank"}
    for name, expected in parts.items():
        stated = f"as search is {search} in its {MANIFEST}"
        present = (folder / name).is_dir()
        require(
            present == expected,
            f"index/{name}/ must {'' if expected else 'not '}be there, {stated}",
        )
        if present and name == "passages":
            passages = read_json(folder / name / MANIFEST)["passages"]
            require(
                passages == len(documents),
                f"index/{name}/{MANIFEST} must state {len(documents):,} passages",
            )
        elif present:
            _check_order(folder / name, documents)
    if parts["embeddings"]:
        require_finite("index/embeddings/weights.npy", _array(folder / "embeddings", "weights.npy"))


def _check_order(folder: Path, rows: list[str]) -> None:
    require_files(folder, [DOCUMENT_IDS])
    rule = "must name the document of each row, in the order of the corpus's passages"
    require(read_json(folder / DOCUMENT_IDS) == rows, f"{folder.name}/{DOCUMENT_IDS} {rule}")


def _array(folder: Path, name: str) -> np.ndarray:
    require_files(folder, [name])
    array: np.ndarray = np.load(folder / name, mmap_mode="r")
    return array


KINDS: dict[Kind, Callable[[Path, Facts, list[str]], None]] = {
    "dense": _dense,
    "lexical": _lexical,
    "dsi": _dsi,
}
"""What is asked of single kinds, beyond what is asked of every index."""


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
    """The curve, the encoder's folder, and what the retriever's kind has beside it."""
    kind, encoder = context.settings["retriever"].kind, context.output / "encoder"
    check_history(context.output / "history.json")
    check_model(encoder, (*TRANSFORMER, *LAYOUT, *(("lexical.json",) if kind == "lexical" else ())))
    for module in read_json(encoder / "modules.json"):
        name = module["type"].rpartition(".")[2]
        if name not in WITHOUT_FILES:
            weights = ("model.safetensors",) if name in WITH_WEIGHTS else ()
            require_files(encoder / module["path"], ("config.json", *weights))
    if kind == "dsi":
        check_folder(context.output / "document_vectors", "dsi", context)


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
    _check_order(folder, documents)
    for level, centroids in enumerate(tree.centroids, start=1):
        require_unit(f"{TENSORS}: centroids.{level}", centroids)
    nodes = [len(parents) for parents in tree.parents]
    names = [sum(map(bool, level)) for level in read_json(folder / TOPICS)]
    require(names == nodes, f"{TOPICS} must name each node of each level")
    stated = [row["nodes"] for row in read_json(folder / "statistics.json")["levels"]]
    require(stated == nodes, f"statistics.json must have every level, with its {nodes} nodes")
