"""Guards the encoder-decoder made from a base encoder: both sides its weights, output tied, seeded, saved purely."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, EncoderDecoderModel

from model_code.encoding.encoder import Encoder
from model_code.errors import FreshetError, SettingsError
from model_code.files import hash_path
from model_code.queries.sequence_to_sequence import load_sequence_model, require_positions, save_sequence_model
from model_code.queries.trained_generator import warm_start
from tests.model_code.queries.toy import WORDS
from tests.tiny_encoder import make_tiny_encoder


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return make_tiny_encoder(tmp_path_factory.mktemp("base") / "encoder", WORDS)


def test_both_sides_are_the_encoder_and_cross_attention_is_new(base: Path):
    model, own = warm_start(base, seed=0)[0], Encoder.load(base).backbone.state_dict()
    encoder, decoder = model.encoder.state_dict(), model.decoder.bert.state_dict()
    for name, value in own.items():
        assert torch.equal(encoder[name], value)
        assert name.startswith("pooler.") or torch.equal(decoder[name], value)
    assert {name.split(".")[3] for name in set(decoder) - set(own)} == {"crossattention"}
    assert model.get_output_embeddings().weight is model.decoder.bert.embeddings.word_embeddings.weight


def test_the_seed_decides_what_is_new(base: Path):
    one, again, other = (warm_start(base, seed)[0].state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_it_loads_as_any_model_and_its_files_name_no_machine(base: Path, tmp_path: Path):
    for name in ("one", "two"):
        save_sequence_model(*warm_start(base, seed=0), tmp_path / name, 16)
    assert hash_path(tmp_path / "one") == hash_path(tmp_path / "two")
    assert {path.suffix for path in (tmp_path / "one").iterdir()} == {".json", ".safetensors"}
    for path in (tmp_path / "one").glob("*.json"):
        assert not {str(base), "transformers_version"} & {word for word in path.read_text().split('"')}
    loaded, expected = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "one"), warm_start(base, seed=0)[0]
    assert isinstance(loaded, EncoderDecoderModel)
    ids = torch.tensor([[2, 50, 60, 3]])
    assert torch.equal(loaded.eval().generate(ids, max_new_tokens=5), expected.generate(ids, max_new_tokens=5))
    assert torch.equal(loaded(ids, decoder_input_ids=ids).logits, expected(ids, decoder_input_ids=ids).logits)


def test_texts_longer_than_the_positions_are_refused(base: Path):
    model = warm_start(base, seed=0)[0]
    require_positions(model, 64, 64)
    with pytest.raises(SettingsError, match="section_tokens is 65, but the model has 64 positions; lower"):
        require_positions(model, 65, 8)
    with pytest.raises(SettingsError, match="max_query_tokens is 65"):
        require_positions(model, 8, 65)


def test_a_hub_name_without_a_hub_is_one_clear_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(FreshetError, match="'someone/some-t5' is no sequence-to.*training.base: warm_start") as caught:
        load_sequence_model("someone/some-t5")
    assert "\n" not in str(caught.value)


def test_an_encoder_is_no_sequence_to_sequence_model(base: Path):
    with pytest.raises(FreshetError, match="is no sequence-to-sequence model that can be loaded.*BertConfig"):
        load_sequence_model(base)
