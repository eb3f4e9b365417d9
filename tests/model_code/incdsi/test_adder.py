"""Guards the laws of addition: batches equal one by one, deleting undoes adding, replay and update
repeat, nothing half done; and the record of who wins its own query.
"""

from __future__ import annotations

from copy import deepcopy
from itertools import product

import numpy as np
import pytest

from model_code.errors import FreshetError, SettingsError
from model_code.incdsi import adder
from model_code.incdsi.adder import Added, IncDsiAdder, NewDocument, Status
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.state import IncDsiState
from tests.model_code.incdsi.small import make

WAYS = [
    (IncDsiSettings(gamma1=margin, gamma2=margin, lambda2=pull), pulled)
    for (pull, pulled), margin in product([(1e-5, False), (0.1, True)], [0.3, 1.0])
]


def added(
    old: int, new: int, pulled: bool, **options: int
) -> tuple[IncDsiState, list[NewDocument]]:
    """A collection, and documents with an encoding to be pulled to, or without any, as published."""
    state, documents = make(old, new, **options)
    return state, documents if pulled else [NewDocument(one.id, one.queries) for one in documents]


def assert_same(ours: list[Added], theirs: list[Added]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one.vector, other.vector)
        assert one.id == other.id
        assert one.status == other.status
        assert one.broken == other.broken


def contents(state: IncDsiState) -> list[np.ndarray]:
    grown = [
        state.vectors,
        state.queries,
        state.own_scores,
        state.vector_lengths,
        state.query_lengths,
    ]
    return [np.array(state.ids), *(rows.view.copy() for rows in grown)]


def assert_equal_states(one: IncDsiState, other: IncDsiState) -> None:
    for ours, theirs in zip(contents(one), contents(other), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("settings", "pulled"), WAYS)
def test_a_batch_equals_one_by_one(
    settings: IncDsiSettings, pulled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adder, "MAX_BATCH_DOCUMENTS", 5)
    state, documents = added(50, 12, pulled, seed=WAYS.index((settings, pulled)))
    alone, together = IncDsiAdder(deepcopy(state), settings), IncDsiAdder(deepcopy(state), settings)
    assert_same([alone.add(document) for document in documents], together.add_batch(documents))
    assert_equal_states(alone.state, together.state)


@pytest.mark.parametrize(("settings", "pulled"), WAYS)
def test_deleting_the_last_undoes_its_addition(settings: IncDsiSettings, pulled: bool) -> None:
    state, documents = added(50, 2, pulled)
    adder = IncDsiAdder(state, settings)
    adder.add(documents[0])
    before = deepcopy(state)
    adder.add(documents[1])
    adder.delete(["new 1"])
    assert_equal_states(state, before)


@pytest.mark.parametrize(("settings", "pulled"), WAYS)
def test_where_a_document_lies_shows_in_no_vector(settings: IncDsiSettings, pulled: bool) -> None:
    state, documents = added(50, 5, pulled)
    IncDsiAdder(state, settings).add_batch(documents)
    other = deepcopy(state)
    vector, query = (rows.view[7].copy() for rows in (other.vectors, other.queries))
    other.delete(np.array([7]))
    other.append(state.ids[7], vector, query)
    new = NewDocument("another", documents[2].queries + 0.2, documents[2].encoding)
    assert_same([IncDsiAdder(state, settings).add(new)], [IncDsiAdder(other, settings).add(new)])


def test_reloaded_state_continues_like_the_original() -> None:
    state, documents = make(50, 8)
    adder = IncDsiAdder(state, IncDsiSettings())
    adder.add_batch(documents[:4])
    stored = IncDsiState(state.vectors.view, state.queries.view, state.ids, state.score_deviation)
    replayed = IncDsiAdder(stored, adder.settings)
    assert_same(adder.add_batch(documents[4:]), replayed.add_batch(documents[4:]))
    assert_equal_states(state, stored)


def test_first_document_of_empty_collection_is_found() -> None:
    adder = IncDsiAdder(IncDsiState(np.zeros((0, 3)), np.zeros((0, 3)), [], score_deviation=1.0))
    found = adder.add_batch(
        [NewDocument("first", np.eye(3)[:1]), NewDocument("second", np.eye(3)[1:2])]
    )
    assert [one.status for one in found] == [Status.FITS, Status.FITS]
    scores = adder.state.queries.view @ adder.state.vectors.view.T
    assert scores.argmax(axis=1).tolist() == [0, 1]


BAD = {
    "twice in this batch": [NewDocument("a", np.ones((1, 8))), NewDocument("a", np.ones((1, 8)))],
    "in the collection already": [
        NewDocument("b", np.ones((1, 8))),
        NewDocument("old 1", np.ones((1, 8))),
    ],
    "not finite": [NewDocument("b", np.full((1, 8), np.nan))],
}


@pytest.mark.parametrize("words", BAD)
def test_refused_changes_leave_collection_unchanged(
    words: str,
) -> None:
    state, documents = make(20, 1)
    before, adder = contents(state), IncDsiAdder(state)
    with pytest.raises(FreshetError, match=words):
        adder.add_batch([*documents, *BAD[words]])
    with pytest.raises(FreshetError, match="'nobody' is not in the collection"):
        adder.delete(["old 1", "nobody"])
    for ours, theirs in zip(contents(state), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_compromise_is_told_and_counted() -> None:
    """Document "a" loses its query to "b", so that whoever asks the same can neither beat "b" nor
    spare "a".
    """
    axes = np.eye(4)
    state = IncDsiState(
        np.stack([axes[0], 2 * axes[0], axes[2]]), axes[:3], ["a", "b", "c"], score_deviation=1.0
    )
    found = IncDsiAdder(state, IncDsiSettings(gamma1=0.1, gamma2=0.1)).add(
        NewDocument("new", axes[:1], axes[3])
    )
    assert found.status == Status.COMPROMISE
    assert found.broken == 2
    np.testing.assert_array_equal(found.vector, found.solution.vector.astype(np.float32))


def test_large_collections_use_smaller_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    state, documents = make(60, 12)
    monkeypatch.setattr(adder, "MAX_BATCH_SCORES", 5 * 60)
    one, sizes = IncDsiAdder(deepcopy(state)), []
    add = one._add_chunk
    monkeypatch.setattr(one, "_add_chunk", lambda chunk: sizes.append(len(chunk)) or add(chunk))
    found = one.add_batch(documents)
    assert sizes == [5, 5, 2]
    monkeypatch.undo()
    assert_same(found, IncDsiAdder(deepcopy(state)).add_batch(documents))


def test_states_that_make_no_sense() -> None:
    with pytest.raises(SettingsError, match="occurs twice"):
        IncDsiState(np.eye(2), np.eye(2), ["a", "a"])
    with pytest.raises(SettingsError, match="not finite"):
        IncDsiState(np.eye(2), np.full((2, 2), np.inf), ["a", "b"])
