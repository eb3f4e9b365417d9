"""Guards generated queries on a tiny random T5: independent of batch and order, resumable, sampled
as said.
"""

from __future__ import annotations

from collections import Counter
from unittest.mock import MagicMock

import pytest
import torch

from model_code.errors import FreshetError, SettingsError
from model_code.files import hash_path
from model_code.queries import sequence_to_sequence
from model_code.queries.sequence_to_sequence import (
    GumbelTopK,
    SequenceToSequence,
    load_sequence_model,
    require_positions,
    save_sequence_model,
)
from model_code.queries.settings import SequenceToSequenceSettings
from tests.model_code.queries.toy import make_tiny_t5
from tests.tiny_encoder import make_tiny_encoder

WORDS = [f"w{i}" for i in range(40)]
TINY = SequenceToSequenceSettings(
    per_document=5, section_tokens=8, max_query_tokens=6, top_k=8, batch_size=7
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_t5(tmp_path_factory.mktemp("t5"), WORDS)


@pytest.fixture(scope="module")
def generator(folder):
    return SequenceToSequence.load(TINY.replace(model=str(folder)))


def with_settings(generator: SequenceToSequence, **changes: int) -> SequenceToSequence:
    return SequenceToSequence(
        generator.model, generator.tokenizer, generator.settings.replace(**changes)
    )


# 1 to 3 sections each
DOCUMENTS = {f"d{i}": " ".join(WORDS[i : i + 3 * (i + 1)]) for i in range(6)}


@pytest.fixture
def generated(generator, tmp_path):
    """The queries of all documents, by seed 1."""
    return generator.generate(DOCUMENTS, 1, tmp_path / "whole")


def test_each_document_has_five_queries(generated):
    assert Counter(query.document_id for query in generated) == dict.fromkeys(DOCUMENTS, 5)


def test_queries_are_sorted_and_various(generated):
    document_ids = [query.document_id for query in generated]

    assert document_ids == sorted(document_ids)
    assert len({query.text for query in generated}) > 20
    assert all(query.kind == "sequence_to_sequence" for query in generated)


def test_checkpoints_of_other_settings_are_not_used(generator, generated, tmp_path):
    shorter = with_settings(generator, max_query_tokens=1)

    assert shorter.generate(DOCUMENTS, 1, tmp_path / "whole") != generated


def test_queries_do_not_depend_on_their_batch(generator, generated, tmp_path, monkeypatch):
    monkeypatch.setattr(sequence_to_sequence, "DOCUMENTS_PER_CHECKPOINT", 2)
    reordered = dict(reversed(DOCUMENTS.items()))

    queries = with_settings(generator, batch_size=3).generate(reordered, 1, tmp_path / "b")

    assert queries == generated


def test_queries_do_not_depend_on_other_documents(generator, generated, tmp_path):
    queries = generator.generate({"d3": DOCUMENTS["d3"]}, 1, tmp_path / "c")

    assert queries == generated[15:20]


def test_another_seed_gives_other_queries(generator, generated, tmp_path):
    assert generator.generate(DOCUMENTS, 2, tmp_path / "d") != generated


def test_killed_generation_resumes(generator, tmp_path, monkeypatch):
    monkeypatch.setattr(sequence_to_sequence, "DOCUMENTS_PER_CHECKPOINT", 2)
    whole = generator.generate(DOCUMENTS, 1, tmp_path / "uninterrupted")

    def kill(done: int, total: int, note: str) -> None:
        if done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generator.generate(DOCUMENTS, 1, tmp_path / "killed", kill)
    write_queries = SequenceToSequence._write_queries
    written = []

    def record_and_write(
        self: SequenceToSequence, chunk: dict[str, str], seed: int
    ) -> list[tuple[str, str]]:
        written.append(list(chunk))
        return write_queries(self, chunk, seed)

    monkeypatch.setattr(SequenceToSequence, "_write_queries", record_and_write)
    resumed = generator.generate(DOCUMENTS, 1, tmp_path / "killed")

    assert resumed == whole
    assert written == [["d4", "d5"]]


def test_all_sections_of_a_document_are_read(generator):
    sections, drafts = generator._sections({"long": " ".join(WORDS[:20]), "short": "w1 w2"})

    # 7, 7, 6 and 2 words, and </s> each
    assert [len(section) for section in sections] == [8, 8, 7, 3]
    assert [(draft.document_id, draft.section) for draft in drafts] == [
        *[("long", section) for section in (0, 0, 1, 1, 2)],
        *[("short", 3)] * 5,
    ]


def test_gumbel_noise_samples_the_softmax():
    logits = torch.tensor([0.3, 2.0, -5.0, 1.0, 0.9])
    draws = torch.rand(
        (20000, 1, 3), dtype=torch.float64, generator=torch.Generator().manual_seed(4)
    )
    sample = GumbelTopK(-torch.log(-torch.log(draws)), 0.5)(
        torch.zeros(20000, 1), logits.repeat(20000, 1)
    ).argmax(1)
    expected = torch.zeros(5)
    expected[[1, 3, 4]] = torch.softmax(logits[[1, 3, 4]] / 0.5, dim=0)
    observed = torch.bincount(sample, minlength=5) / 20000

    # The tolerance is 3.5 standard errors.
    assert torch.allclose(observed, expected, atol=0.012)
    assert observed[0] == 0
    assert observed[2] == 0


def test_trained_names_the_trained_model(folder, generator, tmp_path):
    settings = TINY.replace(model="trained")
    made = SequenceToSequence.load(settings, folder)

    assert made.generate(DOCUMENTS, 1, tmp_path / "a") == generator.generate(
        DOCUMENTS, 1, tmp_path / "b"
    )
    for nothing in (None, tmp_path / "model"):
        with pytest.raises(
            FreshetError, match="but no generator was trained; set pseudo_queries.training.base"
        ):
            SequenceToSequence.load(settings, nothing)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_generator_uses_the_encoders_device(folder, monkeypatch, device: str):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    # "meta" stands for a GPU. Settings do not allow it.
    monkeypatch.setattr(sequence_to_sequence, "pick_device", torch.device)
    model = SequenceToSequence.load(TINY.replace(model=str(folder)), device=device).model

    assert model.device.type == device
    assert model.dtype == torch.float32


@pytest.mark.parametrize(("in_hardware", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_gpu_without_bfloat16_uses_float32(monkeypatch, in_hardware: bool, dtype: torch.dtype):
    model = MagicMock()
    load = MagicMock(return_value=(model, None))

    def is_bf16_supported(including_emulation: bool = True) -> bool:
        return including_emulation or in_hardware

    monkeypatch.setattr(torch.cuda, "device_count", MagicMock(return_value=2))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_bf16_supported)
    monkeypatch.setattr(sequence_to_sequence, "require_positions", MagicMock())
    monkeypatch.setattr(sequence_to_sequence, "load_sequence_model", load)
    SequenceToSequence.load(TINY, device="cuda:1")
    assert load.call_args.args[-1] is dtype
    model.to.assert_called_once_with(torch.device("cuda:1"))


def test_texts_beyond_the_positions_are_refused(tmp_path):
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(
        vocab_size=8, max_position_embeddings=64, d_model=16, encoder_layers=1, decoder_layers=1
    )
    model = BartForConditionalGeneration(config)
    require_positions(model, 64, 64)
    with pytest.raises(
        SettingsError, match="section_tokens is 65, but the model has 64 positions; lower"
    ):
        require_positions(model, 65, 8)
    with pytest.raises(SettingsError, match="max_query_tokens is 65"):
        require_positions(model, 8, 65)


def test_saved_models_name_no_machine(folder, tmp_path):
    for name in ("one", "two"):
        save_sequence_model(*load_sequence_model(folder), tmp_path / name, 16)

    assert hash_path(tmp_path / "one") == hash_path(tmp_path / "two")
    assert {path.suffix for path in (tmp_path / "one").iterdir()} == {".json", ".safetensors"}
    for path in (tmp_path / "one").glob("*.json"):
        assert not {str(folder), "transformers_version"} & {
            word for word in path.read_text().split('"')
        }


def test_unloadable_models_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    with pytest.raises(
        FreshetError, match="'someone/some-t5' is no sequence-to.*hub model$"
    ) as caught:
        load_sequence_model("someone/some-t5")
    assert "\n" not in str(caught.value)
    with pytest.raises(
        FreshetError, match="is no sequence-to-sequence model that can be loaded.*BertConfig"
    ):
        load_sequence_model(make_tiny_encoder(tmp_path / "encoder", WORDS))
