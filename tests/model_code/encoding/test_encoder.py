"""Test the encoder, its token batches and its buckets.

Vectors have length one, keep the order of texts and are reproducible. Saved copies are equal.
Batches hold every row once, keep their budget and have little padding.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from model_code.encoding.base_models import Prompts
from model_code.encoding.encoder import (
    Encoder,
    bucket_by_length,
    encode_buckets,
    pad,
)
from model_code.encoding.settings import EncoderSettings, Precision
from model_code.encoding.token_signs import TokenSigns
from model_code.errors import FreshetError
from model_code.files import read_json, write_json
from tests.model_code.training.example import WORDS, make_encoder
from tests.tiny_encoder import make_tiny_encoder


def naive_vector(encoder: Encoder, text: str) -> np.ndarray:
    """Encode a single text with transformers' own tokenizer and a mean in float64."""
    batch = encoder.tokenizer(
        text, truncation=True, max_length=encoder.max_tokens, return_tensors="pt"
    )
    with torch.no_grad():
        states = encoder.backbone(**batch).last_hidden_state[0].double().numpy()
    mean = states.mean(axis=0)
    return mean / np.linalg.norm(mean)


@pytest.fixture
def naive_vectors(tiny: Encoder, texts: list[str]) -> np.ndarray:
    return np.stack([naive_vector(tiny, text) for text in texts])


