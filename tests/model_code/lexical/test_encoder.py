"""Tests of the lexical encoder.

The pooled weights equal a double loop, padding has no influence, and the sparse gradients are exact.
A saved encoder gives the same weights when sentence-transformers opens it. A token may carry weight
by the text that it stands for, however its tokenizer writes it. The closed-form head equals a
least-squares solution and is better than a random one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from model_code.encoding.base_models import load_tokenizer, locate_model
from model_code.encoding.hardware import (
    MAX_CACHED_PRIMITIVES,
    PRIMITIVE_CACHES,
    PackedLinear,
    select_packing,
)
from model_code.encoding.settings import EncoderSettings
from model_code.errors import FreshetError
from model_code.files import hash_path, read_json, write_json
from model_code.lexical.encoder import (
    UNUSED_TOKEN,
    LexicalEncoder,
    Sparse,
    blocked_tokens,
    inverse_document_frequencies,
    max_logits,
    ridge_transform,
    top_entries,
)
from model_code.lexical.layout import HEAD, load_encoder, save_encoder, start_encoder
from tests.model_code.lexical.example import (
    SETTINGS,
    TEXTS,
    WORDS,
    dense_weights,
    make_encoder,
    make_masked_model,
)
from tests.tiny_encoder import make_tiny_model


@pytest.fixture(params=["closed_form", "mlm"])
def encoder(request: pytest.FixtureRequest, tmp_path: Path) -> LexicalEncoder:
    return make_encoder(tmp_path / "base", request.param)


def assert_equal_weights(
    found: list[Sparse], expected: list[Sparse], tolerance: float = 2e-5
) -> None:
    """Check that sparse vectors have equal entries, and weights within a tolerance."""
    for (ids, weights), (expected_ids, expected_weights) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ids, expected_ids)
        np.testing.assert_allclose(weights, expected_weights, rtol=tolerance, atol=tolerance)


def elu_plus_one(value: float) -> float:
    """Return the activation of a logit."""
    return value + 1 if value >= 0 else np.exp(value)


def test_weights_equal_the_double_loop(encoder: LexicalEncoder) -> None:
    encoder = encoder.double()
    features = encoder.tokenize(TEXTS[:3])
    weights = dense_weights(encoder, features).detach().numpy()
    hidden = encoder.body(features["input_ids"], features["attention_mask"]).detach().numpy()
    decoder = encoder.decoder.detach().numpy()
    bias = encoder.bias.detach().numpy()

    for text in range(3):
        token_count = int(features["attention_mask"][text].sum())
        for entry in range(encoder.vocabulary_size):
            expected = 0.0
            if not encoder.blocked[entry]:
                logits = []
                for token in range(token_count):
                    product = sum(hidden[text, token, d] * decoder[entry, d] for d in range(32))
                    logits.append(product + bias[entry])
                expected = max(elu_plus_one(logit) for logit in logits)
            assert weights[text, entry] == pytest.approx(expected, abs=1e-9)


def test_padding_does_not_matter(encoder: LexicalEncoder) -> None:
    short = "word3 word7"
    long = " ".join(TEXTS)

    alone = dense_weights(encoder, encoder.tokenize([short]))[0]
    padded = dense_weights(encoder, encoder.tokenize([short, long]))[0]

    torch.testing.assert_close(alone, padded, rtol=1e-4, atol=1e-5)


def test_other_texts_do_not_matter(encoder: LexicalEncoder) -> None:
    short = "word3 word7"
    long = " ".join(TEXTS)

    assert_equal_weights(encoder.encode([short]), encoder.encode([long, short])[1:])
    assert_equal_weights(encoder.encode_own([short]), encoder.encode_own([long, short])[1:])


def test_sparse_weights_are_the_highest(encoder: LexicalEncoder) -> None:
    encoder = encoder.double()
    features = encoder.tokenize(TEXTS[:5])

    entries, _ = encoder.sparse(features, 8)

    highest = dense_weights(encoder, features).topk(8, dim=1)
    assert torch.equal(highest.indices.sort(dim=1).values, entries)


def test_sparse_gradients_equal_the_dense_gradients(encoder: LexicalEncoder) -> None:
    encoder = encoder.double()
    features = encoder.tokenize(TEXTS[:5])
    learned = [parameter for parameter in encoder.parameters() if parameter.requires_grad]

    _, sparse_weights = encoder.sparse(features, 8)
    highest = dense_weights(encoder, features).topk(8, dim=1)

    sparse_gradients = torch.autograd.grad((sparse_weights**2).sum(), learned, allow_unused=True)
    gradients = torch.autograd.grad((highest.values**2).sum(), learned, allow_unused=True)
    for sparse_gradient, gradient in zip(sparse_gradients, gradients, strict=True):
        if gradient is None:
            assert sparse_gradient is None
        else:
            torch.testing.assert_close(sparse_gradient, gradient, rtol=1e-9, atol=1e-9)


def test_special_tokens_carry_no_weight(encoder: LexicalEncoder) -> None:
    special = encoder.tokenizer.all_special_ids

    weights = dense_weights(encoder, encoder.tokenize(TEXTS[:2]))

    assert encoder.blocked[special].all()
    assert not weights[:, special].any()
    for ids, _ in encoder.encode(TEXTS):
        assert not np.isin(ids, special).any()


def test_blocked_entries_are_never_chosen(encoder: LexicalEncoder) -> None:
    open_entries = int((~encoder.blocked).sum())

    entries, weights = encoder.sparse(encoder.tokenize(TEXTS[:2]), 10_000)

    assert entries.shape == (2, open_entries)
    assert weights.shape == (2, open_entries)
    assert not encoder.blocked[entries].any()


def test_own_tokens_have_the_dense_weights(encoder: LexicalEncoder) -> None:
    dense = dense_weights(encoder, encoder.tokenize(TEXTS)).detach().numpy()
    bags = encoder.bags(TEXTS)

    encoded = encoder.encode_own(TEXTS)

    for row, (ids, weights) in enumerate(encoded):
        np.testing.assert_array_equal(ids, bags[row])
        np.testing.assert_allclose(weights, dense[row, ids], rtol=1e-4, atol=1e-5)


def test_empty_text_has_no_own_tokens(encoder: LexicalEncoder) -> None:
    *_, (ids, _) = encoder.encode_own([*TEXTS, ""])

    assert len(ids) == 0


def open_with_sentence_transformers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Open a saved encoder as users of sentence-transformers do."""
    from sentence_transformers import SparseEncoder

    modules = str(folder.with_name("modules"))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", modules)
    return SparseEncoder(str(folder), trust_remote_code=True, device="cpu")


