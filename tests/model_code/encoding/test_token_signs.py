"""Guards late interaction over signs: MaxSim is the equation's, and texts keep their tokens through
every change.
"""

from __future__ import annotations

import numpy as np
import pytest

from model_code.encoding import token_signs
from model_code.encoding.token_signs import TokenSigns, pack_signs
from model_code.errors import FreshetError

RNG = np.random.default_rng(0)
LENGTHS = (3, 1, 7, 2)


def texts(width: int) -> list[np.ndarray]:
    return [RNG.standard_normal((length, width)) for length in LENGTHS]


@pytest.mark.parametrize("width", [5, 64, 96])
@pytest.mark.parametrize("at_once", [1, 30, token_signs.MAX_TOKEN_PAIRS_AT_ONCE])
def test_similarity_is_mean_of_best_sign_cosines(width, at_once, monkeypatch):
    monkeypatch.setattr(token_signs, "MAX_TOKEN_PAIRS_AT_ONCE", at_once)
    own, query = texts(width), RNG.standard_normal((4, width))
    whole = -(-width // 64) * 64  # numbers beyond the width count as equal ones

    def cosines(one: np.ndarray) -> np.ndarray:
        return (
            np.where(query > 0, 1.0, -1.0) @ np.where(one > 0, 1.0, -1.0).T + whole - width
        ) / whole

    expected = [cosines(one).max(axis=1).mean() for one in own]
    kept, asked = (
        TokenSigns.of([pack_signs(one) for one in own]),
        TokenSigns.of([pack_signs(query)]),
    )
    assert asked.similarities(kept).tolist() == pytest.approx(expected, abs=1e-15)
    rows = np.array([2, 0, 2])
    assert asked.similarities(kept[rows]).tolist() == asked.similarities(kept)[rows].tolist(), (
        "to the bit"
    )
    assert not len(asked.similarities(kept[:0]))


def test_chosen_and_joined_texts_keep_their_tokens(tmp_path):
    own = [pack_signs(one) for one in texts(70)]
    kept = TokenSigns.of(own)
    chosen = kept[np.array([3, 1])]
    assert [len(chosen), chosen.starts.tolist()] == [2, [0, 2, 3]]
    joined = TokenSigns.concatenate([chosen, kept[2:], kept[:0]])
    expected = [own[3], own[1], own[2], own[3]]
    assert len(joined) == len(expected)
    assert all((joined[i : i + 1].bits == one).all() for i, one in enumerate(expected))
    joined.save(tmp_path)
    again = TokenSigns.load(tmp_path)
    assert (again.bits == joined.bits).all()
    assert (again.starts == joined.starts).all()


def test_text_without_tokens_is_similar_to_nothing():
    kept, words = (
        TokenSigns.of([pack_signs(np.empty((0, 70))), pack_signs(np.ones((2, 70)))]),
        pack_signs(np.ones((1, 70))),
    )
    assert kept.starts.tolist() == [0, 1, 3]
    assert not kept[:1].bits.any()
    assert kept[:1].similarities(kept).tolist() == [0.0, 0.0]
    assert TokenSigns.of([words]).similarities(kept[:1])[0] < 1


def test_partly_missing_tokens_cannot_be_concatenated():
    own = TokenSigns.of([pack_signs(np.ones((1, 70)))])
    assert TokenSigns.concatenate([None, None]) is None
    with pytest.raises(FreshetError, match="some passages have tokens and others have none"):
        TokenSigns.concatenate([own, None])
