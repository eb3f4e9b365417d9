"""One folder of documents: the base that was built, or a segment that was added. Written, loaded
and merged; shared by many generations.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import load_file, save_file

from model_code.collection.segments.documents import (
    COLUMNS,
    DOCUMENTS,
    ENCODER,
    HIERARCHY,
    INDEX,
    PASSAGES,
    DocumentFile,
    document_row,
    read_columns,
    write_rows,
)
from model_code.collection.segments.folder_lock import SharedFolderLock
from model_code.errors import FingerprintMismatch, FreshetError
from model_code.files import MANIFEST, atomic_write, read_json, verify_file_checksum, write_json
from model_code.hierarchy.tree import TOPICS, Hierarchy
from model_code.retrieval.id_map import IdMap
from model_code.retrieval.indexed import IndexedRetriever, NewPassages, Refine, RetrieverSegment
from model_code.retrieval.kinds import open_retriever
from model_code.text.documents import Document
from model_code.text.passages import TextRules

if TYPE_CHECKING:
    from model_code.collection.segments.filters import Index
    from model_code.retrieval.dense import DenseRetriever

PLACEMENTS = "placements.safetensors"
REFINED, REPRESENTATIVES = "refined.json", "refined.npy"


@dataclass(frozen=True, eq=False)
class Placements:
    """Of n passages: `paths` (n, depth) int32, and the `cosines` (n,) float32 to the centroids of
    the nearest leaves.

    The path of a passage that the tree was clustered from is that of the clustering, the nearest
    leaf or not.
    """

    paths: np.ndarray
    cosines: np.ndarray

    @classmethod
    def find(cls, tree: Hierarchy, vectors: np.ndarray) -> Placements:
        """Place passages with `vectors` (n, H) of any norm."""
        units = normalize_rows(vectors)
        paths = tree.place(units)
        return cls(
            paths, np.einsum("nh,nh->n", units, tree.centroids[-1][paths[:, -1]], dtype=np.float32)
        )

    def save(self, folder: Path) -> None:
        """Write the file; equal placements give equal bytes."""
        with atomic_write(folder / PLACEMENTS) as aside:
            save_file({"paths": np.ascontiguousarray(self.paths), "cosines": self.cosines}, aside)

    @classmethod
    def load(cls, folder: Path) -> Placements:
        """Read what `save` wrote."""
        return cls(**load_file(folder / PLACEMENTS))

    @classmethod
    def join(cls, parts: list[Placements]) -> Placements:
        """Those of several lists of passages, one after the other."""
        return cls(
            np.concatenate([part.paths for part in parts]),
            np.concatenate([part.cosines for part in parts]),
        )

    def take(self, rows: np.ndarray) -> Placements:
        """Those of some passages."""
        return Placements(self.paths[rows], self.cosines[rows])


@dataclass(frozen=True, eq=False)
class Refined:
    """What is remembered of a segment's documents that IncDSI placed, in their order: the name of
    each one's `Status`, and of those of one vector the mean (H,) of what they should be found by,
    Z.
    """

    statuses: dict[str, str] = field(default_factory=dict)
    queries: dict[str, np.ndarray] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write the files, if anything was refined; equal rows give equal bytes."""
        if self.statuses:
            write_json(
                folder / REFINED, {"documents": list(self.queries), "statuses": self.statuses}
            )
            with atomic_write(folder / REPRESENTATIVES) as aside, aside.open("wb") as stream:
                np.save(stream, np.array(list(self.queries.values()), np.float32))

    @classmethod
    def load(cls, folder: Path) -> Refined:
        """Read what `save` wrote; empty where it wrote nothing."""
        if not (folder / REFINED).is_file():
            return cls()
        stated = read_json(folder / REFINED)
        rows = np.load(folder / REPRESENTATIVES, mmap_mode="r")
        return cls(stated["statuses"], dict(zip(stated["documents"], rows, strict=True)))

    @classmethod
    def joined(cls, views: Sequence[SegmentView]) -> Refined:
        """Of what is left of several parts."""
        statuses: dict[str, str] = {}
        queries: dict[str, np.ndarray] = {}
        for view in views:
            refined = cls.load(view.segment.folder)
            statuses |= {key: status for key, status in refined.statuses.items() if key in view}
            queries |= {key: row for key, row in refined.queries.items() if key in view}
        return cls(statuses, queries)


