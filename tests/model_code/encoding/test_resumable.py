"""Guards resumable encoding: after a kill the second run gives the same bytes and redoes only what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_code.encoding import resumable
from model_code.encoding.encoder import Encoder
from model_code.encoding.resumable import encode_resumably


def test_a_kill_costs_at_most_one_shard(
    tiny: Encoder, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumable, "SHARD", 3)
    whole = encode_resumably(tiny, texts, tmp_path / "whole")

    def killed_at_the_end_of_shard_two(done: int, total: int, note: str = "") -> None:
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_resumably(tiny, texts, tmp_path / "cut", killed_at_the_end_of_shard_two)
    encoded: list[str] = []
    original = tiny.encode
    monkeypatch.setattr(tiny, "encode", lambda batch: encoded.extend(batch) or original(batch))
    assert encode_resumably(tiny, texts, tmp_path / "cut").tobytes() == whole.tobytes()
    assert encoded == texts[6:]


def test_no_texts(tiny: Encoder, tmp_path: Path) -> None:
    assert encode_resumably(tiny, [], tmp_path).shape == (0, tiny.dimension)
