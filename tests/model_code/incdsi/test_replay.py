"""Tests of the order of changes in IncDSI's state.

Each change is made in its turn, and consecutive additions are made at once. Any grouping of the
changes gives the same state.
"""

from __future__ import annotations

import random
from copy import deepcopy

import numpy as np
import pytest

from model_code.incdsi.adder import IncDsiAdder, NewDocument
from model_code.incdsi.dsi_builder import StepKind, replay, state_steps
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.state import IncDsiState
from model_code.text.documents import Change, Document, Remove
from tests.model_code.incdsi.small import make_collection

SETTINGS = IncDsiSettings(lambda2=0.1, gamma1=1.0, gamma2=0.3)

Steps = list[tuple[Change, NewDocument | None]]


def put(document_id: str) -> Document:
    """Make the change that adds or updates a document."""
    return Document(document_id, document_id, document_id)


def make_random_steps(state: IncDsiState, documents: list[NewDocument], seed: int) -> Steps:
    """Make 30 changes of twelve documents, of which four are old.

    Each addition and update has vectors of its own.
    """
    chance = random.Random(seed)
    present = set(state.ids)
    names = [f"n{i}" for i in range(8)] + state.ids[:4]

    steps: Steps = []
    for number in range(30):
        name = chance.choice(names)
        if name in present and chance.random() < 0.4:
            present.remove(name)
            steps.append((Remove(name), None))
        else:
            present.add(name)
            source = chance.choice(documents)
            queries = source.queries + 0.01 * number
            steps.append((put(name), NewDocument(name, queries, source.encoding)))
    return steps


def replay_in_groups(state: IncDsiState, steps: Steps, size: int) -> dict[str, np.ndarray]:
    """Replay the steps in groups of `size` and return the vector of each document."""
    adder = IncDsiAdder(deepcopy(state), SETTINGS)
    for start in range(0, len(steps), size):
        changes = []
        new_documents = {}
        for number, (change, document) in enumerate(steps[start : start + size]):
            changes.append(change)
            if document is not None:
                new_documents[number] = document
        replay(adder, changes, new_documents)

    vectors = adder.state.vectors.view
    return {name: vectors[adder.state.row(name)] for name in adder.state.ids}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", [4, 30])
def test_groups_of_any_size_give_the_same_vectors(seed: int, size: int) -> None:
    state, documents = make_collection(40, 6, seed=seed)
    steps = make_random_steps(state, documents, seed)

    expected = replay_in_groups(state, steps, size=1)
    vectors = replay_in_groups(state, steps, size)

    assert vectors.keys() == expected.keys()
    for name, vector in expected.items():
        np.testing.assert_array_equal(vectors[name], vector)


def test_replay_returns_what_is_left_by_latest_change() -> None:
    state, (first, second) = make_collection(20, 2)
    changes = [put("a"), put("b"), put("c"), Remove("b"), put("a"), Remove("old 1")]
    new_documents = {
        0: NewDocument("a", first.queries, first.encoding),
        1: NewDocument("b", first.queries, first.encoding),
        2: NewDocument("c", second.queries, second.encoding),
        4: NewDocument("a", second.queries, second.encoding),
    }
    adder = IncDsiAdder(state, SETTINGS)

    left = replay(adder, changes, new_documents)

    vector_of_a = adder.state.vectors.view[adder.state.row("a")]
    assert list(left) == ["c", "a"]
    np.testing.assert_array_equal(left["a"].vector, vector_of_a)
    assert "b" not in adder.state.ids
    assert "old 1" not in adder.state.ids


def test_replay_batches_consecutive_additions() -> None:
    state, documents = make_collection(20, 3)
    queries = documents[0].queries
    new_documents = {
        0: NewDocument("a", queries),
        1: NewDocument("b", queries),
        2: NewDocument("old 1", queries),
    }
    changes = [
        put("a"),
        put("b"),
        put("old 1"),
        put("old 1"),
        Remove("old 1"),
        Remove("old 2"),
        put("long"),
    ]

    found = list(state_steps(changes, new_documents, state))

    assert [step.document for step in found] == [
        new_documents[0],
        new_documents[1],
        None,
        new_documents[2],
        None,
        None,
    ]
    deleted = [step.document_id for step in found if step.kind == StepKind.DELETE]
    assert deleted == ["old 1", "old 1", "old 2"]
