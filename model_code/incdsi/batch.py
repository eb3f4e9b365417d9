"""Common passes for many documents that are added one after the other.

Each document still sees all that came before it in its batch, so its vector is that of one-by-one addition. The passes
only supply a reference vector for each, and for that a guess at the earlier documents' vectors will do: whatever it is,
`solve` bounds how far the true vector is from it, or reads the collection again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from model_code.incdsi.documents import NewDocument
from model_code.incdsi.passes import Pass
from model_code.incdsi.refine import Refiner, Start
from model_code.incdsi.rivals import Rivals
from model_code.incdsi.row_sets import joined, minus
from model_code.incdsi.task import Task
from model_code.incdsi.working_set import GROWTH, guessed, too_many


def starts(refiner: Refiner, documents: Sequence[NewDocument], rivals: Sequence[Rivals]) -> list[Start]:
    """A start for each of `documents`; `rivals` are the scores of their mean queries.

    The first guesses know the best rivals' queries only. The second ones know what the first violate; where these
    moved so far that too many rows stay in doubt, Z is read a second time, for all such documents at once.
    """
    first = _guess(refiner, documents, rivals, [Start()] * len(documents))
    passes = refiner.queries.passes(np.stack([guess.vector for guess in first]))
    found = [guess.start(seen) for guess, seen in zip(first, passes, strict=True)]
    second = _guess(refiner, documents, rivals, found)
    found = [guess.start(start.seen) for guess, start in zip(second, found, strict=True)]
    again = [i for i, guess in enumerate(second) if guess.doubtful]
    if again:
        passes = refiner.queries.passes(np.stack([second[i].vector for i in again]))
        for i, seen in zip(again, passes, strict=True):
            found[i] = second[i].start(seen)
    return found


@dataclass(frozen=True)
class Guess:
    """`vector` (H), the `members` it was solved over, and those of them that it violates.

    doubtful: whether too many other rows are in doubt.
    """

    vector: np.ndarray
    members: np.ndarray
    charged: np.ndarray | None
    doubtful: bool = False

    def start(self, seen: Pass | None) -> Start:
        """What the document's turn begins with."""
        return Start(self.members, seen, self.charged)

    def before(self, count: int) -> Guess:
        """Without the rows from `count` on."""
        return replace(self, members=self.members[self.members < count])


def _guess(
    refiner: Refiner, documents: Sequence[NewDocument], rivals: Sequence[Rivals], known: Sequence[Start]
) -> list[Guess]:
    """A guess for each document in turn, each seeing the guesses before it; the state is left as it was."""
    state, guesses = refiner.state, []
    count = len(state)
    try:
        for document, scores, start in zip(documents, rivals, known, strict=True):
            guesses.append(_guess_one(refiner.task(document, scores), scores, start))
            state.append(document.id, guesses[-1].vector, scores.seen.vector)
    finally:
        state.truncate(count)
    # Rows of documents in this batch are tested one by one anyway, and their guesses are gone now.
    return [guess.before(count) for guess in guesses]


def _guess_one(task: Task, rivals: Rivals, start: Start) -> Guess:
    members, charged = task.protected(rivals.seeds() if start.members is None else start.members), start.charged
    if start.seen is not None:
        others = minus(task.suspects(start.seen, start.seen.vector), members)
        violated = task.violated(others, start.seen.vector)
        if not len(violated):
            return Guess(start.seen.vector, members, charged)
        taken = violated[: max(GROWTH, len(members))]
        charged = np.concatenate([members[:0] if charged is None else charged, taken])
        members = joined(members, taken)
    vector, multipliers = task.restricted(members).minimise(guessed(members, charged))
    doubtful = start.seen is not None and too_many(task.suspects(start.seen, vector), task)
    return Guess(vector, members, members[multipliers[1:] > 0], doubtful)
