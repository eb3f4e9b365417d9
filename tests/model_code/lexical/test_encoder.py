"""Guards E(x): oracle of the pooled weights, no influence of padding, exact lean gradients, saving,
outside loading; which entries may carry weight: by the text that a token stands for, however its
tokenizer writes it; and the closed-form start: ridge against a normal-equation oracle, better than
random.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model_code.encoding.base_models import load_tokenizer, locate_model
from model_code.encoding.hardware import PackedLinear, select_packing
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


def assert_same(found: list[Sparse], expected: list[Sparse], tolerance: float = 2e-5) -> None:
    for (ids, weights), (other_ids, other_weights) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ids, other_ids)
        np.testing.assert_allclose(weights, other_weights, rtol=tolerance, atol=tolerance)


def test_weights_equal_the_double_loop(encoder: LexicalEncoder) -> None:
    encoder = encoder.double()
    features = encoder.tokenize(TEXTS[:3])
    dense = dense_weights(encoder, features).detach().numpy()
    hidden = encoder.body(features["input_ids"], features["attention_mask"]).detach().numpy()
    decoder, bias = encoder.decoder.detach().numpy(), encoder.bias.detach().numpy()
    for text in range(3):
        for entry in range(encoder.vocabulary_size):
            logits = [
                sum(hidden[text, t, d] * decoder[entry, d] for d in range(32)) + bias[entry]
                for t in range(int(features["attention_mask"][text].sum()))
            ]
            weight = max(x + 1 if x >= 0 else np.exp(x) for x in logits)
            assert dense[text, entry] == pytest.approx(
                0 if encoder.blocked[entry] else weight, abs=1e-9
            )


def test_neighbours_and_padding_do_not_matter(encoder: LexicalEncoder) -> None:
    short, long = "word3 word7", " ".join(TEXTS)
    alone = dense_weights(encoder, encoder.tokenize([short]))[0]
    padded = dense_weights(encoder, encoder.tokenize([short, long]))[0]
    torch.testing.assert_close(alone, padded, rtol=1e-4, atol=1e-5)
    assert_same(encoder.encode([short]), encoder.encode([long, short])[1:])
    assert_same(encoder.encode_own([short]), encoder.encode_own([long, short])[1:])


def test_sparse_path_equals_the_dense_path(encoder: LexicalEncoder) -> None:
    encoder = encoder.double()
    features = encoder.tokenize(TEXTS[:5])
    learning = [p for p in encoder.parameters() if p.requires_grad and "pooler" not in str(p)]
    chosen, weights = encoder.sparse(features, 8)
    lean = torch.autograd.grad((weights**2).sum(), learning, allow_unused=True)
    dense = dense_weights(encoder, features)
    top = dense.topk(8, dim=1)
    assert torch.equal(top.indices.sort(dim=1).values, chosen)
    full = torch.autograd.grad((top.values**2).sum(), learning, allow_unused=True)
    for one, other in zip(lean, full, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_special_and_unused_tokens_carry_no_weight(
    encoder: LexicalEncoder,
) -> None:
    special, features = encoder.tokenizer.all_special_ids, encoder.tokenize(TEXTS[:2])
    assert encoder.blocked[special].all()
    assert not dense_weights(encoder, features)[:, special].any()
    assert all(not np.isin(ids, special).any() for ids, _ in encoder.encode(TEXTS))
    entries, weights = encoder.sparse(features, 10_000)
    assert entries.shape == weights.shape == (2, int((~encoder.blocked).sum()))
    assert not encoder.blocked[entries].any()


def test_own_tokens_have_the_dense_weights(encoder: LexicalEncoder) -> None:
    dense = dense_weights(encoder, encoder.tokenize(TEXTS)).detach().numpy()
    own = encoder.encode_own([*TEXTS, ""])
    for row, (bag, (ids, weights)) in enumerate(zip(encoder.bags(TEXTS), own[:-1], strict=True)):
        np.testing.assert_array_equal(ids, bag)
        np.testing.assert_allclose(weights, dense[row, ids], rtol=1e-4, atol=1e-5)
    assert len(own[-1][0]) == 0


def save_and_open(encoder: LexicalEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The encoder as sentence-transformers opens what was saved, which gives the same weights, as
    we do to the bit.
    """
    from sentence_transformers import SparseEncoder

    save_encoder(encoder, tmp_path / "saved")
    loaded = load_encoder(tmp_path / "saved", precision="float32", device="cpu")
    assert loaded.fingerprint() == encoder.fingerprint()
    assert_same(loaded.encode(TEXTS), encoder.encode(TEXTS), 0)
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules")
    )
    outside = SparseEncoder(str(tmp_path / "saved"), trust_remote_code=True, device="cpu")
    found = outside.encode(TEXTS[:6], convert_to_sparse_tensor=False).numpy()
    for row, (ids, weights) in zip(found, encoder.encode(TEXTS[:6]), strict=True):
        np.testing.assert_array_equal(np.flatnonzero(row), ids)
        np.testing.assert_allclose(row[ids], weights, rtol=1e-4, atol=1e-5)
    save_encoder(loaded, tmp_path / "again")
    assert hash_path(tmp_path / "saved") == hash_path(tmp_path / "again")
    return outside


