"""Segments: immutable folders, each with an index of some documents.

The base segment holds the documents that the retriever was built from. Each further segment holds
documents that were added later. A segment is never changed. Instead, a generation, which is a
snapshot of the whole index, lists its segments and the documents that are removed from them. So
many generations share the same segments. Small segments are merged into a new one from time to
time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from model_code.collection.segments.documents import (
    COLUMNS,
    DOCUMENTS,
    ENCODER,
    HIERARCHY,
    INDEX,
    PASSAGES,
    DocumentFile,
    added_segment_queries,
    any_document_expires,
    document_from_row,
    document_row,
    read_columns,
    row_queries,
    select_judged,
    write_rows,
)
from model_code.collection.segments.folder_lock import SharedFolderLock
from model_code.collection.segments.known_overrides import KnownOverrides
from model_code.collection.segments.placements import Placements
from model_code.collection.segments.refined import RefinedDocuments
from model_code.collection.segments.solved import SolvedDocuments, solved_ids
from model_code.corpus.corpus_queries import (
    KNOWN_QUERIES,
    CorpusQueries,
    drop_held_out,
    queries_of_row,
)
from model_code.encoding.ahead import MAX_WAITING_TEXTS
from model_code.errors import FingerprintMismatch, FreshetError
from model_code.files import MANIFEST, read_json, verify_file_checksum, write_json
from model_code.hierarchy.tree import TOPICS, Hierarchy
from model_code.retrieval.id_map import IdMap, read_id_map
from model_code.retrieval.indexed import IndexedRetriever, NewPassages, Refine, RetrieverSegment
from model_code.retrieval.kinds import open_retriever
from model_code.retrieval.packed_ids import NOT_FOUND, SortedIds
from model_code.text.documents import Document
from model_code.text.headlines import make_headline
from model_code.text.known_queries import KnownQuery
from model_code.text.passages import TextRules

if TYPE_CHECKING:
    from model_code.collection.segments.conditions import FieldValue
    from model_code.collection.segments.field_index import FieldIndex
    from model_code.retrieval.dense import DenseRetriever
    from model_code.retrieval.relevance_floor import RelevanceFloor

NOTHING_JUDGED: Mapping[str, Sequence[KnownQuery]] = MappingProxyType({})
"""Default of `new_passages`: the build has no judgements."""


class LoadedSegment:
    """An open segment: its retriever in memory, and access to its documents on the disk.

    Data that only some callers need is read from the folder on first use. Therefore the folder is
    locked: it cannot be deleted before this object is garbage collected.

    Attributes:
        folder: Folder of the segment.
        retriever: Retriever over the passages of the segment.
        rows: Document id of each passage, in the order of the index.
        number: Number of the generation that the segment was written for. None while the segment is
            being written.
        lock: Shared lock on the folder.
        base: Base segment with which this one was opened. None if this is a base segment.
    """

    def __init__(
        self,
        folder: Path,
        retriever: IndexedRetriever,
        rows: IdMap,
        base: BaseSegment | None = None,
    ) -> None:
        """Lock the folder of a segment.

        Args:
            folder: Folder of the segment.
            retriever: Retriever over the passages of the segment.
            rows: Document id of each passage, in the order of the index.
            base: Base segment, unless this is one.

        Raises:
            FileNotFoundError: If the folder was deleted meanwhile.
        """
        self.lock = SharedFolderLock(folder)
        self.folder = folder
        self.retriever = retriever
        self.rows = rows
        self.base = base
        self.number = int(folder.name) if folder.name.isdigit() else None

    def follow(self, folder: Path) -> None:
        """Use another path after the folder was renamed. Files that are open stay open.

        Args:
            folder: New path of the folder. Its name is the number of a generation.
        """
        self.folder = folder
        self.lock.folder = folder
        self.number = int(folder.name)

    @property
    def documents(self) -> Path:
        """Path of the file that holds the documents."""
        return self.folder / DOCUMENTS

    @cached_property
    def document_file(self) -> DocumentFile:
        """Reader of single documents by their ids."""
        return DocumentFile(self.documents)

    @cached_property
    def dense(self) -> DenseRetriever:
        """The dense retriever, or the dense component of a fusion.

        Raises:
            FreshetError: If the retriever has no dense component.
        """
        if self.retriever.dense is None:
            raise FreshetError(f"a {self.kind} retriever makes no vectors of queries")
        return self.retriever.dense

    @property
    def sorted_ids(self) -> SortedIds:
        """Ids of all documents, ascending."""
        return self.rows.ids

    @cached_property
    def kind(self) -> str:
        """Kind of the retriever, such as "dense" or "fused"."""
        name: str = read_json(self.folder / INDEX / MANIFEST)["kind"]
        return name

    @cached_property
    def placements(self) -> Placements:
        """Node of each passage in the hierarchy, the tree of passage clusters."""
        return Placements.load(self.folder)

    @cached_property
    def solved_ids(self) -> frozenset[str]:
        """Ids of the documents whose vectors IncDSI solved."""
        return solved_ids(self.folder)

    @cached_property
    def content_hashes(self) -> dict[str, str]:
        """Content hash of each document, by document id."""
        return dict(zip(*read_columns(self.documents, "document_id", "content_hash"), strict=True))

    @cached_property
    def known_queries(self) -> dict[str, list[KnownQuery]]:
        """The queries that documents of the segment are known to answer, by document id.

        They are the queries that the documents were delivered with. A document that replaces one of
        the build also keeps the queries that judgements of the build assign to it. Later feedback
        of users is not included.
        """
        if self.base is None:
            return row_queries(self.documents)
        document_ids = self.rows.rows_by_document
        return added_segment_queries(self.documents, document_ids, self.base.judged_queries)

    @cached_property
    def field_index(self) -> FieldIndex:
        """Index of the documents' fields. It numbers the documents in the order of `sorted_ids`."""
        from model_code.collection.segments.field_index import FIELD_INDEX, FieldIndex

        return FieldIndex.load(self.folder / FIELD_INDEX)

    @property
    def may_expire(self) -> bool:
        """Whether some document may have the field `expires`, a date after which it is hidden."""
        return any_document_expires(self.documents)

    def values_of(self, field: str, document_ids: Sequence[str]) -> list[list[FieldValue]]:
        """Return the values of a field for each given document of the segment.

        Args:
            field: Name of the field.
            document_ids: Ids of documents in the segment.
        """
        numbers = self.sorted_ids.find(document_ids)
        return self.field_index.values_of(field, numbers.tolist())


