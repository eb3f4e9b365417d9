"""Make changes of documents searchable, by building a new generation.

A generation is an immutable snapshot of the index. It becomes visible to searches when the pointer
to the current generation is replaced.
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
    save_tuned_weights,
    tuned_weights,
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
    keep_unchanged_encodings,
    merge_segments,
    new_passages,
    open_segment,
    write_segment,
)
from model_code.retrieval.indexed import Refine
from model_code.text.documents import Change, Document
from model_code.text.passages import TextRules

NO_QUERIES: Mapping[str, Collection[str]] = MappingProxyType({})
"""Default of `solve_for`: no document gets other queries than those of its row."""

# Name of the folder of a new segment that is merged with other segments immediately.
UNMERGED = "fresh"

# Largest number of field names in a manifest. It limits the manifest if a source has very many
# different field names.
MAX_KNOWN_FIELDS = 10_000


@dataclass(frozen=True)
class ApplyResult:
    """The result of applying changes. All lists of ids are ascending.

    Attributes:
        generation: Generation that is current afterwards.
        added: Ids of the added documents.
        updated: Ids of the updated documents.
        deleted: Ids of the deleted documents.
        unchanged: Ids of the documents that a change left as they were.
        before: Number of live documents before the changes.
        solved_again: Ids of the documents with unchanged content whose vectors were solved again.
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
"""Function that checks a generation before it becomes current. It raises an error to refuse it."""

WriteSegment = Callable[[Path, BaseSegment, Sequence[Document], TextRules], LoadedSegment]
"""Function that writes a new segment to a folder; see `write_segment`."""

LoadedSegments = Callable[[], dict[int, LoadedSegment]]
"""Function that returns the segments that other searchers have opened, by number, to share them."""


def merge_count(sizes: Sequence[int], most: int) -> int:
    """Return how many of the newest segments to merge.

    If there are more than `most` segments, the two newest are merged. An older segment is merged
    too if it is at most as large as all newer segments together. So a document is copied rarely:
    the segment of an older document at least doubles each time.

    >>> merge_count([1, 1, 1], most=3), merge_count([9, 1, 1, 1], most=3)
    (0, 3)
    >>> merge_count([3, 2, 1, 1], most=3)
    4

    Args:
        sizes: Number of documents in each segment, oldest first.
        most: Largest number of segments that need no merge.

    Returns:
        Number of segments to merge, at least 2, or 0 if no merge is needed.
    """
    if len(sizes) <= most:
        return 0
    newest_first = list(reversed(sizes))
    count = 2
    documents = sum(newest_first[:2])
    for size in newest_first[2:]:
        if size > documents:
            break
        documents += size
        count += 1
    return count