@pytest.mark.parametrize("batch_tokens", [1, 40, 100_000])
def test_batched_encoding_equals_naive_encoding(
    tiny: Encoder,
    texts: list[str],
    naive_vectors: np.ndarray,
    batch_tokens: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for limit in ("CPU_BATCH_TOKENS", "SMALL_INPUT_BATCH_TOKENS"):
        monkeypatch.setattr(f"model_code.encoding.encoder.{limit}", batch_tokens)

    vectors = tiny.encode_queries(texts)

    assert vectors.dtype == np.float32
    assert vectors.shape == (len(texts), tiny.dimension)
    np.testing.assert_allclose(vectors, naive_vectors, atol=2e-6)
    assert tiny.encode_queries(texts).tobytes() == vectors.tobytes()


def test_vectors_keep_the_order_of_texts(
    tiny: Encoder, texts: list[str], naive_vectors: np.ndarray
) -> None:
    np.testing.assert_allclose(tiny.encode_queries(texts[::-1]), naive_vectors[::-1], atol=2e-6)


def test_no_texts_have_no_vectors(tiny: Encoder) -> None:
    assert tiny.encode_queries([]).shape == (0, tiny.dimension)


def naive_words(encoder: Encoder, text: str, prompt: str) -> tuple[np.ndarray, list[int]]:
    """Compute the signs of the words of a text, word by word.

    Returns:
        Whether each number of the sum of a word's states is positive, (words, dimension), and the
        number of pieces of each word.
    """
    limits = {"truncation": True, "max_length": encoder.max_tokens}
    inputs = encoder.tokenizer(prompt + text, **limits)
    prompt_length = len(encoder.tokenizer(prompt, **limits)["input_ids"]) - 1
    with torch.no_grad():
        batch = {name: torch.tensor([numbers]) for name, numbers in inputs.items()}
        states = encoder.backbone(**batch).last_hidden_state[0].double().numpy()
    pieces = encoder.tokenizer.convert_ids_to_tokens(inputs["input_ids"])

    sums: list[np.ndarray] = []
    counts: list[int] = []
    is_new_word = True
    for piece, state in zip(pieces[prompt_length:], states[prompt_length:], strict=True):
        if not piece.startswith("##"):
            is_new_word = True
        has_letters = any(character.isalnum() for character in piece)
        if piece in encoder.tokenizer.all_special_tokens or not has_letters:
            continue
        if is_new_word:
            sums.append(state)
            counts.append(1)
        else:
            sums[-1] = sums[-1] + state
            counts[-1] += 1
        is_new_word = False
    return np.array(sums) > 0, counts


# The second text begins with a word that the tokenizer splits. The third has a word that begins
# with a sign. The last has no word.
SIGN_TEXTS = ["sort numbers, zebra files!", "numbers", "sort ₹500 table", "... !"]


@pytest.fixture(params=["", "sort: "])
def prompt(request) -> str:
    return request.param


@pytest.fixture
def prompted_encoder(tmp_path: Path, prompt: str) -> Encoder:
    folder = make_tiny_encoder(tmp_path / "encoder", ["sort", "numbers", "the", "table", "₹"])
    encoder = Encoder.load(folder, 32, precision="float32", device="cpu")
    encoder.prompts = Prompts(query=prompt, document=prompt)
    return encoder


def unpack_signs(tokens: TokenSigns, row: int) -> np.ndarray:
    return np.unpackbits(tokens[row : row + 1].bits.view(np.uint8), axis=1)


def test_sign_texts_have_words_of_several_pieces(prompted_encoder: Encoder) -> None:
    tokenizer = prompted_encoder.tokenizer

    assert any("##" in piece for piece in tokenizer.tokenize(SIGN_TEXTS[0]))
    assert tokenizer.tokenize(SIGN_TEXTS[2])[1:3] == ["₹", "##5"]


def test_tokens_of_queries_repeat_words_by_pieces(prompted_encoder: Encoder, prompt: str) -> None:
    vectors, tokens = prompted_encoder.encode_queries_with_signs(SIGN_TEXTS)

    assert vectors.tobytes() == prompted_encoder.encode_queries(SIGN_TEXTS).tobytes()
    for row, text in enumerate(SIGN_TEXTS[:-1]):
        signs, counts = naive_words(prompted_encoder, text, prompt)
        bits = unpack_signs(tokens, row)[:, : prompted_encoder.dimension]
        assert (bits.astype(bool) == np.repeat(signs, counts, axis=0)).all()


def test_tokens_of_passages_are_their_words(prompted_encoder: Encoder, prompt: str) -> None:
    vectors, tokens = prompted_encoder.encode_documents_with_signs(SIGN_TEXTS)

    assert (
        vectors.tobytes() == prompted_encoder.encode_documents_by_last_layer(SIGN_TEXTS).tobytes()
    )
    for row, text in enumerate(SIGN_TEXTS[:-1]):
        signs, _ = naive_words(prompted_encoder, text, prompt)
        bits = unpack_signs(tokens, row)[:, : prompted_encoder.dimension]
        assert (bits.astype(bool) == signs).all()


@pytest.mark.parametrize("method", ["encode_queries_with_signs", "encode_documents_with_signs"])
def test_text_without_words_has_a_zero_token(prompted_encoder: Encoder, method: str) -> None:
    _, tokens = getattr(prompted_encoder, method)(SIGN_TEXTS)

    bits = unpack_signs(tokens, len(SIGN_TEXTS) - 1)
    assert bits.tolist() == [[0] * bits.shape[1]]


def test_cls_pooling_takes_the_first_token(tiny_folder: Path, texts: list[str]) -> None:
    encoder = Encoder.load(tiny_folder, 32, pooling="cls", precision="float32", device="cpu")

    vectors = encoder.encode_queries(texts)

    with torch.no_grad():
        states = encoder.backbone(**encoder.tokenize(texts)).last_hidden_state
    first_states = states[:, 0].numpy()
    expected = first_states / np.linalg.norm(first_states, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors, expected, atol=2e-6)


def test_windows_do_not_change_the_order(
    tiny: Encoder, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tiny.encode_queries(texts)
    monkeypatch.setattr("model_code.encoding.encoder.WINDOW_TEXTS", 3)
    reports: list[tuple[int, int]] = []

    def progress(done: int, total: int, note: str = "") -> None:
        reports.append((done, total))

    vectors = tiny.encode_queries(texts, progress=progress)

    np.testing.assert_allclose(vectors, expected, atol=2e-6)
    assert reports[-1] == (len(texts), len(texts))
    assert reports == sorted(reports)


def test_tokenize_pads_and_truncates_as_transformers_does(tiny: Encoder, texts: list[str]) -> None:
    features = tiny.tokenize(texts)

    expected = tiny.tokenizer(
        texts, padding=True, truncation=True, max_length=32, return_tensors="pt"
    )
    assert torch.equal(features["input_ids"], expected["input_ids"])
    assert torch.equal(features["attention_mask"], expected["attention_mask"])


def test_tokenize_truncates_to_a_given_length(tiny: Encoder, texts: list[str]) -> None:
    assert tiny.tokenize(texts, max_tokens=5)["input_ids"].shape[1] == 5


def test_tokenizer_is_configured_once(
    tiny: Encoder, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Configuring waits for running calls. A query would wait for all texts of an addition."""
    expected = tiny.token_ids(texts)
    backend = tiny.tokenizer.backend_tokenizer

    class ConfiguredTokenizer:
        def __getattr__(self, name: str) -> Any:
            assert name not in ("no_padding", "enable_truncation")
            return getattr(backend, name)

    tokenizer = SimpleNamespace(backend_tokenizer=ConfiguredTokenizer())
    monkeypatch.setattr(tiny, "tokenizer", tokenizer)

    assert tiny.token_ids(texts) == expected
    # Another length has to be configured.
    with pytest.raises(AssertionError):
        tiny.token_ids(texts, max_tokens=4)


@pytest.fixture
def training_encoder(tiny_folder: Path) -> Encoder:
    return Encoder.load(tiny_folder, 32, precision="float32", device="cpu").train()


def test_forward_has_no_dropout_in_training(training_encoder: Encoder, texts: list[str]) -> None:
    features = training_encoder.tokenize(texts)

    vectors = training_encoder(features)

    assert torch.equal(vectors, training_encoder(features))
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(texts)))


def test_forward_has_gradients(training_encoder: Encoder, texts: list[str]) -> None:
    training_encoder(training_encoder.tokenize(texts)).sum().backward()

    weight = training_encoder.backbone.embeddings.word_embeddings.weight
    assert weight.grad.abs().sum() > 0


def test_encode_keeps_the_training_mode(training_encoder: Encoder, texts: list[str]) -> None:
    training_encoder.encode_queries(texts)

    assert training_encoder.training


def test_bfloat16_stays_close_to_float32(
    tiny_folder: Path, tiny: Encoder, texts: list[str]
) -> None:
    encoder = Encoder.load(tiny_folder, 32, precision="bfloat16", device="cpu")

    vectors = encoder.encode_queries(texts)

    exact_vectors = tiny.encode_queries(texts)
    cosines = (vectors * exact_vectors).sum(axis=1)
    assert cosines.min() > 0.999
    assert vectors.dtype == np.float32
    assert not np.array_equal(vectors, exact_vectors)


def encode_one_by_one(encoder: Encoder, texts: list[str]) -> np.ndarray:
    return np.concatenate([encoder.encode_queries([text]) for text in texts])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_query_vector_does_not_depend_on_batch(
    tiny_folder: Path, texts: list[str], precision: Precision
) -> None:
    encoder = Encoder.load(tiny_folder, 32, precision=precision, device="cpu", for_search=True)

    vectors = encoder.encode_queries(texts)

    np.testing.assert_allclose(vectors, encode_one_by_one(encoder, texts), atol=2e-7)


def test_padding_moves_passages_in_bfloat16(tiny_folder: Path, texts: list[str]) -> None:
    """Without this effect, the test above would show nothing."""
    encoder = Encoder.load(tiny_folder, 32, precision="bfloat16", device="cpu", for_search=True)

    differences = encoder.encode_documents_by_last_layer(texts) - encode_one_by_one(encoder, texts)

    assert np.abs(differences).max() > 1e-5


@pytest.fixture
def saved_folder(tiny: Encoder, tmp_path: Path) -> Path:
    # The state of this call must not be saved.
    tiny.tokenizer("any text", truncation=True, max_length=7, padding=True)
    tiny.save(tmp_path)
    return tmp_path


def test_saved_files_omit_paths(saved_folder: Path) -> None:
    text = "".join(path.read_text() for path in sorted(saved_folder.rglob("*.json")))

    assert str(saved_folder) not in text
    assert "name_or_path" not in text


def test_saved_configuration_keeps_dropout(saved_folder: Path) -> None:
    assert read_json(saved_folder / "config.json")["hidden_dropout_prob"] == 0.1


def test_saved_tokenizer_omits_padding_and_truncation(saved_folder: Path) -> None:
    tokenizer = read_json(saved_folder / "tokenizer.json")

    assert tokenizer["padding"] is None
    assert tokenizer["truncation"] is None


def copy_without_weights(source: Path, name_part: str, folder: Path) -> Path:
    """Copy an encoder without the weights whose names contain `name_part`."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, folder)
    weights = load_file(folder / "model.safetensors")
    remaining = {name: weight for name, weight in weights.items() if name_part not in name}
    save_file(remaining, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_missing_pooler_weights_are_accepted(tiny_folder: Path, tmp_path: Path) -> None:
    folder = copy_without_weights(tiny_folder, "pooler", tmp_path / "encoder")

    assert Encoder.load(folder).fingerprint() == Encoder.load(folder).fingerprint()


def test_other_missing_weights_are_refused(tiny_folder: Path, tmp_path: Path) -> None:
    folder = copy_without_weights(tiny_folder, "layer.1.output", tmp_path / "encoder")

    with pytest.raises(FreshetError, match="lacks .* weights"):
        Encoder.load(folder)


def test_pooling_setting_applies_to_the_base_model(tiny_folder: Path) -> None:
    settings = EncoderSettings(base=str(tiny_folder), max_tokens=16, pooling="cls", device="cpu")

    base = Encoder.from_settings(settings)

    assert base.pooling == "cls"
    assert base.max_tokens == 16


def test_pooling_setting_ignores_trained_encoder(tiny_folder: Path) -> None:
    settings = EncoderSettings(base=str(tiny_folder), max_tokens=16, pooling="cls", device="cpu")

    assert Encoder.from_settings(settings, source=tiny_folder).pooling == "mean"


@pytest.fixture
def copied_folder(tiny_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder, tmp_path / "encoder"))


def test_unknown_module_is_refused(copied_folder: Path) -> None:
    modules = read_json(copied_folder / "modules.json")
    modules.append({"idx": 9, "name": "9", "path": "", "type": "x.models.LSTM"})
    write_json(copied_folder / "modules.json", modules)

    with pytest.raises(FreshetError, match="LSTM"):
        Encoder.load(copied_folder)


def test_two_poolings_are_refused(copied_folder: Path) -> None:
    poolings = {"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True}
    write_json(copied_folder / "1_Pooling" / "config.json", poolings)

    with pytest.raises(FreshetError, match="pooling .* is not supported"):
        Encoder.load(copied_folder)


def load_tiny(folder: Path, max_tokens: int = 32, pooling: str = "mean") -> Encoder:
    """Load the tiny encoder again."""
    return Encoder.load(folder, max_tokens, pooling, precision="float32", device="cpu")  # type: ignore[arg-type]


def test_fingerprint_changes_with_a_weight(tiny_folder: Path) -> None:
    encoder = load_tiny(tiny_folder)
    with torch.no_grad():
        encoder.backbone.embeddings.word_embeddings.weight[7, 3] += 1e-6

    assert encoder.fingerprint() != load_tiny(tiny_folder).fingerprint()


def test_fingerprint_changes_with_the_tokenizer(tiny_folder: Path, copied_folder: Path) -> None:
    tokenizer = read_json(copied_folder / "tokenizer.json")
    tokenizer["normalizer"]["lowercase"] = False
    write_json(copied_folder / "tokenizer.json", tokenizer)

    assert load_tiny(copied_folder).fingerprint() != load_tiny(tiny_folder).fingerprint()


def test_fingerprint_changes_with_length_and_pooling(tiny_folder: Path) -> None:
    fingerprints = {
        load_tiny(tiny_folder).fingerprint(),
        load_tiny(tiny_folder, 31).fingerprint(),
        load_tiny(tiny_folder, pooling="cls").fingerprint(),
    }

    assert len(fingerprints) == 3


def test_fingerprint_does_not_change_by_use(tiny_folder: Path, texts: list[str]) -> None:
    encoder = load_tiny(tiny_folder)
    before = encoder.fingerprint()

    encoder.tokenizer(texts, padding=True, truncation=True, max_length=5)
    encoder.encode_queries(texts)

    assert encoder.fingerprint() == before


def test_fingerprint_ignores_the_folder(tiny_folder: Path, tmp_path: Path) -> None:
    encoder = load_tiny(tiny_folder)

    encoder.save(tmp_path / "elsewhere")

    assert load_tiny(tmp_path / "elsewhere").fingerprint() == encoder.fingerprint()


def test_fingerprint_ignores_precision(tiny_folder: Path) -> None:
    encoder = Encoder.load(tiny_folder, 32, precision="bfloat16")

    assert encoder.fingerprint() == load_tiny(tiny_folder).fingerprint()


def test_padding_is_masked() -> None:
    features = pad([[3, 4, 5], [], [6]], padding=9)

    assert features["input_ids"].tolist() == [[3, 4, 5], [9, 9, 9], [6, 9, 9]]
    assert features["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize("batch_tokens", [1, 8, 20, 10_000])
def test_buckets_give_the_same_vectors_and_gradients(tmp_path: Path, batch_tokens: int):
    encoder = make_encoder(tmp_path / "tiny")
    features = encoder.tokenize([" ".join(WORDS[: 1 + 3 * i % 7]) for i in range(9)])
    weights = torch.randn(9, 32, generator=torch.Generator().manual_seed(0))
    parameter = encoder.backbone.encoder.layer[0].output.dense.weight

    def gradient(vectors: torch.Tensor) -> torch.Tensor:
        encoder.zero_grad()
        (weights * vectors).sum().backward()
        return parameter.grad.clone()

    vectors = encoder(features)
    bucket_vectors = encode_buckets(encoder, bucket_by_length(features, batch_tokens))

    torch.testing.assert_close(bucket_vectors, vectors, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient(bucket_vectors), gradient(vectors), rtol=1e-4, atol=1e-5)


def test_buckets_hold_their_budget_with_little_padding():
    mask = (torch.arange(20) < torch.arange(1, 21)[:, None]).long()

    buckets = bucket_by_length({"input_ids": mask, "attention_mask": mask}, batch_tokens=40)

    masks = [batch["attention_mask"] for batch in buckets.batches]
    assert all(batch["input_ids"].numel() <= 40 for batch in buckets.batches)
    assert sum(batch_mask.numel() for batch_mask in masks) < 0.6 * mask.numel()
    assert sum(int(batch_mask.sum()) for batch_mask in masks) == int(mask.sum())


def test_encoder_for_search_hashes_its_weights_once(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Encoder.load(tiny_folder, device="cpu", for_search=True)
    fingerprint = encoder.fingerprint()

    # A second hash would raise an error.
    monkeypatch.delattr("model_code.encoding.encoder.compute_fingerprint")

    assert encoder.fingerprint() == fingerprint


def test_prompts_change_the_fingerprint_of_an_encoder_for_search(tiny_folder: Path) -> None:
    encoder = Encoder.load(tiny_folder, device="cpu", for_search=True)
    before = encoder.fingerprint()

    encoder.prompts = Prompts(query="query: ")

    assert encoder.fingerprint() != before
