"""Which generations of a live collection nothing needs any more."""

from __future__ import annotations

from collections.abc import Collection as Ids
from dataclasses import dataclass

from model_code.live.collection import Collection
from model_code.live.generation import Generation
from model_code.live.reading import unread
from model_code.settings import require


@dataclass(frozen=True)
class Freed:
    """The numbers of generations that were deleted, and how many megabytes that freed."""

    generations: tuple[int, ...]
    megabytes: float


def unneeded(collection: Collection, keep: int, registered: Ids[int] = ()) -> list[Generation]:
    """All generations but the `keep` newest, the current one, the `registered` ones and those that these read from."""
    require(keep >= 1, f"keep is {keep}, but at least the newest generation stays: 1 or more")
    generations = collection.generations()
    chosen = {generation.number for generation in generations[-keep:]} | set(registered) | {collection.current_number()}
    needed = {number for generation in generations if generation.number in chosen for number in generation.needs}
    return [generation for generation in generations if generation.number not in needed]


def collect(collection: Collection, keep: int, registered: Ids[int] = ()) -> Freed:
    """Delete what is `unneeded`; folders that somebody still reads stay until the next time, with what they need.

    The newest goes first. A generation reads folders of older ones alone, so that none that was to go is left without
    what it needs, wherever this is cut off. What stays only because newer ones share its folder need not be `whole`.
    """
    sizes: dict[int, int] = {}
    read: set[int] = set()
    for one in reversed(unneeded(collection, keep, registered)):
        size = None if one.number in read else _delete(collection, one)
        if size is None:
            read |= one.needs
        else:
            sizes[one.number] = size
    return Freed(tuple(sorted(sizes)), sum(sizes.values()) / 1e6)


def _delete(collection: Collection, generation: Generation) -> int | None:
    """The bytes that deleting it freed; None if it is read."""
    with unread(generation.folder) as free:
        if not free:
            return None
        size = sum(path.stat().st_size for path in generation.folder.rglob("*") if path.is_file())
        collection.delete(generation)
        return size
