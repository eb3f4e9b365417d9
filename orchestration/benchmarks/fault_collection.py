"""A tiny live collection that crashes cannot hurt, made anew for each run of the fault benchmark."""

from __future__ import annotations

from pathlib import Path

from orchestration.project import Project

WORDS = ("array", "string", "file", "table", "number", "folder", "sorted", "random", "square", "pattern")


def document_text(number: int) -> str:
    """The text of document `number`, another one for each."""
    return f"Return the {WORDS[number % 10]} of a {WORDS[number // 10 % 10]}, version {number}."


def make_collection(root: Path, encoder: str | Path, documents: int = 20) -> tuple[Project, dict[str, str]]:
    """A project under `root` whose live retriever "hce" holds `documents`; and the text of each by its id."""
    import numpy as np
    import pandas as pd

    from model_code.encoding.encoder import Encoder
    from model_code.files import write_json
    from model_code.hierarchy.tree import DOCUMENT_IDS, Hierarchy
    from model_code.index.dense_index import DenseIndex
    from model_code.live.collection import open_generation_zero
    from model_code.live.text_rules import TextRules

    texts = {f"base-{number}": document_text(number) for number in range(documents)}
    parts = {name: root / "build" / name for name in ("encoder", "index", "hierarchy", "documents.parquet")}
    loaded, rules = Encoder.load(encoder, precision="float32", device="cpu"), TextRules(True, 0, 1)
    loaded.save(parts["encoder"])
    vectors = loaded.encode([rules.passages(*item)[0] for item in texts.items()])
    DenseIndex.build(vectors, list(texts), loaded.fingerprint()).save(parts["index"])
    parts["hierarchy"].mkdir()
    Hierarchy((vectors[:2],), (np.zeros(2, np.int32),), np.arange(documents, dtype=np.int32) % 2).save(
        parts["hierarchy"]
    )
    write_json(parts["hierarchy"] / DOCUMENT_IDS, list(texts))
    rows = {"document_id": list(texts), "title": list(texts), "text": list(texts.values()), "fields": "{}"}
    pd.DataFrame(rows).to_parquet(parts["documents.parquet"], index=False)
    (root / "params.yaml").write_text("{retrievers: {hce: {}}}\n")
    (root / "dvc.yaml").touch()
    open_generation_zero(
        root, "hce", encoder=parts["encoder"], index=parts["index"], hierarchy=parts["hierarchy"],
        documents=parts["documents.parquet"], provenance={}, text=rules,
    )  # fmt: skip
    return Project(root), texts
