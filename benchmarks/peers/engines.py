"""Engines for hybrid search that Freshet is compared with.

Every engine stores texts, vectors and the field `percent`. It searches by words and by vectors, and
filters by the field. It fuses the two rankings with its own method, or with reciprocal rank fusion
if it has no method. An engine is measured if its libraries are installed. An engine that ranks by
vectors alone says so in its name.

This module imports no library of Freshet, so that the memory of a process with one engine is that
of the engine.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    def open(self, folder: Path) -> None:
        """Open the index that `build` wrote, for searches only.

        Args:
            folder: The folder of `build`.
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

    def close(self) -> None:
        """Release the files, so that another process can open them."""
        # Most engines hold no lock.
        return


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


def find_shares(documents: Sequence[PeerDocument]) -> list[int]:
    """Return the percentages that documents belong to, in ascending order."""
    shares: set[int] = set()
    for document in documents:
        shares.update(document.percent)
    return sorted(shares)


def share_columns(document: PeerDocument, shares: Sequence[int]) -> dict[str, bool]:
    """Return one truth value for each share, for engines without lists of values."""
    return {f"percent_{share}": share in document.percent for share in shares}


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON."""
    path.write_text(json.dumps(value), encoding="utf-8")


def read_json(path: Path) -> Any:
    """Return a value that `write_json` wrote."""
    return json.loads(path.read_text(encoding="utf-8"))


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
        for percentage in find_shares(documents):
            belongs = [percentage in document.percent for document in documents]
            self._members[percentage] = np.array(belongs)

        faiss.write_index(self._graph, str(folder / "vectors.faiss"))
        self._words.save(folder / "words")
        write_json(folder / "ids.json", self._ids)
        members = {str(percentage): mask for percentage, mask in self._members.items()}
        np.savez(folder / "members.npz", **members)

    def open(self, folder: Path) -> None:
        """Open a built index."""
        import bm25s
        import faiss

        self._graph = faiss.read_index(str(folder / "vectors.faiss"))
        self._words = bm25s.BM25.load(folder / "words")
        self._ids = read_json(folder / "ids.json")
        with np.load(folder / "members.npz") as members:
            self._members = {int(percentage): members[percentage] for percentage in members}

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
        # A query must use the numbers of the documents' words.
        write_json(folder / "terms.json", self._terms)

    def open(self, folder: Path) -> None:
        """Open a built index."""
        from qdrant_client import QdrantClient

        self._client = QdrantClient(path=str(folder))
        self._terms = read_json(folder / "terms.json")

    def close(self) -> None:
        """Release the lock of the folder."""
        self._client.close()

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

        self._shares = find_shares(documents)
        database = lancedb.connect(str(folder))
        self._table = database.create_table("documents", [self._row(row) for row in documents])
        self._table.create_fts_index("text")

    def open(self, folder: Path) -> None:
        """Open a built index."""
        import lancedb

        self._table = lancedb.connect(str(folder)).open_table("documents")

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
        row.update(share_columns(document, self._shares))
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

        schema = tantivy.SchemaBuilder()
        schema.add_text_field("id", stored=True, tokenizer_name="raw")
        schema.add_text_field("text")
        schema.add_integer_field("percent", indexed=True)
        self._words = tantivy.Index(schema.build(), path=str(folder))
        self._vectors = self._make_vectors(len(documents[0].vector))
        # Ids and percentages of the documents. The key of a vector is the position here.
        self._ids: list[str] = []
        self._percent: list[Sequence[int]] = []
        self._write(documents)

        self._vectors.save(folder / "vectors.usearch")
        facts = {"width": self._vectors.ndim, "ids": self._ids, "percent": self._percent}
        write_json(folder / "facts.json", facts)

    def open(self, folder: Path) -> None:
        """Open a built index."""
        import tantivy

        facts = read_json(folder / "facts.json")
        self._ids = facts["ids"]
        self._percent = facts["percent"]
        self._words = tantivy.Index.open(str(folder))
        self._vectors = self._make_vectors(facts["width"])
        self._vectors.load(folder / "vectors.usearch")

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
            depth = min(len(self._ids), DEPTH * 100 // percentage)
        searcher = self._words.searcher()
        hits = searcher.search(parsed, DEPTH).hits
        by_words = [searcher.doc(address)["id"][0] for _, address in hits]

        rows = self._vectors.search(query.vector, depth).keys.tolist()
        if percentage is not None:
            rows = [row for row in rows if percentage in self._percent[row]]
        return fuse_ranks((self._ids[row] for row in rows[:DEPTH]), by_words)

    def add(self, document: PeerDocument) -> None:
        """Add a document."""
        self._write([document])

    def _make_vectors(self, width: int) -> Any:
        """Return an empty index of vectors."""
        from usearch.index import Index

        return Index(
            ndim=width,
            metric="ip",
            connectivity=HNSW_NEIGHBOURS,
            expansion_add=HNSW_BUILD_DEPTH,
            expansion_search=DEPTH,
        )

    def _write(self, documents: Sequence[PeerDocument]) -> None:
        """Add documents to both indexes, and make them searchable."""
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
        keys = np.arange(len(self._ids), len(self._ids) + len(documents))
        self._vectors.add(keys, np.stack([document.vector for document in documents]))
        self._ids.extend(document.document_id for document in documents)
        self._percent.extend(document.percent for document in documents)


class SqliteVecWithFts5(Engine):
    """SQLite with two extensions: sqlite-vec compares all vectors, and FTS5 searches words."""

    name = "sqlite-vec + FTS5"
    # The module sqlite3 of many Python builds cannot load extensions; apsw can.
    modules = ("apsw", "sqlite_vec")

    def build(self, folder: Path, documents: Sequence[PeerDocument]) -> None:
        """Index documents."""
        self._shares = find_shares(documents)
        self.open(folder)

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

    def open(self, folder: Path) -> None:
        """Open the database with its extensions."""
        import apsw
        import sqlite_vec

        self._database = apsw.Connection(str(folder / "documents.db"))
        self._database.enable_load_extension(True)
        self._database.load_extension(sqlite_vec.loadable_path())

    def close(self) -> None:
        """Close the database."""
        self._database.close()

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


class ChromaDense(Engine):
    """Chroma, whose local form ranks by vectors alone."""

    name = "Chroma (dense only)"
    modules = ("chromadb",)

    def build(self, folder: Path, documents: Sequence[PeerDocument]) -> None:
        """Index documents."""
        self._shares = find_shares(documents)
        graph = {
            "space": "ip",
            "max_neighbors": HNSW_NEIGHBOURS,
            "ef_construction": HNSW_BUILD_DEPTH,
            "ef_search": DEPTH,
        }
        self._client = self._connect(folder)
        self._collection = self._client.create_collection(
            "documents", configuration={"hnsw": graph}, embedding_function=None
        )
        batch_size = self._client.get_max_batch_size()
        for start in range(0, len(documents), batch_size):
            self._write(documents[start : start + batch_size])

    def open(self, folder: Path) -> None:
        """Open a built index."""
        self._client = self._connect(folder)
        self._collection = self._client.get_collection("documents", embedding_function=None)

    def search(self, query: PeerQuery, percentage: int | None) -> list[str]:
        """Return the ids of the best documents."""
        condition = None
        if percentage is not None:
            condition = {f"percent_{percentage}": True}
        answer = self._collection.query(
            query_embeddings=query.vector[None], n_results=K, where=condition, include=[]
        )
        return list(answer["ids"][0])

    def add(self, document: PeerDocument) -> None:
        """Add a document."""
        self._write([document])

    def _connect(self, folder: Path) -> Any:
        import chromadb
        from chromadb.config import Settings

        return chromadb.PersistentClient(folder, settings=Settings(anonymized_telemetry=False))

    def _write(self, documents: Sequence[PeerDocument]) -> None:
        """Add documents with their texts, and a truth value for each percentage."""
        self._collection.add(
            ids=[document.document_id for document in documents],
            embeddings=np.stack([document.vector for document in documents]),
            documents=[document.text for document in documents],
            metadatas=[share_columns(document, self._shares) for document in documents],
        )


class TxtaiHybrid(Engine):
    """txtai: FAISS for vectors, its own BM25 for words, and SQLite for fields.

    A filter applies to the candidates that a search returned, so a search with a filter asks for
    more of them. An added document is in memory until the next `save`, which writes everything.
    """

    name = "txtai"
    modules = ("txtai",)

    def build(self, folder: Path, documents: Sequence[PeerDocument]) -> None:
        """Index documents."""
        from txtai import Embeddings

        self._shares = find_shares(documents)
        # Vectors of the texts that txtai encodes, by text.
        self._vectors = {document.text: document.vector for document in documents}
        self._embeddings = Embeddings(
            {
                "method": "external",
                "transform": self._make_transform(),
                "hybrid": True,
                "content": True,
            }
        )
        self._embeddings.index([self._row(document) for document in documents])
        self._embeddings.save(str(folder))

    def open(self, folder: Path) -> None:
        """Open a built index."""
        from txtai import Embeddings

        self._vectors = {}
        self._embeddings = Embeddings()
        self._embeddings.load(str(folder), config={"transform": self._make_transform()})

    def close(self) -> None:
        """Close the database."""
        self._embeddings.close()

    def search(self, query: PeerQuery, percentage: int | None) -> list[str]:
        """Return the ids of the best documents."""
        self._vectors[query.text] = query.vector
        statement = "select id from txtai where similar(:query)"
        if percentage is not None:
            # About twice `K` of this many candidates match the filter.
            candidates = 2 * K * 100 // percentage
            statement = (
                f"select id from txtai where similar(:query, {candidates}) "
                f"and percent_{percentage} = true"
            )
        rows = self._embeddings.search(statement, K, parameters={"query": query.text})
        return [row["id"] for row in rows]

    def add(self, document: PeerDocument) -> None:
        """Add a document."""
        self._vectors[document.text] = document.vector
        self._embeddings.upsert([self._row(document)])

    def _make_transform(self) -> Callable[[list[str]], np.ndarray]:
        """Return the function that txtai calls to encode texts."""

        def transform(texts: list[str]) -> np.ndarray:
            return np.stack([self._vectors[text] for text in texts])

        return transform

    def _row(self, document: PeerDocument) -> tuple[str, dict[str, Any], None]:
        """Return the id and the fields of a document, as txtai reads them."""
        fields: dict[str, Any] = {"text": document.text}
        fields.update(share_columns(document, self._shares))
        return document.document_id, fields, None


class MilvusLite(Engine):
    """Milvus Lite: HNSW for vectors, its BM25 for words, and its fusion of both rankings."""

    name = "Milvus Lite"
    modules = ("pymilvus", "milvus_lite")

    def build(self, folder: Path, documents: Sequence[PeerDocument]) -> None:
        """Index documents."""
        from pymilvus import DataType, Function, FunctionType, MilvusClient

        self._shares = find_shares(documents)
        schema = MilvusClient.create_schema()
        schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=200)
        schema.add_field("text", DataType.VARCHAR, max_length=65_535, enable_analyzer=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=len(documents[0].vector))
        schema.add_field("words", DataType.SPARSE_FLOAT_VECTOR)
        for share in self._shares:
            schema.add_field(f"percent_{share}", DataType.BOOL)
        word_weights = Function(
            "bm25", FunctionType.BM25, input_field_names=["text"], output_field_names=["words"]
        )
        schema.add_function(word_weights)

        indexes = MilvusClient.prepare_index_params()
        graph = {"M": HNSW_NEIGHBOURS, "efConstruction": HNSW_BUILD_DEPTH}
        indexes.add_index("vector", index_type="HNSW", metric_type="IP", params=graph)
        indexes.add_index("words", index_type="SPARSE_INVERTED_INDEX", metric_type="BM25")

        self._client = MilvusClient(str(folder / "documents.db"))
        self._client.create_collection("documents", schema=schema, index_params=indexes)
        for start in range(0, len(documents), 1000):
            self._write(documents[start : start + 1000])
        # Rows are indexed when they are flushed. Until then each search reads all of them.
        self._client.flush("documents")

    def open(self, folder: Path) -> None:
        """Open a built index."""
        from pymilvus import MilvusClient

        self._client = MilvusClient(str(folder / "documents.db"))
        self._client.load_collection("documents")

    def close(self) -> None:
        """End the server in this process, which holds the lock of the database."""
        from milvus_lite.server_manager import server_manager_instance

        self._client.close()
        server_manager_instance.release_all()

    def search(self, query: PeerQuery, percentage: int | None) -> list[str]:
        """Return the ids of the best documents."""
        from pymilvus import AnnSearchRequest, RRFRanker

        condition = None
        if percentage is not None:
            condition = f"percent_{percentage} == true"
        by_vectors = AnnSearchRequest(
            [query.vector.tolist()],
            "vector",
            {"metric_type": "IP", "params": {"ef": DEPTH}},
            DEPTH,
            expr=condition,
        )
        by_words = AnnSearchRequest(
            [query.text], "words", {"metric_type": "BM25"}, DEPTH, expr=condition
        )
        answer = self._client.hybrid_search(
            "documents", [by_vectors, by_words], RRFRanker(RRF_CONSTANT), limit=K
        )
        return [hit["id"] for hit in answer[0]]

    def add(self, document: PeerDocument) -> None:
        """Add a document."""
        self._write([document])

    def _write(self, documents: Sequence[PeerDocument]) -> None:
        """Insert documents, with a truth value for each percentage."""
        rows = []
        for document in documents:
            row: dict[str, Any] = {
                "id": document.document_id,
                "text": document.text,
                "vector": document.vector.tolist(),
            }
            row.update(share_columns(document, self._shares))
            rows.append(row)
        self._client.insert("documents", rows)


ENGINES: Mapping[str, type[Engine]] = {
    engine.name: engine
    for engine in (
        FaissWithBm25s,
        QdrantLocal,
        LanceHybrid,
        TantivyWithUsearch,
        SqliteVecWithFts5,
        ChromaDense,
        TxtaiHybrid,
        MilvusLite,
    )
}
