"""Guards encoding by shards: after a kill the second run gives the same bytes and redoes only what
is missing, and on Ray, by 1 and 2 workers and after a death, the bytes are those of encoding here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_code.distributed import encoding, engine
from model_code.distributed.encoding import encode_resumably, encode_shards, encode_tokens_resumably
from model_code.distributed.engine import ScaleSettings
from model_code.encoding.encoder import Encoder
from tests.model_code.distributed.jobs import Fragile
from tests.tiny_encoder import make_tiny_encoder

WORDS = [f"word{i}" for i in range(60)]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    random = np.random.default_rng(0)
    return [" ".join(random.choice(WORDS, random.integers(0, 40))) for _ in range(300)]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Encoder:
    return Encoder.load(
        make_tiny_encoder(tmp_path_factory.mktemp("tiny") / "encoder", WORDS), device="cpu"
    )


def test_a_kill_costs_at_most_one_shard(encoder, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "SHARD_TEXTS", 3)
    few = texts[:8]
    whole = encode_resumably(encoder, few, tmp_path / "whole")

    def killed_at_the_end_of_shard_two(done: int, total: int, note: str = "") -> None:
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_resumably(encoder, few, tmp_path / "cut", killed_at_the_end_of_shard_two)
    encoded: list[str] = []
    original = encoder.encode
    monkeypatch.setattr(encoder, "encode", lambda batch: encoded.extend(batch) or original(batch))
    assert encode_resumably(encoder, few, tmp_path / "cut").tobytes() == whole.tobytes()
    assert encoded == few[6:]


def test_no_texts(encoder: Encoder, tmp_path: Path) -> None:
    assert encode_resumably(encoder, [], tmp_path).shape == (0, encoder.dimension)
    vectors, tokens = encode_tokens_resumably(encoder, [], tmp_path)
    assert (vectors.shape, len(tokens)) == ((0, encoder.dimension), 0)


def test_vectors_and_tokens_keep_text_order(encoder, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "SHARD_TEXTS", 64)
    vectors, tokens = encode_tokens_resumably(encoder, texts, tmp_path)
    assert (
        vectors.tobytes()
        == encode_resumably(encoder, texts, tmp_path, method="encode_documents").tobytes()
    )
    assert np.diff(tokens.starts).tolist() == [max(1, len(text.split())) for text in texts]
    again = encode_tokens_resumably(encoder, texts, tmp_path)[1]
    assert (again.bits == tokens.bits).all(), "shards are read, and hold what was encoded"


def test_workers_give_the_bytes_that_one_process_gives(
    workers, encoder, texts, tmp_path, monkeypatch
):
    monkeypatch.setattr(encoding, "SHARD_TEXTS", 64)
    expected = encode_resumably(encoder, texts, tmp_path / "here", method="encode_documents")
    seen = []
    with engine.using(workers):
        found = encode_resumably(
            encoder,
            texts,
            tmp_path / "there",
            lambda done, total, note: seen.append(done),
            "encode_documents",
        )
    assert found.tobytes() == expected.tobytes()
    assert (len(seen), seen[-1]) == (5, 300)
    assert encoder.precision == "auto"  # decided for the workers' copy alone


def test_dead_worker_is_replaced(ray, tmp_path):
    marker = tmp_path / "died"
    shards = [(0, ["a", "bb"]), (2, ["fatal"]), (3, ["", "ccc"]), (5, ["d"])]
    with engine.using(ScaleSettings(engine="ray", workers=2)):
        found = dict(encode_shards(Fragile(marker), shards))
    assert marker.exists()
    assert {start: vectors.ravel().tolist() for start, vectors in found.items()} == {
        0: [1, 2],
        2: [5],
        3: [0, 3],
        5: [1],
    }


def test_nothing_to_encode_starts_no_worker(ray, encoder):
    with engine.using(ScaleSettings(engine="ray")):
        assert list(encode_shards(encoder, [])) == []