def test_saved_encoder_is_the_same_outside(encoder, tmp_path, monkeypatch):
    save_and_open(encoder, tmp_path, monkeypatch)
    assert not list((tmp_path / "saved").rglob("*.bin"))
    with pytest.raises(FreshetError, match="holds no lexical encoder"):
        load_encoder(tmp_path / "base")


def start_on(
    folder: Path, kind: str, masked: bool = True, device: str = "cpu", **changes
) -> LexicalEncoder:
    make_tiny_model(folder, kind, WORDS, masked=masked, **changes)
    base = EncoderSettings(base=str(folder), max_tokens=16, precision="float32", device=device)
    return start_encoder(base, SETTINGS, TEXTS, seed=0)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [("modernbert", {"decoder_bias": False}), ("modernbert", {}), ("mpnet", {}), ("electra", {})],
)
def test_learned_biases_are_saved(tmp_path, monkeypatch, kind, changes):
    encoder = start_on(tmp_path / "base", kind, **changes)
    assert (encoder.body.decoder.bias is None) == bool(changes)
    torch.nn.init.normal_(encoder.bias)
    outside = save_and_open(encoder, tmp_path, monkeypatch)
    outside[1].save(str(tmp_path / "head"))
    hashes = {
        hash_path(folder / "model.safetensors")
        for folder in (tmp_path / "head", tmp_path / "saved" / HEAD)
    }
    assert len(hashes) == 1
    assert (
        type(outside[1]).load(str(tmp_path / "head")).state_dict().keys()
        == outside[1].state_dict().keys()
    )


@pytest.mark.parametrize("changes", [{"decoder_bias": False}, {}])
def test_whole_head_moves_to_the_device(tmp_path: Path, changes: dict) -> None:
    encoder = start_on(tmp_path / "base", "modernbert", device="meta", **changes)
    assert {str(part.device) for part in (*encoder.parameters(), *encoder.buffers())} == {"meta"}


def test_no_shape_depends_on_what_the_tensors_hold() -> None:
    """A GPU would have to be waited for; "meta" tensors hold nothing, and refuse what needs it."""
    tokens, mask = torch.zeros(2, 3, 4, device="meta"), torch.ones(2, 3, device="meta")
    logits = max_logits(
        tokens, mask, torch.zeros(9, 4, device="meta"), torch.zeros(9, device="meta")
    )
    assert top_entries(logits, torch.zeros(9, dtype=torch.bool, device="meta"), 5).shape == (2, 5)


def test_narrow_embeddings_have_no_closed_form(tmp_path: Path) -> None:
    with pytest.raises(
        FreshetError, match="embeddings have 16 components and its hidden.*32.*another encoder"
    ):
        start_on(tmp_path / "base", "electra", masked=False, embedding_size=16)


def test_checkpoint_without_its_whole_head_is_refused(tmp_path):
    make_masked_model(tmp_path / "masked")
    assert make_encoder(tmp_path / "masked").config.head == "mlm"
    assert make_encoder(tmp_path / "base").config.head == "closed_form"
    config = tmp_path / "base" / "config.json"
    write_json(config, read_json(config) | {"architectures": ["BertForMaskedLM"]})
    with pytest.raises(
        FreshetError, match="no whole masked-language-model head.*another encoder.base"
    ):
        make_encoder(tmp_path / "base")


def test_bags_are_of_whole_texts(
    encoder: LexicalEncoder,
) -> None:
    words = [word for word in WORDS if word.isalpha()]
    text = " ".join(words * 40)  # far longer than the encoder reads
    cut = encoder.token_ids([text])
    before = encoder.tokenizer.backend_tokenizer.truncation
    assert before is not None
    assert len(encoder.bags([text])[0]) == len(set(words))
    # another thread may be about to encode
    assert encoder.tokenizer.backend_tokenizer.truncation == before
    assert encoder.token_ids([text]) == cut


def test_packed_encoder_gives_the_same_weights(encoder, tmp_path):
    save_encoder(encoder, tmp_path / "saved")
    plain = load_encoder(tmp_path / "saved", device="cpu")
    packed = load_encoder(tmp_path / "saved", device="cpu", for_search=True)
    kind = select_packing("auto", packed.device)
    assert kind is None or any(isinstance(module, kind) for module in packed.body.modules())
    assert not any(isinstance(module, PackedLinear) for module in plain.body.modules())
    assert packed.fingerprint() == plain.fingerprint()
    texts = [*TEXTS, "word1"]
    assert_same(packed.encode_own(texts), plain.encode_own(texts), tolerance=2e-2)
    assert_same(
        packed.encode(texts, encoder.open_entries),
        plain.encode(texts, encoder.open_entries),
        tolerance=2e-2,
    )


