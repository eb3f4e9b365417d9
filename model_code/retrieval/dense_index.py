"""Search by inner product over passage vectors; documents are ranked by their best passage.

A pass over all vectors in float32, or an inverted file of FAISS, proposes candidates; each is then
scored on its own from the stored vectors. So a score depends on nothing but the two vectors: not on
the batch, nor on how a library cut a matrix product, nor on the order of insertion. Without an
inverted file the result is provably exact: more candidates are fetched until rounding cannot hide a
better one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from model_code.encoding.token_signs import SIGNS_FILE, TokenSigns
from model_code.errors import FingerprintMismatch, FreshetError
from model_code.files import (
    atomic_write,
    read_json,
    read_manifest,
    verify_checksums,
    write_json,
    write_manifest,
)
from model_code.retrieval.id_map import IdMap, IdMaps, RowGroups
from model_code.retrieval.index_settings import ALWAYS_EXACT, IndexSettings
from model_code.retrieval.protocol import Ranking
from model_code.retrieval.top_k import SPARE, nearest, search_filtered, top_k

FORMAT, KIND = 2, "dense"
DEFAULTS, EXACT_SETTINGS = IndexSettings(), IndexSettings(flat_below=ALWAYS_EXACT)
VECTORS, DOCUMENT_IDS, FAISS = "vectors.npy", "document_ids.json", "index.faiss"
BY_ROW = "rows"  # in a manifest: an entry of the FAISS index is the row of its vector
MARGIN = 16  # candidates fetched beyond the k wanted
# documents, and share of all, that are scored one by one rather than searched for
FEW, FEW_SHARE = 1000, 0.1
PIECE = 65_536  # passages whose products with a query are in memory at a time
FLOAT32_ROUNDING = 2.0**-24


class DenseIndex:
    """Vectors (n, H) float32, the document of each, and the fingerprint of the encoder that made
    them.

    It never changes: what a live collection adds is an index of its own, and what it deletes is
    masked there. Every method that takes vectors takes their encoder's fingerprint too, and refuses
    another one's with `FingerprintMismatch`: vectors of one width look alike whichever encoder made
    them.

    >>> index = DenseIndex.build(np.eye(2, dtype=np.float32), ["a", "b"], fingerprint="f")
    >>> index.search(np.array([[.6, .8]], np.float32), k=1, fingerprint="f")
    [[('b', 0.800000011920929)]]
    """

    def __init__(
        self,
        vectors: np.ndarray,
        ids: IdMap | IdMaps,
        fingerprint: str,
        settings: IndexSettings,
        approximate: Any | None,
        vectors_per_passage: int = 1,
        tokens: TokenSigns | None = None,
    ) -> None:
        """approximate: FAISS's inverted file of the vectors, by row. tokens: of the passages, if
        they are kept.
        """
        self.vectors, self.ids, self.fingerprint = vectors, ids, fingerprint
        self.settings, self.approximate = settings, approximate
        self.vectors_per_passage, self.tokens = vectors_per_passage, tokens

    @classmethod
    def build(
        cls,
        vectors: np.ndarray,
        document_ids: Sequence[str],
        fingerprint: str,
        settings: IndexSettings = DEFAULTS,
        vectors_per_passage: int = 1,
        tokens: TokenSigns | None = None,
    ) -> DenseIndex:
        """Index `vectors` (n, H), row i a passage of `document_ids[i]`; a document's passages may
        lie anywhere.

        vectors_per_passage: so many rows, one after the other, are of one passage. tokens: of
        passages of one vector.
        """
        vectors, ids = np.ascontiguousarray(vectors, dtype=np.float32), IdMap(document_ids)
        _require_rows(vectors, len(ids), vectors.shape[1])
        approximate = (
            inverted_file(vectors, settings) if len(vectors) >= settings.flat_below else None
        )
        return cls(vectors, ids, fingerprint, settings, approximate, vectors_per_passage, tokens)

    @property
    def factory(self) -> str:
        """What proposes candidates, as FAISS calls it."""
        return "Flat" if self.approximate is None else f"IVF{self.approximate.nlist},SQ8"

    @property
    def passages(self) -> int:
        """Number of passages."""
        return len(self.ids) // self.vectors_per_passage

    @property
    def document_ids(self) -> list[str]:
        """The document of each row of `vectors`."""
        return self.ids.document_ids

    @property
    def dimension(self) -> int:
        """Number of components H of a vector."""
        return self.vectors.shape[1]

    def search(self, queries: np.ndarray, k: int, fingerprint: str) -> list[Ranking]:
        """The k best documents for each of `queries` (q, H), best first; fewer where the index
        holds fewer.

        A score is the float64 inner product of the float32 vectors, rounded to float32.
        """
        queries = self._accepted(queries, fingerprint)
        rankings: list[Ranking] = [[] for _ in queries]
        waiting, entries = np.arange(len(queries)), len(self.ids) - len(self.ids.removed_rows)
        # if all have equally many passages
        count = k * max(1, -(-entries // max(1, self.ids.documents))) + MARGIN
        while len(waiting) and entries:
            count = min(count, entries)
            candidates = self._candidate_rows(queries[waiting], count)
            settled, step = np.empty(len(waiting), dtype=bool), max(1, PIECE // count)
            for start in range(0, len(waiting), step):
                some, rows = waiting[start : start + step], candidates[start : start + step]
                scores = self._scores(queries[some], rows)
                for i, query in enumerate(some):
                    ranking = rankings[query] = top_k(scores[i], self.ids.document_ids, k, rows[i])
                    settled[start + i] = count == entries or self._settled(
                        queries[query], ranking, rows[i], k
                    )
            waiting, count = waiting[~settled], 2 * count
        return rankings

    def scores(
        self, queries: np.ndarray, candidates: Sequence[Sequence[str]], fingerprint: str
    ) -> list[np.ndarray]:
        """For each of `queries` (q, H) the scores (n,) of its n candidate documents, in their
        order, as in `search`.

        FreshetError if a candidate is unknown.
        """
        scores = []
        for query, documents in zip(self._accepted(queries, fingerprint), candidates, strict=True):
            groups = self.ids.grouped(documents)
            scores.append(groups.best(self._scores(query, groups.rows)))
        return scores

    def vectors_of(self, document_ids: Sequence[str]) -> CandidateVectors:
        """Those of different documents; FreshetError if one is unknown."""
        groups = self.ids.grouped(document_ids)
        return CandidateVectors(self._wide(groups.rows), self._tokens(groups.rows), groups)

    def search_among(
        self, queries: np.ndarray, k: int, allowed: Collection[str], fingerprint: str
    ) -> list[Ranking]:
        """The k best of the `allowed` documents for each of `queries` (q, H), scored as `search`
        does.

        A few are all scored. Of many, all documents are searched as deep as it takes; where an
        approximate index does not come upon k of them, these are all scored, too. FreshetError if
        one is unknown.
        """
        documents, queries = frozenset(allowed), self._accepted(queries, fingerprint)
        self.ids.require_known(documents)
        few, least = (
            len(documents) <= max(FEW, self.ids.documents * FEW_SHARE),
            min(k, len(documents)),
        )
        rankings: list[Ranking] = (
            [[] for _ in queries] if few else self._search_allowed(queries, k, documents)
        )
        short = [len(ranking) < least for ranking in rankings]
        rows = self.ids.rows_of(documents if any(short) else ())
        each = zip(queries, rankings, short, strict=True)
        ids = self.ids.document_ids
        return [
            top_k(self._scores(query, rows), ids, k, rows) if lacks else ranking
            for query, ranking, lacks in each
        ]

    def _search_allowed(
        self, queries: np.ndarray, k: int, allowed: frozenset[str]
    ) -> list[Ranking]:
        search, documents = partial(self.search, fingerprint=self.fingerprint), self.ids.documents
        first = SPARE + k * documents // len(allowed)
        return search_filtered(search, queries, k, allowed.__contains__, first, documents)

    def best_passage(self, query: np.ndarray, document_id: str) -> int:
        """Which of the document's passages (0, 1, ...) is nearest to `query` (H,); the first of
        equals.
        """
        return (
            int(np.argmax(self._scores(query, self.ids.rows_of([document_id]))))
            // self.vectors_per_passage
        )

    def save(self, folder: Path) -> dict[str, Any]:
        """Write vectors, document ids, what else there is, and the manifest, whose facts it
        returns: equal indexes, equal bytes.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / VECTORS) as aside, aside.open("wb") as stream:
            np.save(stream, self.vectors)
        write_json(folder / DOCUMENT_IDS, self.ids.document_ids, lines=False)
        if self.approximate is not None:
            _faiss().write_index(self.approximate, str(folder / FAISS))
        if self.tokens is not None:
            self.tokens.save(folder)
        facts = {"kind": KIND, "fingerprint": self.fingerprint, "dimension": self.vectors.shape[1]}
        facts |= {"passages": self.passages, "documents": self.ids.documents}
        facts |= {"vectors_per_passage": self.vectors_per_passage, "entries": BY_ROW}
        facts |= {"factory": self.factory, "settings": self.settings.model_dump()}
        write_manifest(folder, FORMAT, facts)
        return facts

    @classmethod
    def load(cls, folder: Path, check: bool = True) -> DenseIndex:
        """Read what `save` wrote, vectors memory-mapped; FreshetError if a file is not what the
        manifest says.

        check: compare checksums, which reads every file once.
        """
        manifest = read_manifest(folder, FORMAT)
        if check:
            verify_checksums(folder, manifest)
        # older ones have fewer
        stated = {name: manifest["settings"].get(name, default) for name, default in DEFAULTS}
        settings = IndexSettings.model_construct(**stated)  # which was checked when it was written
        vectors, approximate = np.asarray(np.load(folder / VECTORS, mmap_mode="r")), None
        # one of before had other numbers for its entries: it is made anew
        if manifest["factory"] != "Flat":
            by_row = manifest.get("entries") == BY_ROW
            approximate = (
                _read(folder / FAISS, settings) if by_row else inverted_file(vectors, settings)
            )
        ids = IdMap(read_json(folder / DOCUMENT_IDS))
        tokens = TokenSigns.load(folder) if (folder / SIGNS_FILE).is_file() else None
        per_passage: int = manifest["vectors_per_passage"]
        return cls(
            vectors, ids, manifest["fingerprint"], settings, approximate, per_passage, tokens
        )

    def _accepted(self, vectors: np.ndarray, fingerprint: str) -> np.ndarray:
        if fingerprint != self.fingerprint:
            raise FingerprintMismatch(
                f"the index was built with encoder {self.fingerprint[:12]}, these vectors come from "
                f"{fingerprint[:12]}; build the index again with that encoder, or encode with the index's own"
            )
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        _require_rows(vectors, len(vectors), self.vectors.shape[1])
        return vectors

    def _candidate_rows(self, queries: np.ndarray, count: int) -> np.ndarray:
        """The rows (q, count) that may be the best for each of `queries` (q, H); -1 where there are
        fewer.

        None that was left out is better than the last one, which is -1 where that is all that can
        be done.
        """
        if self.approximate is None:
            return nearest(queries, [self.vectors], count)[1]
        return _and_none(self.approximate.search(queries, count)[1])

    def _wide(self, rows: np.ndarray) -> np.ndarray:
        """The vectors (..., H) of `rows` (...), float64; of -1, which is none, any."""
        return self.vectors[rows].astype(np.float64)

    def _tokens(self, rows: np.ndarray) -> TokenSigns | None:
        """Those of the passages of `rows` (r,), if they are kept."""
        return None if self.tokens is None else self.tokens[rows]

    @cached_property
    def _largest_norm(self) -> float:
        return float(np.sqrt(np.einsum("nh,nh->n", self.vectors, self.vectors).max(initial=0)))

    def _scores(self, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Inner products of a query (H,) with `rows` (r,), or of each of several (q, H) with its
        own (q, r); float32.

        A row of -1 is none: -inf.
        """
        pieces = (
            rows[..., start : start + PIECE] for start in range(0, max(1, rows.shape[-1]), PIECE)
        )
        each = queries[..., None, :]
        products = [inner_products(self._wide(piece), each) for piece in pieces]
        return np.where(rows < 0, -np.inf, np.concatenate(products, axis=-1))

    def _settled(self, query: np.ndarray, ranking: Ranking, rows: np.ndarray, k: int) -> bool:
        """Whether no passage outside the candidates can belong to the k best documents.

        Exact search orders by float32 sums, each within H * 2^-24 * |q| * |d| of the true one
        (Higham, Accuracy and Stability of Numerical Algorithms, eq. 3.5). The last candidate bounds
        every passage that was not fetched.
        """
        if len(ranking) < k or rows[-1] < 0:
            return len(ranking) >= k
        slack = (
            4
            * self.dimension
            * FLOAT32_ROUNDING
            * float(np.linalg.norm(query))
            * self._largest_norm
        )
        return ranking[-1][1] > float(self._scores(query, rows[-1:])[0]) + slack


class JoinedIndex(DenseIndex):
    """Several indexes of one encoder, each without documents that are removed, searched as one
    index of what is left.

    Whatever number of them there is, their candidates are chosen and scored once. Only the first
    may be approximate; the others are searched exactly beside it. It is only searched: vectors and
    tokens are looked up in `indexes`.
    """

    ids: IdMaps

    def __init__(self, parts: Sequence[tuple[DenseIndex, frozenset[str]]]) -> None:
        """parts: indexes, and which of each one's documents are removed; no other document is in
        two of them.

        FingerprintMismatch if their vectors are not of one encoder.
        """
        self.indexes = [index for index, _ in parts]
        first, ids = self.indexes[0], IdMaps([(index.ids, removed) for index, removed in parts])
        for index in self.indexes:
            index._accepted(first.vectors[:1], first.fingerprint)
        super().__init__(
            first.vectors,
            ids,
            first.fingerprint,
            first.settings,
            first.approximate,
            first.vectors_per_passage,
        )

    def _candidate_rows(self, queries: np.ndarray, count: int) -> np.ndarray:
        removed, base, *others = self.ids.removed_rows, *(index.vectors for index in self.indexes)
        # row that is looked through one by one
        first = 0 if self.approximate is None else len(base)
        scores, rows = nearest(
            queries, [base[first:], *others], count, removed[removed >= first] - first
        )
        rows = np.where(np.isneginf(scores), -1, rows + first)
        if self.approximate is None:
            return rows
        _, near = self.approximate.search(queries, count, params=self._without_removed)
        candidates = np.concatenate([near, rows], axis=1)
        return _and_none(candidates) if count >= len(self.ids) - first else candidates

    @cached_property
    def _without_removed(self) -> Any:
        """What FAISS's search takes to leave out the removed rows of the first index; None: there
        are none.
        """
        removed = self.ids.removed_rows[self.ids.removed_rows < len(self.indexes[0].vectors)]
        if not len(removed):
            return None
        faiss = _faiss()
        selector = faiss.IDSelectorNot(faiss.IDSelectorBatch(removed))
        return faiss.SearchParametersIVF(sel=selector, nprobe=self.approximate.nprobe)

    def _wide(self, rows: np.ndarray) -> np.ndarray:
        vectors = np.zeros((*rows.shape, self.dimension))
        for index, inside, local in self._by_index(rows):
            vectors[inside] = index.vectors[local]
        return vectors

    def _tokens(self, rows: np.ndarray) -> TokenSigns | None:
        parts = [index._tokens(local) for index, _, local in self._by_index(rows)]
        return TokenSigns.concatenate(parts) if parts else self.indexes[0]._tokens(rows)

    def _by_index(self, rows: np.ndarray) -> Iterator[tuple[DenseIndex, np.ndarray, np.ndarray]]:
        """Each index that has any of `rows`, which of them are its own, and which rows those are
        there.
        """
        owner = np.searchsorted(self.ids.first, rows, side="right") - 1
        for number in np.unique(owner).tolist():
            if number >= 0:  # a row of -1 is none
                inside = owner == number
                yield self.indexes[number], inside, rows[inside] - self.ids.first[number]

    @cached_property
    def _largest_norm(self) -> float:
        return max(index._largest_norm for index in self.indexes if index.approximate is None)


class CandidateVectors(NamedTuple):
    """What scores n documents, read once for several queries.

    vectors: (r, H) float64, document after document. tokens: of each one's passage, if they are
    kept. rows: which document's they are.
    """

    vectors: np.ndarray
    tokens: TokenSigns | None
    rows: RowGroups

    def scores(self, query: np.ndarray) -> np.ndarray:
        """The product (n,) of a query (H,) with each document's nearest vector, float32."""
        return self.rows.best(inner_products(self.vectors, query))

    def late_scores(self, query: TokenSigns) -> np.ndarray:
        """The similarity (n,) of a query's tokens and each document's nearest passage's, float64."""
        return self.rows.best(query.similarities(self.tokens))

    def nearest(self, query: np.ndarray, document: int) -> np.ndarray:
        """Of one of the documents the vector (H,) that is nearest to a query (H,); the first of
        equals.
        """
        start, *end = self.rows.starts[self.rows.group_index[document] :][:2]
        vectors = self.vectors[start : end[0] if end else None]
        return vectors[np.argmax(inner_products(vectors, query))]


def _and_none(rows: np.ndarray) -> np.ndarray:
    """Candidates (q, c) and a last one that is none, so that nothing more is asked for."""
    return np.pad(rows, ((0, 0), (0, 1)), constant_values=-1)


def inner_products(vectors: np.ndarray, query: np.ndarray) -> np.ndarray:
    """The products (r,) of vectors (r, H) with a query (H,), float32.

    vectors: float64 of what float32 stores, so that products are exact: 24-bit factors in a 53-bit
    format. Summing row by row gives a pair the same bits whatever else is in the batch.
    """
    return np.vecdot(vectors, query.astype(np.float64)).astype(np.float32)


def inverted_file(vectors: np.ndarray, settings: IndexSettings) -> Any | None:
    """FAISS's inner-product index of `vectors` (n, H) in bytes, by lists, numbered by row; None:
    search is exact.
    """
    lists = settings.lists(len(vectors))
    if not lists:
        return None
    faiss = _faiss()
    index = faiss.index_factory(vectors.shape[1], f"IVF{lists},SQ8", faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    index.nprobe = settings.nprobe
    return index


def _read(path: Path, settings: IndexSettings) -> Any:
    index = _faiss().read_index(str(path))
    index.nprobe = settings.nprobe
    return index


def require_faiss(settings: IndexSettings, count: int) -> None:
    """FreshetError if so many vectors need FAISS and it is missing: ask before an hour of encoding."""
    if settings.lists(count):
        _faiss()


def _faiss() -> Any:
    try:
        import faiss
    except ModuleNotFoundError as error:
        raise FreshetError(
            "search among so many vectors needs faiss, which is not installed: pip install -e '.[full]' (or faiss-cpu "
            "alone), or set index.flat_below above their number, exact search that does without, and build again"
        ) from error
    return faiss


def _require_rows(vectors: np.ndarray, rows: int, dimension: int) -> None:
    if vectors.ndim != 2 or vectors.shape != (rows, dimension):
        raise FreshetError(
            f"vectors of shape {vectors.shape} do not fit {rows} passages of {dimension} components"
        )
    if not np.isfinite(vectors).all():
        raise FreshetError(
            "vectors hold NaN or infinite components; the encoder diverged: train it again"
        )
