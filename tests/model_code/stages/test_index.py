"""Guards the stages `base_index` and `index`: row i is passage i, titles as set, pure bytes, the
right encoder each.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from model_code.context import StageContext
from model_code.encoding.encoder import Encoder
from model_code.encoding.settings import EncoderSettings
from model_code.errors import FreshetError
from model_code.files import hash_path
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.index_settings import IndexSettings
from model_code.retrieval.kinds import open_retriever
from model_code.retriever_settings import RetrieverSettings
from model_code.stages import base_index, index
from model_code.training.settings import TrainingSettings
from tests.tiny_encoder import make_tiny_encoder

PASSAGES = pd.DataFrame(
    {
        "document_id": ["sort", "read", "read"],
        "ordinal": [0, 0, 1],
        "title": ["list.sort", "csv.read", "csv.read"],
        "text": ["Sort a list of numbers.", "Read a table.", "From a file."],
    }
)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A corpus folder with two documents, one of them in two passages."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    PASSAGES.to_parquet(folder / "passages.parquet", index=False)
    for name in ("documents", "queries", "qrels"):
        pd.DataFrame({"document_id": ["sort"]}).to_parquet(folder / f"{name}.parquet", index=False)
    return folder


def context(
    tmp_path: Path, name: str, inputs: dict[str, Path], include_title: bool = True
) -> StageContext:
    """Make a stage context with empty folders and the tiny encoder as its base."""
    words = " ".join(PASSAGES["title"] + " " + PASSAGES["text"]).split()
    base = make_tiny_encoder(tmp_path / "base", words)
    output = tmp_path / name / "output"
    checkpoints = tmp_path / name / "checkpoints"
    output.mkdir(parents=True)
    checkpoints.mkdir()
    encoder = EncoderSettings(
        base=str(base),
        max_tokens=16,
        include_title=include_title,
        precision="float32",
        device="cpu",
    )
    settings: dict[str, Any] = {"encoder": encoder, "index": IndexSettings()}
    settings["retriever"] = RetrieverSettings(training=TrainingSettings())
    return StageContext(tmp_path, inputs, output, settings, checkpoints)


def test_base_index_holds_passage_i_in_row_i(tmp_path: Path, corpus: Path) -> None:
    stage = context(tmp_path, "base_index", {"corpus": corpus})
    report = base_index.run(stage)
    built = DenseIndex.load(stage.output / "index")
    encoder = Encoder.load(tmp_path / "base", 16, precision="float32", device="cpu")
    texts = [
        f"{title} {text}" for title, text in zip(PASSAGES["title"], PASSAGES["text"], strict=True)
    ]

    np.testing.assert_allclose(built.vectors, encoder.encode_documents(texts), atol=2e-6)
    assert built.document_ids == PASSAGES["document_id"].tolist()
    assert (built.token_signs.bits == encoder.encode_documents_with_signs(texts)[1].bits).all()

    facts = {"passages": 3, "documents": 2, "dimension": 32, "factory": "Flat"}
    assert report == {**facts, "fingerprint": encoder.fingerprint()}


def test_index_can_omit_titles_and_tokens(tmp_path: Path, corpus: Path) -> None:
    stage = context(tmp_path, "base_index", {"corpus": corpus}, include_title=False)
    stage.settings["index"] = IndexSettings(late_interaction=False)
    base_index.run(stage)
    built = DenseIndex.load(stage.output / "index")
    encoder = Encoder.load(tmp_path / "base", 16, precision="float32", device="cpu")

    np.testing.assert_allclose(
        built.vectors, encoder.encode_documents(PASSAGES["text"].tolist()), atol=2e-6
    )
    assert built.token_signs is None


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_queries_use_encoder_and_precision_of_index(
    tmp_path: Path, corpus: Path, precision: str
) -> None:
    trained = make_tiny_encoder(tmp_path / "trained" / "encoder", ["sort", "list"], seed=3)
    stage = context(tmp_path, "index", {"corpus": corpus, "trained": trained.parent})
    stage.settings["encoder"] = stage.settings["encoder"].replace(precision=precision)
    fingerprint = index.run(stage)["fingerprint"]

    assert (
        fingerprint
        == Encoder.load(trained, 16).fingerprint()
        != Encoder.load(tmp_path / "base", 16).fingerprint()
    )

    opened = open_retriever(trained, stage.output / "index")
    alike = Encoder.load(trained, 16, precision=precision, device="cpu", for_search=True)

    np.testing.assert_array_equal(
        opened.encode_queries(["sort a list"]), alike.encode_queries(["sort a list"])
    )


def test_index_is_reproducible(tmp_path: Path, corpus: Path) -> None:
    first = context(tmp_path / "a", "s", {"corpus": corpus})
    second = context(tmp_path / "b", "s", {"corpus": corpus})

    base_index.run(first)
    base_index.run(second)

    assert hash_path(second.output) == hash_path(first.output)


def test_index_is_reproducible_after_a_kill(tmp_path: Path, corpus: Path) -> None:
    whole = context(tmp_path / "a", "s", {"corpus": corpus})
    base_index.run(whole)
    resumed = context(tmp_path / "b", "s", {"corpus": corpus})
    for shard in whole.checkpoints.iterdir():
        (resumed.checkpoints / shard.name).write_bytes(shard.read_bytes())

    base_index.run(resumed)

    assert hash_path(resumed.output) == hash_path(whole.output)


def test_missing_faiss_is_reported_before_encoding(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    stage = context(tmp_path, "base_index", {"corpus": corpus})
    stage.settings["index"] = IndexSettings(flat_below=1)

    with pytest.raises(FreshetError, match="needs faiss"):
        base_index.run(stage)
    assert not list(stage.checkpoints.iterdir())
