"""Engines for hybrid search that Freshet is compared with.

Every engine stores texts, vectors and the field `percent`. It searches by words and by vectors, and
filters by the field. It fuses the two rankings with its own method, or with reciprocal rank fusion
if it has no method. An engine is measured if its libraries are installed.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

K = 10
# Number of candidates by words, and by vectors, that are fused.
DEPTH = 100
RRF_CONSTANT = 60
# Neighbours of a node, and candidates while building and searching, of HNSW graphs.
HNSW_NEIGHBOURS = 32
HNSW_BUILD_DEPTH = 100

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class PeerDocument:
    """A document as engines store it.

    Attributes:
        document_id: Id of the document.
        text: Text of the document.
        vector: Unit vector of the text, (H,) float32.
        percent: The shares of documents, in percent, that the document belongs to.
    """

    document_id: str
    text: str
    vector: np.ndarray
    percent: Sequence[int]


@dataclass(frozen=True)
class PeerQuery:
    """A query with its unit vector (H,) float32."""

    text: str
    vector: np.ndarray


class Engine(ABC):
    """An engine with documents.

    Attributes:
        name: Name in tables.
        modules: Modules that must be installed.
        adds: Whether documents can be added to a built index.
    """

    name: ClassVar[str]
    modules: ClassVar[Sequence[str]]
    adds: ClassVar[bool] = True

    @abstractmethod
    def build(self, folder: Path, documents: Sequence[PeerDocument]) -> None:
        """Index documents.

        Args:
            folder: Empty folder for the files of the index.
            documents: The documents.
        """

    @abstractmethod
    def search(self, query: PeerQuery, percentage: int | None) -> list[str]:
        """Return the ids of the `K` best documents.

        Args:
            query: The query.
            percentage: Percentage of the documents that are searched, for a filter. None for all.
        """

    def add(self, document: PeerDocument) -> None:
        """Add a document, so that the next search finds it."""
        raise NotImplementedError(f"{self.name} cannot add documents to a built index")


def fuse_ranks(*rankings: Iterable[str]) -> list[str]:
    """Return the ids of the `K` best documents by reciprocal rank fusion.

    >>> fuse_ranks(["a", "b"], ["b", "c"])
    ['b', 'a', 'c']
    """
    scores: dict[str, float] = defaultdict(float)
    for ranking in rankings:
        for rank, document_id in enumerate(ranking, start=1):
            scores[document_id] += 1 / (RRF_CONSTANT + rank)
    ordered = sorted(scores, key=lambda document_id: -scores[document_id])
    return ordered[:K]


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return _WORD.findall(text.lower())


class FaissWithBm25s(Engine):
    """FAISS HNSW for vectors and bm25s for words. bm25s cannot add documents."""

    name = "FAISS HNSW + bm25s"
    modules = ("faiss", "bm25s")
    adds = False

    def build(self, folder: Path, documents: Sequence[PeerDocument]) -> None:
        """Index documents."""
        import bm25s
        import faiss

        self._ids = [document.document_id for document in documents]
        vectors = np.stack([document.vector for document in documents])
        self._graph = faiss.IndexHNSWFlat(
            vectors.shape[1], HNSW_NEIGHBOURS, faiss.METRIC_INNER_PRODUCT
        )
        self._graph.hnsw.efConstruction = HNSW_BUILD_DEPTH
        self._graph.add(vectors)
        self._words = bm25s.BM25()
        self._words.index(
            [split_words(document.text) for document in documents], show_progress=False
        )
        # Whether each document, (n,), matches the filter of a percentage.
        self._members: dict[int, np.ndarray] = {}
        for percentage in {share for document in documents for share in document.percent}:
            belongs = [percentage in document.percent for document in documents]
            self._members[percentage] = np.array(belongs)

    def search(self, query: PeerQuery, percentage: int | None) -> list[str]:
        """Return the ids of the best documents."""
        import faiss

        parameters = faiss.SearchParametersHNSW(efSearch=DEPTH)
        mask = None
        if percentage is not None:
            mask = self._members[percentage]
            # The selector must live as long as the parameters.
            selector = faiss.IDSelectorBatch(np.flatnonzero(mask))
            parameters = faiss.SearchParametersHNSW(sel=selector, efSearch=DEPTH)
        _, rows = self._graph.search(query.vector[None], DEPTH, params=parameters)
        # FAISS fills up short results with the row -1.
        by_vectors = [self._ids[row] for row in rows[0].tolist() if row >= 0]

        depth = min(DEPTH, len(self._ids))
        weights = None if mask is None else mask.astype(np.float32)
        rows, scores = self._words.retrieve(
            [split_words(query.text)], k=depth, show_progress=False, weight_mask=weights
        )
        by_words = [
            self._ids[row] for row, score in zip(rows[0], scores[0], strict=True) if score > 0
        ]
        return fuse_ranks(by_vectors, by_words)


class QdrantLocal(Engine):
    """Qdrant's local mode: dense vectors and sparse ones with IDF."""

    name = "Qdrant (local)"
    modules = ("qdrant_client",)

    def build(self, folder: Path, documents: Sequence[PeerDocument]) -> None:
        """Index documents."""
        from qdrant_client import QdrantClient, models

        self._client = QdrantClient(path=str(folder))
        self._terms: dict[str, int] = {}
        self._points = 0
        self._client.create_collection(
            "documents",
            vectors_config={
                "dense": models.VectorParams(
                    size=len(documents[0].vector), distance=models.Distance.DOT
                )
            },
            sparse_vectors_config={
                "words": models.SparseVectorParams(modifier=models.Modifier.IDF)
            },
        )
        for start in range(0, len(documents), 1000):
            self._upsert(documents[start : start + 1000])

    def search(self, query: PeerQuery, percentage: int | None) -> list[str]:
        """Return the ids of the best documents."""
        from qdrant_client import models

        condition = None
        if percentage is not None:
            match = models.MatchValue(value=percentage)
            condition = models.Filter(must=[models.FieldCondition(key="percent", match=match)])
        branches = [
            models.Prefetch(
                query=query.vector.tolist(), using="dense", limit=DEPTH, filter=condition
            ),
            models.Prefetch(
                query=self._sparse(query.text), using="words", limit=DEPTH, filter=condition
            ),
        ]
        answer = self._client.query_points(
            "documents",
            prefetch=branches,
            query=models.FusionQuery(fusion=models.Fusion.RRF),
            limit=K,
        )
        return [point.payload["id"] for point in answer.points if point.payload]

    def add(self, document: PeerDocument) -> None:
        """Add a document."""
        self._upsert([document])

    def _upsert(self, documents: Sequence[PeerDocument]) -> None:
        """Add documents as points, with the next free numbers as their ids."""
        from qdrant_client import models

        points = []
        for document in documents:
            payload = {
                "id": document.document_id,
                "text": document.text,
                "percent": list(document.percent),
            }
            vectors: dict[str, Any] = {
                "dense": document.vector.tolist(),
                "words": self._sparse(document.text),
            }
            points.append(models.PointStruct(id=self._points, vector=vectors, payload=payload))
            self._points += 1
        self._client.upsert("documents", points)

    def _sparse(self, text: str) -> Any:
        """Return the counts of a text's words as a sparse vector.

        A new word gets the next number.
        """
        from qdrant_client import models

        counts = Counter(split_words(text))
        numbers = [self._terms.setdefault(word, len(self._terms)) for word in counts]
        return models.SparseVector(indices=numbers, values=[float(n) for n in counts.values()])


