"""Common passes for many documents that are added one after the other.

Each document still sees all that came before it in its batch, so its vector is that of one-by-one addition. The passes
only supply a reference vector for each, and for that a guess at the earlier documents' vectors will do: whatever it is,
`solve` bounds how far the true vector is from it, or reads the collection again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model_code.incdsi.documents import NewDocument
from model_code.incdsi.refine import Refiner, Start
from model_code.incdsi.rivals import Rivals
from model_code.incdsi.task import Task
from model_code.incdsi.working_set import GROWTH, too_many


def starts(refiner: Refiner, documents: Sequence[NewDocument], rivals: Sequence[Rivals]) -> list[Start]:
    """A start for each of `documents`; `rivals` are the scores of their mean queries.

    The first guesses know the best rivals' queries only. The second ones know what the first violate; where these
    moved so far that too many rows stay in doubt, Z is read a second time, for all such documents at once.
    """
    first = _guess(refiner, documents, rivals, [Start()] * len(documents))
    passes = refiner.queries.passes(np.stack([vector for vector, _, _ in first]))
    found = [Start(members, reference) for (_, members, _), reference in zip(first, passes, strict=True)]
    second = _guess(refiner, documents, rivals, found)
    again = [i for i, (_, _, doubtful) in enumerate(second) if doubtful]
    found = [Start(members, start.seen) for (_, members, _), start in zip(second, found, strict=True)]
    if again:
        passes = refiner.queries.passes(np.stack([second[i][0] for i in again]))
        for i, reference in zip(again, passes, strict=True):
            found[i] = Start(found[i].members, reference)
    return found


Guess = tuple[np.ndarray, np.ndarray, bool]
"""A vector, the rows it was solved over, and whether too many other rows are in doubt."""


def _guess(
    refiner: Refiner, documents: Sequence[NewDocument], rivals: Sequence[Rivals], known: Sequence[Start]
) -> list[Guess]:
    """A guess for each document in turn, each seeing the guesses before it; the state is left as it was."""
    state, guesses = refiner.state, []
    count = len(state)
    try:
        for document, scores, start in zip(documents, rivals, known, strict=True):
            guesses.append(_guess_one(refiner.task(document, scores), scores, start))
            state.append(document.id, guesses[-1][0], scores.seen.vector)
    finally:
        state.truncate(count)
    # Rows of documents in this batch are tested one by one anyway, and their guesses are gone now.
    return [(vector, members[members < count], doubtful) for vector, members, doubtful in guesses]


def _guess_one(task: Task, rivals: Rivals, start: Start) -> Guess:
    members = task.protected(rivals.seeds() if start.members is None else start.members)
    if start.seen is not None:
        others = np.setdiff1d(task.suspects(start.seen, start.seen.vector), members, assume_unique=True)
        violated = task.violated(others, start.seen.vector)
        if not len(violated):
            return start.seen.vector, members, False
        members = np.union1d(members, violated[: max(GROWTH, len(members))])
    vector, _ = task.restricted(members).minimise()
    doubtful = start.seen is not None and too_many(task.suspects(start.seen, vector), task)
    return vector, members, doubtful
