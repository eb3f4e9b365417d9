"""Changes made one by one in IncDSI's state, so that how they are grouped into generations shows in no vector.

A document's vector depends on the documents that are there when it comes. So each change is made at its place, also one
that a later change of the same group undoes, which nobody ever searches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from model_code.documents import Change
from model_code.incdsi.adder import IncDsiAdder
from model_code.incdsi.documents import Added, NewDocument
from model_code.incdsi.state import IncDsiState

ADD, UPDATE, DELETE = "add", "update", "delete"


def replay(adder: IncDsiAdder, steps: Sequence[Change], documents: Mapping[int, NewDocument]) -> dict[str, Added]:
    """Make `steps` in their order; return what is left of them in the end, by id, what was put last coming last.

    documents: by the number of its step, each that has one vector; others are not in the state. Additions in a row are
    one batch, and deletions one pass.
    """
    left: dict[str, Added] = {}
    for kind, run in groupby(moves(steps, documents, adder.state), key=lambda move: move[0]):
        _, keys, found = zip(*run, strict=True)
        for key in keys:
            left.pop(key, None)
        if kind == DELETE:
            adder.delete(keys)
        else:
            added = adder.add_batch(found) if kind == ADD else map(adder.update, found)
            left |= {one.id: one for one in added}
    return left


def moves(
    steps: Sequence[Change], documents: Mapping[int, NewDocument], state: IncDsiState
) -> Iterator[tuple[str, str, NewDocument | None]]:
    """What each step is to the state: its kind, the document's id, and the document, None for a deletion.

    A document that gets several passages leaves the state, and one that has them always was not in it.
    """
    there: dict[str, bool] = {}
    for number, step in enumerate(steps):
        key, document = step.document_id, documents.get(number)
        before, there[key] = there.get(key, key in state), document is not None
        if document is not None:
            yield UPDATE if before else ADD, key, document
        elif before:
            yield DELETE, key, None
