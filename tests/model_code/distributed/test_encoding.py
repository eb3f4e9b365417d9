"""Test encoding by shards.

After a kill, only missing shards are encoded again. Workers of Ray return the bytes of one process,
also after a death.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from model_code.distributed import encoding, engine
from model_code.distributed.encoding import (
    encode_resumably,
    encode_shards,
    encode_with_signs_resumably,
)
from model_code.distributed.engine import ScaleSettings
from model_code.encoding.encoder import Encoder
from tests.model_code.distributed.jobs import FragileEncoder
from tests.tiny_encoder import make_tiny_encoder

WORDS = [f"word{i}" for i in range(60)]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, rng.integers(0, 40))) for _ in range(300)]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Encoder:
    folder = make_tiny_encoder(tmp_path_factory.mktemp("tiny") / "encoder", WORDS)
    return Encoder.load(folder, device="cpu")


def test_kill_costs_at_most_one_shard(encoder, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "SHARD_TEXTS", 3)
    few_texts = texts[:8]
    expected = encode_resumably(encoder, few_texts, tmp_path / "whole")

    def interrupt_after_second_shard(done: int, total: int, note: str = "") -> None:
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_resumably(encoder, few_texts, tmp_path / "cut", interrupt_after_second_shard)

    encoded_texts: list[str] = []
    encode = encoder.encode_queries

    def record_texts(batch: list[str]) -> np.ndarray:
        encoded_texts.extend(batch)
        return encode(batch)

    monkeypatch.setattr(encoder, "encode_queries", record_texts)
    vectors = encode_resumably(encoder, few_texts, tmp_path / "cut")

    assert vectors.tobytes() == expected.tobytes()
    assert encoded_texts == few_texts[6:]


def test_no_texts_have_no_vectors(encoder: Encoder, tmp_path: Path) -> None:
    assert encode_resumably(encoder, [], tmp_path).shape == (0, encoder.dimension)


def test_no_texts_have_no_tokens(encoder: Encoder, tmp_path: Path) -> None:
    vectors, tokens = encode_with_signs_resumably(encoder, [], tmp_path)

    assert vectors.shape == (0, encoder.dimension)
    assert len(tokens) == 0


def test_vectors_and_tokens_keep_text_order(encoder, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "SHARD_TEXTS", 64)

    vectors, tokens = encode_with_signs_resumably(encoder, texts, tmp_path / "tokens")

    expected = encode_resumably(encoder, texts, tmp_path / "vectors", method="encode_documents")
    assert vectors.tobytes() == expected.tobytes()
    assert np.diff(tokens.starts).tolist() == [max(1, len(text.split())) for text in texts]


def test_stored_shards_hold_the_tokens(encoder, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "SHARD_TEXTS", 64)
    _, tokens = encode_with_signs_resumably(encoder, texts, tmp_path)

    _, stored_tokens = encode_with_signs_resumably(encoder, texts, tmp_path)

    assert (stored_tokens.bits == tokens.bits).all()


def test_shards_are_not_held_in_memory(encoder, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "SHARD_TEXTS", 32)
    references: list[weakref.ref[np.ndarray]] = []
    read_shards = encoding.keep_shards

    def watch_shards(*arguments: object) -> Iterator[dict[str, np.ndarray]]:
        for shard in read_shards(*arguments):
            references.append(weakref.ref(shard["vectors"]))
            in_memory = [reference for reference in references if reference() is not None]
            # The loop that reads the shards still holds the one before.
            assert len(in_memory) <= 2
            yield shard
            del shard

    monkeypatch.setattr(encoding, "keep_shards", watch_shards)

    encode_with_signs_resumably(encoder, texts, tmp_path)

    assert len(references) == 20


def test_workers_return_the_bytes_of_one_process(workers, encoder, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "SHARD_TEXTS", 64)
    expected = encode_resumably(encoder, texts, tmp_path / "here", method="encode_documents")
    reports = []

    def progress(done: int, total: int, note: str) -> None:
        reports.append(done)

    with engine.using(workers):
        vectors = encode_resumably(encoder, texts, tmp_path / "there", progress, "encode_documents")

    assert vectors.tobytes() == expected.tobytes()
    assert len(reports) == 5
    assert reports[-1] == 300
    # The precision is decided for the copies of the workers alone.
    assert encoder.precision == "auto"


def test_dead_worker_is_replaced(ray, tmp_path):
    marker = tmp_path / "died"
    shards = [(0, ["a", "bb"]), (2, ["fatal"]), (3, ["", "ccc"]), (5, ["d"])]

    with engine.using(ScaleSettings(engine="ray", workers=2)):
        vectors_by_start = dict(encode_shards(FragileEncoder(marker), shards))

    assert marker.exists()
    lengths = {start: vectors.ravel().tolist() for start, vectors in vectors_by_start.items()}
    assert lengths == {0: [1, 2], 2: [5], 3: [0, 3], 5: [1]}


def test_nothing_to_encode_starts_no_worker(ray, encoder):
    with engine.using(ScaleSettings(engine="ray")):
        assert list(encode_shards(encoder, [])) == []