class LanceHybrid(Engine):
    """LanceDB: a table with a full-text index, searched by its hybrid queries."""

    name = "LanceDB"
    modules = ("lancedb",)

    def build(self, folder: Path, documents: Sequence[PeerDocument]) -> None:
        """Index documents."""
        import lancedb

        shares = sorted({share for document in documents for share in document.percent})
        self._shares = shares
        database = lancedb.connect(str(folder))
        self._table = database.create_table("documents", [self._row(row) for row in documents])
        self._table.create_fts_index("text")

    def search(self, query: PeerQuery, percentage: int | None) -> list[str]:
        """Return the ids of the best documents."""
        search = self._table.search(query_type="hybrid").vector(query.vector)
        search = search.text(" ".join(split_words(query.text))).distance_type("dot").limit(K)
        if percentage is not None:
            search = search.where(f"percent_{percentage} = true", prefilter=True)
        return [row["id"] for row in search.to_list()]

    def add(self, document: PeerDocument) -> None:
        """Add a document."""
        self._table.add([self._row(document)])

    def _row(self, document: PeerDocument) -> dict[str, Any]:
        """Return the row of a document. A filter's percentage is a column with a truth value."""
        row: dict[str, Any] = {
            "id": document.document_id,
            "text": document.text,
            "vector": document.vector,
        }
        for share in self._shares:
            row[f"percent_{share}"] = share in document.percent
        return row


