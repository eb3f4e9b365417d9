"""The one that changes a live collection: every change is a new generation, and the pointer's switch its commit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Collection as Ids
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from model_code.corpus.passages import TextRules
from model_code.documents import Change, Document
from model_code.files import MANIFEST, read_json, verify_file, write_text
from model_code.ledger.events import Standing
from model_code.live.collection import OF_BUILD, Collection
from model_code.live.generation import (
    COLUMNS,
    DOCUMENTS,
    INDEX,
    PASSAGES,
    Generation,
    Intact,
    Removed,
    document_row,
    read_columns,
    write_removed,
    write_rows,
)
from model_code.live.part import Base, Part, PartView, Placements, Refined, open_segment
from model_code.live.searcher import Searcher
from model_code.retrievers.base import NewPassages, Refine


@dataclass(frozen=True)
class Applied:
    """What became of a call's changes: the ids of documents, ascending, and the status of each by its id.

    generation: the one that is current now. A status is "added", "updated", "deleted" or "unchanged".
    before: how many documents could be found in the generation that was changed.
    """

    generation: Generation
    added: tuple[str, ...]
    updated: tuple[str, ...]
    deleted: tuple[str, ...]
    unchanged: tuple[str, ...]
    statuses: Mapping[str, str]
    before: int = 0

    @classmethod
    def of(cls, generation: Generation, statuses: Mapping[str, str], before: int) -> Applied:
        """What the net changes came to, of which `generation` was made; statuses: by ascending id."""
        kinds: dict[str, list[str]] = {"added": [], "updated": [], "deleted": [], "unchanged": []}
        for document_id, status in statuses.items():
            kinds[status].append(document_id)
        return cls(generation, *map(tuple, kinds.values()), statuses, before)


Guard = Callable[[Searcher, Applied], None]
"""Told what an addition came to, with a searcher of the generation that is about to become current; raises to refuse"""


def net_effect(changes: Iterable[Change]) -> list[Change]:
    """The last change of each document, by ascending id: so the order of different documents does not matter.

    >>> from model_code.documents import Remove
    >>> [change.document_id for change in net_effect([Document("b", "B", "old"), Remove("a"), Document("b", "B", "")])]
    ['a', 'b']
    """
    last = {change.document_id: change for change in changes}
    return [last[document_id] for document_id in sorted(last)]


@dataclass
class NetChanges:
    """The documents to add, by ascending id, the status of every document that was named, and what each part loses."""

    puts: list[Document] = field(default_factory=list)
    statuses: dict[str, str] = field(default_factory=dict)
    lost: dict[int, set[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, changes: Iterable[Change], views: Sequence[PartView], anew: Ids[str] = ()) -> NetChanges:
        """The effect of `changes`, in their order, on the parts of a generation.

        A put of equal content, and the removal of a document that is not there, leave their document "unchanged".
        anew: documents that are put also with equal content, as they were changed in between.
        """
        net = cls()
        for change in net_effect(changes):
            key, put = change.document_id, isinstance(change, Document)
            owner = _owner(views, key)
            same = put and owner is not None and owner.part.content_hashes[key] == change.content_hash
            if (same and key not in anew) or not (put or owner):
                net.statuses[key] = "unchanged"
                continue
            net.statuses[key] = "deleted" if not put else "updated" if owner else "added"
            if put:
                net.puts.append(change)
            if owner is not None:
                net.lost.setdefault(owner.part.number, set()).add(key)
        return net

    def removed(self, views: Sequence[PartView]) -> Removed:
        """All that the parts have lost when the changes are made."""
        return {view.part.number: view.removed | self.lost.get(view.part.number, set()) for view in views}


def steps(changes: Iterable[Change], views: Sequence[PartView]) -> list[Change]:
    """Those of `changes` that change a document when all are made one after the other, in their order.

    Unlike the net effect they hold what later ones undo or overwrite: vectors that were found in between depend on it.
    """
    found: list[Change] = []
    contents: dict[str, str | None] = {}
    for change in changes:
        document_id, after = change.document_id, change.content_hash if isinstance(change, Document) else None
        before = contents[document_id] if document_id in contents else _content_hash(views, document_id)
        if before != after:
            found.append(change)
        contents[document_id] = after
    return found


def _owner(views: Sequence[PartView], document_id: str) -> PartView | None:
    """The part that has a document."""
    return next((view for view in reversed(views) if document_id in view), None)


def _content_hash(views: Sequence[PartView], document_id: str) -> str | None:
    owner = _owner(views, document_id)
    return None if owner is None else owner.part.content_hashes[document_id]


def crowded(sizes: Sequence[int], most: int) -> int:
    """How many of the newest segments to merge, 0 where there are at most `most`; sizes: documents, oldest first.

    The newest two, and older ones as long as each is at most as large as what is merged already. So a document is
    copied only when its segment at least doubles, or when it is among the newest.

    >>> crowded([1, 1, 1], most=3), crowded([9, 1, 1, 1], most=3), crowded([3, 2, 1, 1], most=3)
    (0, 3, 4)
    """
    if len(sizes) <= most:
        return 0
    taken, total = 2, sum(sizes[-2:])
    while taken < len(sizes) and sizes[-taken - 1] <= total:
        total += sizes[-taken - 1]
        taken += 1
    return taken


def write_segment(folder: Path, base: Base, puts: Sequence[Document], text: TextRules, refine: Refine | None) -> Part:
    """Encode, index and place the documents of `puts`, which differ, in `folder`; encoder and tree are the base's.

    Returns the segment, loaded.
    """
    new = new_passages(puts, text, refine)
    base.retriever.write_segment(folder / INDEX, new)
    write_rows(map(document_row, puts), folder / DOCUMENTS)
    _write_passages(folder, new.document_ids)
    part = open_segment(base, folder)
    Placements.find(base.tree, part.retriever.passage_vectors(new.document_ids)).save(folder)
    return part


def new_passages(puts: Sequence[Document], text: TextRules, refine: Refine | None = None) -> NewPassages:
    """The passages of documents, which differ, in their order."""
    passages = [(put.document_id, passage) for put in puts for passage in text.passages(put.title, put.text)]
    ids, texts = [document for document, _ in passages], [passage for _, passage in passages]
    return NewPassages(texts, ids, {put.document_id: put.queries for put in puts if put.queries}, refine)


def merge_segments(folder: Path, views: Sequence[PartView]) -> None:
    """One segment in `folder` of what is left of several, as it is: nothing is encoded or placed anew."""
    views = [view for view in views if view.documents]
    for view in views:
        if (view.part.folder / MANIFEST).is_file():  # all but the one that is being made
            verify_file(view.part.folder, read_json(view.part.folder / MANIFEST), DOCUMENTS)
    parts = [(view.part.retriever, view.document_ids()) for view in views]
    views[0].part.retriever.merge(parts, folder / INDEX)
    documents, ids, placements = [], [], []
    for view in views:
        columns = read_columns(view.part.documents, *COLUMNS)
        documents += [dict(zip(COLUMNS, row, strict=True)) for row in zip(*columns, strict=True) if row[0] in view]
        rows = view.part.rows.rows_of(view.document_ids())
        ids += [view.part.rows.document_ids[row] for row in rows.tolist()]
        placements.append(view.part.placements.take(rows))
    write_rows(documents, folder / DOCUMENTS)
    _write_passages(folder, ids)
    Placements.join(placements).save(folder)
    Refined.joined(views).save(folder)


def _write_passages(folder: Path, document_ids: Sequence[str]) -> None:
    write_text(folder / PASSAGES, json.dumps(list(document_ids), ensure_ascii=False, separators=(",", ":")))


FRESH = "fresh"  # the folder of a segment that is merged at once
WriteSegment = Callable[[Path, Base, Sequence[Document], TextRules], Part]


class Draft:
    """What the next generation will search: `base`, the `segments` that it shares, oldest first, and `own`, if any."""

    def __init__(self, folder: Path, searcher: Searcher, removed: Removed) -> None:
        """folder: empty, for what is added; removed: all that each part has lost. Segments with nothing left go."""
        views = [PartView(view.part, removed.get(view.part.number, frozenset())) for view in searcher.views]
        self.folder, self.current, self.before = folder, searcher.generation, searcher.views
        self.root: Base = searcher.base
        self.base, self.segments = views[0], [view for view in views[1:] if view.documents]
        self.own: PartView | None = None

    def add(self, puts: Sequence[Document], write: WriteSegment, most: int) -> None:
        """Write a segment of new documents; where there would be more than `most`, merge it with the newest others."""
        merged = crowded([*(view.documents for view in self.segments), len(puts)], most)
        target = self.folder / FRESH if merged else self.folder
        self.own = PartView(write(target, self.root, puts, self.current.text))
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
            self.own = PartView(open_segment(self.root, self.folder))

    def facts(self, number: int) -> dict[str, Any]:
        """What the manifest of generation `number` says of parts and counts; writes `removed.json` if that is new."""
        shared = [self.base, *self.segments]
        views = shared + ([] if self.own is None else [self.own])
        before = {view.part.number: view.removed for view in self.before}
        removed = {view.part.number: view.removed for view in shared if view.removed}
        lists = self.current.removed if removed else None  # whose `removed.json` holds; it may name other parts too
        if any(gone != before[number] for number, gone in removed.items()):
            write_removed(self.folder, removed)
            lists = number
        return {
            "base": self.current.base,
            "build": self.current.build,
            "segments": [view.part.number for view in self.segments] + ([] if self.own is None else [number]),
            "removed": lists,
            "fingerprint": self.current.fingerprint,
            "text": self.current.manifest["text"],
            "documents": sum(view.documents for view in views),
            "passages": sum(view.passages for view in views),
        }


class LiveWriter:
    """Changes one retriever's live collection; there must be one writer at a time. Encoder and parts stay loaded."""

    _write_segment = staticmethod(write_segment)

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
        current = searcher.generation
        before = current.manifest["documents"]
        with Intact(current):
            net = self._net(changes, searcher.views)
            if not (net.puts or net.lost) and standing == current.standing:
                return Applied.of(current, net.statuses, before)
            opened = self._make(searcher, net.removed(searcher.views), net.puts, standing, provenance)
            applied = Applied.of(opened.generation, net.statuses, before)
            try:
                if guard is not None:
                    guard(opened, applied)
            except BaseException:
                self.collection.delete(applied.generation.folder)
                raise
            self.collection.switch(applied.generation)
            self._searcher = opened
        return applied

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
            self._searcher = self._make(searcher, removed, None, standing or current.standing, provenance)
            return self.collection.switch(self._searcher.generation)

    def collect_garbage(self, keep: int, registered: Ids[int] = ()) -> tuple[int, ...]:
        """Delete all generations but the `keep` newest, the current one, the `registered`, and what these share.

        What a searcher has open stays until the next time.
        """
        if self._searcher is not None:
            self._searcher = self.searcher  # the one before may have open what shall go
        return self.collection.collect_garbage(keep, registered)

    def _net(self, changes: Sequence[Change], views: Sequence[PartView]) -> NetChanges:
        """What `changes` come to in the current generation."""
        return NetChanges.of(changes, views)

    def _make(
        self,
        searcher: Searcher,
        removed: Removed,
        puts: Sequence[Document] | None,
        standing: Standing,
        provenance: Mapping[str, Any],
    ) -> Searcher:
        """A generation on top of the searcher's that nobody searches yet; puts: None merges all segments instead."""
        made_of = searcher.generation.number
        with self.collection.aside(after=made_of) as folder:
            draft = Draft(folder, searcher, removed)
            if puts is None:
                draft.merge(len(draft.segments))
            elif puts:
                draft.add(puts, partial(self._write_segment, refine=self.refine), self.max_segments)
            number = self.collection.next_number()
            facts = {**draft.facts(number), "provenance": dict(provenance)}
            manifest = self.collection.seal(folder, facts, standing, parent=made_of)
            generation = self.collection.keep(folder, number, manifest)
        if draft.own is None:
            return searcher.at(generation)
        draft.own.part.follow(generation.folder)
        return searcher.at(generation, draft.own.part)
