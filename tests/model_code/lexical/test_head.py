"""Guards the closed-form start: ridge against a normal-equation oracle, better than random."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from model_code.lexical.encoder import LexicalEncoder, blocked_tokens, inverse_document_frequencies
from model_code.lexical.head import decoder_rows, ridge_transform
from tests.model_code.lexical.example import TEXTS, make_encoder, make_masked_model


def test_ridge_is_least_squares_with_penalty_rows() -> None:
    torch.manual_seed(0)
    hidden, rows = torch.randn(30, 5), torch.randn(30, 4)
    penalty = 0.1 * (hidden.double() ** 2).sum(dim=0).mean()
    stacked = np.concatenate([hidden.double().numpy(), float(penalty) ** 0.5 * np.eye(5)])
    expected = np.linalg.lstsq(stacked, np.concatenate([rows.double().numpy(), np.zeros((5, 4))]), rcond=None)[0].T
    found = ridge_transform([(hidden[:7], rows[:7]), (hidden[7:], rows[7:])], 0.1)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
    with pytest.raises(ValueError, match="at least one token"):
        ridge_transform([], 0.1)


def test_decoder_rows_are_centred_unit_vectors_of_the_used_tokens() -> None:
    embeddings = torch.randn(9, 4)
    used = torch.arange(9) > 2
    rows = decoder_rows(embeddings, used)
    centred = embeddings - embeddings[3:].mean(dim=0)
    torch.testing.assert_close(rows, centred / centred.norm(dim=1, keepdim=True))


def own_share(encoder: LexicalEncoder) -> float:
    """How much of the texts' bags is among as many of their heaviest entries."""
    shares = []
    for text, bag in zip(TEXTS, encoder.bags(TEXTS), strict=True):
        shares.append(np.isin(encoder.encode([text], len(bag))[0][0], bag).mean())
    return float(np.mean(shares))


def test_closed_form_head_names_a_texts_own_tokens_and_a_random_one_does_not(tmp_path: Path) -> None:
    encoder = make_encoder(tmp_path / "base")
    solved = own_share(encoder)
    torch.manual_seed(1)
    torch.nn.init.normal_(encoder.body.head.transform.weight)
    assert solved > 0.8 > 0.4 > own_share(encoder)


def test_bias_is_idf_plus_a_constant(tmp_path: Path) -> None:
    encoder = make_encoder(tmp_path / "base")
    for token in ("word0", "word3"):
        number = encoder.tokenizer.convert_tokens_to_ids(token)
        count = sum(token in text.split() for text in TEXTS)
        assert encoder.bias[number].item() == pytest.approx(np.log(41 / (count + 1)) - 12, abs=1e-5)
    bags = encoder.bags(TEXTS)
    assert inverse_document_frequencies(bags, encoder.vocabulary_size).shape == (encoder.vocabulary_size,)


def test_punctuation_carries_weight_only_where_the_config_says(tmp_path: Path) -> None:
    tokenizer = make_encoder(tmp_path / "base").tokenizer
    tokenizer.add_tokens(["!!", "[unused7]"])
    size = len(tokenizer) + 2
    strict, loose = (blocked_tokens(tokenizer, size, punctuation) for punctuation in (False, True))
    bangs, unused = tokenizer.convert_tokens_to_ids(["!!", "[unused7]"])
    assert strict[bangs]
    assert not loose[bangs]
    assert strict[unused]
    assert loose[[unused, size - 1]].all()  # entries without a token, as models that round V up have
    assert not strict[tokenizer.convert_tokens_to_ids("word1")]


def test_a_checkpoint_with_a_head_is_recognised(tmp_path: Path) -> None:
    make_masked_model(tmp_path / "base")
    assert make_encoder(tmp_path / "base").config.head == "mlm"
    assert make_encoder(tmp_path / "plain").config.head == "closed_form"