def recenter_hierarchy(tree: Hierarchy, vectors: np.ndarray) -> Hierarchy:
    """The same tree with the centroids of other `vectors` (N, H) of its passages.

    A node's centroid is the mean of the unit vectors below it, scaled to unit norm, as in spherical
    k-means.
    """
    starts = np.searchsorted(tree.leaves[tree.order], np.arange(len(tree.parents[-1])))
    # (leaves, H)
    sums = np.add.reduceat(normalize_rows(vectors)[tree.order], starts, axis=0, dtype=np.float64)
    centroids = [normalize_rows(sums)]
    for parents in tree.parents[:0:-1]:
        sums = np.add.reduceat(sums, np.searchsorted(parents, np.arange(parents[-1] + 1)), axis=0)
        centroids.insert(0, normalize_rows(sums))
    return Hierarchy(tuple(centroids), tree.parents, tree.leaves)


def normalize_rows(vectors: np.ndarray) -> np.ndarray:
    """Rows scaled to unit norm, float32; a row of zeros stays one.

    >>> normalize_rows(np.array([[0.0, 0.5], [0.0, 0.0]])).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(norms > 0, norms, 1)).astype(np.float32)


class LoadedSegment:
    """Retriever, documents and places of a folder; `rows`: the document of each passage that is
    placed.

    Texts stay on disk, and what only some callers need is read by the first of them and kept. So
    nobody deletes the folder before this object is freed.
    """

    def __init__(self, folder: Path, retriever: IndexedRetriever, rows: IdMap) -> None:
        """FileNotFoundError if the folder was deleted meanwhile."""
        self.lock = SharedFolderLock(folder)
        self.folder, self.retriever, self.rows = folder, retriever, rows
        # of its generation, if that is made
        self.number = int(folder.name) if folder.name.isdigit() else None

    def follow(self, folder: Path) -> None:
        """Note that the folder has got another name: what of it is open stays so."""
        self.folder = self.lock.folder = folder
        self.number = int(folder.name)

    @property
    def documents(self) -> Path:
        """The file of the documents."""
        return self.folder / DOCUMENTS

    @cached_property
    def document_file(self) -> DocumentFile:
        """Where single documents are looked up."""
        return DocumentFile(self.documents)

    @cached_property
    def dense(self) -> DenseRetriever:
        """What of the retriever makes one vector of a query; FreshetError if nothing of it does."""
        if self.retriever.dense is None:
            raise FreshetError(f"a {self.kind} retriever makes no vectors of queries")
        return self.retriever.dense

    @cached_property
    def sorted_ids(self) -> list[str]:
        """The documents, ascending."""
        return sorted(set(self.rows.document_ids))

    @cached_property
    def kind(self) -> str:
        """The retriever's kind."""
        name: str = read_json(self.folder / INDEX / MANIFEST)["kind"]
        return name

    @cached_property
    def placements(self) -> Placements:
        """Where the passages stand in the hierarchy."""
        return Placements.load(self.folder)

    @cached_property
    def content_hashes(self) -> dict[str, str]:
        """The content hash of each document."""
        return dict(zip(*read_columns(self.documents, "document_id", "content_hash"), strict=True))

    @cached_property
    def fields(self) -> Index:
        """Which documents have which fields."""
        # as a search without filters does without
        from model_code.collection.segments.filters import read_fields

        return read_fields(self.documents)


class BaseSegment(LoadedSegment):
    """The part that was built, with the hierarchy that all passages are placed in."""

    def __init__(
        self, folder: Path, retriever: IndexedRetriever, rows: IdMap, tree: Hierarchy
    ) -> None:
        super().__init__(folder, retriever, rows)
        self.tree = tree

    @classmethod
    def open(cls, folder: Path, fingerprint: str) -> BaseSegment:
        """Load a base; FingerprintMismatch if its encoder does not have the fingerprint that the
        manifest states.
        """
        retriever = open_retriever(folder / ENCODER, folder / INDEX)
        if retriever.fingerprint != fingerprint:
            raise FingerprintMismatch(
                f"{folder}: its encoder has fingerprint {retriever.fingerprint[:12]}, its manifest says "
                f"{fingerprint[:12]}; the folder was changed: freshet repair"
            )
        return cls(
            folder,
            retriever,
            IdMap(read_json(folder / PASSAGES)),
            Hierarchy.load(folder / HIERARCHY),
        )

    @cached_property
    def topics(self) -> list[list[str]]:
        """The names of the tree's nodes, level by level; none where an earlier version built it."""
        path = self.folder / HIERARCHY / TOPICS
        return read_json(path) if path.is_file() else []


