"""Guards the closed-form start: ridge against a normal-equation oracle, better than random, and the MLM warm-up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from model_code.errors import FreshetError
from model_code.lexical.encoder import LexicalEncoder
from model_code.lexical.head import decoder_rows, ridge_transform
from model_code.lexical.vocabulary import blocked_tokens, inverse_document_frequencies
from model_code.lexical.warmup import hide, masked_loss, warm_up
from model_code.training.settings import TrainingSettings
from tests.model_code.lexical.example import SETTINGS, TEXTS, make_encoder, make_masked_model

TRAINING = TrainingSettings(frozen_layers=1, learning_rate=1e-3, hierarchy_weight=0.0, warmup_share=0.0)


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


def test_bias_is_idf_plus_the_setting(tmp_path: Path) -> None:
    encoder = make_encoder(tmp_path / "base")
    for token in ("word0", "word3"):
        number = encoder.tokenizer.convert_tokens_to_ids(token)
        count = sum(token in text.split() for text in TEXTS)
        assert encoder.bias[number].item() == pytest.approx(np.log(41 / (count + 1)) - 12, abs=1e-5)
    bags = encoder.bags(TEXTS)
    assert inverse_document_frequencies(bags, encoder.vocabulary_size).shape == (encoder.vocabulary_size,)


def test_punctuation_carries_weight_only_if_asked(tmp_path: Path) -> None:
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


def test_hidden_tokens_are_about_a_seventh_and_targets_are_what_stood_there(tmp_path: Path) -> None:
    encoder = make_encoder(tmp_path / "base")
    features = encoder.tokenize(TEXTS * 20)
    seen, targets = hide(features, encoder, np.random.default_rng(0))
    hidden = targets != -100
    assert torch.equal(targets[hidden], features["input_ids"][hidden])
    assert torch.equal(seen["input_ids"][~hidden], features["input_ids"][~hidden])
    open_tokens = ~encoder.blocked[features["input_ids"]] & (features["attention_mask"] == 1)
    assert not (hidden & ~open_tokens).any()
    assert 0.13 < float(hidden.sum() / open_tokens.sum()) < 0.17
    masked = seen["input_ids"][hidden] == encoder.tokenizer.mask_token_id
    assert 0.75 < float(masked.float().mean()) < 0.85


@pytest.mark.parametrize("head", ["closed_form", "mlm"])
def test_warm_up_lowers_the_loss_and_is_found_again(tmp_path: Path, head: str) -> None:
    settings = replace(SETTINGS, warmup_steps=30, warmup_learning_rate=3e-3)
    encoder = make_encoder(tmp_path / "base", head, settings)
    losses = warm_up(encoder, TEXTS, TRAINING, settings, 0, tmp_path)
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    again = make_encoder(tmp_path / "base", head, settings)
    assert warm_up(again, TEXTS, TRAINING, settings, 0, tmp_path) == losses
    assert again.fingerprint() == encoder.fingerprint()


def test_warm_up_has_rates_of_its_own(tmp_path: Path) -> None:
    """What a later stage learns at is nothing to it: neither the weights nor the biases move otherwise."""
    settings = replace(SETTINGS, warmup_steps=3)
    found = []
    for rate in (2e-4, 0.0):
        encoder = make_encoder(tmp_path / "base", "mlm", settings)
        folder = tmp_path / str(rate)
        folder.mkdir()
        warm_up(encoder, TEXTS, replace(TRAINING, learning_rate=rate), settings, 0, folder)
        found.append(encoder.fingerprint())
    assert found[0] == found[1]


def test_a_warm_up_that_diverges_is_refused_and_not_kept(tmp_path: Path) -> None:
    settings = replace(SETTINGS, warmup_steps=3, bias_learning_rate=float("inf"))
    with pytest.raises(FreshetError, match="lower lexical.warmup_learning_rate"):
        warm_up(make_encoder(tmp_path / "base", "mlm", settings), TEXTS, TRAINING, settings, 0, tmp_path / "kept")
    assert not list((tmp_path / "kept").glob("*"))


def test_masked_loss_is_cross_entropy_over_open_entries(tmp_path: Path) -> None:
    encoder = make_encoder(tmp_path / "base", "mlm")
    from transformers import BertForMaskedLM

    model = BertForMaskedLM.from_pretrained(tmp_path / "base").eval()
    features = encoder.tokenize(TEXTS[:3])
    targets = torch.full_like(features["input_ids"], -100)
    targets[0, 1] = targets[2, 2] = encoder.tokenizer.convert_tokens_to_ids("word5")
    logits = model(**features).logits.masked_fill(encoder.blocked, -torch.inf)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    torch.testing.assert_close(masked_loss(encoder, features, targets), expected, rtol=1e-5, atol=1e-5)


def test_a_checkpoint_with_a_head_is_recognised(tmp_path: Path) -> None:
    make_masked_model(tmp_path / "base")
    assert make_encoder(tmp_path / "base").config.head == "mlm"
    assert make_encoder(tmp_path / "base", settings=replace(SETTINGS, head="closed_form")).config.head == "closed_form"