class BaseSegment(LoadedSegment):
    """The segment of the documents that the retriever was built from.

    All other segments use the encoder and the hierarchy of the base segment.

    Attributes:
        tree: Hierarchy of passages, which also classifies the passages of other segments.
        floor: Relevance floor of the retriever, the fit below which a hit is probably no answer.
            None before the first search that needs it.
        built: Retriever as it was built. `retriever` differs if a retune chose other weights.
        weights: Weights that a retune chose. None: those of the build.
    """

    floor: RelevanceFloor | None = None

    def __init__(
        self, folder: Path, retriever: IndexedRetriever, rows: IdMap, tree: Hierarchy
    ) -> None:
        super().__init__(folder, retriever, rows)
        self.tree = tree
        self.built = retriever
        self.weights: Mapping[str, float] | None = None

    @classmethod
    def open(cls, folder: Path, fingerprint: str) -> BaseSegment:
        """Open a base segment, which holds the documents of a build.

        Args:
            folder: Folder of the segment.
            fingerprint: Fingerprint that the encoder must have, from the manifest of the folder. It
                identifies the encoder's weights and settings.

        Raises:
            FingerprintMismatch: If the encoder has another fingerprint.
        """
        retriever = open_retriever(folder / ENCODER, folder / INDEX, numpy=True)
        if retriever.fingerprint != fingerprint:
            raise FingerprintMismatch(
                f"{folder}: its encoder has fingerprint {retriever.fingerprint[:12]}, its manifest "
                f"says {fingerprint[:12]}; the folder was changed: freshet repair"
            )
        rows = read_id_map(folder / PASSAGES)
        return cls(folder, retriever, rows, Hierarchy.load(folder / HIERARCHY))

    def with_weights(self, weights: Mapping[str, float] | None) -> BaseSegment:
        """Return the segment with other weights of its fusion; this one if they are the same.

        A fusion ranks documents by a weighted sum of its components' scores.

        Args:
            weights: Weight of each component. None: those of the build.
        """
        if weights == self.weights:
            return self
        retriever = self.built
        if weights is not None:
            retriever = retriever.with_weights(weights)
        segment = BaseSegment(self.folder, retriever, self.rows, self.tree)
        segment.built = self.built
        segment.weights = weights
        return segment

    @cached_property
    def build_queries(self) -> CorpusQueries:
        """Queries that documents of the build are known to answer; empty if the build wrote none.

        It also has the hashes of the queries that evaluate the build, which must not be indexed.
        """
        path = self.folder / KNOWN_QUERIES
        return CorpusQueries.load(path) if path.is_file() else CorpusQueries()

    @cached_property
    def known_queries(self) -> dict[str, list[KnownQuery]]:
        """The queries that documents of the build are known to answer, by document id.

        A document is known to answer a query if a training judgement says so, or if it was
        delivered with the query (a row's `queries`). Each `KnownQuery` states which of these it is,
        and a weight. A negative weight says that the document does not answer the query.

        The build writes all of them to one file. If it wrote none, there are only the queries that
        the documents were delivered with, which are stored beside their texts.
        """
        build_wrote_known_queries = (self.folder / KNOWN_QUERIES).is_file()
        if build_wrote_known_queries:
            return self.build_queries.by_document()
        return row_queries(self.documents)

    def judged_queries(self, document_id: str) -> list[KnownQuery]:
        """Return the queries for which training judgements of the build call a document relevant.

        The result is empty for documents that are not in the build, and if the build wrote no known
        queries: the queries in the rows of documents are no judgements.
        """
        if document_id not in self.rows or not (self.folder / KNOWN_QUERIES).is_file():
            return []
        return select_judged(self.known_queries.get(document_id, ()))

    def trained_feedback(self, document_id: str) -> frozenset[str]:
        """Return hashes of the queries that the build trained the document for by feedback alone.

        The build does not know these queries; see `CorpusQueries.trained_feedback`.
        """
        return self._trained_feedback.get(document_id, frozenset())

    @cached_property
    def _trained_feedback(self) -> dict[str, frozenset[str]]:
        """Hashes of the queries that documents were trained for by feedback, by document id."""
        hashes: dict[str, set[str]] = {}
        for document_id, text_hash in self.build_queries.trained_feedback:
            hashes.setdefault(document_id, set()).add(text_hash)
        return {document_id: frozenset(found) for document_id, found in hashes.items()}

    @cached_property
    def topics(self) -> list[list[str]]:
        """Names of the passage clusters, level by level. Empty if the build did not name them."""
        path = self.folder / HIERARCHY / TOPICS
        return read_json(path) if path.is_file() else []


