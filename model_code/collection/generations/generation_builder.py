"""The one that changes a live collection: every change is a new generation, and the pointer's
switch its commit.

What must hold of a generation before anyone searches it: what was added is found, what was deleted
is not.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Collection as Ids
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from model_code.collection.generations.generation import (
    Generation,
    Removed,
    verify_checksums_on_error,
    write_removed,
)
from model_code.collection.generations.generation_store import GenerationStore, inherited_provenance
from model_code.collection.generations.searcher import Searcher
from model_code.collection.ledger.events import LedgerCursor
from model_code.collection.segments.segment import (
    BaseSegment,
    LoadedSegment,
    SegmentView,
    merge_segments,
    open_segment,
    write_segment,
)
from model_code.errors import FreshetError
from model_code.retrieval.indexed import Refine
from model_code.retrieval.protocol import Ranking
from model_code.text.documents import STATUSES, Change, Document, status_of
from model_code.text.passages import TextRules


@dataclass(frozen=True)
class ApplyResult:
    """What became of a call's changes: the ids of documents, ascending, by what they are to who
    searches.

    generation: the one that is current now; before: how many documents could be found in the one
    that was changed.
    """

    generation: Generation
    added: tuple[str, ...]
    updated: tuple[str, ...]
    deleted: tuple[str, ...]
    unchanged: tuple[str, ...]
    before: int = 0


Guard = Callable[[Searcher, ApplyResult], None]
"""Told what an addition came to, with a searcher of the generation that is about to become current;
raises to refuse
"""


@dataclass
class NetChanges:
    """The documents to add, and the ids of all that were named by `STATUSES`, both ascending; and
    what is no more of the parts when the changes are made.
    """

    puts: list[Document]
    ids: dict[str, list[str]]
    removed: Removed

    @classmethod
    def compute(
        cls, changes: Iterable[Change], views: Sequence[SegmentView], anew: Ids[str] = ()
    ) -> NetChanges:
        """The effect of `changes`, in their order, on the parts of a generation: the last one of
        each document.

        A put of equal content, and the removal of a document that is not there, leave their
        document "unchanged". anew: documents that are put also with equal content, as they were
        changed in between.
        """
        net = cls([], {status: [] for status in STATUSES}, {})
        gone = {view.segment.number: set(view.removed) for view in views}
        for key, change in sorted({change.document_id: change for change in changes}.items()):
            owner = _owner(views, key)
            before = None if owner is None else owner.segment.content_hashes[key]
            status = status_of(change, before)
            if status == "unchanged" and before is not None and key in anew:
                status = "updated"
            net.ids[status].append(key)
            if isinstance(change, Document) and status != "unchanged":
                net.puts.append(change)
            if owner is not None and status != "unchanged":
                gone[owner.segment.number].add(key)
        return replace(net, removed={number: frozenset(keys) for number, keys in gone.items()})


def effective_changes(changes: Iterable[Change], views: Sequence[SegmentView]) -> list[Change]:
    """Those of `changes` that change a document when all are made one after the other, in their
    order.

    Unlike the net effect they hold what later ones undo or overwrite: vectors that were found in
    between depend on it.
    """
    effective: list[Change] = []
    contents: dict[str, str | None] = {}
    for change in changes:
        document_id, after = change.document_id, change.content_hash
        if document_id not in contents:
            owner = _owner(views, document_id)
            contents[document_id] = (
                None if owner is None else owner.segment.content_hashes[document_id]
            )
        if contents[document_id] != after:
            effective.append(change)
        contents[document_id] = after
    return effective


def _owner(views: Sequence[SegmentView], document_id: str) -> SegmentView | None:
    """The part that has a document."""
    return next((view for view in reversed(views) if document_id in view), None)


def merge_count(sizes: Sequence[int], most: int) -> int:
    """How many of the newest segments to merge, 0 where there are at most `most`; sizes: documents,
    oldest first.

    The newest two, and older ones as long as each is at most as large as what is merged already. So
    a document is copied only when its segment at least doubles, or when it is among the newest.

    >>> merge_count([1, 1, 1], most=3), merge_count([9, 1, 1, 1], most=3), merge_count([3, 2, 1, 1], most=3)
    (0, 3, 4)
    """
    if len(sizes) <= most:
        return 0
    count, total = 2, sum(sizes[-2:])
    while count < len(sizes) and sizes[-count - 1] <= total:
        total += sizes[-count - 1]
        count += 1
    return count


SAMPLE = 20  # older documents
REFUSED = "the new generation is refused"
CLEARLY = 1e-3  # a score that is smaller by this share is so, and not by rounding
ROUNDING = 1e-6  # a norm or a score that is larger by this share is so, and not by rounding
FRESH = "fresh"  # the folder of a segment that is merged at once
WriteSegment = Callable[[Path, BaseSegment, Sequence[Document], TextRules], LoadedSegment]


class GenerationDraft:
    """What the next generation will search: `base`, shared `segments`, oldest first, and `fresh`, a
    new one, if any.
    """

    def __init__(self, folder: Path, searcher: Searcher, removed: Removed) -> None:
        """folder: empty, for what is added; removed: all that each part has lost. Segments with
        nothing left go.
        """
        views = [
            SegmentView(view.segment, removed.get(view.segment.number, frozenset()))
            for view in searcher.views
        ]
        self.folder, self.current, self.before = folder, searcher.generation, searcher.views
        self.root: BaseSegment = searcher.base
        self.base, self.segments = views[0], [view for view in views[1:] if view.documents]
        self.fresh: SegmentView | None = None

    def add(self, puts: Sequence[Document], write: WriteSegment, most: int) -> None:
        """Write a segment of new documents; where there would be more than `most`, merge it with
        the newest others.
        """
        merged = merge_count([*(view.documents for view in self.segments), len(puts)], most)
        target = self.folder / FRESH if merged else self.folder
        self.fresh = SegmentView(write(target, self.root, puts, self.current.text))
        if merged:
            self.merge(merged - 1)
            shutil.rmtree(target)

    def merge(self, newest: int) -> None:
        """Write one segment of the `newest` shared ones and of the fresh one; of nothing at all,
        none.
        """
        shared, merged = (
            self.segments[: len(self.segments) - newest],
            self.segments[len(self.segments) - newest :],
        )
        merged += [] if self.fresh is None else [self.fresh]
        self.segments, self.fresh = shared, None
        if merged:
            merge_segments(self.folder, merged)
            self.fresh = SegmentView(open_segment(self.root, self.folder))

    def facts(self, number: int) -> dict[str, Any]:
        """What the manifest of generation `number` says of parts and counts; writes `removed.json`
        if that is new.
        """
        shared = [self.base, *self.segments]
        views = shared + ([] if self.fresh is None else [self.fresh])
        before = {view.segment.number: view.removed for view in self.before}
        removed = {view.segment.number: view.removed for view in shared if view.removed}
        # whose `removed.json` holds; it may name other parts too
        lists = self.current.removed if removed else None
        if any(gone != before[number] for number, gone in removed.items()):
            write_removed(self.folder, removed)
            lists = number
        return {
            "base": self.current.base,
            "build": self.current.build,
            "segments": [view.segment.number for view in self.segments]
            + ([] if self.fresh is None else [number]),
            "removed": lists,
            "fingerprint": self.current.fingerprint,
            "text": self.current.manifest["text"],
            "documents": sum(view.documents for view in views),
            "passages": sum(view.passages for view in views),
        }


# by number, the parts of a collection that others have in memory
LoadedSegments = Callable[[], dict[int, LoadedSegment]]


class GenerationBuilder:
    """Changes one retriever's live collection; there must be one writer at a time. Encoder and
    parts stay loaded.
    """

    _write_segment = staticmethod(write_segment)

    def __init__(
        self, live: Path, retriever: str, refine: Refine | None = None, max_segments: int = 8
    ) -> None:
        """refine: what makes the vectors of new documents from the encoder's; None leaves them as
        they are.

        max_segments: additions are searched in so many separate indexes at most; more are merged,
        newest first.
        """
        self.max_segments = max_segments
        self.collection, self.refine = GenerationStore(live, retriever), refine
        self._searcher: Searcher | None = None
        self.loaded: LoadedSegments = dict
        # what is changed in place of the current one: nobody searches it yet
        self.opened: Generation | None = None

    @property
    def searcher(self) -> Searcher:
        """The generation that changes are made to, loaded; parts that were loaded before, or
        elsewhere, are shared.
        """
        generation = self.opened or self.collection.current()
        if self._searcher is None or self._searcher.generation != generation:
            parts = {} if self._searcher is None else self._searcher.parts
            self._searcher = Searcher(self.collection.live, generation, parts | self.loaded())
        return self._searcher

    def apply(
        self,
        changes: Sequence[Change],
        cursor: LedgerCursor,
        provenance: Mapping[str, Any],
        guard: Guard | None = None,
        anew: Ids[str] = (),
    ) -> ApplyResult:
        """Make the net effect of `changes`, in their order, the current generation; only the last
        of a document counts.

        cursor: where the new generation stands in the log. Where nothing changes, one is made
        only to stand there. guard: looks at the new generation before anyone else; if it raises,
        the generation is deleted. FreshetError if the collection is not live, or its build does not
        say how documents become passages; then nothing is changed. anew: see `NetChanges.compute`.
        """
        searcher = self.searcher
        current = searcher.generation
        with verify_checksums_on_error(current):
            net = NetChanges.compute(changes, searcher.views, anew)
            ids = {status: tuple(keys) for status, keys in net.ids.items()}
            applied = ApplyResult(current, **ids, before=current.manifest["documents"])
            if (
                not (applied.added or applied.updated or applied.deleted)
                and cursor == current.cursor
            ):
                return applied
            opened = self._make(searcher, net.removed, net.puts, cursor, provenance)
            applied = replace(applied, generation=opened.generation)
            try:
                if guard is not None:
                    guard(opened, applied)
            except BaseException:
                self.collection.delete(applied.generation.folder)
                raise
            self.collection.set_current(applied.generation)
            self._searcher = opened
        return applied

    def compact(self, cursor: LedgerCursor | None = None) -> Generation:
        """Merge all segments into one, without what is removed from them; the current generation if
        that changes none.

        cursor: that of the current generation, None if it says so itself. No ranking changes:
        vectors are copied, not made again.
        """
        searcher = self.searcher
        current, segments = searcher.generation, searcher.views[1:]
        if not segments or (len(segments) == 1 and not segments[0].removed):
            return current
        removed = {view.segment.number: view.removed for view in searcher.views}
        provenance = {**inherited_provenance(current), "compacted": current.number}
        with verify_checksums_on_error(current):
            self._searcher = self._make(
                searcher, removed, None, cursor or current.cursor, provenance
            )
            return self.collection.set_current(self._searcher.generation)

    def collect_garbage(self, keep: int, registered: Ids[int] = ()) -> tuple[int, ...]:
        """Delete all generations but the `keep` newest, the current one, the `registered`, and what
        these share.

        What a searcher has open stays until the next time.
        """
        if self._searcher is not None:
            self._searcher = self.searcher  # the one before may have open what shall go
        return self.collection.collect_garbage(keep, registered)

    def _make(
        self,
        searcher: Searcher,
        removed: Removed,
        puts: Sequence[Document] | None,
        cursor: LedgerCursor,
        provenance: Mapping[str, Any],
    ) -> Searcher:
        """A generation on top of the searcher's that nobody searches yet; puts: None merges all
        segments instead.
        """
        made_of = searcher.generation.number
        with self.collection.staging_dir(after=made_of) as folder:
            draft = GenerationDraft(folder, searcher, removed)
            if puts is None:
                draft.merge(len(draft.segments))
            elif puts:
                draft.add(puts, partial(self._write_segment, refine=self.refine), self.max_segments)
            number = self.collection.next_number()
            facts = {**draft.facts(number), "provenance": dict(provenance)}
            self.collection.write_manifest(folder, facts, cursor, parent=made_of)
            generation = self.collection.commit(folder, number)
        loaded = searcher.parts
        if draft.fresh is not None:
            draft.fresh.segment.follow(generation.folder)
            loaded[number] = draft.fresh.segment
        return Searcher(self.collection.live, generation, loaded)


def verify_searchable(
    searcher: Searcher, applied: ApplyResult, sample: int = SAMPLE, seed: int = 0
) -> None:
    """Refuse a generation in which a changed document, or one of a sample of the others, is not
    found as it should.

    A fault in vectors, in the list of their documents, or in what is removed, shows as a document
    that its own vector does not find. So every document that changed is asked for by its own
    vector, and some of those that did not.

    Only the part that is new is searched, so that a change costs the same however large the base
    is. That proves the same: parts rank on their own and are merged by score, so one that is shared
    ranks its documents as it did before, and what it loses puts nothing above another. By Cauchy
    and Schwarz it puts a document above one of another part, asked for by its own vector, only by a
    vector that is at least as long, which is no fault. Counting shows that it loses nothing else.
    Searches look through parts together, which ranks alike: the laws hold it to the bit.

    sample: so many others, drawn by the seed and the generation's number. A document counts as
    found if nothing ranks above it for the first of its own vectors but equal ones and longer ones,
    whose inner product may be larger. Kinds that search by words are asked for the document alone.
    FreshetError names the first that fails.
    """
    changed = [*applied.added, *applied.updated]
    owners = {
        key: [view for view in searcher.views if key in view]
        for key in (*applied.deleted, *changed)
    }
    _refuse([key for key in applied.deleted if owners[key]], "deleted, but still there")
    _refuse([key for key in changed if not owners[key]], "added, but in no part")
    _refuse([key for key in changed if len(owners[key]) > 1], "in two parts")
    total, more = (
        sum(view.documents for view in searcher.views),
        len(applied.added) - len(applied.deleted),
    )
    if total != applied.before + more:
        raise FreshetError(
            f"{REFUSED}: it holds {total:,} documents in place of {applied.before:,} and {more:+,}"
        )
    if searcher.base.retriever.dense is None:
        _by_words(searcher, changed)
        return
    older = _sample(searcher.views, {*changed}, sample, [seed, applied.generation.number])
    missed = _lost_documents(searcher, {key: owners[key][0] for key in changed} | older)
    _refuse([key for key in missed if key not in older], "not found by its own vector")
    _refuse(missed, "older, and no longer found by its own vector")


def _lost_documents(searcher: Searcher, owners: Mapping[str, SegmentView]) -> list[str]:
    """Those documents that their own vector does not find before what is new; FreshetError for
    vectors that are no numbers. owners: the part that has each document.
    """
    new = [view for view in searcher.views if view.segment.number == searcher.generation.number]
    if not owners or not new:
        return []
    vectors = first_vectors(owners)
    _refuse([key for key, vector in vectors.items() if not np.isfinite(vector).all()], "not finite")
    _refuse(
        [key for key, vector in vectors.items() if owners[key] in new and not vector.any()],
        "of an empty vector",
    )
    rankings = new[0].segment.dense.search_encoded(np.stack(list(vectors.values())), 1)
    return [
        key
        for (key, vector), ranking in zip(vectors.items(), rankings, strict=True)
        if not _is_found(searcher, key, vector, ranking, owners[key], alone=owners[key] not in new)
    ]


def first_vectors(owners: Mapping[str, SegmentView]) -> dict[str, np.ndarray]:
    """The first vector (H,) of each document, in their order; owners: the dense part that has it."""
    vectors: dict[str, np.ndarray] = {}
    for view in dict.fromkeys(owners.values()):
        index = view.segment.dense.index
        ids, rows = (
            index.ids.document_ids,
            index.ids.rows_of([key for key, owner in owners.items() if owner is view]),
        )
        # so that its first one stays
        vectors |= {ids[row]: index.vectors[row] for row in reversed(rows.tolist())}
    return {key: vectors[key] for key in owners}


def _is_found(
    searcher: Searcher,
    key: str,
    query: np.ndarray,
    ranking: Ranking,
    owner: SegmentView,
    alone: bool,
) -> bool:
    """Whether the document leads the ranking of its own vector, or what does may well lead: by an
    equal score, or by a longer vector, as |q| |d| bounds the inner product of a query with a
    document (Cauchy and Schwarz).

    Scores of a document and its copy are equal but for rounding: processors round an encoding by
    what else is in its batch, so that the copy may come out a little ahead.

    alone: the document's own part was not searched, so that it only has its score. An approximate
    index may miss any.
    """
    if not ranking or ranking[0][0] == key:
        return bool(ranking) or alone
    winner, best = ranking[0]
    square = float(query.astype(np.float64) @ query)  # its own score, but for rounding
    if alone and best < square - CLEARLY * abs(square):
        return True
    score = float(owner.segment.dense.score_encoded(query[None], [[key]])[0][0])
    if score > best:
        return alone or owner.segment.dense.index.approximate is not None
    index = searcher.view_of(winner).segment.dense.index
    longest = max(float(np.linalg.norm(index.vectors[row])) for row in index.ids.rows_of([winner]))
    return best - score <= ROUNDING * abs(best) or longest > float(np.linalg.norm(query)) * (
        1 + ROUNDING
    )


def _by_words(searcher: Searcher, changed: Sequence[str]) -> None:
    for key in changed:
        query: Any = searcher.retriever.encode_queries([key])
        score = searcher.retriever.score_encoded(query, [[key]])[0][0]
        _refuse([] if np.isfinite(score) else [key], "without a score")


def _sample(
    views: Sequence[SegmentView], but: set[str], number: int, seed: list[int]
) -> dict[str, SegmentView]:
    """At most `number` documents that can be found, others than `but`, ascending, with the part
    that has each.
    """
    rows = [view.segment.rows.document_ids for view in views]
    sizes, drawn = np.cumsum([len(ids) for ids in rows]), {}
    for row in np.random.default_rng(seed).integers(0, sizes[-1], number).tolist():
        part = int(np.searchsorted(sizes, row, side="right"))
        key = rows[part][row - sizes[part]]
        if key not in views[part].removed and key not in but:
            drawn[key] = views[part]
    return dict(sorted(drawn.items()))


def _refuse(document_ids: Sequence[str], fault: str) -> None:
    if document_ids:
        more = f" ({len(document_ids)} such in all)" if len(document_ids) > 1 else ""
        raise FreshetError(f"{REFUSED}: document {document_ids[0]!r} is {fault}{more}")