class TantivyWithUsearch(Engine):
    """tantivy for words and usearch for vectors.

    usearch has no filter. It therefore returns more candidates, which are filtered afterwards.
    """

    name = "tantivy + usearch"
    modules = ("tantivy", "usearch")

    def build(self, folder: Path, documents: Sequence[PeerDocument]) -> None:
        """Index documents."""
        import tantivy
        from usearch.index import Index

        schema = tantivy.SchemaBuilder()
        schema.add_text_field("id", stored=True, tokenizer_name="raw")
        schema.add_text_field("text")
        schema.add_integer_field("percent", indexed=True)
        self._words = tantivy.Index(schema.build(), path=str(folder))
        self._vectors = Index(
            ndim=len(documents[0].vector),
            metric="ip",
            connectivity=HNSW_NEIGHBOURS,
            expansion_add=HNSW_BUILD_DEPTH,
            expansion_search=DEPTH,
        )
        self._documents: list[PeerDocument] = []
        self._write(documents)

    def search(self, query: PeerQuery, percentage: int | None) -> list[str]:
        """Return the ids of the best documents."""
        import tantivy

        words = " ".join(split_words(query.text))
        parsed = self._words.parse_query(words, ["text"])
        depth = DEPTH
        if percentage is not None:
            term = tantivy.Query.term_query(self._words.schema, "percent", percentage)
            required = [(tantivy.Occur.Must, parsed), (tantivy.Occur.Must, term)]
            parsed = tantivy.Query.boolean_query(required)
            # Of this many neighbours, about `DEPTH` match the filter.
            depth = min(len(self._documents), DEPTH * 100 // percentage)
        searcher = self._words.searcher()
        hits = searcher.search(parsed, DEPTH).hits
        by_words = [searcher.doc(address)["id"][0] for _, address in hits]

        rows = self._vectors.search(query.vector, depth).keys.tolist()
        near = [self._documents[row] for row in rows]
        if percentage is not None:
            near = [document for document in near if percentage in document.percent]
        return fuse_ranks((document.document_id for document in near[:DEPTH]), by_words)

    def add(self, document: PeerDocument) -> None:
        """Add a document."""
        self._write([document])

    def _write(self, documents: Sequence[PeerDocument]) -> None:
        """Add documents to both indexes, and make them searchable.

        A document's key in usearch is its position in `self._documents`.
        """
        import tantivy

        writer = self._words.writer()
        for document in documents:
            row = tantivy.Document()
            row.add_text("id", document.document_id)
            row.add_text("text", document.text)
            for share in document.percent:
                row.add_integer("percent", share)
            writer.add_document(row)
        writer.commit()
        writer.wait_merging_threads()
        self._words.reload()
        keys = np.arange(len(self._documents), len(self._documents) + len(documents))
        self._vectors.add(keys, np.stack([document.vector for document in documents]))
        self._documents.extend(documents)


class SqliteVecWithFts5(Engine):
    """SQLite with two extensions: sqlite-vec compares all vectors, and FTS5 searches words."""

    name = "sqlite-vec + FTS5"
    # The module sqlite3 of many Python builds cannot load extensions; apsw can.
    modules = ("apsw", "sqlite_vec")

    def build(self, folder: Path, documents: Sequence[PeerDocument]) -> None:
        """Index documents."""
        import apsw
        import sqlite_vec

        self._shares = sorted({share for document in documents for share in document.percent})
        self._database = apsw.Connection(str(folder / "documents.db"))
        self._database.enable_load_extension(True)
        self._database.load_extension(sqlite_vec.loadable_path())

        width = len(documents[0].vector)
        share_columns = "".join(f", percent_{share} boolean" for share in self._shares)
        self._database.execute(
            f"create virtual table vectors using vec0("
            f"vector float[{width}] distance_metric=cosine{share_columns})"
        )
        self._database.execute("create virtual table words using fts5(text)")
        # The word index has no filter, so the table of documents holds the percentages as well.
        unindexed = "".join(f", percent_{share} integer" for share in self._shares)
        self._database.execute(
            f"create table documents(number integer primary key, id text{unindexed})"
        )
        self._count = 0
        self._write(documents)

    def search(self, query: PeerQuery, percentage: int | None) -> list[str]:
        """Return the ids of the best documents."""
        vector_filter = ""
        word_filter = ""
        if percentage is not None:
            vector_filter = f" and vectors.percent_{percentage} = true"
            word_filter = f" and documents.percent_{percentage} = true"

        by_vectors = self._database.execute(
            "select id from vectors join documents on number = vectors.rowid "
            f"where vector match ? and k = {DEPTH}{vector_filter} order by distance",
            [query.vector.tobytes()],
        )
        any_word = " OR ".join(f'"{word}"' for word in split_words(query.text))
        by_words = self._database.execute(
            "select id from words join documents on number = words.rowid "
            f"where words match ?{word_filter} order by rank limit {DEPTH}",
            [any_word],
        )
        return fuse_ranks((row[0] for row in by_vectors), (row[0] for row in by_words))

    def add(self, document: PeerDocument) -> None:
        """Add a document."""
        self._write([document])

    def _write(self, documents: Sequence[PeerDocument]) -> None:
        """Insert documents into the three tables, with the next numbers as their row ids."""
        # One column and one parameter for each percentage of a filter.
        columns = "".join(f", percent_{share}" for share in self._shares)
        parameters = ", ?" * len(self._shares)
        with self._database:
            for document in documents:
                self._count += 1
                shares = [share in document.percent for share in self._shares]
                self._database.execute(
                    f"insert into vectors(rowid, vector{columns}) values (?, ?{parameters})",
                    [self._count, document.vector.tobytes(), *shares],
                )
                self._database.execute(
                    "insert into words(rowid, text) values (?, ?)",
                    [self._count, document.text],
                )
                self._database.execute(
                    f"insert into documents(number, id{columns}) values (?, ?{parameters})",
                    [self._count, document.document_id, *shares],
                )


ENGINES: Mapping[str, type[Engine]] = {
    engine.name: engine
    for engine in (
        FaissWithBm25s,
        QdrantLocal,
        LanceHybrid,
        TantivyWithUsearch,
        SqliteVecWithFts5,
    )
}