def open_segment(base: BaseSegment, folder: Path) -> LoadedSegment:
    """Open a segment of added documents.

    Args:
        base: Base segment. Its encoder made the vectors of the segment.
        folder: Folder of the segment.
    """
    retriever = base.retriever.reopen(folder / INDEX)
    return LoadedSegment(folder, retriever, read_id_map(folder / PASSAGES), base)


@dataclass(frozen=True, eq=False)
class SegmentView:
    """A segment with the changes that one generation records about it.

    Documents of the segment that are not removed are called live.

    Attributes:
        segment: The segment, which is the same for all generations.
        removed: Ids of the documents that are removed in this generation.
        known: Queries that documents are known to answer, by document id, for documents whose
            known queries changed after the segment was written. They replace those in the segment.
    """

    segment: LoadedSegment
    removed: frozenset[str] = frozenset()
    known: KnownOverrides = field(default_factory=dict)

    @cached_property
    def searchable(self) -> RetrieverSegment:
        """The segment in the form in which retrievers search several segments together."""
        return RetrieverSegment(self.segment.retriever, self.segment.rows, self.removed, self.known)

    def with_known(self, overrides: KnownOverrides) -> SegmentView:
        """Return this view with changed known queries of its live documents.

        Feedback can change known queries after indexing.

        Args:
            overrides: Evidence about known queries by document id. Documents of other segments are
                ignored.
        """
        known: dict[str, Sequence[KnownQuery]] = {}
        for document_id, queries in overrides.items():
            if document_id in self:
                known[document_id] = queries
        return replace(self, known=known)

    def known_queries(
        self, document_ids: Collection[str] | None = None
    ) -> Iterator[tuple[str, Sequence[KnownQuery]]]:
        """Yield live documents with the evidence about their known queries.

        Documents without evidence are left out.

        Args:
            document_ids: Ids of the documents to yield. None means all documents.
        """
        own = self.segment.known_queries
        if document_ids is None:
            document_ids = own.keys() | self.known.keys()
        for document_id in document_ids:
            queries = self.known.get(document_id, own.get(document_id, ()))
            if queries and document_id in self:
                yield document_id, queries

    def __contains__(self, document_id: object) -> bool:
        """Return whether the segment has a live document with this id."""
        return document_id not in self.removed and document_id in self.segment.rows

    @cached_property
    def is_live(self) -> np.ndarray:
        """Mask of the live documents, by ascending id, shape (n,), bool."""
        ids = self.segment.sorted_ids
        is_live = np.ones(len(ids), bool)
        removed_positions = ids.find(list(self.removed))
        is_live[removed_positions[removed_positions != NOT_FOUND]] = False
        return is_live

    @cached_property
    def documents(self) -> int:
        """Number of live documents."""
        return self.segment.rows.documents - len(self.removed)

    @property
    def passages(self) -> int:
        """Number of passages of live documents."""
        return len(self.segment.rows) - len(self.segment.rows.rows_of(self.removed))

    def ids_after(self, after: str) -> Iterator[str]:
        """Yield the ids of live documents that are larger than `after`, ascending."""
        ids = self.segment.sorted_ids
        for position in range(bisect_right(ids, after), len(ids)):
            document_id = ids[position]
            if document_id not in self.removed:
                yield document_id

    def spread_ids(self, runs: int, length: int) -> list[str]:
        """Return the first id of each of several runs of neighbours among the live documents.

        Args:
            runs: Largest number of runs.
            length: Number of documents in a run.
        """
        live_positions = np.flatnonzero(self.is_live)
        starts = spread_starts(len(live_positions), runs, length)
        return self.segment.sorted_ids.at(live_positions[list(starts)].tolist())

    def document_ids(self) -> list[str]:
        """Return the ids of all live documents, ascending."""
        ids = self.segment.sorted_ids
        return [document_id for document_id in ids if document_id not in self.removed]


