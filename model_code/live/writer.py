"""The one that changes a live collection: every change is a new generation, and the pointer's switch its commit."""

from __future__ import annotations

from collections.abc import Collection as Ids
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from model_code.documents import Change, Document
from model_code.ledger.events import Standing
from model_code.live.changes import Applied, Guard, NetChanges
from model_code.live.collection import OF_BUILD, Collection, Freed
from model_code.live.draft import Draft, publish
from model_code.live.generation import Generation, Intact
from model_code.live.searcher import Searcher
from model_code.retrievers.base import Refine
from model_code.settings import require


class LiveWriter:
    """Changes one retriever's live collection; there must be one writer at a time. Encoder and parts stay loaded."""

    def __init__(self, live: Path, retriever: str, refine: Refine | None = None, max_segments: int = 8) -> None:
        """refine: what makes the vectors of new documents from the encoder's; None leaves them as they are.

        max_segments: additions are searched in so many separate indexes at most; more are merged, newest first.
        """
        self.max_segments = max_segments
        require(self.max_segments >= 1, f"max_segments is {self.max_segments}, but must be at least 1")
        self.collection, self.refine = Collection(live, retriever), refine
        self._searcher: Searcher | None = None
        self._opened: Generation | None = None

    @property
    def searcher(self) -> Searcher:
        """The generation that changes are made to, loaded: the current one, but while a build is opened.

        Parts that were loaded before are shared.
        """
        generation = self._opened or self.collection.current()
        if self._searcher is None:
            self._searcher = Searcher(self.collection.live, generation, {})
        elif self._searcher.generation != generation:
            self._searcher = self._searcher.at(generation)
        return self._searcher

    @contextmanager
    def opening(self, generation: Generation) -> Iterator[None]:
        """In this block changes are made to a generation that nobody searches yet."""
        self._opened = generation
        try:
            yield
        finally:
            self._opened = None

    def apply(
        self,
        changes: Sequence[Change],
        standing: Standing,
        provenance: Mapping[str, Any],
        guard: Guard | None = None,
    ) -> Applied:
        """Make the net effect of `changes`, in their order, the current generation; only the last of a document counts.

        standing: where the new generation stands in the log. Where nothing changes, one is made only to stand there.
        guard: looks at the new generation before anyone else; if it raises, the generation is deleted. FreshetError if
        the collection is not live, or its build does not say how documents become passages; then nothing is changed.
        """
        searcher = self.searcher
        generation = searcher.generation
        with Intact(generation):
            net = self._net(changes)
            if not net.nothing or standing != generation.standing:
                fill, removed = partial(self._add, net.puts), net.removed(searcher.views)
                check = None if guard is None else partial(self._guarded, guard, searcher, net)
                generation = publish(self.collection, searcher, removed, fill, standing, provenance, check)
        return Applied.of(generation, net)

    def compact(self, standing: Standing | None = None) -> Generation:
        """Merge all segments into one, without what is removed from them; the current generation if that changes none.

        standing: that of the current generation, None if it says so itself. No ranking changes: vectors are copied, not
        made again.
        """
        searcher = self.searcher
        current, segments = searcher.generation, searcher.views[1:]
        if not segments or (len(segments) == 1 and not segments[0].removed):
            return current
        removed = {view.part.number: view.removed for view in searcher.views}
        said = current.manifest["provenance"].items()
        provenance = {name: value for name, value in said if name not in OF_BUILD} | {"compacted": current.number}
        with Intact(current):
            return publish(
                self.collection, searcher, removed, Draft.merge_all, standing or current.standing, provenance
            )

    def collect_garbage(self, keep: int, registered: Ids[int] = ()) -> Freed:
        """Delete all generations but the `keep` newest, the current one, the `registered`, and what these share.

        What a searcher has open stays until the next time.
        """
        if self._searcher is not None:
            self._searcher = self.searcher  # the one before may have open what shall go
        return self.collection.collect_garbage(keep, registered)

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