class GenerationDraft:
    """The segments of a new generation whose folder is being written.

    A view is a segment together with the documents that are removed from it.

    Attributes:
        folder: Folder in which the generation is written.
        current: Generation that the new one is made from.
        root: Base segment, with encoder and hierarchy.
        base: View of the base segment, with the documents that the new generation removes.
        segments: Views of added segments that the new generation shares with older ones, oldest
            first.
        fresh: View of the segment in the folder of the new generation. None if it adds no segment.
        known: Known queries of each document whose queries changed after it was indexed, by
            document id.
        weights: New weights of the fusion. None keeps those of the current generation.
        shares_files: Whether files of older generations are used again if their content is equal.
    """

    def __init__(self, folder: Path, searcher: Searcher, removed: Removed) -> None:
        """Start with the segments of a generation. Segments without live documents are dropped.

        Args:
            folder: Empty folder in which the new generation is written.
            searcher: Searcher of the generation to start from.
            removed: Removed documents of each segment in the new generation.
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
        self.weights: Mapping[str, float] | None = None
        self.shares_files = True
        self._views_before = searcher.views
        self._views_after_removal = views

    def add(self, puts: Sequence[Document], write: WriteSegment, most: int) -> None:
        """Write a segment of new documents, and merge segments if there are too many.

        Each segment makes searches a little slower, so their number is limited.

        Args:
            puts: Documents of the new segment.
            write: Function that writes a segment.
            most: Largest number of added segments, including the new one.
        """
        sizes = [view.documents for view in self.segments]
        sizes.append(len(puts))
        number_to_merge = merge_count(sizes, most)
        if number_to_merge == 0:
            self.fresh = SegmentView(write(self.folder, self.root, puts, self.current.text))
            return

        # The merged segment takes the folder of the generation, so the new segment is first written
        # to another folder.
        unmerged = self.folder / UNMERGED
        self.fresh = SegmentView(write(unmerged, self.root, puts, self.current.text))
        # `merge` takes the number of older segments, and merges the new segment with them.
        self.merge(number_to_merge - 1)
        shutil.rmtree(unmerged)

    def merge(self, newest: int) -> None:
        """Merge segments to a new segment in the folder of the generation.

        Fewer segments make searches faster. Nothing is encoded again.

        Args:
            newest: Number of the newest shared segments to merge. The fresh segment is merged with
                them if there is one.
        """
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
        """Return the entries of the manifest about segments, and write the files that they name.

        Entries name the generations whose folders have the segments, and the files about removed
        documents, changed known queries and weights. A file is only written if its content differs
        from that of the current generation. Otherwise the entry names the older file.

        Args:
            number: Number of the new generation.
            later: Evidence about known queries that arrived after documents were indexed.
        """
        shared_views = [self.base, *self.segments]
        all_views = list(shared_views)
        segment_numbers = [view.segment.number for view in self.segments]
        if self.fresh is not None:
            all_views.append(self.fresh)
            segment_numbers.append(number)
        if later:
            holders = [(view.segment, view) for view in all_views]
            self.known = compute_overrides(holders, later, self.root.build_queries.held_out)
        facts = {
            "base": self.current.base,
            "build": self.current.build,
            "segments": segment_numbers,
            "removed": self._write_removed(shared_views, number),
            "known": self._write_overrides(number),
            "tuned": self._write_weights(number),
            "fingerprint": self.current.fingerprint,
            "text": self.current.manifest["text"],
            "documents": sum(view.documents for view in all_views),
            "passages": sum(view.passages for view in all_views),
        }
        known_fields = self._known_fields()
        if known_fields:
            facts["known_fields"] = known_fields
        return facts

    def _known_fields(self) -> list[str]:
        """Return the names of fields that only removed documents had, whose segments were dropped.

        The manifest remembers them, so that a filter may still name them. It matches nothing then.
        A filter with an unknown field is an error.
        """
        # A segment is dropped if a change removes its last live document.
        kept = {view.segment.number for view in [self.base, *self.segments]}
        names = set(self.current.manifest.get("known_fields", ()))
        for view in self._views_after_removal:
            if view.removed and view.segment.number not in kept:
                names.update(view.segment.field_index.value_ranges)
        return sorted(names)[:MAX_KNOWN_FIELDS]

    def _write_removed(self, shared: Sequence[SegmentView], number: int) -> int | None:
        """Write `removed.json` if needed, and return the number of the generation that has it.

        If no further documents are removed, the file of the current generation is used again. It
        may list segments that the new generation has dropped. Readers ignore them.

        Args:
            shared: Views of the segments that are shared with older generations.
            number: Number of the new generation.
        """
        removed = {view.segment.number: view.removed for view in shared if view.removed}
        if not removed:
            return None
        removed_before = {view.segment.number: view.removed for view in self._views_before}
        is_equal = all(ids == removed_before[segment] for segment, ids in removed.items())
        if is_equal and self.shares_files:
            return self.current.removed
        write_removed(self.folder, removed)
        return number

    def _write_weights(self, number: int) -> int | None:
        """Write `tuned_weights.json` if there are new weights; return the generation that has it.

        A retune chooses other weights for the components of a fusion.

        Args:
            number: Number of the new generation.
        """
        if self.weights is None:
            return self.current.tuned
        save_tuned_weights(self.folder, self.weights)
        return number

    def _write_overrides(self, number: int) -> int | None:
        """Write `known_overrides.json` if needed, and return the generation that has it.

        The file has the known queries that changed after their documents were indexed. If they are
        those of the current generation, its file is used again.

        Args:
            number: Number of the new generation.
        """
        if not self.known:
            return None
        if self.shares_files and self.known == known_overrides(self.current):
            return self.current.known
        save_overrides(self.folder, self.known)
        return number


class GenerationBuilder:
    """Builds the generations of one retriever. Only one builder may work at a time.

    Encoder and segments stay in memory between calls, so that later changes are fast.
    """

    solves_vectors = False
    """Whether this builder solves vectors of documents again after feedback."""

    _write_segment = staticmethod(write_segment)

    def __init__(
        self, live: Path, retriever: str, refine: Refine | None = None, max_segments: int = 8
    ) -> None:
        """Prepare to build generations of a retriever.

        Args:
            live: Folder of the live collections of all retrievers.
            retriever: Name of the retriever.
            refine: Function that replaces the encodings of new documents by other vectors. None
                keeps the encodings.
            max_segments: Largest number of added segments. More segments make searches slower, so
                the newest are merged if there are more.
        """
        self.collection = GenerationStore(live, retriever)
        self.refine = refine
        self.max_segments = max_segments
        self.loaded: LoadedSegments = dict
        # Function that returns evidence about known queries that arrived after indexing.
        self.later_evidence: Callable[[], LaterEvidence] = LaterEvidence
        # Generation to change instead of the current one, such as a build that becomes live.
        self.opened: Generation | None = None
        self._searcher: Searcher | None = None

    @property
    def searcher(self) -> Searcher:
        """Searcher of the generation that changes start from.

        It is replaced if the current generation has changed. Segments that this builder or other
        searchers have opened are not opened again.
        """
        generation = self.opened
        if generation is None:
            generation = self.collection.current()
        if self._searcher is not None and self._searcher.generation == generation:
            return self._searcher

        open_segments: dict[int, LoadedSegment] = {}
        if self._searcher is not None:
            open_segments.update(self._searcher.parts)
        open_segments.update(self.loaded())
        self._searcher = Searcher(self.collection.live, generation, open_segments)
        return self._searcher

    def prepare(self) -> None:
        """Open the segments that the first change needs, so that it is fast."""
        _ = self.searcher

    def encode_ahead(self, documents: Sequence[Document]) -> None:
        """Encode documents that are only recorded so far, so that the next `apply` is faster.

        Another thread may call it while a generation is being built. Before `prepare`, it does
        nothing.
        """
        # The property `searcher` would open a generation, perhaps twice at the same time.
        searcher = self._searcher
        if searcher is not None:
            text = searcher.generation.text
            keep_unchanged_encodings(searcher.base, searcher.views, documents, text)
            passages = new_passages(documents, text)
            searcher.base.retriever.encode_ahead(passages)

    def find_documents_to_solve(self, pending: Mapping[str, Change]) -> dict[str, frozenset[str]]:
        """Find the documents whose vectors IncDSI must solve again because of feedback.

        This builder does not solve vectors, so it finds none. Subclasses override the method.

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
        """Make changes searchable: build a generation and make it the current one.

        If no document changes and the part of the ledger is the same, no generation is built.

        Args:
            changes: Changes in their order. Only the last change of each document counts.
            cursor: Part of the ledger that the new generation contains.
            provenance: Origin of the changes, for the manifest.
            guard: Function that checks the generation before it becomes current. If it raises an
                error, the generation is deleted.
            rewritten: Ids of documents that count as updated also if their content is unchanged;
                see `NetChanges.compute`.
            solve_for: Hashes of the queries that should find a document, by document id. IncDSI
                solves the vector of the document for them. These documents are written also if
                their content is unchanged. The vectors of all other documents are solved for the
                queries of their rows.

        Returns:
            The current generation, and the documents that changed.

        Raises:
            FreshetError: If the retriever is not live, or its build does not record how documents
                are cut into passages. Nothing is changed then.
        """
        searcher = self.searcher
        current = searcher.generation
        with verify_checksums_on_error(current):
            net = NetChanges.compute(changes, searcher.views, rewritten, solve_for)
            result = ApplyResult(
                current,
                added=tuple(net.ids["added"]),
                updated=tuple(net.ids["updated"]),
                deleted=tuple(net.ids["deleted"]),
                unchanged=tuple(net.ids["unchanged"]),
                before=current.manifest["documents"],
                solved_again=tuple(net.solved_again),
            )
            if not result.has_changes and cursor == current.cursor:
                return result

            new_searcher = self._build(searcher, net.removed, net.puts, cursor, provenance)
            generation = new_searcher.generation
            result = replace(result, generation=generation)
            # Searches still use the current generation while the new one is checked.
            try:
                if guard is not None:
                    guard(new_searcher, result)
            except BaseException:
                self.collection.delete(generation.folder)
                raise
            self.collection.set_current(generation)
            self._searcher = new_searcher
        return result

    def compact(self, cursor: LedgerCursor | None = None, rewrite: bool = False) -> Generation:
        """Merge all added segments into one, without their removed documents.

        This makes searches faster. Rankings do not change, because vectors are copied.

        Args:
            cursor: Ledger cursor of the new generation. None copies it from the current one.
            rewrite: Whether to write all files again, except those of the build. The new generation
                then needs no folder of an older one, apart from the build.

        Returns:
            The new generation. Without `rewrite`, the current one if there is nothing to merge.
        """
        searcher = self.searcher
        current = searcher.generation
        added_segments = searcher.views[1:]
        is_one_without_removals = len(added_segments) == 1 and not added_segments[0].removed
        if not rewrite and (not added_segments or is_one_without_removals):
            return current

        removed = {view.segment.number: view.removed for view in searcher.views}
        provenance = inherited_provenance(current)
        provenance["compacted"] = current.number
        if cursor is None:
            cursor = current.cursor
        with verify_checksums_on_error(current):
            # Without documents to add, `_build` merges all added segments.
            weights = tuned_weights(current) if rewrite else None
            self._searcher = self._build(
                searcher, removed, None, cursor, provenance, weights, shares_files=not rewrite
            )
            return self.collection.set_current(self._searcher.generation)

    def update_known_queries(self, cursor: LedgerCursor) -> Generation:
        """Make changed known queries searchable, without changing a document.

        `apply` does this as well, but only together with changes of documents.

        Args:
            cursor: Part of the ledger that the new generation contains.

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

    def tune(
        self, weights: Mapping[str, float], cursor: LedgerCursor, provenance: Mapping[str, Any]
    ) -> Generation:
        """Give the fusion other weights, without changing or encoding a document.

        Args:
            weights: Weight of each component.
            cursor: Part of the ledger that the new generation contains.
            provenance: Origin of the weights, for the manifest.
        """
        searcher = self.searcher
        current = searcher.generation
        removed = {view.segment.number: view.removed for view in searcher.views}
        new_provenance = inherited_provenance(current)
        new_provenance.update(provenance)
        with verify_checksums_on_error(current):
            self._searcher = self._build(searcher, removed, [], cursor, new_provenance, weights)
            return self.collection.set_current(self._searcher.generation)

    def collect_garbage(self, keep: int, registered: Collection[int] = ()) -> tuple[int, ...]:
        """Delete old generations, except for folders that a searcher has open.

        Old generations are only needed to go back to them.

        Args:
            keep: Number of newest generations to keep; see `GenerationStore.unneeded_generations`.
            registered: Numbers of further generations to keep.

        Returns:
            Numbers of the deleted generations, ascending.
        """
        if self._searcher is not None:
            # The searcher of an older generation has folders open, which could not be deleted. The
            # property `searcher` replaces it by a searcher of the current generation.
            self._searcher = self.searcher
        return self.collection.collect_garbage(keep, registered)

    def _build(
        self,
        searcher: Searcher,
        removed: Removed,
        puts: Sequence[Document] | None,
        cursor: LedgerCursor,
        provenance: Mapping[str, Any],
        weights: Mapping[str, float] | None = None,
        shares_files: bool = True,
    ) -> Searcher:
        """Build a generation (snapshot of the index), and return a searcher of it.

        It is not current yet, so that searches do not use it.

        Args:
            searcher: Searcher of the generation to start from.
            removed: Removed documents of each segment in the new generation.
            puts: Documents to add. None merges all added segments instead.
            cursor: Part of the ledger that the new generation contains.
            provenance: Origin of the new generation, for the manifest.
            weights: New weights of the fusion. None keeps the present ones.
            shares_files: Whether files of older generations are used again if their content is
                equal.
        """
        parent = searcher.generation.number
        with self.collection.staging_dir(after=parent) as folder:
            draft = GenerationDraft(folder, searcher, removed)
            draft.weights = weights
            draft.shares_files = shares_files
            if puts is None:
                draft.merge(len(draft.segments))
            elif puts:
                text = searcher.generation.text
                keep_unchanged_encodings(searcher.base, searcher.views, puts, text)
                write = partial(self._write_segment, refine=self.refine)
                draft.add(puts, write, self.max_segments)
            number = self.collection.next_number()
            facts = draft.manifest_facts(number, self.later_evidence())
            facts["provenance"] = dict(provenance)
            self.collection.write_manifest(folder, facts, cursor, parent=parent)
            generation = self.collection.commit(folder, number)

        # The new segment is open already. `commit` has renamed its folder.
        segments = searcher.parts
        if draft.fresh is not None:
            draft.fresh.segment.follow(generation.folder)
            segments[number] = draft.fresh.segment
        return Searcher(self.collection.live, generation, segments)
