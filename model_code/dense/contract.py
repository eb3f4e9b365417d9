"""Contract of a dense retriever's index folder.

A contract is the conditions that a stage's output must meet. `model_code.stages.contract` checks it
when the stage has ended. An edit of this file makes DVC train dense retrievers again, because DVC
treats the package of a retriever kind as one dependency.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from model_code.checks.indexes import check_document_order, load_array
from model_code.checks.rules import require, require_unit
from model_code.encoding.token_signs import SIGNS_FILE, STARTS_FILE, TokenSigns


def check_index(folder: Path, manifest: Mapping[str, Any], documents: Sequence[str]) -> None:
    """Require unit vectors in the order of the passages, and token signs if settings ask for them.

    Token signs are one bit per component of each word's vector, for late interaction.

    Args:
        folder: Folder of the index.
        manifest: Manifest of the index.
        documents: The document of each passage, in the corpus's order.
    """
    vectors_per_passage = manifest["vectors_per_passage"]
    _check_vectors(folder, manifest, documents)

    has_signs = (folder / SIGNS_FILE).is_file()
    wants_signs = manifest["settings"]["late_interaction"] and vectors_per_passage == 1
    presence = "be there" if wants_signs else "not be there"
    require(
        has_signs == wants_signs, f"index/{SIGNS_FILE} must {presence}, by index.late_interaction"
    )
    if wants_signs:
        _check_token_signs(folder, manifest["passages"])


def _check_vectors(folder: Path, manifest: Mapping[str, Any], documents: Sequence[str]) -> None:
    """Require a unit vector for each row, and the rows of the passages in their order.

    Args:
        folder: Folder of the index.
        manifest: Manifest of the index.
        documents: The document of each passage, in the corpus's order.
    """
    vectors_per_passage = manifest["vectors_per_passage"]
    rows: list[str] = []
    for document in documents:
        rows.extend([document] * vectors_per_passage)
    check_document_order(folder, rows)

    vectors = load_array(folder, "vectors.npy")
    shape = (manifest["passages"] * vectors_per_passage, manifest["dimension"])
    require(
        vectors.shape == shape and vectors.dtype == np.float32,
        f"index/vectors.npy must be {shape} float32, not {vectors.shape} {vectors.dtype}",
    )
    require_unit("index/vectors.npy", vectors)


def _check_token_signs(folder: Path, passages: int) -> None:
    """Check the token signs of all passages: one bit per component of each word's vector.

    They are stored one passage after the other. The starts of the passages must rise from 0 to the
    number of tokens.
    """
    signs = TokenSigns.load(folder)
    require(
        signs.bits.dtype == np.uint64, f"index/{SIGNS_FILE} must be uint64, not {signs.bits.dtype}"
    )

    starts = signs.starts
    is_rising = bool((np.diff(starts) > 0).all())
    covers_all = starts[0] == 0 and starts[-1] == len(signs.bits)
    require(
        is_rising and covers_all and len(signs) == passages,
        f"index/{STARTS_FILE} must say where in {SIGNS_FILE} the tokens of each of {passages:,} "
        "passages are",
    )
