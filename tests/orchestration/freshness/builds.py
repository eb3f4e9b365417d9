"""Builds of a tiny encoder, as a training leaves them, and opening them as a promotion does."""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmarks.opened_build import open_generation_zero
from model_code.collection.ledger.events import LedgerCursor
from model_code.encoding.encoder import Encoder
from model_code.files import write_json
from model_code.hierarchy.tree import DOCUMENT_IDS, Hierarchy
from model_code.project import Project
from model_code.retrieval.dense_index import DenseIndex
from model_code.text.passages import TextRules
from tests.live_example import trained_at
from tests.orchestration.freshness.subjects import SPACE
from tests.tiny_encoder import make_tiny_encoder


def make_build(root, texts):
    """A build of documents, by id, under `root`; its encoder also knows the words about space."""
    encoder = Encoder.load(
        make_tiny_encoder(root / "encoder", [*texts.values(), " ".join(SPACE)]), device="cpu"
    )
    vectors = encoder.encode_documents(list(texts.values()))
    DenseIndex.build(vectors, list(texts), encoder.fingerprint()).save(root / "index")
    leaves = np.arange(len(texts), dtype=np.int32) % 3
    centroids = np.stack([vectors[leaves == leaf].mean(axis=0) for leaf in range(3)])
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
    (root / "hierarchy").mkdir()
    Hierarchy((centroids,), (np.zeros(3, np.int32),), leaves).save(root / "hierarchy")
    write_json(root / "hierarchy" / DOCUMENT_IDS, list(texts))
    table = pd.DataFrame(
        {"document_id": list(texts), "title": list(texts), "text": list(texts.values())}
    )
    table.assign(fields="{}", date=None).to_parquet(root / "documents.parquet", index=False)
    return root


def open_build(root, built, retriever="hce", event=0):
    """Make a build live in the project `root`.

    Args:
        root: Folder of the project.
        built: Folder of the build.
        retriever: Name of the retriever.
        event: Last event whose document it was trained with. 0: it was trained with none.
    """
    cursor = LedgerCursor()
    if event:
        cursor = trained_at(Project(root), event)
    folders = {name: built / name for name in ("encoder", "index", "hierarchy")}
    rules = TextRules(include_title=False, words=0, stride=1)
    return open_generation_zero(
        root,
        retriever,
        **folders,
        documents=built / "documents.parquet",
        provenance={},
        text=rules,
        cursor=cursor,
    )
