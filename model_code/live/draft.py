"""A generation in the making: the parts that it shares, and what its own folder gets."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from model_code.documents import Document
from model_code.live.collection import Collection
from model_code.live.compaction import crowded
from model_code.live.generation import Generation
from model_code.live.part import Base, View, open_segment
from model_code.live.removed import Removed, write_removed
from model_code.live.searcher import Searcher
from model_code.live.segment import merge_segments, write_segment
from model_code.retrievers.base import Refine

FRESH = "fresh"  # the folder of a segment that is merged at once


class Draft:
    """What the next generation will search: `base`, the `segments` that it shares, oldest first, and `own`, if any."""

    def __init__(self, folder: Path, searcher: Searcher, removed: Removed) -> None:
        """folder: empty, for what is added; removed: all that each part has lost. Segments with nothing left go."""
        views = [View(view.part, removed.get(view.part.number, frozenset())) for view in searcher.views]
        self.folder, self.current, self.before = folder, searcher.generation, searcher.views
        self.root: Base = searcher.base
        self.base, self.segments = views[0], [view for view in views[1:] if view.documents]
        self.own: View | None = None

    def add(self, puts: Sequence[Document], refine: Refine | None, most: int) -> None:
        """Write a segment of new documents; where there would be more than `most`, merge it with the newest others."""
        merged = crowded([*(view.documents for view in self.segments), len(puts)], most)
        target = self.folder / FRESH if merged else self.folder
        self.own = View(write_segment(target, self.root, puts, self.current.text, refine))
        if merged:
            self.merge(merged - 1)
            shutil.rmtree(target)

    def merge(self, newest: int) -> None:
        """Write one segment of the `newest` shared ones and of the own one; of nothing at all, none."""
        kept, merged = self.segments[: len(self.segments) - newest], self.segments[len(self.segments) - newest :]
        merged += [] if self.own is None else [self.own]
        self.segments, self.own = kept, None
        if merged:
            merge_segments(self.folder, merged)
            self.own = View(open_segment(self.root, self.folder))

    def merge_all(self) -> None:
        """Write one segment of all."""
        self.merge(len(self.segments))

    def facts(self, number: int) -> dict[str, Any]:
        """What the manifest of generation `number` says of parts and counts; writes `removed.json` if that is new."""
        shared = [self.base, *self.segments]
        views = shared + ([] if self.own is None else [self.own])
        return {
            "base": self.current.base,
            "build": self.current.build,
            "segments": [view.part.number for view in self.segments] + ([] if self.own is None else [number]),
            "removed": self._removed(shared, number),
            "fingerprint": self.current.fingerprint,
            "text": self.current.manifest["text"],
            "documents": sum(view.documents for view in views),
            "passages": sum(view.passages for view in views),
        }

    def _removed(self, shared: Sequence[View], number: int) -> int | None:
        """The generation whose `removed.json` holds for these parts; it may name others too."""
        before = {view.part.number: view.removed for view in self.before}
        if not any(view.removed for view in shared):
            return None
        if all(view.removed == before[view.part.number] for view in shared):
            return self.current.removed
        write_removed(self.folder, {view.part.number: view.removed for view in shared if view.removed})
        return number


def publish(
    collection: Collection,
    searcher: Searcher,
    removed: Removed,
    fill: Callable[[Draft], None],
    watermark: int,
    provenance: Mapping[str, Any],
    check: Callable[[Generation], None] | None = None,
) -> Generation:
    """Make a generation on top of the searcher's, with what `fill` adds to its draft, and switch to it.

    check: called with the finished generation; one for which it raises is deleted instead.
    """
    with collection.aside() as folder:
        draft = Draft(folder, searcher, removed)
        fill(draft)
        facts = draft.facts(collection.next_number())
        collection.seal(folder, facts | {"ledger": {"watermark": watermark}, "provenance": dict(provenance)})
        generation = collection.keep(folder)
    if check is not None:
        try:
            check(generation)
        except BaseException:
            collection.refuse(generation)
            raise
    return collection.switch(generation.number, check_shared=False)
