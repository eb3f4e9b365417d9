"""The one that changes a live collection: every change is a new generation, and the pointer's switch its commit."""

from __future__ import annotations

from collections.abc import Collection as Ids
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from model_code.documents import Change, Document
from model_code.ledger.events import Standing
from model_code.live.changes import Applied, Guard, NetChanges
from model_code.live.collection import OF_BUILD, Collection
from model_code.live.draft import Draft
from model_code.live.generation import Generation, Intact, Removed
from model_code.live.searcher import Searcher
from model_code.retrievers.base import Refine


class LiveWriter:
    """Changes one retriever's live collection; there must be one writer at a time. Encoder and parts stay loaded."""

    def __init__(self, live: Path, retriever: str, refine: Refine | None = None, max_segments: int = 8) -> None:
        """refine: what makes the vectors of new documents from the encoder's; None leaves them as they are.

        max_segments: additions are searched in so many separate indexes at most; more are merged, newest first.
        """
        self.max_segments = max_segments
        self.collection, self.refine = Collection(live, retriever), refine
        self._searcher: Searcher | None = None
        self.opened: Generation | None = None  # what is changed in place of the current one: nobody searches it yet

    @property
    def searcher(self) -> Searcher:
        """The generation that changes are made to, loaded; parts that were loaded before are shared."""
        generation = self.opened or self.collection.current()
        if self._searcher is None:
            self._searcher = Searcher(self.collection.live, generation, {})
        elif self._searcher.generation != generation:
            self._searcher = self._searcher.at(generation)
        return self._searcher

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
            if net.puts or net.lost or standing != generation.standing:
                generation = self._make(net.removed(searcher.views), net.puts, standing, provenance)
                if guard is not None:
                    self._guard(guard, searcher, Applied.of(generation, net))
                generation = self.collection.switch(generation.number, check_shared=False)
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
            merged = self._make(removed, None, standing or current.standing, provenance)
            return self.collection.switch(merged.number, check_shared=False)

    def collect_garbage(self, keep: int, registered: Ids[int] = ()) -> tuple[int, ...]:
        """Delete all generations but the `keep` newest, the current one, the `registered`, and what these share.

        What a searcher has open stays until the next time.
        """
        if self._searcher is not None:
            self._searcher = self.searcher  # the one before may have open what shall go
        return self.collection.collect_garbage(keep, registered)

    def _net(self, changes: Sequence[Change]) -> NetChanges:
        """What `changes` come to in the current generation."""
        return NetChanges.of(changes, self.searcher.views)

    def _make(
        self, removed: Removed, puts: Sequence[Document] | None, standing: Standing, provenance: Mapping[str, Any]
    ) -> Generation:
        """A generation on top of the searcher's that nobody searches yet; puts: None merges all segments instead."""
        searcher = self.searcher
        made_of = searcher.generation.number
        with self.collection.aside(after=made_of) as folder:
            draft = Draft(folder, searcher, removed)
            if puts is None:
                draft.merge(len(draft.segments))
            elif puts:
                draft.add(puts, self.refine, self.max_segments)
            facts = {**draft.facts(self.collection.next_number()), "provenance": dict(provenance)}
            self.collection.seal(folder, facts, standing, parent=made_of)
            return self.collection.keep(folder)

    def _guard(self, guard: Guard, before: Searcher, applied: Applied) -> None:
        try:
            opened = before.at(applied.generation)
            guard(opened, applied)
        except BaseException:
            self.collection.delete(applied.generation.folder)
            raise
        self._searcher = opened
