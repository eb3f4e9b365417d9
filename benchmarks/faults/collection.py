"""A tiny live collection that crashes cannot hurt, made anew for each run of the fault benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_code.live.generation import DOCUMENTS, ENCODER
from orchestration.project import Project

if TYPE_CHECKING:
    from model_code.encoding.encoder import Encoder

WORDS = ("array", "string", "file", "table", "number", "folder", "sorted", "random", "square", "pattern")


def document_text(number: int) -> str:
    """The text of document `number`, another one for each."""
    return f"Return the {WORDS[number % 10]} of a {WORDS[number // 10 % 10]}, version {number}."


def make_collection(root: Path, encoder: str | Path, documents: int = 20) -> tuple[Project, dict[str, str]]:
    """A project under `root` whose live retriever "hce" holds `documents`; and the text of each by its id."""
    from model_code.encoding.encoder import Encoder
    from model_code.live.build import open_generation_zero

    texts = {f"base-{number}": document_text(number) for number in range(documents)}
    loaded = Encoder.load(encoder, precision="float32", device="cpu")
    loaded.save(root / ENCODER)
    (root / "params.yaml").write_text("{retrievers: {hce: {}}, hierarchy: {branching: 2}}\n")
    (root / "dvc.yaml").touch()
    open_generation_zero(root, "hce", **write_build(root, root / "build", loaded, texts))
    return Project(root), texts


def write_build(root: Path, folder: Path, encoder: Encoder, texts: Mapping[str, str], seed: int = 0) -> dict[str, Any]:
    """Write what training on documents would leave to `folder`; returns what `open_generation_zero` takes of it.

    seed: another one gives another hierarchy, so that two builds of the same documents are two.
    """
    import numpy as np
    import pandas as pd

    from model_code.files import write_json
    from model_code.hierarchy.tree import DOCUMENT_IDS, Hierarchy
    from model_code.index.dense_index import DenseIndex
    from model_code.live.texts import TextRules

    parts = {name: folder / name for name in ("index", "hierarchy")}
    parts["hierarchy"].mkdir(parents=True)
    rules = TextRules(include_title=True, words=0, stride=1)
    vectors = encoder.encode([rules.passages(*item)[0] for item in texts.items()])
    DenseIndex.build(vectors, list(texts), encoder.fingerprint()).save(parts["index"])
    leaves = np.random.default_rng(seed).permutation(len(texts)).astype(np.int32) % 2
    Hierarchy((vectors[:2],), (np.zeros(2, np.int32),), leaves).save(parts["hierarchy"])
    write_json(parts["hierarchy"] / DOCUMENT_IDS, list(texts))
    rows = {"document_id": list(texts), "title": list(texts), "text": list(texts.values())}
    pd.DataFrame(rows).assign(fields="{}", date=None).to_parquet(folder / DOCUMENTS, index=False)
    return parts | {"encoder": root / ENCODER, "documents": folder / DOCUMENTS, "text": rules, "provenance": {}}
