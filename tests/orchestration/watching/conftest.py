"""A live collection of documents about the sea, of an encoder that also knows the words of another subject."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from model_code.corpus.tables import COLUMNS
from model_code.encoding.encoder import Encoder
from model_code.files import write_json, write_text
from model_code.hierarchy.tree import DOCUMENT_IDS, Hierarchy
from model_code.index.dense_index import DenseIndex
from model_code.live.collection import open_generation_zero
from model_code.live.text_rules import TextRules
from orchestration.project import Project
from tests.orchestration.watching.subjects import PARAMS, SEA, SPACE, documents, queries
from tests.tiny_encoder import make_tiny_encoder


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """A build of 150 documents about the sea."""
    root = tmp_path_factory.mktemp("watched")
    texts = documents(SEA, 150, "sea", 0)
    encoder = Encoder.load(make_tiny_encoder(root / "encoder", [*texts.values(), " ".join(SPACE)]), device="cpu")
    vectors = encoder.encode(list(texts.values()))
    DenseIndex.build(vectors, list(texts), encoder.fingerprint()).save(root / "index")
    leaves = np.arange(150, dtype=np.int32) % 3
    centroids = np.stack([vectors[leaves == leaf].mean(axis=0) for leaf in range(3)])
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
    (root / "hierarchy").mkdir()
    Hierarchy((centroids,), (np.zeros(3, np.int32),), leaves).save(root / "hierarchy")
    write_json(root / "hierarchy" / DOCUMENT_IDS, list(texts))
    table = pd.DataFrame({"document_id": list(texts), "title": list(texts), "text": list(texts.values())})
    table.assign(fields="{}", part="initial").to_parquet(root / "documents.parquet", index=False)
    return root


@pytest.fixture
def project(built, tmp_path, monkeypatch):
    """A project in which the build is live, and nothing has arrived yet."""
    for name in ("FRESHET_LEDGER", "FRESHET_STATE"):
        monkeypatch.delenv(name, raising=False)
    folders = {name: built / name for name in ("encoder", "index", "hierarchy")}
    rules = TextRules(include_title=False, words=0, stride=1)
    open_generation_zero(tmp_path, "hce", **folders, documents=built / "documents.parquet", provenance={}, text=rules)
    write_text(tmp_path / "params.yaml", json.dumps(PARAMS))
    write_text(tmp_path / "dvc.yaml", "stages: {}")
    return Project(tmp_path)


@pytest.fixture
def corpus(project):
    """The build's corpus: 120 test queries, each of its document's words, 10 for training, and one for a document that
    is not of the build."""
    folder, texts = project.artifacts / "corpus", queries(SEA, 150, 0)[:130]
    folder.mkdir(parents=True)
    splits = ["test"] * 120 + ["train"] * 10
    tables = {
        "documents": [{"document_id": f"sea-{i:03}", "part": "initial"} for i in range(130)],
        "queries": [{"query_id": str(i), "text": text} for i, text in enumerate(texts)],
        "qrels": [
            {"query_id": str(i), "document_id": f"sea-{i:03}", "relevance": 1, "split": split}
            for i, split in enumerate(splits)
        ],
        "passages": [],
        "pseudo_queries": [],
    }
    tables["documents"].append({"document_id": "other", "part": "initial"})
    tables["queries"].append({"query_id": "other", "text": "about something else"})
    tables["qrels"].append({"query_id": "other", "document_id": "other", "relevance": 1, "split": "test"})
    (project.artifacts / "pseudo_queries").mkdir()
    for name, rows in tables.items():
        where = project.artifacts / "pseudo_queries" if name == "pseudo_queries" else folder
        pd.DataFrame(rows, columns=list(COLUMNS[name])).to_parquet(where / f"{name}.parquet")
    return texts