PIECES = ["Ġ,", "Ġs", "Ġ()", ",", "7", "Ġ", "Ã©", "Ã", "âĢĻ"]  # the last three: é, half of it, ’
OPEN = ["Ġs", "7", "Ã©", "Ã"]


def byte_level():
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {piece: number for number, piece in enumerate(["<s>", "<unk>", *PIECES])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="<unk>")


@pytest.mark.parametrize(("punctuation", "expected"), [(False, OPEN), (True, PIECES)])
def test_byte_level_punctuation_is_blocked(punctuation: bool, expected: list[str]) -> None:
    tokenizer = byte_level()
    blocked = blocked_tokens(tokenizer, len(tokenizer), punctuation)
    assert sorted(tokenizer.convert_ids_to_tokens(np.flatnonzero(~blocked).tolist())) == sorted(
        expected
    )


def test_word_piece_tokens_are_blocked_by_text() -> None:
    tokenizer = load_tokenizer(locate_model("sentence-transformers/all-MiniLM-L6-v2"))
    names, special = tokenizer.get_vocab(), set(tokenizer.all_special_tokens)
    closed = {name for name in names if not any(letter.isalnum() for letter in name)}
    closed |= special | {name for name in names if UNUSED_TOKEN.fullmatch(name)}
    blocked = blocked_tokens(tokenizer, len(names), punctuation=False)
    assert {name for name, number in names.items() if blocked[number]} == closed


def test_ridge_is_least_squares_with_penalty_rows() -> None:
    torch.manual_seed(0)
    hidden, rows = torch.randn(30, 5), torch.randn(30, 4)
    penalty = 0.1 * (hidden.double() ** 2).sum(dim=0).mean()
    stacked = np.concatenate([hidden.double().numpy(), float(penalty) ** 0.5 * np.eye(5)])
    expected = np.linalg.lstsq(
        stacked, np.concatenate([rows.double().numpy(), np.zeros((5, 4))]), rcond=None
    )[0].T
    found = ridge_transform([(hidden[:7], rows[:7]), (hidden[7:], rows[7:])], 0.1)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)


def own_share(encoder: LexicalEncoder) -> float:
    """How much of the texts' bags is among as many of their heaviest entries."""
    shares = []
    for text, bag in zip(TEXTS, encoder.bags(TEXTS), strict=True):
        shares.append(np.isin(encoder.encode([text], len(bag))[0][0], bag).mean())
    return float(np.mean(shares))


def test_closed_form_head_finds_own_tokens(
    tmp_path: Path,
) -> None:
    encoder = make_encoder(tmp_path / "base")
    solved = own_share(encoder)
    torch.manual_seed(1)
    torch.nn.init.normal_(encoder.body.head.transform.weight)
    assert solved > 0.8 > 0.4 > own_share(encoder)


def test_closed_form_bias_and_decoder_rows(
    tmp_path: Path,
) -> None:
    encoder = make_encoder(tmp_path / "base")
    for token in ("word0", "word3"):
        number = encoder.tokenizer.convert_tokens_to_ids(token)
        count = sum(token in text.split() for text in TEXTS)
        assert encoder.bias[number].item() == pytest.approx(np.log(41 / (count + 1)) - 12, abs=1e-5)
    bags = encoder.bags(TEXTS)
    assert inverse_document_frequencies(bags, encoder.vocabulary_size).shape == (
        encoder.vocabulary_size,
    )
    embeddings = encoder.backbone.get_input_embeddings().weight.detach()
    centred = embeddings - embeddings[~encoder.blocked].mean(dim=0)
    torch.testing.assert_close(
        encoder.decoder.detach(), centred / centred.norm(dim=1, keepdim=True)
    )


def test_punctuation_carries_weight_only_where_the_config_says(tmp_path: Path) -> None:
    tokenizer = make_encoder(tmp_path / "base").tokenizer
    tokenizer.add_tokens(["!!", "[unused7]"])
    size = len(tokenizer) + 2
    strict, loose = (blocked_tokens(tokenizer, size, punctuation) for punctuation in (False, True))
    bangs, unused = tokenizer.convert_tokens_to_ids(["!!", "[unused7]"])
    assert strict[bangs]
    assert not loose[bangs]
    assert strict[unused]
    # entries without a token, as models that round V up have
    assert loose[[unused, size - 1]].all()
    assert not strict[tokenizer.convert_tokens_to_ids("word1")]
