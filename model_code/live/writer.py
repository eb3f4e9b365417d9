"""The one that changes a live collection: every change is a new generation, and the pointer's switch its commit."""

from __future__ import annotations

from collections.abc import Collection as Ids
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from model_code.documents import Change, Document
from model_code.live import garbage
from model_code.live.applied import Applied, Guard
from model_code.live.collection import CURRENT, Collection
from model_code.live.draft import Draft, publish
from model_code.live.generation import Generation
from model_code.live.net_changes import NetChanges
from model_code.live.searcher import Searcher
from model_code.retrievers.base import Refine
from model_code.settings import require


class LiveWriter:
    """Changes one retriever's live collection; there must be one writer at a time. Encoder and parts stay loaded."""

    def __init__(
        self, live: Path, retriever: str, refine: Refine | None = None, max_segments: int = 8, pointer: str = CURRENT
    ) -> None:
        """refine: what makes the vectors of new documents from the encoder's; None leaves them as they are.

        max_segments: additions are searched in so many separate indexes at most; more are merged, newest first.
        pointer: see `Collection`.
        """
        self.max_segments = max_segments
        require(self.max_segments >= 1, f"max_segments is {self.max_segments}, but must be at least 1")
        self.collection, self.refine = Collection(live, retriever, pointer), refine
        self._searcher: Searcher | None = None

    @property
    def searcher(self) -> Searcher:
        """The current generation, loaded; parts that were loaded before are shared."""
        generation = self.collection.current()
        if self._searcher is None:
            self._searcher = Searcher(self.collection.live, generation, {})
        elif self._searcher.generation.number != generation.number:
            self._searcher = self._searcher.at(generation)
        return self._searcher

    def apply(
        self,
        changes: Sequence[Change],
        watermark: int,
        provenance: Mapping[str, Any],
        guard: Guard | None = None,
    ) -> Applied:
        """Make the net effect of `changes`, in their order, the current generation; only the last of a document counts.

        watermark: the last event of the ledger among the changes, at least the current generation's. Where nothing
        changes, a new generation is made only if the watermark moved. guard: looks at the new generation before anyone
        else; if it raises, the generation is deleted. FreshetError if the collection is not live, or its build does not
        say how documents become passages; then nothing is changed.
        """
        searcher = self.searcher
        current = searcher.generation
        require(
            watermark >= current.watermark,
            f"watermark {watermark} lies before event {current.watermark}, which generation {current.number} contains; "
            "apply the events after that",
        )
        net = self._net(changes)
        if not net.nothing or watermark > current.watermark:
            fill, removed = partial(self._add, net.puts), net.removed(searcher.views)
            check = None if guard is None else partial(self._guarded, guard, searcher, net)
            current = publish(self.collection, searcher, removed, fill, watermark, provenance, check)
        return Applied.of(current, net)

    def compact(self) -> Generation:
        """Merge all segments into one, without what is removed from them; the current generation if that changes none.

        No ranking changes: vectors are copied, not made again.
        """
        searcher = self.searcher
        current, segments = searcher.generation, searcher.views[1:]
        if not segments or (len(segments) == 1 and not segments[0].removed):
            return current
        removed = {view.part.number: view.removed for view in searcher.views}
        provenance = current.manifest["provenance"] | {"compacted": current.number}
        return publish(self.collection, searcher, removed, Draft.merge_all, current.watermark, provenance)

    def collect_garbage(self, keep: int, registered: Ids[int] = ()) -> garbage.Freed:
        """Delete all generations but the `keep` newest, the current one, the `registered`, and what these share.

        What a searcher has open stays until the next time.
        """
        if self._searcher is not None:
            self._searcher = self.searcher  # the one before may have open what shall go
        return garbage.collect(self.collection, keep, registered)

    def _net(self, changes: Sequence[Change]) -> NetChanges:
        """What `changes` come to in the current generation."""
        return NetChanges.of(changes, self.searcher.views)

    def _guarded(self, guard: Guard, before: Searcher, net: NetChanges, generation: Generation) -> None:
        opened = before.at(generation)
        guard(opened, Applied.of(generation, net))
        self._searcher = opened

    def _add(self, puts: Sequence[Document], draft: Draft) -> None:
        if puts:
            draft.add(puts, self.refine, self.max_segments)
