"""Guards the order of changes in IncDSI's state: each at its place, those in a row at once, any
grouping the same.
"""

from __future__ import annotations

import random
from copy import deepcopy

import numpy as np
import pytest

from model_code.incdsi.adder import IncDsiAdder, NewDocument
from model_code.incdsi.generation_builder import moves, replay
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.state import IncDsiState
from model_code.text.documents import Change, Document, Remove
from tests.model_code.incdsi.small import make

SETTINGS = IncDsiSettings(lambda2=0.1, gamma1=1.0, gamma2=0.3)


def put(key: str) -> Document:
    return Document(key, key, key)


Steps = list[tuple[Change, NewDocument | None]]


def random_steps(state: IncDsiState, documents: list[NewDocument], seed: int) -> Steps:
    """30 changes of twelve documents, of which four are old; each put has vectors of its own."""
    chance, there, found = random.Random(seed), set(state.ids), []
    names = [*(f"n{i}" for i in range(8)), *state.ids[:4]]
    for number in range(30):
        key = chance.choice(names)
        if key in there and chance.random() < 0.4:
            there.remove(key)
            found.append((Remove(key), None))
        else:
            there.add(key)
            own = chance.choice(documents)
            found.append((put(key), NewDocument(key, own.queries + 0.01 * number, own.encoding)))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_groups_of_any_size_give_the_same(seed: int) -> None:
    state, documents = make(40, 6, seed=seed)
    changes = random_steps(state, documents, seed)
    ends = []
    for size in (1, 4, 30):
        adder = IncDsiAdder(deepcopy(state), SETTINGS)
        for start in range(0, 30, size):
            part = changes[start : start + size]
            replay(
                adder,
                [step for step, _ in part],
                {i: own for i, (_, own) in enumerate(part) if own is not None},
            )
        ends.append(
            {key: adder.state.vectors.view[adder.state.row(key)] for key in adder.state.ids}
        )
    assert ends[0].keys() == ends[1].keys() == ends[2].keys()
    for key, vector in ends[0].items():
        np.testing.assert_array_equal(ends[1][key], vector)
        np.testing.assert_array_equal(ends[2][key], vector)


def test_what_is_left_is_told_the_latest_last() -> None:
    state, (one, two, *_) = make(20, 2)
    steps = [put("a"), put("b"), put("c"), Remove("b"), put("a"), Remove("old 1")]
    documents = {
        number: NewDocument(step.document_id, own.queries, own.encoding)
        for number, (step, own) in enumerate(
            zip(steps, [one, one, two, None, two, None], strict=True)
        )
        if own is not None
    }
    adder = IncDsiAdder(state, SETTINGS)
    left = replay(adder, steps, documents)
    assert list(left) == ["c", "a"]
    np.testing.assert_array_equal(left["a"].vector, adder.state.vectors.view[adder.state.row("a")])
    assert not {"b", "old 1"} & set(adder.state.ids)


def test_replay_batches_consecutive_additions() -> None:
    state, documents = make(20, 3)
    new = {i: NewDocument(key, documents[0].queries) for i, key in enumerate(["a", "b", "old 1"])}
    steps = [
        put("a"),
        put("b"),
        put("old 1"),
        put("old 1"),
        Remove("old 1"),
        Remove("old 2"),
        put("long"),
    ]
    found = [
        move if isinstance(move, str) else move.id.upper() for move in moves(steps, new, state)
    ]
    assert found == ["A", "B", "old 1", "OLD 1", "old 1", "old 2"]
