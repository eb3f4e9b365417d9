"""A generation in the making: the parts that it shares, and the segment that its own folder gets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from model_code.documents import Document
from model_code.files import read_json, write_text
from model_code.live.documents import COLUMNS, document_row, read_columns, write_rows
from model_code.live.generation import DOCUMENTS, INDEX, PASSAGES, Removed, write_removed
from model_code.live.part import Base, Part, PartView, Placements, open_segment
from model_code.live.searcher import Searcher
from model_code.live.texts import TextRules
from model_code.manifest import MANIFEST, verify_file
from model_code.retrievers.base import NewPassages, Refine


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


def _write_passages(folder: Path, document_ids: Sequence[str]) -> None:
    write_text(folder / PASSAGES, json.dumps(list(document_ids), ensure_ascii=False, separators=(",", ":")))


FRESH = "fresh"  # the folder of a segment that is merged at once


class Draft:
    """What the next generation will search: `base`, the `segments` that it shares, oldest first, and `own`, if any."""

    def __init__(self, folder: Path, searcher: Searcher, removed: Removed) -> None:
        """folder: empty, for what is added; removed: all that each part has lost. Segments with nothing left go."""
        views = [PartView(view.part, removed.get(view.part.number, frozenset())) for view in searcher.views]
        self.folder, self.current, self.before = folder, searcher.generation, searcher.views
        self.root: Base = searcher.base
        self.base, self.segments = views[0], [view for view in views[1:] if view.documents]
        self.own: PartView | None = None

    def add(self, puts: Sequence[Document], refine: Refine | None, most: int) -> None:
        """Write a segment of new documents; where there would be more than `most`, merge it with the newest others."""
        merged = crowded([*(view.documents for view in self.segments), len(puts)], most)
        target = self.folder / FRESH if merged else self.folder
        self.own = PartView(write_segment(target, self.root, puts, self.current.text, refine))
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

    def _removed(self, shared: Sequence[PartView], number: int) -> int | None:
        """The generation whose `removed.json` holds for these parts; it may name others too."""
        before = {view.part.number: view.removed for view in self.before}
        if not any(view.removed for view in shared):
            return None
        if all(view.removed == before[view.part.number] for view in shared):
            return self.current.removed
        write_removed(self.folder, {view.part.number: view.removed for view in shared if view.removed})
        return number
