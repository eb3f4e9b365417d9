"""Contracts of the indexes: every file is the one that its manifest names, and the rows are the corpus's own.

The sizes of files are known from their manifest, so here it is asked whether they are the right rows of sound numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from model_code.context import StageContext
from model_code.contracts.rules import (
    PIECE,
    passage_documents,
    require,
    require_files,
    require_finite,
    require_same,
    require_shape,
)
from model_code.files import read_json
from model_code.lexical.settings import EMBEDDED
from model_code.manifest import MANIFEST, verify
from model_code.retrievers.kinds import Kind

DOCUMENT_IDS, VECTORS = "document_ids.json", "vectors.npy"
ROUNDING = 1e-3  # of a unit vector's norm: half-precision encoders normalise in float32
Facts = Mapping[str, Any]


def check_base_index(context: StageContext) -> None:
    """A dense index, a vector per passage: the hierarchy is clustered from its rows."""
    check_folder(context.output / "index", "dense", context)


def check_index(context: StageContext) -> None:
    """The index of a retriever, as its kind builds it."""
    check_folder(context.output / "index", context.settings["retriever"].kind, context)


def check_folder(folder: Path, kind: Kind, context: StageContext) -> None:
    """The folder of an index of a kind, over the passages of the corpus."""
    documents = passage_documents(context.inputs["corpus"])
    require_files(folder, [MANIFEST])
    facts = read_json(folder / MANIFEST)
    require(
        facts["kind"] == kind, f"{folder.name}/{MANIFEST} states the kind {facts['kind']!r}; the settings say {kind!r}"
    )
    verify(folder, facts)
    counts = {"documents": len(set(documents)), "passages": len(set(documents) if kind == "dsi" else documents)}
    wrong = [f"{counts[name]:,} {name}, not {facts[name]:,}" for name in counts if facts[name] != counts[name]]
    require(not wrong, f"{folder.name}/{MANIFEST} must state the corpus's {' and '.join(wrong)}")
    if kind in KINDS:
        KINDS[kind](folder, facts, documents)


def _dense(folder: Path, facts: Facts, documents: list[str]) -> None:
    """Rows of one passage next to each other, in the order of passages; unit vectors."""
    vectors_per_passage = facts["vectors_per_passage"]
    rows = [document for document in documents for _ in range(vectors_per_passage)]
    require(read_json(folder / DOCUMENT_IDS) == rows, _order(f"{folder.name}/{DOCUMENT_IDS}"))
    vectors = _vectors(folder, facts, len(rows))
    per_piece = max(1, PIECE // max(1, vectors.shape[1]))
    for start in range(0, len(vectors), per_piece):
        norms = np.linalg.norm(vectors[start : start + per_piece], axis=1)
        far = float(np.abs(norms - 1).max())
        require(
            far <= ROUNDING, f"{folder.name}/{VECTORS} must have unit norm; one after row {start} is off by {far:.3g}"
        )


def _dsi(folder: Path, facts: Facts, documents: list[str]) -> None:
    """One vector of any norm per document, with the representatives that additions need."""
    ids = read_json(folder / DOCUMENT_IDS)
    require_same(f"{folder.name}/{DOCUMENT_IDS} must name each document", ids, set(documents))
    require(len(ids) == len(set(ids)), f"{folder.name}/{DOCUMENT_IDS} names a document twice")
    vectors = _vectors(folder, facts, len(ids))
    require_files(folder, ["representatives.npy", "query_counts.npy"])
    representatives = np.load(folder / "representatives.npy", mmap_mode="r")
    require_shape(f"{folder.name}/representatives.npy", representatives, vectors.shape)
    require_finite(f"{folder.name}/representatives.npy", representatives)
    counts = np.load(folder / "query_counts.npy")
    require_shape(f"{folder.name}/query_counts.npy", counts, (len(ids),))
    require(bool((counts >= 0).all()), f"{folder.name}/query_counts.npy must not be negative")
    require(facts.get("encoding_scale", 0) > 0, f"{folder.name}/{MANIFEST} must state an encoding_scale above 0")


def _lexical(folder: Path, facts: Facts, documents: list[str]) -> None:
    """Tokens of each passage, and beside them what the search reads: embeddings or texts."""
    search = facts["search"]
    parts = {"tokens": True, "embeddings": search in EMBEDDED, "passages": search == "beta_rerank"}
    for name, expected in parts.items():
        there = (folder / name).is_dir()
        stated = f"as search is {search} in its {MANIFEST}"
        require(there == expected, f"{folder.name}/{name}/ must {'' if expected else 'not '}be there, {stated}")
        if there:
            _check_part(folder / name, documents)
    if parts["embeddings"]:
        _check_embeddings(folder / "embeddings", len(documents))


def _check_part(folder: Path, documents: list[str]) -> None:
    where = f"index/{folder.name}"
    require_files(folder, [MANIFEST, *([DOCUMENT_IDS] if folder.name != "passages" else ["passages.json"])])
    stated = read_json(folder / MANIFEST)
    require(stated["passages"] == len(documents), f"{where}/{MANIFEST} must state {len(documents):,} passages")
    if folder.name != "passages":
        require(read_json(folder / DOCUMENT_IDS) == documents, _order(f"{where}/{DOCUMENT_IDS}"))


def _check_embeddings(folder: Path, passages: int) -> None:
    starts, owners, weights = (
        np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("starts", "passages", "weights")
    )
    require_shape("index/embeddings/weights.npy", weights, owners.shape)
    require_finite("index/embeddings/weights.npy", weights)
    rising = starts[0] == 0 and starts[-1] == len(owners) and bool((np.diff(starts) >= 0).all())
    require(bool(rising), "index/embeddings/starts.npy must rise from 0 to the number of weights")
    inside = not len(owners) or (int(owners.min()) >= 0 and int(owners.max()) < passages)
    require(inside, f"index/embeddings/passages.npy must number passages from 0 to {passages - 1}")


def _vectors(folder: Path, facts: Facts, rows: int) -> np.ndarray:
    require_files(folder, [VECTORS])
    vectors: np.ndarray = np.load(folder / VECTORS, mmap_mode="r")
    require_shape(f"{folder.name}/{VECTORS}", vectors, (rows, facts["dimension"]))
    require(vectors.dtype == np.float32, f"{folder.name}/{VECTORS} must be float32, not {vectors.dtype}")
    require_finite(f"{folder.name}/{VECTORS}", vectors)
    return vectors


def _order(name: str) -> str:
    return f"{name} must name the document of each row, in the order of the corpus's passages"


KINDS: dict[Kind, Callable[[Path, Facts, list[str]], None]] = {"dense": _dense, "lexical": _lexical, "dsi": _dsi}
"""What is asked of single kinds, beyond what is asked of every index."""
