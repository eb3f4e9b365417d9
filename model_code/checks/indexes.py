"""Checks of index folders.

The manifest of an index has the checksum of every file, so truncated or exchanged files are found
by comparing checksums. The other checks ensure that the rows of an index belong to the right
passages and that its numbers are plausible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from model_code.checks.rules import require, require_files
from model_code.checks.tables import passage_documents
from model_code.context import StageContext
from model_code.files import MANIFEST, read_json, verify_checksums
from model_code.hierarchy.tree import DOCUMENT_IDS
from model_code.retrieval.kinds import trained_kind


def check_index_folder(folder: Path, kind_name: str, context: StageContext) -> None:
    """Check the folder of an index over the corpus's passages, and the conditions of its kind.

    Args:
        folder: Folder of the index.
        kind_name: Kind of the retriever that the settings demand.
        context: Context of the stage, with the corpus among its inputs.
    """
    kind = trained_kind(kind_name)
    documents = passage_documents(context.inputs["corpus"])
    manifest = check_sealed_folder(folder)
    name = f"{folder.name}/{MANIFEST}"
    require(
        manifest["kind"] == kind_name,
        f"{name} states the kind {manifest['kind']!r}, but the retriever has kind: {kind_name}; "
        "the kind's function `index` must write its own name as the fact `kind`",
    )

    document_count = len(set(documents))
    passage_count = document_count if kind.one_row_per_document else len(documents)
    wrong = []
    for key, count in (("documents", document_count), ("passages", passage_count)):
        if manifest[key] != count:
            wrong.append(f"{count:,} {key}, not {manifest[key]:,}")
    require(not wrong, f"{name} must state the corpus's {' and '.join(wrong)}")

    kind.check_index(folder, manifest, documents)


def check_build(folder: Path) -> None:
    """Require a build's encoder folder, and its index folder with exactly the manifest's files."""
    require((folder / "encoder").is_dir(), f"{folder.name}/encoder/ must be there")
    check_sealed_folder(folder / "index")


def check_sealed_folder(folder: Path) -> Mapping[str, Any]:
    """Require exactly the files that the folder's manifest names, and return the manifest."""
    require_files(folder, [MANIFEST])
    manifest: dict[str, Any] = read_json(folder / MANIFEST)
    verify_checksums(folder, manifest)
    return manifest


def check_document_order(folder: Path, rows: Sequence[str]) -> None:
    """Require the folder's `document_ids.json` to name the document of each row, in this order."""
    require_files(folder, [DOCUMENT_IDS])
    stored_ids = read_json(folder / DOCUMENT_IDS)
    rule = "must name the document of each row, in the order of the corpus's passages"
    require(stored_ids == list(rows), f"{folder.name}/{DOCUMENT_IDS} {rule}")


def load_array(folder: Path, name: str) -> np.ndarray:
    """Return an array of an index folder, memory-mapped; a missing file is an error."""
    require_files(folder, [name])
    array: np.ndarray = np.load(folder / name, mmap_mode="r")
    return array
