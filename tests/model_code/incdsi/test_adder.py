"""Tests of the laws of addition.

A batch equals its documents one by one. Deleting undoes adding, and replay and update repeat it.
Nothing is left half done. The status tells which document wins its own query.
"""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest

from model_code.errors import FreshetError, SettingsError
from model_code.incdsi import adder as adder_module
from model_code.incdsi.adder import Added, IncDsiAdder, NewDocument, Status
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.state import IncDsiState
from tests.model_code.incdsi.small import make_collection, without_encodings

every_way = pytest.mark.parametrize(
    ("margin", "lambda2", "pulled"),
    [(0.3, 1e-5, False), (1.0, 1e-5, False), (0.3, 0.1, True), (1.0, 0.1, True)],
)


def make_settings(margin: float, lambda2: float) -> IncDsiSettings:
    """Make settings whose two margins are equal."""
    return IncDsiSettings(gamma1=margin, gamma2=margin, lambda2=lambda2)


def make_way(
    old: int, new: int, pulled: bool, seed: int = 0
) -> tuple[IncDsiState, list[NewDocument]]:
    """Make a collection and new documents, which are pulled to an encoding or not."""
    state, documents = make_collection(old, new, seed=seed)
    if not pulled:
        documents = without_encodings(documents)
    return state, documents


def assert_equal_additions(first: list[Added], second: list[Added]) -> None:
    """Check that two lists of additions are equal to the bit."""
    for added, expected in zip(first, second, strict=True):
        np.testing.assert_array_equal(added.vector, expected.vector)
        assert added.id == expected.id
        assert added.status == expected.status
        assert added.broken == expected.broken


def copy_contents(state: IncDsiState) -> list[np.ndarray]:
    """Copy everything that a state holds per document."""
    contents = [np.array(state.ids)]
    for rows in (
        state.vectors,
        state.queries,
        state.own_scores,
        state.vector_lengths,
        state.query_lengths,
    ):
        contents.append(rows.view.copy())
    return contents


def assert_equal_contents(first: list[np.ndarray], second: list[np.ndarray]) -> None:
    """Check that two results of `copy_contents` are equal to the bit."""
    for array, expected in zip(first, second, strict=True):
        np.testing.assert_array_equal(array, expected)


def assert_equal_states(first: IncDsiState, second: IncDsiState) -> None:
    """Check that two states are equal to the bit."""
    assert_equal_contents(copy_contents(first), copy_contents(second))


@every_way
@pytest.mark.parametrize("seed", [0, 1])
def test_batch_equals_one_by_one(
    margin: float, lambda2: float, pulled: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adder_module, "MAX_BATCH_DOCUMENTS", 5)
    settings = make_settings(margin, lambda2)
    state, documents = make_way(50, 12, pulled, seed)
    single_adder = IncDsiAdder(deepcopy(state), settings)
    batch_adder = IncDsiAdder(deepcopy(state), settings)

    added_singly = [single_adder.add(document) for document in documents]
    added_together = batch_adder.add_batch(documents)

    assert_equal_additions(added_singly, added_together)
    assert_equal_states(single_adder.state, batch_adder.state)


@every_way
def test_deleting_the_last_undoes_its_addition(margin: float, lambda2: float, pulled: bool) -> None:
    state, documents = make_way(50, 2, pulled)
    adder = IncDsiAdder(state, make_settings(margin, lambda2))
    adder.add(documents[0])
    before = deepcopy(state)

    adder.add(documents[1])
    adder.delete(["new 1"])

    assert_equal_states(state, before)


@every_way
def test_row_of_a_document_changes_no_vector(margin: float, lambda2: float, pulled: bool) -> None:
    settings = make_settings(margin, lambda2)
    state, documents = make_way(50, 5, pulled)
    IncDsiAdder(state, settings).add_batch(documents)

    # Move document 7 to the last row.
    moved_state = deepcopy(state)
    vector = moved_state.vectors.view[7].copy()
    query = moved_state.queries.view[7].copy()
    moved_state.delete(np.array([7]))
    moved_state.append(state.ids[7], vector, query)

    new = NewDocument("another", documents[2].queries + 0.2, documents[2].encoding)
    added = IncDsiAdder(state, settings).add(new)
    added_to_moved = IncDsiAdder(moved_state, settings).add(new)

    assert_equal_additions([added], [added_to_moved])


