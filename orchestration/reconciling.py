"""Let the ledger say what a live collection holds, whatever was interrupted: the collection's generations are right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model_code.ledger.records import Made

if TYPE_CHECKING:
    from model_code.ledger.ledger import Ledger
    from model_code.live.generation import Generation


def reconcile(ledger: Ledger, current: Generation) -> None:
    """A generation that continues the last one settles its events. Another one of the same build is a rollback;
    another build shall hold all documents, so it gets those that it lacks.
    """
    position = ledger.position()
    if position is not None and position.generation == current.number:
        return
    made = unknown(ledger, current)
    if position is not None and made and _continues(made, position.generation, position.base):
        for one in made:
            ledger.settle(one.watermark, one.number, {})
        return
    ledger.register(made)
    if position is not None and position.base == current.build:
        ledger.roll_back(current.number)
    else:
        ledger.reopen(current.number)


def unknown(ledger: Ledger, generation: Generation) -> list[Made]:
    """The generation and those that it continues, as far as the ledger does not know them, oldest first."""
    from model_code.live.generation import Generation

    found: list[Made] = []
    while not ledger.knows(generation.number):
        parent = generation.manifest["parent"]
        found.append(Made(generation.number, parent, generation.build, generation.watermark))
        if parent is None or generation.build == generation.number or not generation.sibling(parent).is_dir():
            break
        generation = Generation.read(generation.sibling(parent))
    return found[::-1]


def _continues(made: list[Made], generation: int, base: int) -> bool:
    """Whether each generation was made on top of the one before, the first on top of `generation`."""
    parents = [generation, *(one.number for one in made)]
    return all(one.parent == parent and one.base == base for one, parent in zip(made, parents, strict=False))
