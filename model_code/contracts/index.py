"""Contracts of the indexes: every file is the one that its manifest names, and the rows are the corpus's own.

The sizes of files are known from their manifest, so here it is asked whether they are the right rows of sound numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from model_code.context import StageContext
from model_code.contracts.rules import passage_documents, require, require_files, require_finite, require_unit
from model_code.files import read_json
from model_code.lexical.settings import EMBEDDED
from model_code.manifest import MANIFEST, verify
from model_code.retrievers.kinds import Kind

DOCUMENT_IDS = "document_ids.json"
LEARNED = ("vectors.npy", "representatives.npy", "query_counts.npy")
Facts = Mapping[str, Any]


def check_folder(folder: Path, kind: Kind, context: StageContext) -> None:
    """The folder of an index of a kind, over the passages of the corpus."""
    documents, facts, stated = (
        passage_documents(context.inputs["corpus"]),
        check_sealed(folder),
        f"{folder.name}/{MANIFEST}",
    )
    require(facts["kind"] == kind, f"{stated} states the kind {facts['kind']!r}; the settings say {kind!r}")
    counts = {"documents": len(set(documents)), "passages": len(set(documents) if kind == "dsi" else documents)}
    wrong = [f"{counts[name]:,} {name}, not {facts[name]:,}" for name in counts if facts[name] != counts[name]]
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
    _check_order(folder, [document for document in documents for _ in range(facts["vectors_per_passage"])])
    vectors, shape = (
        _array(folder, "vectors.npy"),
        (facts["passages"] * facts["vectors_per_passage"], facts["dimension"]),
    )
    sound = vectors.shape == shape and vectors.dtype == np.float32
    require(sound, f"index/vectors.npy must be {shape} float32, not {vectors.shape} {vectors.dtype}")
    require_unit("index/vectors.npy", vectors)


def _dsi(folder: Path, facts: Facts, documents: list[str]) -> None:
    """One vector of any norm per document, with the representatives and the scale that additions need."""
    ids = read_json(folder / DOCUMENT_IDS)
    rule = f"{folder.name}/{DOCUMENT_IDS} must name each document once"
    require(sorted(ids) == sorted(set(documents)), rule)
    for name in LEARNED:
        array = _array(folder, name)
        require(len(array) == len(ids), f"{folder.name}/{name} must have {len(ids):,} rows, not {len(array):,}")
        require_finite(f"{folder.name}/{name}", array)
    require(bool((array >= 0).all()), f"{folder.name}/{name} must not be negative")  # the counts, which come last
    require(facts["encoding_scale"] > 0, f"{folder.name}/{MANIFEST} must state an encoding_scale above 0")


def _lexical(folder: Path, facts: Facts, documents: list[str]) -> None:
    """Tokens of each passage, and beside them what the search reads: embeddings or texts."""
    search = facts["search"]
    parts = {"tokens": True, "embeddings": search in EMBEDDED, "passages": search == "beta_rerank"}
    for name, expected in parts.items():
        stated = f"as search is {search} in its {MANIFEST}"
        there = (folder / name).is_dir()
        require(there == expected, f"index/{name}/ must {'' if expected else 'not '}be there, {stated}")
        if there and name == "passages":
            passages = read_json(folder / name / MANIFEST)["passages"]
            require(passages == len(documents), f"index/{name}/{MANIFEST} must state {len(documents):,} passages")
        elif there:
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
    "dense": _dense, "lexical": _lexical, "dsi": _dsi,
}  # fmt: skip
"""What is asked of single kinds, beyond what is asked of every index."""