def require_equal_when_loaded(encoder: LexicalEncoder, folder: Path) -> None:
    """Check that a saved encoder is equal to the bit when it is loaded and saved again."""
    loaded = load_encoder(folder, precision="float32", device="cpu")
    assert loaded.fingerprint() == encoder.fingerprint()
    assert_equal_weights(loaded.encode(TEXTS), encoder.encode(TEXTS), tolerance=0)

    again = folder.with_name("again")
    save_encoder(loaded, again)
    assert hash_path(again) == hash_path(folder)


def require_equal_outside(encoder: LexicalEncoder, outside: Any) -> None:
    """Check that sentence-transformers computes the same weights."""
    rows = outside.encode(TEXTS[:6], convert_to_sparse_tensor=False).numpy()
    for row, (ids, weights) in zip(rows, encoder.encode(TEXTS[:6]), strict=True):
        np.testing.assert_array_equal(np.flatnonzero(row), ids)
        np.testing.assert_allclose(row[ids], weights, rtol=1e-4, atol=1e-5)


def test_saved_encoder_is_equal_when_loaded(encoder: LexicalEncoder, tmp_path: Path) -> None:
    save_encoder(encoder, tmp_path / "saved")

    require_equal_when_loaded(encoder, tmp_path / "saved")
    assert not list((tmp_path / "saved").rglob("*.bin"))