def test_reloaded_state_continues_like_the_original() -> None:
    state, documents = make_collection(50, 8)
    adder = IncDsiAdder(state, IncDsiSettings())
    adder.add_batch(documents[:4])
    reloaded = IncDsiState(state.vectors.view, state.queries.view, state.ids, state.score_deviation)

    added = adder.add_batch(documents[4:])
    added_to_reloaded = IncDsiAdder(reloaded, adder.settings).add_batch(documents[4:])

    assert_equal_additions(added, added_to_reloaded)
    assert_equal_states(state, reloaded)


def test_first_documents_of_an_empty_collection_are_found() -> None:
    empty = IncDsiState(np.zeros((0, 3)), np.zeros((0, 3)), [], score_deviation=1.0)
    adder = IncDsiAdder(empty)
    documents = [NewDocument("first", np.eye(3)[:1]), NewDocument("second", np.eye(3)[1:2])]

    added = adder.add_batch(documents)

    scores = adder.state.queries.view @ adder.state.vectors.view.T
    assert [document.status for document in added] == [Status.FITS, Status.FITS]
    assert scores.argmax(axis=1).tolist() == [0, 1]


QUERY = np.ones((1, 8))
REFUSED_BATCHES = {
    "twice in this batch": [NewDocument("a", QUERY), NewDocument("a", QUERY)],
    "in the collection already": [NewDocument("b", QUERY), NewDocument("old 1", QUERY)],
    "not finite": [NewDocument("b", np.full((1, 8), np.nan))],
}


@pytest.mark.parametrize("message", REFUSED_BATCHES)
def test_refused_batch_leaves_the_collection_unchanged(message: str) -> None:
    state, documents = make_collection(20, 1)
    before = copy_contents(state)

    with pytest.raises(FreshetError, match=message):
        IncDsiAdder(state).add_batch([*documents, *REFUSED_BATCHES[message]])

    assert_equal_contents(copy_contents(state), before)


def test_refused_deletion_leaves_the_collection_unchanged() -> None:
    state, _ = make_collection(20, 1)
    before = copy_contents(state)

    with pytest.raises(FreshetError, match="'nobody' is not in the collection"):
        IncDsiAdder(state).delete(["old 1", "nobody"])

    assert_equal_contents(copy_contents(state), before)


def test_compromise_is_reported_with_its_broken_constraints() -> None:
    """Document "a" loses its query to "b".

    So a document with the same query can neither beat "b" nor spare "a".
    """
    axes = np.eye(4)
    vectors = np.stack([axes[0], 2 * axes[0], axes[2]])
    state = IncDsiState(vectors, axes[:3], ["a", "b", "c"], score_deviation=1.0)
    adder = IncDsiAdder(state, IncDsiSettings(gamma1=0.1, gamma2=0.1))

    added = adder.add(NewDocument("new", axes[:1], axes[3]))

    assert added.status == Status.COMPROMISE
    assert added.broken == 2
    np.testing.assert_array_equal(added.vector, added.solution.vector.astype(np.float32))


def test_large_collections_use_smaller_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    state, documents = make_collection(60, 12)
    expected = IncDsiAdder(deepcopy(state)).add_batch(documents)
    adder = IncDsiAdder(deepcopy(state))
    add_chunk = adder._add_chunk
    chunk_sizes = []

    def record_size_and_add(chunk: list[NewDocument]) -> list[Added]:
        chunk_sizes.append(len(chunk))
        return add_chunk(chunk)

    monkeypatch.setattr(adder_module, "MAX_BATCH_SCORES", 5 * 60)
    monkeypatch.setattr(adder, "_add_chunk", record_size_and_add)
    added = adder.add_batch(documents)

    assert chunk_sizes == [5, 5, 2]
    assert_equal_additions(added, expected)


def test_state_with_equal_ids_is_refused() -> None:
    with pytest.raises(SettingsError, match="occurs twice"):
        IncDsiState(np.eye(2), np.eye(2), ["a", "a"])


def test_state_with_infinite_queries_is_refused() -> None:
    with pytest.raises(SettingsError, match="not finite"):
        IncDsiState(np.eye(2), np.full((2, 2), np.inf), ["a", "b"])