def open_segment(base: LoadedSegment, folder: Path) -> LoadedSegment:
    """Load a segment, whose vectors must be of the encoder of `base`."""
    return LoadedSegment(
        folder, base.retriever.reopen(folder / INDEX), IdMap(read_json(folder / PASSAGES))
    )


@dataclass(frozen=True, eq=False)
class SegmentView:
    """A part as a generation sees it: without the documents that are removed by then."""

    segment: LoadedSegment
    removed: frozenset[str] = frozenset()

    @cached_property
    def searchable(self) -> RetrieverSegment:
        """The retriever's side of it."""
        return RetrieverSegment(self.segment.retriever, self.segment.rows, self.removed)

    def __contains__(self, document_id: object) -> bool:
        """Whether the document is in the part and not removed."""
        return document_id in self.segment.rows.rows_by_document and document_id not in self.removed

    @cached_property
    def documents(self) -> int:
        """Number of documents that can be found."""
        return len(self.segment.rows.rows_by_document) - len(self.removed)

    @property
    def passages(self) -> int:
        """Number of passages that can be found."""
        return len(self.segment.rows) - len(self.segment.rows.rows_of(self.removed))

    def ids_after(self, after: str) -> Iterator[str]:
        """The documents that can be found beyond an id, ascending."""
        ids = self.segment.sorted_ids
        return (
            ids[i] for i in range(bisect_right(ids, after), len(ids)) if ids[i] not in self.removed
        )

    def document_ids(self) -> list[str]:
        """The documents that can be found, ascending."""
        return sorted(set(self.segment.rows.document_ids) - self.removed)


def write_segment(
    folder: Path,
    base: BaseSegment,
    puts: Sequence[Document],
    text: TextRules,
    refine: Refine | None,
) -> LoadedSegment:
    """Encode, index and place the documents of `puts`, which differ, in `folder`; encoder and tree
    are the base's.

    Returns the segment, loaded.
    """
    new = new_passages(puts, text, refine)
    base.retriever.write_segment(folder / INDEX, new)
    write_rows(map(document_row, puts), folder / DOCUMENTS)
    write_json(folder / PASSAGES, list(new.document_ids), lines=False)
    part = open_segment(base, folder)
    Placements.find(base.tree, part.retriever.passage_vectors(new.document_ids)).save(folder)
    return part


def new_passages(
    puts: Sequence[Document], text: TextRules, refine: Refine | None = None
) -> NewPassages:
    """The passages of documents, which differ, in their order."""
    passages = [
        (put.document_id, passage) for put in puts for passage in text.passages(put.title, put.text)
    ]
    ids, texts = [document for document, _ in passages], [passage for _, passage in passages]
    return NewPassages(
        texts, ids, {put.document_id: put.queries for put in puts if put.queries}, refine
    )


def merge_segments(folder: Path, views: Sequence[SegmentView]) -> None:
    """One segment in `folder` of what is left of several, as it is: nothing is encoded or placed
    anew.
    """
    views = [view for view in views if view.documents]
    for view in views:
        if (view.segment.folder / MANIFEST).is_file():  # all but the one that is being made
            verify_file_checksum(
                view.segment.folder, read_json(view.segment.folder / MANIFEST), DOCUMENTS
            )
    parts = [(view.segment.retriever, view.document_ids()) for view in views]
    views[0].segment.retriever.merge(parts, folder / INDEX)
    documents, ids, placements = [], [], []
    for view in views:
        columns = read_columns(view.segment.documents, *COLUMNS)
        documents += [
            dict(zip(COLUMNS, row, strict=True))
            for row in zip(*columns, strict=True)
            if row[0] in view
        ]
        rows = view.segment.rows.rows_of(view.document_ids())
        ids += [view.segment.rows.document_ids[row] for row in rows.tolist()]
        placements.append(view.segment.placements.take(rows))
    write_rows(documents, folder / DOCUMENTS)
    write_json(folder / PASSAGES, ids, lines=False)
    Placements.join(placements).save(folder)
    Refined.joined(views).save(folder)