def test_saved_encoder_is_equal_outside(
    encoder: LexicalEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_encoder(encoder, tmp_path / "saved")

    outside = open_with_sentence_transformers(tmp_path / "saved", monkeypatch)

    require_equal_outside(encoder, outside)


def test_base_encoder_is_no_lexical_encoder(encoder: LexicalEncoder, tmp_path: Path) -> None:
    with pytest.raises(FreshetError, match="holds no lexical encoder"):
        load_encoder(tmp_path / "base")


def start_on(
    folder: Path, kind: str, masked: bool = True, device: str = "cpu", **changes
) -> LexicalEncoder:
    """Start a lexical encoder on a tiny model of a kind."""
    make_tiny_model(folder, kind, WORDS, masked=masked, **changes)
    base = EncoderSettings(base=str(folder), max_tokens=16, precision="float32", device=device)
    return start_encoder(base, SETTINGS, TEXTS, seed=0)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [("modernbert", {"decoder_bias": False}), ("modernbert", {}), ("mpnet", {}), ("electra", {})],
)
def test_learned_biases_are_saved(tmp_path, monkeypatch, kind, changes):
    has_own_bias = not changes
    encoder = start_on(tmp_path / "base", kind, **changes)
    torch.nn.init.normal_(encoder.bias)

    save_encoder(encoder, tmp_path / "saved")
    outside = open_with_sentence_transformers(tmp_path / "saved", monkeypatch)

    assert (encoder.body.decoder.bias is not None) == has_own_bias
    require_equal_when_loaded(encoder, tmp_path / "saved")
    require_equal_outside(encoder, outside)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [("modernbert", {"decoder_bias": False}), ("modernbert", {}), ("mpnet", {}), ("electra", {})],
)
def test_head_is_saved_outside_as_it_was(tmp_path, monkeypatch, kind, changes):
    encoder = start_on(tmp_path / "base", kind, **changes)
    torch.nn.init.normal_(encoder.bias)
    save_encoder(encoder, tmp_path / "saved")
    head = open_with_sentence_transformers(tmp_path / "saved", monkeypatch)[1]

    head.save(str(tmp_path / "head"))

    loaded = type(head).load(str(tmp_path / "head"))
    saved_hash = hash_path(tmp_path / "head" / "model.safetensors")
    assert saved_hash == hash_path(tmp_path / "saved" / HEAD / "model.safetensors")
    assert loaded.state_dict().keys() == head.state_dict().keys()


@pytest.mark.parametrize("changes", [{"decoder_bias": False}, {}])
def test_whole_head_moves_to_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict
) -> None:
    # "meta" stands for a GPU. Settings do not allow it.
    monkeypatch.setattr("model_code.lexical.layout.pick_device", torch.device)

    encoder = start_on(tmp_path / "base", "modernbert", device="meta", **changes)

    tensors = [*encoder.parameters(), *encoder.buffers()]
    assert {str(tensor.device) for tensor in tensors} == {"meta"}


def test_shapes_do_not_depend_on_values() -> None:
    """Otherwise the CPU would wait for a GPU. "meta" tensors have no values."""
    tokens = torch.zeros(2, 3, 4, device="meta")
    mask = torch.ones(2, 3, device="meta")
    decoder = torch.zeros(9, 4, device="meta")
    bias = torch.zeros(9, device="meta")
    blocked = torch.zeros(9, dtype=torch.bool, device="meta")

    entries = top_entries(max_logits(tokens, mask, decoder, bias), blocked, 5)

    assert entries.shape == (2, 5)


def test_narrow_embeddings_have_no_closed_form(tmp_path: Path) -> None:
    with pytest.raises(
        FreshetError, match="embeddings have 16 dimensions and its hidden.*32.*another encoder"
    ):
        start_on(tmp_path / "base", "electra", masked=False, embedding_size=16)


def test_head_of_the_checkpoint_is_used(tmp_path):
    make_masked_model(tmp_path / "masked")

    assert make_encoder(tmp_path / "masked").config.head == "mlm"


def test_checkpoint_without_head_gets_a_closed_form(tmp_path):
    assert make_encoder(tmp_path / "base").config.head == "closed_form"


def test_checkpoint_with_part_of_a_head_is_refused(tmp_path):
    make_encoder(tmp_path / "base")
    config = read_json(tmp_path / "base" / "config.json")
    config["architectures"] = ["BertForMaskedLM"]
    write_json(tmp_path / "base" / "config.json", config)

    with pytest.raises(
        FreshetError, match="no whole masked-language-model head.*another encoder.base"
    ):
        make_encoder(tmp_path / "base")


# A text far longer than the encoder reads.
LONG_TEXT = " ".join(WORDS * 40)


