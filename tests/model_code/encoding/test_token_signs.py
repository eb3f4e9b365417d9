"""Test late interaction over signs: MaxSim equals its equation, and texts keep their tokens."""

from __future__ import annotations

import numpy as np
import pytest

from model_code.encoding import token_signs
from model_code.encoding.token_signs import TokenSigns, pack_signs
from model_code.errors import FreshetError

RNG = np.random.default_rng(0)
LENGTHS = (3, 1, 7, 2)


def draw_texts(width: int) -> list[np.ndarray]:
    """Return the token vectors of four texts, each (tokens, width)."""
    return [RNG.standard_normal((length, width)) for length in LENGTHS]


def sign_cosines(query: np.ndarray, text: np.ndarray) -> np.ndarray:
    """Return the cosine of the signs of each pair of tokens.

    Signs are stored in words of 64 bits. The bits beyond the width are equal for all tokens.
    """
    width = query.shape[1]
    stored_width = -(-width // 64) * 64
    query_signs = np.where(query > 0, 1.0, -1.0)
    text_signs = np.where(text > 0, 1.0, -1.0)
    return (query_signs @ text_signs.T + stored_width - width) / stored_width


@pytest.mark.parametrize("width", [5, 64, 96])
@pytest.mark.parametrize("pairs_at_once", [1, 30, token_signs.MAX_TOKEN_PAIRS_AT_ONCE])
def test_similarity_is_mean_of_best_sign_cosines(width, pairs_at_once, monkeypatch):
    monkeypatch.setattr(token_signs, "MAX_TOKEN_PAIRS_AT_ONCE", pairs_at_once)
    texts = draw_texts(width)
    query = RNG.standard_normal((4, width))
    text_tokens = TokenSigns.of([pack_signs(text) for text in texts])
    query_tokens = TokenSigns.of([pack_signs(query)])

    similarities = query_tokens.similarities(text_tokens)

    expected = [sign_cosines(query, text).max(axis=1).mean() for text in texts]
    assert similarities.tolist() == pytest.approx(expected, abs=1e-15)


@pytest.fixture
def packed_texts() -> list[np.ndarray]:
    return [pack_signs(text) for text in draw_texts(70)]


@pytest.fixture
def tokens(packed_texts: list[np.ndarray]) -> TokenSigns:
    return TokenSigns.of(packed_texts)


def test_similarity_does_not_depend_on_other_texts(tokens: TokenSigns):
    query = TokenSigns.of([pack_signs(RNG.standard_normal((4, 70)))])
    rows = np.array([2, 0, 2])

    selected = query.similarities(tokens[rows])

    assert selected.tolist() == query.similarities(tokens)[rows].tolist()


def test_no_texts_have_no_similarities(tokens: TokenSigns):
    query = TokenSigns.of([pack_signs(RNG.standard_normal((4, 70)))])

    assert not len(query.similarities(tokens[:0]))


def test_selected_texts_keep_their_tokens(tokens: TokenSigns):
    selected = tokens[np.array([3, 1])]

    assert len(selected) == 2
    assert selected.starts.tolist() == [0, 2, 3]


def test_concatenated_texts_keep_their_tokens(tokens: TokenSigns, packed_texts: list[np.ndarray]):
    selected = tokens[np.array([3, 1])]

    concatenated = TokenSigns.concatenate([selected, tokens[2:], tokens[:0]])

    assert len(concatenated) == 4
    for i, number in enumerate([3, 1, 2, 3]):
        assert (concatenated[i : i + 1].bits == packed_texts[number]).all()


def test_saved_tokens_load_unchanged(tokens: TokenSigns, tmp_path):
    tokens.save(tmp_path)

    loaded = TokenSigns.load(tmp_path)

    assert (loaded.bits == tokens.bits).all()
    assert (loaded.starts == tokens.starts).all()


@pytest.fixture
def empty_and_full() -> TokenSigns:
    """Return the tokens of a text without words and of one with two words."""
    return TokenSigns.of([pack_signs(np.empty((0, 70))), pack_signs(np.ones((2, 70)))])


def test_text_without_tokens_has_a_zero_token(empty_and_full: TokenSigns):
    assert empty_and_full.starts.tolist() == [0, 1, 3]
    assert not empty_and_full[:1].bits.any()


def test_query_without_tokens_is_similar_to_nothing(empty_and_full: TokenSigns):
    empty_query = empty_and_full[:1]

    assert empty_query.similarities(empty_and_full).tolist() == [0.0, 0.0]


def test_text_without_tokens_is_not_equal_to_a_query(empty_and_full: TokenSigns):
    query = TokenSigns.of([pack_signs(np.ones((1, 70)))])

    assert query.similarities(empty_and_full[:1])[0] < 1


def test_missing_tokens_of_all_texts_are_none():
    assert TokenSigns.concatenate([None, None]) is None


def test_partly_missing_tokens_cannot_be_concatenated(tokens: TokenSigns):
    with pytest.raises(FreshetError, match="some passages have tokens and others have none"):
        TokenSigns.concatenate([tokens, None])
