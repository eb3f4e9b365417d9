"""The constraints that protect older documents from a new one.

A known query is a query that a document is known to answer. A new document must not outrank an
older document for a known query of the older one. Each such query is a constraint of the vector of
the new document.

Only a known query that finds its document among the first ten is a constraint. With all known
queries, hundreds of constraints are violated before any vector moves. Their sum pushes a new
document away from all queries, also from its own.

The constraints of the build, the documents that the retriever was built from, are computed once and
cached. The cache folder may be deleted. Forgotten queries and erased documents are deleted from it.
The constraints of documents that were solved later are in their segments.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from model_code.collection.segments.segment import LoadedSegment, SegmentView
from model_code.collection.segments.solved import MAX_FOUND_RANK, SolvedDocument, SolvedDocuments
from model_code.corpus.corpus_queries import query_hash
from model_code.files import (
    MANIFEST,
    canonical_json,
    hash_text,
    read_json,
    write_array,
    write_json,
)
from model_code.incdsi.cache import (
    ENCODING,
    CacheFormat,
    caches_lock,
    complete_cache,
    fill_once,
    hashed_folder,
    is_intact,
)
from model_code.incdsi.fused_scores import Competitors, FusedScore, TermCounts
from model_code.incdsi.scanned_rows import row_norms
from model_code.text.known_queries import normalize_query, resolve_queries

# Largest number of known queries of the build that are scored to find constraints. More queries
# take minutes, and each addition is tested against all constraints.
MAX_BUILD_QUERIES = 20_000

# Format of the cache folders, and their files.
CACHE_FORMAT = CacheFormat("known_queries", number=3)
CONSTRAINTS = "constraints.json"
VECTORS = "vectors.npy"

AnsweredQuery = tuple[str, str]
"""Id of a document, and the text of a query that the document is known to answer."""

FindForgotten = Callable[[], Set[str]]
"""Function that returns the hashes of the queries that a person asked to forget."""


@dataclass(frozen=True, eq=False)
class Constraints:
    """Known queries z_j, each with the score of its document that no new document may exceed.

    Attributes:
        document_ids: For each of the m queries, the document that it should find.
        texts: Texts of the m queries, in the same order.
        vectors: Vectors of the queries, shape (m, H), float32.
        means: Mean inner product of each query with the vectors of the build, shape (m,).
        deviations: Standard deviation of these inner products, shape (m,).
        owner_scores: Fused score s_j of the document that the query should find, shape (m,).
        highest_bm25: Largest BM25 score of any document for the query, shape (m,).
    """

    document_ids: list[str]
    texts: list[str]
    vectors: np.ndarray
    means: np.ndarray
    deviations: np.ndarray
    owner_scores: np.ndarray
    highest_bm25: np.ndarray

    def __len__(self) -> int:
        return len(self.texts)

    @classmethod
    def empty(cls, dimension: int) -> Constraints:
        """Return an empty list of constraints, whose vectors would have `dimension` values."""
        no_values = np.empty(0)
        no_vectors = np.empty((0, dimension), np.float32)
        return cls([], [], no_vectors, no_values, no_values, no_values, no_values)

    @classmethod
    def join(cls, parts: Sequence[Constraints]) -> Constraints:
        """Concatenate constraints, in their order."""
        document_ids: list[str] = []
        texts: list[str] = []
        for part in parts:
            document_ids.extend(part.document_ids)
            texts.extend(part.texts)
        return cls(
            document_ids,
            texts,
            np.concatenate([part.vectors for part in parts]),
            np.concatenate([part.means for part in parts]),
            np.concatenate([part.deviations for part in parts]),
            np.concatenate([part.owner_scores for part in parts]),
            np.concatenate([part.highest_bm25 for part in parts]),
        )

    def select(self, rows: np.ndarray) -> Constraints:
        """Return the constraints in the given rows (k,), in this order."""
        return Constraints(
            [self.document_ids[row] for row in rows.tolist()],
            [self.texts[row] for row in rows.tolist()],
            self.vectors[rows],
            self.means[rows],
            self.deviations[rows],
            self.owner_scores[rows],
            self.highest_bm25[rows],
        )


@dataclass(frozen=True, eq=False)
class PreparedConstraints:
    """Constraints with data that is computed once and used for every new document.

    Attributes:
        constraints: The m constraints.
        keys: Normalised text of each query. Equal queries have equal keys.
        counts: Term counts of the queries for BM25. None if the retriever has no BM25 component.
        lengths: Norms of the queries' vectors, shape (m,), float64.
    """

    constraints: Constraints
    keys: list[str]
    counts: TermCounts | None
    lengths: np.ndarray

    @classmethod
    def prepare(cls, score: FusedScore, constraints: Constraints) -> PreparedConstraints:
        """Normalise the queries of constraints and count their terms.

        Args:
            score: Fused score, whose BM25 component counts the terms.
            constraints: Known queries that new documents must not win from older ones.
        """
        keys = [normalize_query(text) for text in constraints.texts]
        counts = None
        if score.base_bm25 is not None:
            counts = score.count_terms(score.base_bm25.encode_queries(constraints.texts))
        return cls(constraints, keys, counts, row_norms(constraints.vectors))

    def select(self, rows: np.ndarray) -> PreparedConstraints:
        """Return the constraints in the given rows (k,), in this order."""
        counts = None if self.counts is None else self.counts.select(rows)
        keys = [self.keys[row] for row in rows.tolist()]
        return PreparedConstraints(self.constraints.select(rows), keys, counts, self.lengths[rows])

    @cached_property
    def rows_by_key(self) -> dict[str, list[int]]:
        """Rows of the queries with the same normalised text, by this text."""
        return _group_rows(self.keys)

    @cached_property
    def rows_by_document(self) -> dict[str, list[int]]:
        """Rows of the queries that each document is known to answer, by document id."""
        return _group_rows(self.constraints.document_ids)

    @cached_property
    def _row_of_text(self) -> dict[str, int]:
        """Row of each query by its text. Of equal texts, the last one counts."""
        return {text: row for row, text in enumerate(self.constraints.texts)}

    def vector_of(self, text: str) -> np.ndarray | None:
        """Return the vector (H,) of a query, float32; None if no constraint has this text."""
        row = self._row_of_text.get(text)
        return None if row is None else self.constraints.vectors[row]

    def find_live(self, view: SegmentView) -> np.ndarray:
        """Return which constraints still apply, shape (m,), bool.

        A constraint ends if its document is removed. It also ends if its query is no longer a known
        query of the document, because it was forgotten or got thumbs down.

        Args:
            view: The segment of the constraints, with its removed documents and changed queries.
        """
        # Only removed and changed documents are visited, because most documents are neither.
        is_live = np.ones(len(self.keys), bool)
        for document_id in self.rows_by_document.keys() & view.removed:
            is_live[self.rows_by_document[document_id]] = False

        for document_id in self.rows_by_document.keys() & view.known.keys():
            # The present known queries of the document, normalised.
            present: set[str] = set()
            for query in resolve_queries(view.known[document_id]):
                _, normalized_text = query.key
                present.add(normalized_text)
            for row in self.rows_by_document[document_id]:
                if self.keys[row] not in present:
                    is_live[row] = False
        return is_live


class SegmentConstraints(NamedTuple):
    """The constraints of the documents in one segment.

    Attributes:
        prepared: The m constraints.
        applies: Mask (m,), False for constraints that ended; see `PreparedConstraints.find_live`.
    """

    prepared: PreparedConstraints
    applies: np.ndarray


def _group_rows(values: Sequence[str]) -> dict[str, list[int]]:
    """Return the positions of equal values, by value."""
    rows: dict[str, list[int]] = {}
    for row, value in enumerate(values):
        rows.setdefault(value, []).append(row)
    return rows


def read_known_queries(segment: LoadedSegment) -> list[AnsweredQuery]:
    """Return the known queries of a segment's documents, sorted and without repeats."""
    known: set[AnsweredQuery] = set()
    for document_id, queries in segment.known_queries.items():
        for query in resolve_queries(queries):
            known.add((document_id, query.text))
    return sorted(known)


