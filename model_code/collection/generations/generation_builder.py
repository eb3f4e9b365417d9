"""Change what a retriever searches: every change builds a new generation.

A change becomes visible when the pointer to the current generation is replaced.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from model_code.collection.generations.generation import (
    Generation,
    Removed,
    known_overrides,
    verify_checksums_on_error,
    write_removed,
)
from model_code.collection.generations.generation_store import (
    GenerationStore,
    inherited_provenance,
)
from model_code.collection.generations.net_changes import NetChanges
from model_code.collection.generations.searcher import Searcher
from model_code.collection.ledger.events import LedgerCursor
from model_code.collection.segments.known_overrides import (
    KnownOverrides,
    LaterEvidence,
    compute_overrides,
    save_overrides,
)
from model_code.collection.segments.segment import (
    BaseSegment,
    LoadedSegment,
    SegmentView,
    merge_segments,
    open_segment,
    write_segment,
)
from model_code.retrieval.indexed import Refine
from model_code.text.documents import Change, Document
from model_code.text.passages import TextRules

NO_QUERIES: Mapping[str, Collection[str]] = MappingProxyType({})
"""Solves no document for other queries than those of its row."""

# Folder of a new segment that is merged with others at once.
UNMERGED = "fresh"

# Names in a manifest. A source with arbitrary field names must not make it grow forever.
MAX_KNOWN_FIELDS = 10_000


@dataclass(frozen=True)
class ApplyResult:
    """What became of applied changes.

    Attributes:
        generation: Generation that is current afterwards.
        added: Ids of the added documents, ascending.
        updated: Ids of the updated documents, ascending.
        deleted: Ids of the deleted documents, ascending.
        unchanged: Ids of the documents whose content was equal, ascending.
        before: Number of documents that could be found before.
        solved_again: Ids of the documents whose vectors were solved again, while their contents are
            equal, ascending.
    """

    generation: Generation
    added: tuple[str, ...]
    updated: tuple[str, ...]
    deleted: tuple[str, ...]
    unchanged: tuple[str, ...]
    before: int = 0
    solved_again: tuple[str, ...] = ()

    @property
    def has_changes(self) -> bool:
        """Whether any document was added, updated, deleted or solved again."""
        return bool(self.added or self.updated or self.deleted or self.solved_again)


Guard = Callable[[Searcher, ApplyResult], None]
"""Called with a searcher of a generation before it becomes current; raises to refuse it."""

WriteSegment = Callable[[Path, BaseSegment, Sequence[Document], TextRules], LoadedSegment]

LoadedSegments = Callable[[], dict[int, LoadedSegment]]
"""Returns segments that other searchers have in memory, by number, so that they are shared."""


def merge_count(sizes: Sequence[int], most: int) -> int:
    """Return how many of the newest segments to merge; 0 if there are at most `most`.

    The newest two are merged, and older ones as long as each is at most as large as what is merged
    already. So a document is copied only if its segment at least doubles, or if it is among the
    newest.

    >>> merge_count([1, 1, 1], most=3), merge_count([9, 1, 1, 1], most=3)
    (0, 3)
    >>> merge_count([3, 2, 1, 1], most=3)
    4

    Args:
        sizes: Numbers of documents in the segments, oldest first.
        most: Largest number of segments that are left unmerged.
    """
    if len(sizes) <= most:
        return 0
    count = 2
    total = sum(sizes[-2:])
    while count < len(sizes) and sizes[-count - 1] <= total:
        total += sizes[-count - 1]
        count += 1
    return count


class GenerationDraft:
    """The segments of the next generation, while its folder is written.

    Attributes:
        folder: Staging folder of the generation.
        current: Generation that it is made from.
        root: Base segment, with encoder and hierarchy.
        base: The base segment as the new generation sees it.
        segments: Added segments that are shared with older generations, oldest first.
        fresh: Segment in the new generation's own folder; None if there is none.
        known: All known queries of the documents whose queries changed, by document id.
    """

    def __init__(self, folder: Path, searcher: Searcher, removed: Removed) -> None:
        """Start with the segments of a searcher; segments without any documents left are dropped.

        Args:
            folder: Empty staging folder.
            searcher: Searcher of the generation to start from.
            removed: All removed documents of each segment.
        """
        views: list[SegmentView] = []
        for view in searcher.views:
            removed_ids = removed.get(view.segment.number, frozenset())
            views.append(SegmentView(view.segment, removed_ids))
        self.folder = folder
        self.current = searcher.generation
        self.root: BaseSegment = searcher.base
        self.base = views[0]
        self.segments = [view for view in views[1:] if view.documents]
        self.fresh: SegmentView | None = None
        self.known: KnownOverrides = {}
        self._views_before = searcher.views
        self._views_after_removal = views

    def add(self, puts: Sequence[Document], write: WriteSegment, most: int) -> None:
        """Write a segment of new documents, and merge segments if there are too many.

        Args:
            puts: Documents of the segment.
            write: Writes the segment.
            most: Largest number of added segments, the new one included.
        """
        sizes = [view.documents for view in self.segments]
        merged = merge_count([*sizes, len(puts)], most)
        target = self.folder / UNMERGED if merged else self.folder
        self.fresh = SegmentView(write(target, self.root, puts, self.current.text))
        if merged:
            # The fresh segment is one of those to merge.
            self.merge(merged - 1)
            shutil.rmtree(target)

    def merge(self, newest: int) -> None:
        """Merge the `newest` shared segments and the fresh one into a new fresh segment."""
        first_merged = len(self.segments) - newest
        merged = self.segments[first_merged:]
        if self.fresh is not None:
            merged.append(self.fresh)
        self.segments = self.segments[:first_merged]
        self.fresh = None
        if merged:
            merge_segments(self.folder, merged)
            self.fresh = SegmentView(open_segment(self.root, self.folder))

    def manifest_facts(self, number: int, later: LaterEvidence) -> dict[str, Any]:
        """Return the manifest's entries about segments and counts.

        `removed.json` and `known_overrides.json` are written if they differ from those that the
        current generation uses.

        Args:
            number: Number of the new generation.
            later: What became known about queries after their documents were indexed.
        """
        shared = [self.base, *self.segments]
        views = list(shared)
        segments = [view.segment.number for view in self.segments]
        if self.fresh is not None:
            views.append(self.fresh)
            segments.append(number)
        if later:
            holders = [(view.segment, view) for view in views]
            self.known = compute_overrides(holders, later, self.root.build_queries.held_out)
        facts = {
            "base": self.current.base,
            "build": self.current.build,
            "segments": segments,
            "removed": self._write_removed(shared, number),
            "known": self._write_overrides(number),
            "fingerprint": self.current.fingerprint,
            "text": self.current.manifest["text"],
            "documents": sum(view.documents for view in views),
            "passages": sum(view.passages for view in views),
        }
        known_fields = self._known_fields()
        if known_fields:
            facts["known_fields"] = known_fields
        return facts

    def _known_fields(self) -> list[str]:
        """Return the fields of removed documents whose segments are not searched any more.

        A filter by such a field matches nothing, while an unknown field is an error.
        """
        kept = {view.segment.number for view in [self.base, *self.segments]}
        names = set(self.current.manifest.get("known_fields", ()))
        for view in self._views_after_removal:
            if view.removed and view.segment.number not in kept:
                names.update(view.segment.field_index.value_ranges)
        return sorted(names)[:MAX_KNOWN_FIELDS]

    def _write_removed(self, shared: Sequence[SegmentView], number: int) -> int | None:
        """Return the number of the generation whose `removed.json` applies to the new one.

        The file of the current generation still applies if no more documents are removed. It may
        also list segments that are not searched any more.
        """
        before = {view.segment.number: view.removed for view in self._views_before}
        removed = {view.segment.number: view.removed for view in shared if view.removed}
        if any(ids != before[segment] for segment, ids in removed.items()):
            write_removed(self.folder, removed)
            return number
        return self.current.removed if removed else None

    def _write_overrides(self, number: int) -> int | None:
        """Return the number of the generation whose known queries apply to the new one."""
        if not self.known:
            return None
        if self.known == known_overrides(self.current):
            return self.current.known
        save_overrides(self.folder, self.known)
        return number


class GenerationBuilder:
    """Changes what one retriever searches. Only one builder may work at a time.

    Encoder and segments stay in memory between calls.
    """

    solves_vectors = False
    """Whether vectors are solved for queries that feedback brings."""

    _write_segment = staticmethod(write_segment)

    def __init__(
        self, live: Path, retriever: str, refine: Refine | None = None, max_segments: int = 8
    ) -> None:
        """Use the generations of a retriever.

        Args:
            live: Folder of all live collections.
            retriever: Name of the retriever.
            refine: Replaces the encodings of new documents by other vectors; None keeps them.
            max_segments: Largest number of added segments, each of which a search looks through.
                If there are more, the newest are merged.
        """
        self.collection = GenerationStore(live, retriever)
        self.refine = refine
        self.max_segments = max_segments
        self.loaded: LoadedSegments = dict
        # Returns what became known about queries after their documents were indexed.
        self.later_evidence: Callable[[], LaterEvidence] = LaterEvidence
        # A generation to change instead of the current one, such as a build that is opened.
        self.opened: Generation | None = None
        self._searcher: Searcher | None = None

    @property
    def searcher(self) -> Searcher:
        """Searcher of the generation that changes are made to.

        Segments that were loaded before, here or by others, are shared.
        """
        generation = self.opened or self.collection.current()
        if self._searcher is None or self._searcher.generation != generation:
            segments = self.loaded()
            if self._searcher is not None:
                segments = {**self._searcher.parts, **segments}
            self._searcher = Searcher(self.collection.live, generation, segments)
        return self._searcher

    def prepare(self) -> None:
        """Load everything that the first change needs."""
        _ = self.searcher

    def find_documents_to_solve(self, pending: Mapping[str, Change]) -> dict[str, frozenset[str]]:
        """Return the documents whose vectors should be solved for other queries than they are.

        Only builders that solve vectors find any.

        Args:
            pending: Last pending change of each document, by document id.

        Returns:
            Hashes of the queries to solve for, by document id; see `query_hash`.
        """
        return {}

    def apply(
        self,
        changes: Sequence[Change],
        cursor: LedgerCursor,
        provenance: Mapping[str, Any],
        guard: Guard | None = None,
        rewritten: Collection[str] = (),
        solve_for: Mapping[str, Collection[str]] = NO_QUERIES,
    ) -> ApplyResult:
        """Make changes searchable in a new current generation.

        If nothing changes, a new generation is made only if its cursor differs.

        Args:
            changes: Changes in their order; only the last one of each document counts.
            cursor: Ledger cursor of the new generation.
            provenance: Where the changes come from.
            guard: Called before the generation becomes current. If it raises, the generation is
                deleted.
            rewritten: See `NetChanges.compute`.
            solve_for: Hashes of the queries that vectors are solved for, by document id. These
                documents are written also if their contents are equal. All other documents are
                solved for the queries of their rows.

        Returns:
            Ids of the documents by what happened to them, and the current generation.

        Raises:
            FreshetError: If the retriever is not live, or its build does not record how documents
                are cut into passages; then nothing is changed.
        """
        searcher = self.searcher
        current = searcher.generation
        with verify_checksums_on_error(current):
            net = NetChanges.compute(changes, searcher.views, rewritten, solve_for)
            ids = {status: tuple(document_ids) for status, document_ids in net.ids.items()}
            result = ApplyResult(
                current,
                **ids,
                before=current.manifest["documents"],
                solved_again=tuple(net.solved_again),
            )
            if not result.has_changes and cursor == current.cursor:
                return result

            new_searcher = self._build(searcher, net.removed, net.puts, cursor, provenance)
            generation = new_searcher.generation
            result = replace(result, generation=generation)
            try:
                if guard is not None:
                    guard(new_searcher, result)
            except BaseException:
                self.collection.delete(generation.folder)
                raise
            self.collection.set_current(generation)
            self._searcher = new_searcher
        return result

    def compact(self, cursor: LedgerCursor | None = None) -> Generation:
        """Merge all added segments into one, without their removed documents.

        Rankings stay equal, since vectors are copied and not computed again.

        Args:
            cursor: Ledger cursor of the new generation; None keeps that of the current one.

        Returns:
            The new generation, or the current one if there is nothing to merge.
        """
        searcher = self.searcher
        current = searcher.generation
        segments = searcher.views[1:]
        if not segments or (len(segments) == 1 and not segments[0].removed):
            return current
        removed = {view.segment.number: view.removed for view in searcher.views}
        provenance = {**inherited_provenance(current), "compacted": current.number}
        with verify_checksums_on_error(current):
            new_cursor = cursor or current.cursor
            self._searcher = self._build(searcher, removed, None, new_cursor, provenance)
            return self.collection.set_current(self._searcher.generation)

    def update_known_queries(self, cursor: LedgerCursor) -> Generation:
        """Make changes of known queries searchable that no change of a document brings along.

        Args:
            cursor: Ledger cursor of the new generation.

        Returns:
            The new generation, or the current one if no known query changed.
        """
        searcher = self.searcher
        current = searcher.generation
        later = self.later_evidence()
        holders = [(view.segment, view) for view in searcher.views]
        known = compute_overrides(holders, later, searcher.base.build_queries.held_out)
        if known == known_overrides(current):
            return current
        removed = {view.segment.number: view.removed for view in searcher.views}
        provenance = inherited_provenance(current)
        with verify_checksums_on_error(current):
            self._searcher = self._build(searcher, removed, [], cursor, provenance)
            return self.collection.set_current(self._searcher.generation)

    def collect_garbage(self, keep: int, registered: Collection[int] = ()) -> tuple[int, ...]:
        """Delete old generations, except for folders that a searcher has open.

        Args:
            keep: See `GenerationStore.unneeded_generations`.
            registered: See `GenerationStore.unneeded_generations`.

        Returns:
            Numbers of the deleted generations.
        """
        if self._searcher is not None:
            # An older searcher may have folders open that are to be deleted.
            self._searcher = self.searcher
        return self.collection.collect_garbage(keep, registered)

    def _build(
        self,
        searcher: Searcher,
        removed: Removed,
        puts: Sequence[Document] | None,
        cursor: LedgerCursor,
        provenance: Mapping[str, Any],
    ) -> Searcher:
        """Build a generation that is not current yet, and return a searcher of it.

        Args:
            searcher: Searcher of the generation to start from.
            removed: All removed documents of each segment.
            puts: Documents to add; None merges all added segments instead.
            cursor: Ledger cursor of the new generation.
            provenance: Provenance of the new generation.
        """
        parent = searcher.generation.number
        with self.collection.staging_dir(after=parent) as folder:
            draft = GenerationDraft(folder, searcher, removed)
            if puts is None:
                draft.merge(len(draft.segments))
            elif puts:
                write = partial(self._write_segment, refine=self.refine)
                draft.add(puts, write, self.max_segments)
            number = self.collection.next_number()
            facts = draft.manifest_facts(number, self.later_evidence())
            facts["provenance"] = dict(provenance)
            self.collection.write_manifest(folder, facts, cursor, parent=parent)
            generation = self.collection.commit(folder, number)

        segments = searcher.parts
        if draft.fresh is not None:
            draft.fresh.segment.follow(generation.folder)
            segments[number] = draft.fresh.segment
        return Searcher(self.collection.live, generation, segments)
