"""Which documents win their own representative query: no other document scores higher on it, up to float32 ties."""

from __future__ import annotations

import numpy as np

from model_code.incdsi.growing import GrowingRows
from model_code.incdsi.passes import float32_error
from model_code.incdsi.row_sets import minus
from model_code.incdsi.scores import dots
from model_code.incdsi.state import IncDsiState

TIE = 1e-6  # of |z||v|: scores closer than this are equal to a search in float32
BLOCK = 256


def track_wins(state: IncDsiState) -> None:
    """Make `state` remember who wins, if it does not yet. Costs every query times every document, once."""
    if state.won is None:
        state.won = GrowingRows(wins(state, np.arange(len(state))))


def wins(state: IncDsiState, rows: np.ndarray, without: int | None = None) -> np.ndarray:
    """Whether each document of `rows` (k) wins its own query against all others but row `without`; (k) booleans."""
    found = [_block_wins(state, rows[start : start + BLOCK], without) for start in range(0, len(rows), BLOCK)]
    return np.concatenate(found) if found else np.zeros(0, bool)


def _block_wins(state: IncDsiState, rows: np.ndarray, without: int | None) -> np.ndarray:
    scores = state.queries.view[rows] @ state.vectors.view.T  # (k, n)
    scores[np.arange(len(rows)), rows] = -np.inf
    if without is not None:
        scores[:, without] = -np.inf
    return ~_lose_to_any(state, rows, np.arange(len(state)), scores)


def _lose_to_any(state: IncDsiState, rows: np.ndarray, rivals: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Whether each of `rows` (k) loses its query to one of `rivals` (r); scores: (k, r) in float32, which settle most
    pairs, so that few are tested in float64."""
    doubt = state.query_lengths.view[rows] * state.longest_vector * float32_error(state.width)
    which, near = np.nonzero(scores > (state.own_scores.view[rows] - doubt)[:, None])
    lost = np.zeros(len(rows), bool)
    lost[which[loses(state, rows[which], rivals[near])]] = True
    return lost


def loses(state: IncDsiState, rows: np.ndarray, rivals: np.ndarray | int) -> np.ndarray:
    """Whether each document of `rows` (k) loses its own query to its one of `rivals` (k, or one for all)."""
    scores = dots(state.queries.view[rows], state.vectors.view[rivals])
    ties = TIE * state.query_lengths.view[rows] * state.vector_lengths.view[rivals]
    return (scores > state.own_scores.view[rows] + ties) & (rows != rivals)


def arrived(state: IncDsiState, row: int, suspects: np.ndarray, rivals: np.ndarray) -> None:
    """Note that the document in `row` is new: who lost to it, and whether it wins itself.

    suspects: all rows that may have lost to it. rivals: all rows that it may lose to.
    """
    if state.won is not None:
        suspects = state.may_exceed(suspects, state.vectors.view[row], state.own_scores.view[suspects])
        state.won.view[suspects[loses(state, suspects, row)]] = False
        state.won.view[row] = not loses(state, np.full(len(rivals), row), rivals).any()


def regained(state: IncDsiState, leaving: np.ndarray) -> np.ndarray:
    """Rows that lost to one of `leaving`, and must be judged again once these are gone or changed."""
    if state.won is None:
        return np.zeros(0, np.int64)
    lost = np.flatnonzero(~state.won.view)
    lost = minus(lost, leaving)
    vectors = state.vectors.view[leaving].T  # (H, r)
    blocks = [lost[start : start + BLOCK] for start in range(0, len(lost), BLOCK)]
    to_any = [_lose_to_any(state, rows, leaving, state.queries.view[rows] @ vectors) for rows in blocks]
    return lost[np.concatenate(to_any)] if to_any else lost