def build_constraints(
    score: FusedScore, folder: Path, find_forgotten: FindForgotten = frozenset
) -> Constraints:
    """Return the constraints of the build. They are computed once, and then read from a cache.

    Forgotten queries are not among them, and a cache that still has one is written again. Known
    queries are limited before forgotten ones are left out. So a cache that lost a query equals a
    cache that is computed without it.

    Only one process uses the caches at a time, and others wait. Otherwise a process that forgets a
    query would overlook a cache that is being written.

    Args:
        score: Fused score, with the base segment that holds the documents of the build.
        folder: Folder of the caches.
        find_forgotten: Function that returns the hashes of the queries that a person asked to
            forget; see `query_hash`. It is called while no other process can write a cache.
    """
    cache = cache_folder(read_json(score.base.folder / MANIFEST), folder)
    with caches_lock(folder):
        forgotten = find_forgotten()
        fill_once(cache, CACHE_FORMAT, partial(_fill_cache, score, cache, forgotten))
        return _drop_from_cache(cache, frozenset(), forgotten)


def erase_from_caches(
    folder: Path,
    document_ids: Set[str] = frozenset(),
    forgotten: Set[str] = frozenset(),
) -> None:
    """Delete documents and queries from all caches, also from those of former builds.

    A process that computes a cache just now is waited for. Otherwise it would write the queries
    again that it had read before. Caches that are damaged, incomplete or of another kind do not
    tell what they hold, so they are deleted. They are computed again.

    Args:
        folder: Folder of the caches.
        document_ids: Ids of the documents. Their known queries are deleted.
        forgotten: Hashes of further queries; see `query_hash`.
    """
    with caches_lock(folder):
        for cache in sorted(path for path in folder.glob("*") if path.is_dir()):
            if is_intact(cache, CACHE_FORMAT):
                _drop_from_cache(cache, document_ids, forgotten)
            else:
                shutil.rmtree(cache)


