"""Encodings of queries that are cached between drift checks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_code.encoding.token_signs import TokenSigns
from model_code.errors import Damaged
from model_code.retrieval import query_cache
from model_code.retrieval.dense import DenseRetriever
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.fused import FusedSearch, Fusion
from model_code.retrieval.headline import HeadlineRetriever
from model_code.retrieval.protocol import Retriever
from model_code.retrieval.query_cache import TEXTS, CachedEncoder, QueryCache


class CountingEncoder:
    """An encoder that remembers which texts it encoded."""

    dimension = 2

    def __init__(self) -> None:
        self.texts: list[str] = []

    @property
    def pytorch(self) -> CountingEncoder:
        return self

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        self.texts.extend(texts)
        return np.array([[len(text), 1] for text in texts], np.float32)

    def encode_queries_with_signs(self, texts: Sequence[str]) -> tuple[np.ndarray, TokenSigns]:
        signs = [np.full((len(text), 1), 7, np.uint64) for text in texts]
        return self.encode_queries(texts), TokenSigns.of(signs)


def test_each_text_is_encoded_once(tmp_path: Path) -> None:
    encoder = CountingEncoder()
    cached = CachedEncoder(encoder, tmp_path)

    vectors = cached.encode_queries(["a", "bb", "a"])
    cached.encode_queries(["bb", "ccc"])

    assert vectors[:, 0].tolist() == [1, 2, 1]
    assert encoder.texts == ["a", "bb", "ccc"]


def test_encodings_are_kept_in_the_folder(tmp_path: Path) -> None:
    first = CachedEncoder(CountingEncoder(), tmp_path)
    first.encode_queries(["a", "bb"])
    first.encode_queries_with_signs(["ccc"])
    first.save()

    encoder = CountingEncoder()
    later = CachedEncoder(encoder, tmp_path)

    assert later.encode_queries(["bb", "a"])[:, 0].tolist() == [2, 1]
    vectors, signs = later.encode_queries_with_signs(["ccc"])
    assert vectors[:, 0].tolist() == [3]
    assert signs.bits.ravel().tolist() == [7, 7, 7]
    assert encoder.texts == []


def test_texts_that_were_used_longest_ago_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_cache, "MAX_STORED_QUERIES", 2)
    first = CachedEncoder(CountingEncoder(), tmp_path)
    first.encode_queries(["a", "bb", "ccc"])
    first.encode_queries(["a"])
    first.save()

    encoder = CountingEncoder()
    CachedEncoder(encoder, tmp_path).encode_queries(["a", "bb", "ccc"])

    assert encoder.texts == ["bb"]


def test_headlines_reuse_the_encodings_of_passages() -> None:
    encoder: Any = CountingEncoder()
    index = DenseIndex.build(np.eye(2, dtype=np.float32), ["a", "b"], "f")
    components: dict[str, Retriever] = {
        "hce": DenseRetriever(encoder, index, "f"),
        "headline": HeadlineRetriever(encoder, index, "f"),
    }
    weights = {"hce": 1.0, "headline": 1.0, "hce.late": 1.0}

    QueryCache().encode(FusedSearch(components, Fusion(weights)), ["a", "bb"])

    assert encoder.texts == ["a", "bb"]


def test_damaged_encodings_are_named(tmp_path: Path) -> None:
    cached = CachedEncoder(CountingEncoder(), tmp_path)
    cached.encode_queries(["a"])
    cached.save()
    (tmp_path / "encode" / TEXTS).write_text("[]", encoding="utf-8")

    with pytest.raises(Damaged, match=TEXTS):
        CachedEncoder(CountingEncoder(), tmp_path).encode_queries(["a"])


def test_encodings_are_kept_after_a_process_was_killed_while_it_wrote(tmp_path: Path) -> None:
    (tmp_path / ".encode.making").mkdir()
    (tmp_path / ".encode.making" / TEXTS).write_text("[")
    cached = CachedEncoder(CountingEncoder(), tmp_path)
    cached.encode_queries(["a"])

    cached.save()

    encoder = CountingEncoder()
    assert CachedEncoder(encoder, tmp_path).encode_queries(["a"])[:, 0].tolist() == [1]
    assert encoder.texts == []