def test_bags_are_of_whole_texts(encoder: LexicalEncoder) -> None:
    (whole_bag,) = encoder.bags([LONG_TEXT])
    (bag_of_one_round,) = encoder.bags([" ".join(WORDS)])

    assert whole_bag.tolist() == bag_of_one_round.tolist()


def test_bags_do_not_change_truncation(encoder: LexicalEncoder) -> None:
    """Another thread may be about to encode."""
    truncated = encoder.token_ids([LONG_TEXT])
    truncation = encoder.tokenizer.backend_tokenizer.truncation

    encoder.bags([LONG_TEXT])

    assert truncation is not None
    assert encoder.tokenizer.backend_tokenizer.truncation == truncation
    assert encoder.token_ids([LONG_TEXT]) == truncated


@pytest.fixture
def plain(encoder: LexicalEncoder, tmp_path: Path) -> LexicalEncoder:
    """The encoder, saved and loaded."""
    save_encoder(encoder, tmp_path / "saved")
    return load_encoder(tmp_path / "saved", device="cpu")


@pytest.fixture
def packed(plain: LexicalEncoder, tmp_path: Path) -> LexicalEncoder:
    """The same encoder, packed for search where the CPU supports it."""
    return load_encoder(tmp_path / "saved", device="cpu", for_search=True)


def test_only_encoders_for_search_are_packed(plain: LexicalEncoder, packed: LexicalEncoder) -> None:
    kind = select_packing("auto", packed.device)

    assert not any(isinstance(module, PackedLinear) for module in plain.body.modules())
    if kind is not None:
        assert any(isinstance(module, kind) for module in packed.body.modules())