def _drop_from_cache(cache: Path, document_ids: Set[str], forgotten: Set[str]) -> Constraints:
    """Read a cache folder, and write it again without some documents and queries.

    Args:
        cache: Folder that `_write_cache` wrote. It is not written if it has none of them.
        document_ids: Ids of the documents.
        forgotten: Hashes of the queries.

    Returns:
        The remaining constraints.
    """
    constraints = _read_cache(cache)
    if not document_ids and not forgotten:
        return constraints
    kept: list[int] = []
    for row, (document_id, text) in enumerate(
        zip(constraints.document_ids, constraints.texts, strict=True)
    ):
        if document_id not in document_ids and query_hash(text) not in forgotten:
            kept.append(row)
    if len(kept) == len(constraints):
        return constraints
    constraints = constraints.select(np.array(kept, np.int64))
    # Without its manifest, the cache counts as incomplete if this process is killed now.
    (cache / MANIFEST).unlink()
    _write_cache(constraints, cache)
    return constraints


def _fill_cache(score: FusedScore, cache: Path, forgotten: Set[str]) -> None:
    """Compute the constraints of the build, and write them to a cache folder.

    Args:
        score: Fused score, with the base segment that holds the documents of the build.
        cache: Folder to write.
        forgotten: Hashes of the queries to leave out.
    """
    known: list[AnsweredQuery] = []
    for document_id, text in limit_queries(read_known_queries(score.base)):
        if query_hash(text) not in forgotten:
            known.append((document_id, text))
    constraints = Constraints.empty(score.encoder_retriever.encoder.dimension)
    if known:
        # An interrupted encoding resumes only for the same queries.
        queries_hash = hash_text(canonical_json(known))[:16]
        constraints = find_constraints(score, known, cache / ENCODING / queries_hash)
    _write_cache(constraints, cache)


def limit_queries(
    known: Sequence[AnsweredQuery], most: int = MAX_BUILD_QUERIES
) -> list[AnsweredQuery]:
    """Return at most `most` known queries, sorted.

    Each document keeps one query before any document keeps a second one. So every document with
    known queries is protected, if there are at most `most` of them. Which queries are kept follows
    from their hashes. So the sample looks random, and is the same at each call.
    """
    if len(known) <= most:
        return list(known)
    by_hash = sorted(known, key=lambda pair: hash_text("\0".join(pair)))
    # Number of queries of each document that were visited already.
    visited: Counter[str] = Counter()
    numbered: list[tuple[int, AnsweredQuery]] = []
    for pair in by_hash:
        document_id, _ = pair
        numbered.append((visited[document_id], pair))
        visited[document_id] += 1
    # The sort is stable, so queries with equal numbers stay in the order of their hashes.
    numbered.sort(key=lambda entry: entry[0])
    return sorted(pair for _, pair in numbered[:most])


def cache_folder(manifest: Mapping[str, Any], folder: Path) -> Path:
    """Return the folder that caches the constraints of a build.

    Its name depends on the checksums of all files of the build; see `hashed_folder`.

    Args:
        manifest: Manifest in the folder of the base segment.
        folder: Folder of the caches.
    """
    facts = {"checksums": manifest["checksums"], "format": CACHE_FORMAT.number}
    return hashed_folder(folder, f"{manifest['retriever']}-known", facts)


