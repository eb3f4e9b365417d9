"""Let the ledger say what a live collection holds, whatever was interrupted: the collection's generations are right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from model_code.errors import FreshetError
from model_code.ledger.records import Made
from orchestration.announced_rollback import forget_rollback, is_announced

if TYPE_CHECKING:
    from model_code.ledger.ledger import Ledger
    from model_code.live.collection import Collection
    from model_code.live.generation import Generation


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
    if position is not None and (position.base == current.build or is_announced(current)):
        ledger.register(made)
        ledger.roll_back(current.number)
    else:
        reopen(ledger, current, made)


def reopen(ledger: Ledger, current: Generation, made: Sequence[Made]) -> None:
    """Another build is current: events that it lacks are pending, but for those that users had rolled back.

    made: its generations that the ledger does not know, as `unknown` finds them.
    """
    searched = searched_instead(current)
    ledger.register(made, searched)
    ledger.reopen(current.number, searched)


def searched_instead(generation: Generation) -> str | None:
    """The retriever that is searched by default, None if it is that of the generation, or if nothing is."""
    from model_code.live.collection import CURRENT, default_retriever

    live = generation.folder.parents[2]
    name = default_retriever(live) if (live / CURRENT).is_file() else None
    return None if name == generation.retriever else name


def settle_interrupted(ledger: Ledger, collection: Collection) -> None:
    """Whatever was cut off before: the ledger says what is searchable, and no rollback is under way.

    A collection that was never opened, or whose current generation is of an older format, has nothing to say.
    """
    current = [one for one in collection.generations() if one.number == collection.current_number()]
    for one in current:
        require_own(ledger, one)
        reconcile(ledger, one)
    forget_rollback(collection)


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
