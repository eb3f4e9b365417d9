"""Guards that texts longer than the encoder has positions for are refused before training, by the setting's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_code.encoding.encoder import Encoder
from model_code.errors import SettingsError
from model_code.training.trainer import Trainer
from tests.model_code.training.example import ASKS, WORDS, make_data, make_encoder, make_settings
from tests.tiny_encoder import make_tiny_model

PLAIN = {"hierarchy_weight": 0.0, "negatives": "random"}


@pytest.mark.parametrize("name", ["query_max_tokens", "document_max_tokens"])
def test_texts_longer_than_the_positions_are_refused(tmp_path: Path, name: str) -> None:
    encoder = make_encoder(tmp_path / "base")
    with pytest.raises(SettingsError, match=f"{name} is 65, but the encoder has positions for 64 tokens; lower it"):
        Trainer(encoder, make_data(), make_settings(**PLAIN, **{name: 65}), seed=0)
    Trainer(encoder, make_data(), make_settings(**PLAIN, **{name: 64}), seed=0)


def test_positions_before_the_padding_do_not_count(tmp_path: Path) -> None:
    encoder = Encoder.load(make_tiny_model(tmp_path / "base", "roberta", WORDS + ASKS), 16, device="cpu")
    with pytest.raises(SettingsError, match="query_max_tokens is 64, but the encoder has positions for 63 tokens"):
        Trainer(encoder, make_data(), make_settings(**PLAIN), seed=0)
