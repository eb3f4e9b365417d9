"""Let the ledger say what a live collection holds, whatever was interrupted: the collection's generations are right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model_code.errors import FreshetError
from model_code.files import write_text
from model_code.ledger.records import Made

if TYPE_CHECKING:
    from model_code.ledger.ledger import Ledger
    from model_code.live.collection import Collection
    from model_code.live.generation import Generation

ROLLBACK = "rollback"  # in a collection's folder, while one is under way: the number of the generation it goes to


def require_own(ledger: Ledger, current: Generation) -> None:
    """FreshetError if `current` holds events that `ledger` never had: it is not the one that the collection was filled
    from, and would call new events of the same numbers searchable.
    """
    newest = ledger.watermark()
    if newest < current.watermark:
        raise FreshetError(
            f"generation {current.number} of {current.retriever!r} holds events up to {current.watermark} of its "
            f"ledger, but this ledger ends at {newest}: it is another or an older one. Name the right one in "
            f"FRESHET_LEDGER, or begin anew with this one: rm -rf live/{current.retriever}, then freshet promote"
        )


def reconcile(ledger: Ledger, current: Generation) -> None:
    """A generation that continues the last one settles its events. Another one of the same build is a rollback, as is
    one that was announced; another build shall hold all documents, so it gets those that it lacks.
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
    if position is not None and (position.base == current.build or _is_announced(current)):
        ledger.roll_back(current.number)
    else:
        ledger.reopen(current.number)


def announce_rollback(collection: Collection, number: int) -> None:
    """Before the switch: if this process ends after it, the next one must not take it for the opening of a build."""
    write_text(collection.folder / ROLLBACK, f"{number}\n")


def forget_rollback(collection: Collection) -> None:
    """The ledger says what is searchable now."""
    (collection.folder / ROLLBACK).unlink(missing_ok=True)


def _is_announced(current: Generation) -> bool:
    path = current.folder.parent.parent / ROLLBACK
    return path.is_file() and int(path.read_text(encoding="utf-8")) == current.number


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
