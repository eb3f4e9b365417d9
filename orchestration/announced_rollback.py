"""A rollback is announced before its switch, so that one that is cut off is not taken for the opening of a build."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from model_code.files import write_text

if TYPE_CHECKING:
    from model_code.live.collection import Collection
    from model_code.live.generation import Generation

ROLLBACK = "rollback"  # in a collection's folder, while one is under way: the number of the generation it goes to


@contextmanager
def announced_rollback(collection: Collection, number: int) -> Iterator[None]:
    """Around the switch to generation `number` and what tells the ledger of it.

    Forgotten when both are done, and if the switch fails; kept where the ledger could not be told.
    """
    write_text(collection.folder / ROLLBACK, f"{number}\n")
    try:
        yield
    except BaseException:
        if collection.current_number() != number:
            forget_rollback(collection)
        raise
    forget_rollback(collection)


def forget_rollback(collection: Collection) -> None:
    """No rollback is under way."""
    (collection.folder / ROLLBACK).unlink(missing_ok=True)


def is_announced(current: Generation) -> bool:
    """Whether a rollback to this generation is under way, or was cut off."""
    path = current.folder.parent.parent / ROLLBACK
    return path.is_file() and int(path.read_text(encoding="utf-8")) == current.number