def test_encoder_for_search_limits_the_cached_products(
    encoder: LexicalEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_encoder(encoder, tmp_path / "saved")
    monkeypatch.delenv(PRIMITIVE_CACHES[0], raising=False)

    load_encoder(tmp_path / "saved", device="cpu", for_search=True)

    assert os.environ[PRIMITIVE_CACHES[0]] == str(MAX_CACHED_PRIMITIVES)


def test_packed_encoder_gives_the_same_weights(
    plain: LexicalEncoder, packed: LexicalEncoder
) -> None:
    texts = [*TEXTS, "word1"]
    entries = plain.open_entries

    assert packed.fingerprint() == plain.fingerprint()
    assert_equal_weights(packed.encode_own(texts), plain.encode_own(texts), tolerance=2e-2)
    assert_equal_weights(
        packed.encode(texts, entries), plain.encode(texts, entries), tolerance=2e-2
    )


# The last three pieces stand for é, half of é and ’.
PIECES = ["Ġ,", "Ġs", "Ġ()", ",", "7", "Ġ", "Ã©", "Ã", "âĢĻ"]
OPEN_PIECES = ["Ġs", "7", "Ã©", "Ã"]


def make_byte_level_tokenizer():
    """Make a tokenizer whose vocabulary consists of PIECES."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {piece: number for number, piece in enumerate(["<s>", "<unk>", *PIECES])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="<unk>")


@pytest.mark.parametrize(("punctuation", "expected"), [(False, OPEN_PIECES), (True, PIECES)])
def test_byte_level_punctuation_is_blocked(punctuation: bool, expected: list[str]) -> None:
    tokenizer = make_byte_level_tokenizer()

    blocked = blocked_tokens(tokenizer, len(tokenizer), punctuation)

    open_ids = np.flatnonzero(~blocked).tolist()
    assert sorted(tokenizer.convert_ids_to_tokens(open_ids)) == sorted(expected)


def test_word_piece_tokens_are_blocked_by_text() -> None:
    tokenizer = load_tokenizer(locate_model("sentence-transformers/all-MiniLM-L6-v2"))
    vocabulary = tokenizer.get_vocab()
    expected = set(tokenizer.all_special_tokens)
    for token in vocabulary:
        has_letter = any(letter.isalnum() for letter in token)
        if not has_letter or UNUSED_TOKEN.fullmatch(token):
            expected.add(token)

    blocked = blocked_tokens(tokenizer, len(vocabulary), punctuation=False)

    assert {token for token, number in vocabulary.items() if blocked[number]} == expected


def test_ridge_is_least_squares_with_penalty_rows() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(30, 5)
    targets = torch.randn(30, 4)
    penalty = 0.1 * (hidden.double() ** 2).sum(dim=0).mean()
    hidden_with_penalty = np.concatenate(
        [hidden.double().numpy(), float(penalty) ** 0.5 * np.eye(5)]
    )
    targets_with_zeros = np.concatenate([targets.double().numpy(), np.zeros((5, 4))])
    solution, *_ = np.linalg.lstsq(hidden_with_penalty, targets_with_zeros, rcond=None)

    batches = [(hidden[:7], targets[:7]), (hidden[7:], targets[7:])]
    transform = ridge_transform(batches, 0.1)

    np.testing.assert_allclose(transform.numpy(), solution.T, atol=1e-6)


def own_token_share(encoder: LexicalEncoder) -> float:
    """Return the share of a text's tokens that are among as many of its heaviest entries."""
    shares = []
    for text, bag in zip(TEXTS, encoder.bags(TEXTS), strict=True):
        ((heaviest, _),) = encoder.encode([text], len(bag))
        shares.append(np.isin(heaviest, bag).mean())
    return float(np.mean(shares))


def test_closed_form_head_finds_own_tokens(tmp_path: Path) -> None:
    encoder = make_encoder(tmp_path / "base")

    solved_share = own_token_share(encoder)
    torch.manual_seed(1)
    torch.nn.init.normal_(encoder.body.head.transform.weight)
    random_share = own_token_share(encoder)

    assert solved_share > 0.8
    assert random_share < 0.4


@pytest.mark.parametrize("token", ["word0", "word3"])
def test_closed_form_bias_is_the_idf(tmp_path: Path, token: str) -> None:
    encoder = make_encoder(tmp_path / "base")
    number = encoder.tokenizer.convert_tokens_to_ids(token)
    with_token = sum(token in text.split() for text in TEXTS)

    bias = encoder.bias[number].item()

    assert bias == pytest.approx(np.log(41 / (with_token + 1)) - 12, abs=1e-5)


def test_every_vocabulary_entry_has_an_idf(tmp_path: Path) -> None:
    encoder = make_encoder(tmp_path / "base")

    frequencies = inverse_document_frequencies(encoder.bags(TEXTS), encoder.vocabulary_size)

    assert frequencies.shape == (encoder.vocabulary_size,)


def test_closed_form_decoder_has_centred_unit_rows(tmp_path: Path) -> None:
    encoder = make_encoder(tmp_path / "base")
    embeddings = encoder.backbone.get_input_embeddings().weight.detach()
    centred = embeddings - embeddings[~encoder.blocked].mean(dim=0)

    expected = centred / centred.norm(dim=1, keepdim=True)

    torch.testing.assert_close(encoder.decoder.detach(), expected)


class SmallVocabulary(NamedTuple):
    """A tokenizer with "!!", "[unused7]" and two entries without a token, and their numbers."""

    tokenizer: Any
    size: int
    punctuation: int
    unused: int


@pytest.fixture
def vocabulary(tmp_path: Path) -> SmallVocabulary:
    """A vocabulary whose size is rounded up, as that of some models."""
    tokenizer = make_encoder(tmp_path / "base").tokenizer
    tokenizer.add_tokens(["!!", "[unused7]"])
    punctuation, unused = tokenizer.convert_tokens_to_ids(["!!", "[unused7]"])
    return SmallVocabulary(tokenizer, len(tokenizer) + 2, punctuation, unused)


def test_punctuation_is_blocked_without_the_setting(vocabulary: SmallVocabulary) -> None:
    blocked = blocked_tokens(vocabulary.tokenizer, vocabulary.size, punctuation=False)

    assert blocked[vocabulary.punctuation]
    assert blocked[vocabulary.unused]
    assert not blocked[vocabulary.tokenizer.convert_tokens_to_ids("word1")]


def test_punctuation_carries_weight_with_the_setting(vocabulary: SmallVocabulary) -> None:
    blocked = blocked_tokens(vocabulary.tokenizer, vocabulary.size, punctuation=True)

    assert not blocked[vocabulary.punctuation]
    assert blocked[vocabulary.unused]
    # The last entry has no token.
    assert blocked[vocabulary.size - 1]