def spread_starts(count: int, runs: int, length: int) -> range:
    """Return where runs of neighbours start that are evenly spread over items and do not overlap.

    Args:
        count: Number of items.
        runs: Largest number of runs.
        length: Number of items in a run.

    >>> list(spread_starts(10, runs=2, length=2)), list(spread_starts(3, runs=8, length=2))
    ([0, 5], [0, 2])
    """
    step = max(length, count // runs)
    return range(0, count, step)[:runs]


def write_segment(
    folder: Path,
    base: BaseSegment,
    puts: Sequence[Document],
    text: TextRules,
    refine: Refine | None,
) -> LoadedSegment:
    """Write a new segment: encode documents, index them, and find their nodes in the hierarchy.

    Args:
        folder: Folder to write to.
        base: Base segment, whose encoder and hierarchy are used.
        puts: Documents with different ids.
        text: Rules by which documents are cut into passages.
        refine: Function that replaces encodings by other vectors. None keeps the encodings.

    Returns:
        The new segment, opened.
    """
    # The queries of the evaluation splits are only read from the base segment if they are needed.
    held_out: frozenset[str] = frozenset()
    if any(document.queries for document in puts):
        held_out = base.build_queries.held_out
    judged: dict[str, Sequence[KnownQuery]] = {}
    for document in puts:
        judged[document.document_id] = base.judged_queries(document.document_id)

    passages = new_passages(puts, text, refine, held_out, judged)
    base.retriever.write_segment(folder / INDEX, passages)
    write_rows([document_row(document) for document in puts], folder / DOCUMENTS)
    write_json(folder / PASSAGES, list(passages.document_ids), lines=False)

    segment = open_segment(base, folder)
    vectors = segment.retriever.passage_vectors(passages.document_ids)
    Placements.find(base.tree, vectors).save(folder)
    return segment


def new_passages(
    puts: Sequence[Document],
    text: TextRules,
    refine: Refine | None = None,
    held_out: frozenset[str] = frozenset(),
    judged: Mapping[str, Sequence[KnownQuery]] = NOTHING_JUDGED,
) -> NewPassages:
    """Cut documents into passages, and collect their headlines and known queries.

    A passage is short enough for the encoder. A headline is the title with the first sentence.

    Args:
        puts: Documents with different ids.
        text: Rules by which documents are cut into passages.
        refine: Function that replaces encodings by other vectors. None keeps the encodings.
        held_out: Hashes of the queries of the evaluation splits. They are left out of the known
            queries, also if a row contains them, because they would make the evaluation too good.
        judged: Queries that judgements of the build assign to documents, by document id.

    Returns:
        Passages in the order of `puts`.
    """
    document_ids: list[str] = []
    texts: list[str] = []
    queries: dict[str, Sequence[str]] = {}
    known: dict[str, Sequence[KnownQuery]] = {}
    headlines: dict[str, str] = {}
    for document in puts:
        headlines[document.document_id] = make_headline(document.title, document.text)
        for passage in text.passages(document.title, document.text):
            document_ids.append(document.document_id)
            texts.append(passage)
        row_evidence = drop_held_out(queries_of_row(document), held_out)
        if row_evidence:
            queries[document.document_id] = [query.text for query in row_evidence]
        evidence = list(row_evidence)
        evidence.extend(judged.get(document.document_id, ()))
        if evidence:
            known[document.document_id] = evidence
    return NewPassages(texts, document_ids, queries, headlines, refine, known)


def keep_unchanged_encodings(
    base: BaseSegment, views: Sequence[SegmentView], puts: Sequence[Document], text: TextRules
) -> None:
    """Let the next `write_segment` take the encodings that changed documents share with before.

    Many changes lie beyond what an encoder reads: in a field, in known queries, behind the largest
    number of tokens, or in another passage of the document. Encoding takes most of the time of an
    addition.

    A vector that IncDSI solved is no encoding. So only the headline of a solved document is kept.

    Args:
        base: Base segment, whose retriever encodes new documents.
        views: Segments of the live generation, which hold the former versions.
        puts: Documents that are written next. At most `MAX_WAITING_TEXTS` are looked at, because
            no more encodings are kept.
        text: Rules by which documents are cut into passages.
    """
    new_versions = {document.document_id: document for document in puts[:MAX_WAITING_TEXTS]}
    for view in views:
        ids = [document_id for document_id in new_versions if document_id in view]
        if not ids:
            continue
        rows = view.segment.document_file.read(ids)
        former = [document_from_row(row) for row in rows.values()]
        new = [new_versions[document_id] for document_id in rows]
        base.retriever.keep_encodings(
            view.segment.retriever,
            new_passages(former, text),
            new_passages(new, text),
            solved=solved_ids(view.segment.folder),
        )


def merge_segments(folder: Path, views: Sequence[SegmentView]) -> None:
    """Write a new segment with the live documents of several segments.

    Removed documents are left out. Vectors and all other data are copied, so that nothing is
    encoded again.

    Args:
        folder: Folder of the new segment.
        views: Segments to merge. At least one of them must have a live document.
    """
    views = [view for view in views if view.documents]
    for view in views:
        source = view.segment.folder
        # A segment that is being written has no manifest yet.
        if (source / MANIFEST).is_file():
            verify_file_checksum(source, read_json(source / MANIFEST), DOCUMENTS)

    retrievers = [(view.segment.retriever, view.document_ids()) for view in views]
    views[0].segment.retriever.merge(retrievers, folder / INDEX)

    # Passages and placements are collected in the order in which the retrievers were merged.
    documents: list[dict[str, Any]] = []
    passage_documents: list[str] = []
    placements: list[Placements] = []
    for view in views:
        columns = read_columns(view.segment.documents, *COLUMNS)
        for values in zip(*columns, strict=True):
            document = dict(zip(COLUMNS, values, strict=True))
            if document["document_id"] in view:
                documents.append(document)
        rows = view.segment.rows.rows_of(view.document_ids())
        passage_documents.extend(view.segment.rows.document_ids[row] for row in rows.tolist())
        placements.append(view.segment.placements.take(rows))
    write_rows(documents, folder / DOCUMENTS)
    write_json(folder / PASSAGES, passage_documents, lines=False)
    Placements.join(placements).save(folder)
    folders = [(view.segment.folder, view) for view in views]
    RefinedDocuments.join(folders).save(folder)
    SolvedDocuments.join(folders).save(folder)
