"""Guards the reranker with a tiny cross-encoder of random weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

from model_code.errors import FreshetError
from model_code.retrieval.reranker import Reranker, RerankSettings

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "split", "a", "string", "read", "file"]


def write_cross_encoder(folder: Path, outputs: int = 1) -> Path:
    """Write a cross-encoder of random weights, large enough to tell passages apart."""
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=outputs,
        initializer_range=1.0,
    )
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def test_scores_equal_those_of_the_library(tmp_path: Path) -> None:
    folder = write_cross_encoder(tmp_path / "model")
    reranker = Reranker.load(RerankSettings(model=str(folder), depth=7))
    assert reranker is not None

    scores = reranker.score("split a string", ["read a file", "string", ""])

    pairs = [("split a string", passage) for passage in ("read a file", "string", "")]
    assert scores.tolist() == pytest.approx(CrossEncoder(str(folder)).predict(pairs).tolist())
    assert len(set(scores.tolist())) == 3
    assert reranker.depth == 7


def test_no_model_is_no_reranker() -> None:
    assert Reranker.load(RerankSettings()) is None


def test_missing_model_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(FreshetError, match="cannot be loaded") as error:
        Reranker.load(RerankSettings(model=str(tmp_path / "nothing")))

    assert "\n" not in str(error.value)


def test_classifier_is_refused(tmp_path: Path) -> None:
    folder = write_cross_encoder(tmp_path / "model", outputs=3)

    with pytest.raises(FreshetError, match="has 3 outputs, but a reranker has one"):
        Reranker.load(RerankSettings(model=str(folder)))