def find_constraints(
    score: FusedScore, known: Sequence[AnsweredQuery], encoding: Path
) -> Constraints:
    """Return the known queries of the build that find their documents, as constraints.

    A query finds its document if the fusion ranks it among the first `MAX_FOUND_RANK`.

    Args:
        score: Fused score, with the base segment that holds the documents of the build.
        known: The known queries.
        encoding: Folder of finished batches, from which an interrupted encoding resumes.
    """
    texts = [text for _, text in known]
    # The import is inside because it imports PyTorch, which a service without changes lacks.
    from model_code.distributed.encoding import encode_resumably

    vectors = encode_resumably(score.encoder_retriever.encoder.pytorch, texts, encoding)
    queries = score.encode(texts, vectors)
    owners = [document_id for document_id, _ in known]
    search = score.search_over([SegmentView(score.base)])
    competitors = score.competitors(queries, search, owners)

    found: list[int] = []
    owner_scores: list[float] = []
    highest_scores: list[float] = []
    owner_bm25 = score.bm25_without(score.base_bm25, queries, owners)
    for row in range(len(owners)):
        result = score_owner(score, competitors[row], float(owner_bm25[row]))
        if result.rank <= MAX_FOUND_RANK:
            found.append(row)
            owner_scores.append(result.score)
            highest_scores.append(result.highest_bm25)
    return Constraints(
        [owners[row] for row in found],
        [texts[row] for row in found],
        vectors[found],
        queries.means[found],
        queries.deviations[found],
        np.array(owner_scores, np.float64),
        np.array(highest_scores, np.float64),
    )


@dataclass(frozen=True)
class OwnerScore:
    """How a document ranks for a query that it is known to answer.

    Attributes:
        score: Fused score of the document.
        rank: Rank of the document, from 1.
        highest_bm25: Largest BM25 score of any document for the query.
    """

    score: float
    rank: int
    highest_bm25: float


def score_owner(score: FusedScore, competitors: Competitors, owner_bm25: float) -> OwnerScore:
    """Score and rank a document among the best documents for a query that it answers.

    BM25 indexes known queries as words of their documents. The document would always win this query
    by these words. So its BM25 score must leave them out.

    Args:
        score: Fused score.
        competitors: Best documents for the query. The document itself is included.
        owner_bm25: BM25 score of the document without this query among its words.
    """
    owner_row = competitors.included_row
    assert owner_row is not None
    bm25 = competitors.bm25.astype(np.float64)
    bm25[owner_row] = owner_bm25
    highest = float(bm25.max())
    fused = score.fuse(competitors.dense, bm25, highest)
    rank = 1 + int(np.count_nonzero(fused > fused[owner_row]))
    return OwnerScore(float(fused[owner_row]), rank, highest)


def read_segment_constraints(score: FusedScore, segment: LoadedSegment) -> Constraints:
    """Read the constraints of the solved documents in a segment.

    Constraints of removed documents are included; see `PreparedConstraints.find_live`.
    """
    dimension = score.encoder_retriever.encoder.dimension
    parts = [Constraints.empty(dimension)]
    for document in SolvedDocuments.load(segment.folder).documents.values():
        parts.append(document_constraints(score, document))
    return Constraints.join(parts)


def document_constraints(score: FusedScore, document: SolvedDocument) -> Constraints:
    """Return the constraints that a solved document adds for later documents.

    These are the queries that the document was solved for and that find it.
    """
    rows = [row for row, query in enumerate(document.queries) if query.rank_after <= MAX_FOUND_RANK]
    queries = [document.queries[row] for row in rows]
    vectors = np.array(document.vectors[rows], np.float32)
    means, deviations = score.moments(vectors)
    return Constraints(
        document_ids=[document.document_id] * len(queries),
        texts=[query.text for query in queries],
        vectors=vectors,
        means=means,
        deviations=deviations,
        owner_scores=np.array([query.own_score for query in queries], np.float64),
        highest_bm25=np.array([query.highest_bm25 for query in queries], np.float64),
    )


def _write_cache(constraints: Constraints, cache: Path) -> None:
    """Write constraints to a cache folder, and complete it."""
    facts: Mapping[str, object] = {
        "document_ids": constraints.document_ids,
        "texts": constraints.texts,
        "means": constraints.means.tolist(),
        "deviations": constraints.deviations.tolist(),
        "own_scores": constraints.owner_scores.tolist(),
        "highest_bm25": constraints.highest_bm25.tolist(),
    }
    write_json(cache / CONSTRAINTS, facts, lines=False)
    write_array(cache / VECTORS, constraints.vectors)
    complete_cache(cache, CACHE_FORMAT)


def _read_cache(cache: Path) -> Constraints:
    """Read constraints from a folder that `_write_cache` wrote, and map their vectors."""
    facts = read_json(cache / CONSTRAINTS)
    return Constraints(
        facts["document_ids"],
        facts["texts"],
        np.load(cache / VECTORS, mmap_mode="r"),
        np.array(facts["means"], np.float64),
        np.array(facts["deviations"], np.float64),
        np.array(facts["own_scores"], np.float64),
        np.array(facts["highest_bm25"], np.float64),
    )
