"""Guards the encoder: unit vectors, order and determinism of `encode`, gradients, no dropout, equal
saved copies; and the token batches: every row once, the budget kept, hardly any padding, and texts
that are encoded in length-sorted parts are the texts encoded at once, in their order.
"""

from __future__ import annotations

import random
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
    token_batches,
)
from model_code.encoding.settings import EncoderSettings, Precision
from model_code.errors import FreshetError
from model_code.files import read_json, write_json
from tests.model_code.training.example import WORDS, make_encoder
from tests.tiny_encoder import make_tiny_encoder


def naive_vector(encoder: Encoder, text: str) -> np.ndarray:
    """One text alone, through transformers' own tokenizer call and a float64 mean: the oracle for
    `encode`.
    """
    batch = encoder.tokenizer(
        text, truncation=True, max_length=encoder.max_tokens, return_tensors="pt"
    )
    with torch.no_grad():
        tokens = encoder.backbone(**batch).last_hidden_state[0].double().numpy()
    mean = tokens.mean(axis=0)
    return mean / np.linalg.norm(mean)


def test_batched_encoding_equals_naive_encoding(
    tiny: Encoder, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = np.stack([naive_vector(tiny, text) for text in texts])
    for batch_tokens in (1, 40, 100_000):
        for most in ("CPU_BATCH_TOKENS", "SMALL_INPUT_BATCH_TOKENS"):
            monkeypatch.setattr(f"model_code.encoding.encoder.{most}", batch_tokens)
        found = tiny.encode(texts)
        assert found.dtype == np.float32
        assert found.shape == (len(texts), tiny.dimension)
        np.testing.assert_allclose(found, expected, atol=2e-6)
        assert tiny.encode(texts).tobytes() == found.tobytes()
    np.testing.assert_allclose(tiny.encode(texts[::-1]), expected[::-1], atol=2e-6)
    assert tiny.encode([]).shape == (0, tiny.dimension)


def naive_words(encoder: Encoder, text: str, prompt: str) -> tuple[list[list[bool]], list[int]]:
    """Of each word of a text which numbers of the sum of its pieces' states are positive, and how
    many these are.
    """
    own, lead = (
        encoder.tokenizer(one, truncation=True, max_length=encoder.max_tokens)
        for one in (prompt + text, prompt)
    )
    with torch.no_grad():
        batch = {name: torch.tensor([numbers]) for name, numbers in own.items()}
        states = encoder.backbone(**batch).last_hidden_state[0].double().numpy()
    words: list[np.ndarray] = []
    counts: list[int] = []
    pieces = encoder.tokenizer.convert_ids_to_tokens(own["input_ids"])
    begun = True
    for piece, state in list(zip(pieces, states, strict=True))[len(lead["input_ids"]) - 1 :]:
        begun = begun or not piece.startswith("##")
        if piece in encoder.tokenizer.all_special_tokens or not any(map(str.isalnum, piece)):
            continue
        if not begun:
            words[-1], counts[-1] = words[-1] + state, counts[-1] + 1
        else:
            words.append(state)
            counts.append(1)
        begun = False
    return [(word > 0).tolist() for word in words], counts


@pytest.mark.parametrize("prompt", ["", "sort: "])
def test_word_signs_come_from_summed_pieces(tmp_path, prompt) -> None:
    """Queries have a word as often as it has pieces; a sign that begins a word is no part of it or
    of the last one.
    """
    folder = make_tiny_encoder(tmp_path / "encoder", ["sort", "numbers", "the", "table", "₹"])
    tiny = Encoder.load(folder, 32, precision="float32", device="cpu")
    tiny.prompts = Prompts(query=prompt, document=prompt)
    texts = ["sort numbers, zebra files!", "numbers", "sort ₹500 table", "... !"]
    assert tiny.tokenizer.tokenize(texts[2])[1:3] == ["₹", "##5"]
    assert any("##" in piece for piece in tiny.tokenizer.tokenize(texts[0])), "or nothing is summed"
    for encode_texts, plain, of_queries in (
        (tiny.encode_with_tokens, tiny.encode, True),
        (tiny.encode_passages_with_tokens, tiny.encode_passages, False),
    ):
        vectors, tokens = encode_texts(texts)
        assert vectors.tobytes() == plain(texts).tobytes()
        bits = [
            np.unpackbits(tokens[i : i + 1].bits.view(np.uint8), axis=1) for i in range(len(texts))
        ]
        assert bits[-1].tolist() == [[0] * bits[-1].shape[1]]
        for text, own in zip(texts[:-1], bits, strict=False):
            words, counts = naive_words(tiny, text, prompt)
            expected = np.repeat(words, counts, axis=0) if of_queries else np.array(words)
            assert (own[:, : tiny.dimension].astype(bool) == expected).all()


def test_cls_pooling_takes_the_first_token(tiny_folder: Path, texts: list[str]) -> None:
    encoder = Encoder.load(tiny_folder, 32, pooling="cls", precision="float32", device="cpu")
    with torch.no_grad():
        features = encoder.tokenize(texts)
        first = encoder.backbone(**features).last_hidden_state[:, 0].numpy()
    np.testing.assert_allclose(
        encoder.encode(texts), first / np.linalg.norm(first, axis=1, keepdims=True), atol=2e-6
    )


def test_windows_do_not_change_the_order(
    tiny: Encoder, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tiny.encode(texts)
    monkeypatch.setattr("model_code.encoding.encoder.WINDOW_TEXTS", 3)
    seen: list[tuple[int, int]] = []
    found = tiny.encode(texts, progress=lambda done, total, note="": seen.append((done, total)))
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert seen[-1] == (len(texts), len(texts))
    assert seen == sorted(seen)


def test_tokenize_pads_and_truncates_as_transformers_does(tiny: Encoder, texts: list[str]) -> None:
    expected = tiny.tokenizer(
        texts, padding=True, truncation=True, max_length=32, return_tensors="pt"
    )
    found = tiny.tokenize(texts)
    assert torch.equal(found["input_ids"], expected["input_ids"])
    assert torch.equal(found["attention_mask"], expected["attention_mask"])
    assert tiny.tokenize(texts, max_tokens=5)["input_ids"].shape[1] == 5


def test_a_tokenizer_is_told_nothing_twice(
    tiny: Encoder, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To be told, it waits for whoever tokenises meanwhile: a query would for all texts of an
    addition.
    """
    expected, backend = tiny.token_ids(texts), tiny.tokenizer.backend_tokenizer

    class Told:
        def __getattr__(self, name: str) -> Any:
            assert name not in ("no_padding", "enable_truncation")
            return getattr(backend, name)

    monkeypatch.setattr(tiny, "tokenizer", SimpleNamespace(backend_tokenizer=Told()))
    assert tiny.token_ids(texts) == expected
    with pytest.raises(AssertionError):
        tiny.token_ids(texts, max_tokens=4)


def test_forward_has_gradients_and_no_dropout_in_training(
    tiny_folder: Path, texts: list[str]
) -> None:
    encoder = Encoder.load(tiny_folder, 32, precision="float32", device="cpu").train()
    features = encoder.tokenize(texts)
    first, second = encoder(features), encoder(features)
    assert torch.equal(first, second)
    torch.testing.assert_close(first.norm(dim=1), torch.ones(len(texts)))
    first.sum().backward()
    assert encoder.backbone.embeddings.word_embeddings.weight.grad.abs().sum() > 0
    encoder.encode(texts)
    assert encoder.training


def test_bfloat16_stays_close_to_float32(
    tiny_folder: Path, tiny: Encoder, texts: list[str]
) -> None:
    encoder = Encoder.load(tiny_folder, 32, precision="bfloat16", device="cpu")
    cosine = (encoder.encode(texts) * tiny.encode(texts)).sum(axis=1)
    assert cosine.min() > 0.999
    assert encoder.encode(texts).dtype == np.float32
    assert not np.array_equal(encoder.encode(texts), tiny.encode(texts))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_query_vector_does_not_depend_on_batch(
    tiny_folder: Path, texts: list[str], precision: Precision
) -> None:
    encoder = Encoder.load(tiny_folder, 32, precision=precision, device="cpu", for_search=True)
    alone = np.concatenate([encoder.encode([text]) for text in texts])
    np.testing.assert_allclose(encoder.encode(texts), alone, atol=2e-7)
    if precision == "bfloat16":
        assert np.abs(encoder.encode_passages(texts) - alone).max() > 1e-5, (
            "as padding would move it"
        )


def test_saved_files_omit_paths_and_keep_dropout(tiny: Encoder, tmp_path: Path) -> None:
    tiny.tokenizer(
        "state of this call must not be saved", truncation=True, max_length=7, padding=True
    )
    tiny.save(tmp_path)
    text = "".join(path.read_text() for path in sorted(tmp_path.rglob("*.json")))
    assert str(tmp_path) not in text
    assert "name_or_path" not in text
    assert read_json(tmp_path / "config.json")["hidden_dropout_prob"] == 0.1
    tokenizer = read_json(tmp_path / "tokenizer.json")
    assert tokenizer["padding"] is None
    assert tokenizer["truncation"] is None


def test_only_missing_pooler_weights_are_accepted(tiny_folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    def without(part: str, folder: Path) -> Path:
        shutil.copytree(tiny_folder, folder)
        weights = load_file(folder / "model.safetensors")
        kept = {name: value for name, value in weights.items() if part not in name}
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    first = Encoder.load(without("pooler", tmp_path / "pooler"))
    assert first.fingerprint() == Encoder.load(tmp_path / "pooler").fingerprint()
    with pytest.raises(FreshetError, match="lacks .* weights"):
        Encoder.load(without("layer.1.output", tmp_path / "layer"))


def test_pooling_setting_ignores_trained_encoder(tiny_folder: Path, tmp_path: Path) -> None:
    settings = EncoderSettings(base=str(tiny_folder), max_tokens=16, pooling="cls", device="cpu")
    base = Encoder.from_settings(settings)
    assert base.pooling == "cls"
    assert base.max_tokens == 16
    assert Encoder.from_settings(settings, source=tiny_folder).pooling == "mean"


def test_modules_that_are_not_understood_are_refused(tiny_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "encoder"))
    modules = read_json(folder / "modules.json")
    write_json(
        folder / "modules.json",
        [*modules, {"idx": 9, "name": "9", "path": "", "type": "x.models.LSTM"}],
    )
    with pytest.raises(FreshetError, match="LSTM"):
        Encoder.load(folder)
    write_json(folder / "modules.json", modules)
    both = {"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True}
    write_json(folder / "1_Pooling" / "config.json", both)
    with pytest.raises(FreshetError, match="pooling .* is not supported"):
        Encoder.load(folder)


def load_tiny(folder: Path, max_tokens: int = 32, pooling: str = "mean") -> Encoder:
    """The tiny encoder, freshly loaded."""
    return Encoder.load(folder, max_tokens, pooling, precision="float32", device="cpu")  # type: ignore[arg-type]


def test_it_changes_with_what_decides_the_vectors(tiny_folder: Path, tmp_path: Path) -> None:
    nudged = load_tiny(tiny_folder)
    with torch.no_grad():
        nudged.backbone.embeddings.word_embeddings.weight[7, 3] += 1e-6
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "cased"))
    tokenizer = read_json(folder / "tokenizer.json")
    tokenizer["normalizer"]["lowercase"] = False
    write_json(folder / "tokenizer.json", tokenizer)
    others = [
        nudged,
        load_tiny(folder),
        load_tiny(tiny_folder, 31),
        load_tiny(tiny_folder, pooling="cls"),
    ]
    assert len({encoder.fingerprint() for encoder in (load_tiny(tiny_folder), *others)}) == 5


def test_fingerprint_ignores_use_precision_and_folder(
    tiny_folder: Path, texts: list[str], tmp_path: Path
) -> None:
    encoder = load_tiny(tiny_folder)
    before = encoder.fingerprint()
    encoder.tokenizer(texts, padding=True, truncation=True, max_length=5)
    encoder.encode(texts)
    encoder.save(tmp_path / "elsewhere")
    assert encoder.fingerprint() == before == load_tiny(tmp_path / "elsewhere").fingerprint()
    assert Encoder.load(tiny_folder, 32, precision="bfloat16").fingerprint() == before


def test_every_row_once_and_within_the_budget() -> None:
    chance = random.Random(0)
    for budget in (1, 64, 500):
        lengths = [chance.randint(2, 128) for _ in range(200)]
        batches = list(token_batches(lengths, budget))
        assert sorted(row for rows in batches for row in rows) == list(range(200))
        for rows in batches:
            assert len(rows) == 1 or len(rows) * max(lengths[row] for row in rows) <= budget


def test_sorting_leaves_hardly_any_padding() -> None:
    chance = random.Random(0)
    lengths = [chance.randint(2, 128) for _ in range(500)]
    padded = sum(
        len(rows) * max(lengths[row] for row in rows) for rows in token_batches(lengths, 1024)
    )
    assert padded <= 1.05 * sum(lengths)


def test_even_batches_are_not_padded() -> None:
    chance = random.Random(0)
    lengths = [chance.randint(2, 12) for _ in range(200)]
    batches = list(token_batches(lengths, 64, even=True))
    assert sorted(row for rows in batches for row in rows) == list(range(200))
    assert all(
        len({lengths[row] for row in rows}) == 1 and len(rows) * lengths[rows[0]] <= 64
        for rows in batches
    )
    assert len(batches) < 60


def test_padding_is_masked() -> None:
    features = pad([[3, 4, 5], [], [6]], padding=9)
    assert features["input_ids"].tolist() == [[3, 4, 5], [9, 9, 9], [6, 9, 9]]
    assert features["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize("batch_tokens", [1, 8, 20, 10_000])
def test_parts_give_the_same_vectors_and_gradients(tmp_path: Path, batch_tokens: int):
    encoder = make_encoder(tmp_path / "tiny")
    features = encoder.tokenize([" ".join(WORDS[: 1 + 3 * i % 7]) for i in range(9)])
    weights = torch.randn(9, 32, generator=torch.Generator().manual_seed(0))
    results = []
    for vectors in (
        encoder(features),
        encode_buckets(encoder, bucket_by_length(features, batch_tokens)),
    ):
        encoder.zero_grad()
        (weights * vectors).sum().backward()
        results.append(
            (vectors.detach(), encoder.backbone.encoder.layer[0].output.dense.weight.grad.clone())
        )
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


def test_parts_hold_their_budget_and_hardly_any_padding():
    mask = (torch.arange(20) < torch.arange(1, 21)[:, None]).long()
    buckets = bucket_by_length({"input_ids": mask, "attention_mask": mask}, batch_tokens=40)
    assert all(part["input_ids"].numel() <= 40 for part in buckets.batches)
    assert sum(part["attention_mask"].numel() for part in buckets.batches) < 0.6 * mask.numel()
    assert sum(int(part["attention_mask"].sum()) for part in buckets.batches) == int(mask.sum())
