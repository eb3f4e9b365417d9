"""Guards the hierarchy stage: complete and pure output, a flat report, and refusal of vectors of
another corpus.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from model_code.context import StageContext
from model_code.errors import FreshetError
from model_code.files import canonical_json, hash_path, read_json
from model_code.hierarchy.settings import HierarchySettings
from model_code.hierarchy.tree import Hierarchy
from model_code.stages.hierarchy import run


def context(folder: Path, passages: int, vectors: int, **settings: object) -> StageContext:
    """A corpus of `passages` passages and an index of `vectors` random vectors in a new folder."""
    for name in ("corpus", "index", "output", "checkpoints"):
        (folder / name).mkdir(parents=True)
    ids = [f"d{i}" for i in range(passages)]
    table = pd.DataFrame({"document_id": ids, "title": ids, "text": "a text"})
    table.to_parquet(folder / "corpus" / "passages.parquet", index=False)
    matrix = np.random.default_rng(0).standard_normal((vectors, 8)).astype(np.float32)
    np.save(folder / "index" / "vectors.npy", matrix)
    inputs = {"corpus": folder / "corpus", "base_index": folder / "index"}
    groups = {"hierarchy": HierarchySettings(**settings), "seed": 5}
    return StageContext(folder, inputs, folder / "output", groups, folder / "checkpoints")


def test_output_is_complete_and_pure(tmp_path: Path) -> None:
    reports = [run(context(tmp_path / name, 120, 120)) for name in ("a", "b")]
    files = {path.name for path in (tmp_path / "a" / "output").iterdir()}

    assert files == {
        "hierarchy.safetensors",
        "hierarchy.json",
        "statistics.json",
        "hierarchy.png",
        "document_ids.json",
        "topics.json",
    }
    assert hash_path(tmp_path / "a" / "output") == hash_path(tmp_path / "b" / "output")
    assert canonical_json(reports[0]) == canonical_json(reports[1])
    assert reports[0]["passages"] == 120
    assert reports[0]["level_2_nodes"] == 15
    assert read_json(tmp_path / "a" / "output" / "document_ids.json")[:2] == ["d0", "d1"]

    tree = Hierarchy.load(tmp_path / "a" / "output")
    statistics = read_json(tmp_path / "a" / "output" / "statistics.json")

    assert [row["nodes"] for row in statistics["levels"]] == [2, 15]
    assert [len(parents) for parents in tree.parents] == [2, 15]


def test_vectors_of_another_corpus_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FreshetError, match="9 vectors, but the corpus 12 passages"):
        run(context(tmp_path / "a", passages=12, vectors=9))
