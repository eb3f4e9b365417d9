"""Search by inner product over passage vectors; a document is ranked by its best passage.

A search has two steps. First a float32 scan of all vectors, or an inverted file of FAISS, proposes
candidate passages. Then each candidate is scored separately from the stored vectors. So a score
depends on the query vector and the passage vector only. It does not depend on the other queries of
a batch, on the order of insertion, or on how a library blocks a matrix product.

Without an inverted file the result is provably exact. The search fetches more candidates until no
other passage can be better, even with the largest possible rounding error.

An index may also store token signs for late interaction: one bit per dimension of each word's
vector.

The exact search is our own code because FAISS's flat index neither scores independently of the
batch nor ranks documents by their best passage. It also lets small projects do without FAISS.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from model_code.encoding.token_signs import SIGNS_FILE, TokenSigns
from model_code.errors import FingerprintMismatch, FreshetError
from model_code.files import (
    read_manifest,
    verify_checksums,
    write_array,
    write_json,
    write_manifest,
)
from model_code.retrieval.id_map import AllowedRows, IdMap, IdMaps, RowGroups, read_id_map
from model_code.retrieval.index_settings import ALWAYS_EXACT, IndexSettings
from model_code.retrieval.protocol import Ranking
from model_code.retrieval.top_k import nearest_rows, top_k
from model_code.row_file import RowFile

# Version of the format of a dense index. A folder with another version is refused.
FORMAT = 2
# Lower limit of a norm by which vectors are divided. It avoids a division by 0.
MIN_NORM = 1e-12
KIND = "dense"
VECTORS = "vectors.npy"
DOCUMENT_IDS = "document_ids.json"
FAISS = "index.faiss"
FLAT_FACTORY = "Flat"

DEFAULT_SETTINGS = IndexSettings()
EXACT_SETTINGS = IndexSettings(flat_below=ALWAYS_EXACT)

# Number of candidate passages that are fetched beyond those needed for k documents.
EXTRA_CANDIDATES = 16

# Largest number of allowed passages for which a filtered search scores every allowed passage.
MAX_EXHAUSTIVE_ROWS = 2048

# Largest factor by which a filter increases the number of inverted lists that a query visits.
MAX_PROBE_FACTOR = 8

# Number of passages that are scored at a time. Their float64 vectors stay in the cache of the
# processor. With 65,536 passages, the scores of 35 rows for each of 900 queries took at least four
# times as long.
MAX_ROWS_SCORED_AT_ONCE = 2048

# Largest relative error of rounding a number to float32 (unit roundoff).
FLOAT32_ROUNDING = 2.0**-24


class DenseIndex:
    """Passage vectors, the document of each, and the fingerprint of the encoder that made them.

    An index is immutable. A live collection adds documents in further indexes, and masks removed
    documents. Every method that takes query vectors also takes the fingerprint of their encoder.
    Otherwise vectors of a wrong encoder with the same dimension would go unnoticed.

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
        token_signs: TokenSigns | None = None,
        vector_file: RowFile | None = None,
    ) -> None:
        """Wrap vectors and their optional inverted file. Use `build` or `load` instead.

        Args:
            vectors: Passage vectors, shape (n, H), float32.
            ids: Document id of each row.
            fingerprint: Fingerprint of the encoder.
            settings: How the index is searched.
            approximate: FAISS's inverted file of the vectors, numbered by row. None: exact search.
            vectors_per_passage: Number of consecutive rows that represent one passage.
            token_signs: Token signs of the passages, if they are stored.
            vector_file: File from which single vectors are read. None: from `vectors`.
        """
        self.vectors = vectors
        self.ids = ids
        self.fingerprint = fingerprint
        self.settings = settings
        self.approximate = approximate
        self.vectors_per_passage = vectors_per_passage
        self.token_signs = token_signs
        self._vector_file = vector_file

    @classmethod
    def build(
        cls,
        vectors: np.ndarray,
        document_ids: Sequence[str],
        fingerprint: str,
        settings: IndexSettings = DEFAULT_SETTINGS,
        vectors_per_passage: int = 1,
        token_signs: TokenSigns | None = None,
    ) -> DenseIndex:
        """Build an index of vectors, with FAISS's inverted file if the settings ask for one.

        Args:
            vectors: Vectors, shape (n, H).
            document_ids: Document id of each row. Passages of a document need not be adjacent.
            fingerprint: Fingerprint of the encoder.
            settings: How the index is searched.
            vectors_per_passage: Number of consecutive rows that represent one passage.
            token_signs: Token signs of the passages. They need one vector per passage.

        Raises:
            FreshetError: If the shapes do not fit, or a value is not finite.
        """
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        ids = IdMap(document_ids)
        _check_vectors(vectors, len(ids), vectors.shape[1])
        approximate = build_inverted_file(vectors, settings)
        return cls(
            vectors, ids, fingerprint, settings, approximate, vectors_per_passage, token_signs
        )

    @property
    def factory(self) -> str:
        """FAISS's factory string of the index that proposes candidates; `Flat` for exact search."""
        if self.approximate is None:
            return FLAT_FACTORY
        return f"IVF{self.approximate.nlist},SQ8"

    @property
    def passages(self) -> int:
        """Number of passages."""
        return len(self.ids) // self.vectors_per_passage

    @property
    def document_ids(self) -> Sequence[str]:
        """The document of each row of `vectors`."""
        return self.ids.document_ids

    @property
    def dimension(self) -> int:
        """Number of dimensions H of a vector."""
        return self.vectors.shape[1]

    def search(self, queries: np.ndarray, k: int, fingerprint: str) -> list[Ranking]:
        """Return the k best documents for each query, best first.

        A score is the inner product of the float32 vectors, computed in float64 and rounded to
        float32.

        Args:
            queries: Query vectors, shape (q, H).
            k: Number of documents per query.
            fingerprint: Fingerprint of the encoder of the queries.

        Raises:
            FingerprintMismatch: If the queries come from another encoder.
        """
        return self._search(self._check_queries(queries, fingerprint), k)

    def _search(
        self, queries: np.ndarray, k: int, allowed: AllowedRows | None = None
    ) -> list[Ranking]:
        """Return the k best documents, or the k best allowed ones, for each query (q, H).

        Some candidate passages of each query are fetched and scored exactly. Then the ranking of a
        query may be settled: no other passage can change it. For the queries whose ranking is not
        settled, twice as many candidates are fetched.
        """
        rankings: list[Ranking] = [[] for _ in queries]
        if allowed is None:
            searchable_rows = len(self.ids) - len(self.ids.removed_rows)
            searchable_documents = self.ids.documents
        else:
            searchable_rows = allowed.count
            searchable_documents = allowed.documents
        if not searchable_rows:
            return rankings

        # These are enough candidates if all documents have the same number of passages.
        rows_per_document = math.ceil(searchable_rows / max(1, searchable_documents))
        count = k * max(1, rows_per_document) + EXTRA_CANDIDATES
        unsettled = np.arange(len(queries))
        while len(unsettled):
            count = min(count, searchable_rows)
            has_all_rows = count == searchable_rows
            candidates = self._candidate_rows(queries[unsettled], count, allowed)
            new_rankings = self._rank_candidates(queries[unsettled], candidates, k)

            still_unsettled = []
            for number, rows, ranking in zip(unsettled, candidates, new_rankings, strict=True):
                rankings[number] = ranking

                # If the inverted file finds too few allowed documents for a query, more candidates
                # do not help. `search_among` then scores all allowed passages.
                has_too_few = allowed is not None and len(ranking) < k
                gives_up = has_too_few and self._is_exhausted(rows, count)
                if has_all_rows or gives_up:
                    continue
                if not self._is_settled(queries[number], ranking, rows, k):
                    still_unsettled.append(number)

            unsettled = np.array(still_unsettled, dtype=np.intp)
            count *= 2
        return rankings

    def _rank_candidates(
        self, queries: np.ndarray, candidates: np.ndarray, k: int
    ) -> Iterator[Ranking]:
        """Yield the k best documents among the candidate passages of each query.

        Args:
            queries: Query vectors, shape (q, H).
            candidates: Candidate rows of each query, shape (q, c); -1 stands for no row.
            k: Number of documents per query.
        """
        document_ids = self.ids.document_ids
        # Score few queries at a time, so that the vectors of their candidates fit into memory.
        step = max(1, MAX_ROWS_SCORED_AT_ONCE // candidates.shape[1])
        for start in range(0, len(queries), step):
            rows = candidates[start : start + step]
            scores = self._scores(queries[start : start + step], rows)
            for query_scores, query_rows in zip(scores, rows, strict=True):
                ranking = top_k(query_scores, document_ids, k, query_rows)
                # Drop the place holders: a candidate of -1 has the score -inf.
                yield [hit for hit in ranking if hit[1] > -np.inf]

    def scores(
        self, queries: np.ndarray, candidates: Sequence[Sequence[str]], fingerprint: str
    ) -> list[np.ndarray]:
        """Score the candidates of each query as `search` does.

        Args:
            queries: Query vectors, shape (q, H).
            candidates: Document ids per query, without repetitions.
            fingerprint: Fingerprint of the encoder of the queries.

        Returns:
            Scores (n,) of each query's n candidates, float32.

        Raises:
            FreshetError: If a candidate is not in the index.
        """
        queries = self._check_queries(queries, fingerprint)
        scores = []
        for query, documents in zip(queries, candidates, strict=True):
            groups = self.ids.group_rows(documents)
            scores.append(groups.max_scores(self._scores(query, groups.rows)))
        return scores

    def vectors_of(self, document_ids: Sequence[str]) -> CandidateVectors:
        """Return the vectors and token signs of different documents.

        Raises:
            FreshetError: If a document is not in the index.
        """
        groups = self.ids.group_rows(document_ids)
        return CandidateVectors(
            self._wide_vectors(groups.rows), self._token_signs_of(groups.rows), groups
        )

    def search_among(
        self, queries: np.ndarray, k: int, allowed: Collection[str], fingerprint: str
    ) -> list[Ranking]:
        """Return the k best of the allowed documents for each query.

        If at most `MAX_EXHAUSTIVE_ROWS` passages are allowed, all of them are scored. Otherwise
        candidates are proposed as in `search`, from the allowed passages only. If an approximate
        index finds too few documents for a query, all allowed passages are scored for this query.

        Args:
            queries: Query vectors, shape (q, H).
            k: Number of documents per query.
            allowed: Ids of the documents to search.
            fingerprint: Fingerprint of the encoder of the queries.

        Raises:
            FreshetError: If an allowed document is not in the index.
        """
        queries = self._check_queries(queries, fingerprint)
        allowed_rows = self.ids.allowed_rows(allowed)
        if allowed_rows.count <= MAX_EXHAUSTIVE_ROWS:
            return [self._rank_rows(query, k, allowed_rows.rows) for query in queries]

        rankings = self._search(queries, k, allowed_rows)
        wanted = min(k, allowed_rows.documents)
        for i, ranking in enumerate(rankings):
            if len(ranking) < wanted:
                rankings[i] = self._rank_rows(queries[i], k, allowed_rows.rows)
        return rankings

    def _rank_rows(self, query: np.ndarray, k: int, rows: np.ndarray) -> Ranking:
        """Return the k best documents of some rows (r,) for a query (H,), by scoring each row."""
        return top_k(self._scores(query, rows), self.ids.document_ids, k, rows)

    def best_passage(self, query: np.ndarray, document_id: str) -> int:
        """Return the number of the document's passage nearest to a query.

        Passages of a document count from 0. If several are equally near, it is the first of them.

        Args:
            query: Query vector, shape (H,).
            document_id: The document.
        """
        best_row = int(np.argmax(self._scores(query, self.ids.rows_of([document_id]))))
        return best_row // self.vectors_per_passage

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the index to a folder. Equal indexes give equal bytes.

        Returns:
            The manifest's entries about the index.
        """
        folder.mkdir(parents=True, exist_ok=True)
        write_array(folder / VECTORS, self.vectors)
        write_json(folder / DOCUMENT_IDS, list(self.ids.document_ids), lines=False)
        if self.approximate is not None:
            _write_inverted_file(self.approximate, folder / FAISS)
        if self.token_signs is not None:
            self.token_signs.save(folder)

        manifest = {
            "kind": KIND,
            "fingerprint": self.fingerprint,
            "dimension": self.dimension,
            "passages": self.passages,
            "documents": self.ids.documents,
            "vectors_per_passage": self.vectors_per_passage,
            "factory": self.factory,
            "settings": self.settings.model_dump(),
        }
        write_manifest(folder, FORMAT, manifest)
        return manifest

    @classmethod
    def load(cls, folder: Path, check: bool = True) -> DenseIndex:
        """Open an index that `save` wrote, and map its vectors instead of reading them.

        So an index opens fast, and may be larger than the memory.

        Args:
            folder: Folder of the index.
            check: Whether to compare checksums, which reads every file once.

        Raises:
            FreshetError: If a file differs from its checksum in the manifest, or the folder has
                another format.
        """
        manifest = read_manifest(folder, FORMAT)
        if check:
            verify_checksums(folder, manifest)

        # The settings were validated when the index was written, so this skips their checks.
        settings = IndexSettings.model_construct(**manifest["settings"])
        approximate = None
        vector_file = None
        if manifest["factory"] != FLAT_FACTORY:
            approximate = _map_inverted_file(folder / FAISS, settings)
            # With an inverted file, a search reads single vectors, and reads them from the file. An
            # exact search reads all of them, for which the mapping is best.
            vector_file = RowFile.open_large(folder / VECTORS)
        token_signs = None
        if (folder / SIGNS_FILE).is_file():
            token_signs = TokenSigns.load(folder)

        return cls(
            vectors=np.asarray(np.load(folder / VECTORS, mmap_mode="r")),
            ids=read_id_map(folder / DOCUMENT_IDS),
            fingerprint=manifest["fingerprint"],
            settings=settings,
            approximate=approximate,
            vectors_per_passage=manifest["vectors_per_passage"],
            token_signs=token_signs,
            vector_file=vector_file,
        )

    def _check_queries(self, vectors: np.ndarray, fingerprint: str) -> np.ndarray:
        """Return query vectors as float32, after checking their encoder, shape and values."""
        if fingerprint != self.fingerprint:
            raise FingerprintMismatch(
                f"the index was built with encoder {self.fingerprint[:12]}, these vectors come "
                f"from {fingerprint[:12]}; build the index again with that encoder, or encode the "
                "queries with the index's encoder"
            )
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        _check_vectors(vectors, len(vectors), self.dimension)
        return vectors

    def _candidate_rows(
        self, queries: np.ndarray, count: int, allowed: AllowedRows | None = None
    ) -> np.ndarray:
        """Return the candidate rows of each query, shape (q, count), best first.

        If the last candidate is a row, no other row of the index is better than it. If it is -1,
        other rows may be better: an inverted file does not look at every row.
        """
        if self.approximate is None:
            excluded_rows = None if allowed is None else allowed.excluded_rows()
            _, rows = nearest_rows(queries, [self.vectors], count, excluded_rows)
            return rows
        _, rows = self.approximate.search(queries, count, params=self._faiss_parameters(allowed))
        return _append_end_marker(rows)

    def _faiss_parameters(self, allowed: AllowedRows | None) -> Any:
        """Return FAISS's search parameters for the allowed rows of the inverted file, or None.

        The fewer rows are allowed, the more lists are visited, so that about as many candidates
        are compared as without a filter.
        """
        if allowed is None:
            return None
        faiss = _import_faiss()
        # The inverted file holds the first `ntotal` rows. A joined index has further ones.
        mask = allowed.mask[: self.approximate.ntotal]
        allowed_share = max(1, int(np.count_nonzero(mask))) / len(mask)
        factor = min(MAX_PROBE_FACTOR, round(1 / allowed_share))
        visited_lists = min(self.approximate.nlist, self.approximate.nprobe * factor)

        selector = faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))
        return faiss.SearchParametersIVF(sel=selector, nprobe=visited_lists)

    def _wide_vectors(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors (..., H) of rows (...) in float64; arbitrary for a row of -1."""
        return self._read_vectors(rows).astype(np.float64)

    def _read_vectors(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors (..., H) of rows (...), float32; arbitrary for a row of -1."""
        if self._vector_file is not None:
            return self._vector_file.read(rows)
        return self.vectors[rows]

    def _token_signs_of(self, rows: np.ndarray) -> TokenSigns | None:
        """Return the token signs of the passages of rows (r,), if they are stored."""
        return None if self.token_signs is None else self.token_signs[rows]

    @cached_property
    def _largest_norm(self) -> float:
        """The largest norm of a vector of the index; 0 without vectors."""
        squared_norms = np.einsum("nh,nh->n", self.vectors, self.vectors)
        return float(np.sqrt(squared_norms.max(initial=0)))

    def _scores(self, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return inner products in float32, and -inf for a row of -1.

        Args:
            queries: A query (H,), or several (q, H).
            rows: Rows (r,) for a query, or separate rows (q, r) for each of several.
        """
        # Shape (1, H) or (q, 1, H), so that each query meets all of its rows.
        queries = queries[..., None, :]
        products = []
        # Score the rows in blocks, to bound the memory. Without rows, one empty block gives the
        # result its shape.
        for start in range(0, max(1, rows.shape[-1]), MAX_ROWS_SCORED_AT_ONCE):
            vectors = self._wide_vectors(rows[..., start : start + MAX_ROWS_SCORED_AT_ONCE])
            products.append(inner_products(vectors, queries))
        return np.where(rows < 0, -np.inf, np.concatenate(products, axis=-1))

    def score_rows(self, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the exact scores of some rows for each query, as `search` computes them.

        Args:
            queries: Query vectors, shape (q, H), float32.
            rows: Rows to score, shape (q, r); -1 stands for no row.

        Returns:
            Scores of shape (q, r), float32; -inf for no row.
        """
        scores = np.empty(rows.shape, np.float32)
        step = max(1, MAX_ROWS_SCORED_AT_ONCE // max(1, rows.shape[1]))
        for start in range(0, len(queries), step):
            part = slice(start, start + step)
            scores[part] = self._scores(queries[part], rows[part])
        return scores

    def _is_exhausted(self, rows: np.ndarray, count: int) -> bool:
        """Whether the inverted file found fewer candidates than it was asked for.

        Args:
            rows: Candidates (c,) of a query. Those of the inverted file come first.
            count: Number of candidates that it was asked for.
        """
        return self.approximate is not None and bool((rows[:count] < 0).any())

    def _is_settled(self, query: np.ndarray, ranking: Ranking, rows: np.ndarray, k: int) -> bool:
        """Whether no passage outside the candidates can belong to the k best documents.

        Args:
            query: Query vector, shape (H,).
            ranking: The k best documents of the candidates.
            rows: Candidate rows, shape (c,), best first.
            k: Number of documents.
        """
        if len(ranking) < k:
            return False
        # An inverted file gives no bound for the rows that it left out, so k documents are enough.
        has_no_bound = rows[-1] < 0
        if has_no_bound:
            return True

        worst_score = ranking[-1][1]
        last_score = float(self._scores(query, rows[-1:])[0])
        query_norm = float(np.linalg.norm(query))
        return bool(self._settles(worst_score, last_score, query_norm))

    def _settles(
        self,
        worst_scores: np.ndarray | float,
        last_scores: np.ndarray | float,
        query_norms: np.ndarray | float,
    ) -> np.ndarray | bool:
        """Whether no passage outside the candidates can be better than a ranked one.

        The exact scan orders passages by float32 sums. Each sum differs from the exact product by
        at most H * 2^-24 * |q| * |d| (Higham, Accuracy and Stability of Numerical Algorithms, eq.
        3.5). No passage that was not fetched has a greater sum than the last candidate.

        Args:
            worst_scores: Score of the worst ranked passage, for one query or for several (q,).
            last_scores: Exact score of the last candidate of each query, of the same shape.
            query_norms: Norm of each query vector, of the same shape.
        """
        error_bounds = self.dimension * FLOAT32_ROUNDING * query_norms * self._largest_norm
        # Each of the two compared scores may be off by the error bound. Twice this amount is
        # allowed, to be safe.
        return worst_scores > last_scores + 4 * error_bounds


class JoinedIndex(DenseIndex):
    """Several indexes of one encoder, without their removed documents, searched as one index.

    A search chooses and scores candidates once for all indexes together. Only the first index may
    be approximate; the others are scanned exactly. A joined index can be searched, but not saved:
    `vectors` holds those of the first index only, and the others stay in `indexes`.
    """

    ids: IdMaps

    def __init__(self, sources: Sequence[tuple[DenseIndex, frozenset[str]]]) -> None:
        """Join indexes.

        Args:
            sources: Indexes, each with the ids of its removed documents. A document that is not
                removed may be in one index only.

        Raises:
            FingerprintMismatch: If the vectors come from different encoders.
        """
        self.indexes = [index for index, _ in sources]
        base = self.indexes[0]
        for index in self.indexes:
            index._check_queries(base.vectors[:1], base.fingerprint)
        super().__init__(
            base.vectors,
            IdMaps([(index.ids, removed) for index, removed in sources]),
            base.fingerprint,
            base.settings,
            base.approximate,
            base.vectors_per_passage,
        )

    def best_rows(self, queries: np.ndarray, k: int, fingerprint: str) -> list[np.ndarray]:
        """Return the rows of the k best documents of each query, if each document has one row.

        They are the documents that `search` returns. Ids are only looked up for a query whose
        documents are not settled by the first candidates, so it is faster.

        Args:
            queries: Query vectors, shape (q, H).
            k: Number of documents per query.
            fingerprint: Fingerprint of the encoder of the queries.

        Returns:
            For each query, at most k rows, in no particular order.
        """
        queries = self._check_queries(queries, fingerprint)
        searchable_rows = len(self.ids) - len(self.ids.removed_rows)
        if searchable_rows <= k:
            present_rows = np.setdiff1d(np.arange(len(self.ids)), self.ids.removed_rows)
            return [present_rows for _ in queries]

        candidates = self._candidate_rows(queries, min(k + EXTRA_CANDIDATES, searchable_rows))
        scores = self.score_rows(queries, candidates)
        order = np.argsort(-scores, axis=1, kind="stable")
        ordered_scores = np.take_along_axis(scores, order, axis=1)
        worst_scores = ordered_scores[:, k - 1]

        # See `_is_settled`. Besides, the set is open if the next document has an equal score.
        query_norms = np.linalg.norm(queries.astype(np.float64), axis=1)
        is_settled = self._settles(worst_scores, scores[:, -1], query_norms)
        has_no_bound = candidates[:, -1] < 0
        has_all_rows = candidates.shape[1] == searchable_rows
        is_settled = is_settled | has_no_bound | has_all_rows
        is_settled &= worst_scores > ordered_scores[:, k]

        found: list[np.ndarray] = []
        for number, query_order in enumerate(order):
            if is_settled[number]:
                found.append(candidates[number, query_order[:k]])
                continue
            (ranking,) = self._search(queries[number : number + 1], k)
            found.append(self.ids.rows_of([document for document, _ in ranking]))
        return found

    def _candidate_rows(
        self, queries: np.ndarray, count: int, allowed: AllowedRows | None = None
    ) -> np.ndarray:
        """Return the candidate rows of each query; see `DenseIndex._candidate_rows`.

        If the first index has an inverted file, `count` rows come from this file, followed by
        `count` rows from a scan of the other indexes. Otherwise all indexes are scanned together.
        """
        base_vectors = self.indexes[0].vectors
        other_vectors = [index.vectors for index in self.indexes[1:]]
        first_scanned_row = 0 if self.approximate is None else len(base_vectors)

        # The scan numbers its rows from 0, so the excluded rows are shifted.
        if allowed is None:
            excluded_rows = self.ids.removed_rows
            excluded_rows = excluded_rows[excluded_rows >= first_scanned_row]
        else:
            excluded_rows = allowed.excluded_rows(first_scanned_row)
        excluded_rows = excluded_rows - first_scanned_row
        scanned_vectors = [base_vectors[first_scanned_row:], *other_vectors]
        scores, scanned_rows = nearest_rows(queries, scanned_vectors, count, excluded_rows)
        is_excluded = np.isneginf(scores)
        rows = np.where(is_excluded, -1, scanned_rows + first_scanned_row)
        if self.approximate is None:
            return rows

        parameters = self._faiss_parameters(allowed)
        _, base_rows = self.approximate.search(queries, count, params=parameters)
        candidates = np.concatenate([base_rows, rows], axis=1)
        # If every scanned row is a candidate, the last one tells nothing about other rows.
        has_all_scanned_rows = count >= len(self.ids) - first_scanned_row
        return _append_end_marker(candidates) if has_all_scanned_rows else candidates

    def _faiss_parameters(self, allowed: AllowedRows | None) -> Any:
        # Removed documents must not be found. A filter leaves them out already, and without one,
        # these parameters do.
        if allowed is None:
            return self._parameters_without_filter
        return super()._faiss_parameters(allowed)

    @cached_property
    def _parameters_without_filter(self) -> Any:
        """FAISS's search parameters that leave out the removed rows of the first index, or None."""
        removed_rows = self.ids.removed_rows
        removed_base_rows = removed_rows[removed_rows < len(self.indexes[0].vectors)]
        if not len(removed_base_rows):
            return None
        faiss = _import_faiss()
        selector = faiss.IDSelectorNot(faiss.IDSelectorBatch(removed_base_rows))
        return faiss.SearchParametersIVF(sel=selector, nprobe=self.approximate.nprobe)

    def _wide_vectors(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors (..., H) of rows (...) of all indexes; arbitrary for a row of -1."""
        # A single index holds all rows, so they need not be split by index.
        if len(self.indexes) == 1:
            return self.indexes[0]._wide_vectors(rows)
        vectors = np.zeros((*rows.shape, self.dimension))
        for index, is_in_index, local_rows in self._split_by_index(rows):
            vectors[is_in_index] = index._read_vectors(local_rows)
        return vectors

    def _token_signs_of(self, rows: np.ndarray) -> TokenSigns | None:
        """Return the token signs of the passages of rows (r,) of any index, if they are stored."""
        if not len(rows):
            return self.indexes[0]._token_signs_of(rows)
        # The rows are ordered by index, so that the parts need not be sorted again.
        signs = [
            index._token_signs_of(local_rows) for index, _, local_rows in self._split_by_index(rows)
        ]
        return TokenSigns.concatenate(signs)

    def _split_by_index(
        self, rows: np.ndarray
    ) -> Iterator[tuple[DenseIndex, np.ndarray, np.ndarray]]:
        """Split joined rows by the index that contains them. Rows of -1 belong to no index.

        Yields:
            An index, a mask of the shape of `rows` that marks the rows of this index, and these
            rows counted within the index.
        """
        # Which index each row belongs to, by number; -1 for a row of -1, which belongs to none.
        index_numbers = np.searchsorted(self.ids.first_rows, rows, side="right") - 1
        for number in np.unique(index_numbers).tolist():
            if number < 0:
                continue
            is_in_index = index_numbers == number
            local_rows = rows[is_in_index] - self.ids.first_rows[number]
            yield self.indexes[number], is_in_index, local_rows

    @cached_property
    def _largest_norm(self) -> float:
        # The norm is used to bound the error of exact scans, so an index with an inverted file does
        # not count. Without any other index, no row is scanned.
        norms = [index._largest_norm for index in self.indexes if index.approximate is None]
        return max(norms, default=0.0)


class CandidateVectors(NamedTuple):
    """The vectors and token signs of n documents, read once and scored several times.

    Attributes:
        vectors: Vectors of all rows of the documents, one document after the other, shape (r, H),
            float64.
        token_signs: Token signs of the passages, if they are stored.
        groups: Which rows belong to which document.
    """

    vectors: np.ndarray
    token_signs: TokenSigns | None
    groups: RowGroups

    def scores(self, query: np.ndarray) -> np.ndarray:
        """Return the inner product of a query (H,) with each document's nearest vector.

        Returns:
            Scores of shape (n,), float32.
        """
        return self.groups.max_scores(inner_products(self.vectors, query))

    def late_scores(self, query: TokenSigns) -> np.ndarray:
        """Return the late-interaction score of each document's most similar passage.

        Each word of the query is compared with the most similar word of the passage.

        Args:
            query: Token signs of one query.

        Returns:
            Scores of shape (n,), float64.
        """
        return self.groups.max_scores(query.similarities(self.token_signs))

    def similarities(self) -> np.ndarray:
        """Return the cosine similarity of each pair of documents, shape (n, n), float64.

        A document is represented by the mean of its vectors.
        """
        # The sum of vectors is enough, because it has the direction of their mean.
        sums = np.add.reduceat(self.vectors, self.groups.starts)[self.groups.group_index]
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        directions = sums / np.maximum(norms, MIN_NORM)
        return directions @ directions.T

    def nearest_vector(self, query: np.ndarray, document: int) -> np.ndarray:
        """Return the vector of a document that is nearest to a query.

        If several vectors are equally near, the first one is returned.

        Args:
            query: Query vector, shape (H,).
            document: Number of the document among the n documents.

        Returns:
            A vector of shape (H,), float64.
        """
        group = self.groups.group_index[document]
        start = self.groups.starts[group]
        is_last_group = group + 1 == len(self.groups.starts)
        end = len(self.vectors) if is_last_group else self.groups.starts[group + 1]
        vectors = self.vectors[start:end]
        return vectors[np.argmax(inner_products(vectors, query))]


def _append_end_marker(rows: np.ndarray) -> np.ndarray:
    """Append -1 to the candidates (q, c) of each query.

    The -1 tells that a row that is not a candidate may be better than all candidates.
    """
    return np.pad(rows, ((0, 0), (0, 1)), constant_values=-1)


def inner_products(vectors: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Return the inner products of vectors with a query, equal to the last bit in every batch.

    The vectors hold float32 values in float64 arrays. A product of two float32 values is exact in
    float64, since 24 + 24 bits fit into 53 bits. Each row is summed separately.

    Args:
        vectors: Vectors, shape (r, H), float64.
        query: Query vector, shape (H,).

    Returns:
        Products of shape (r,), float32.
    """
    return np.vecdot(vectors, query.astype(np.float64)).astype(np.float32)


def build_inverted_file(vectors: np.ndarray, settings: IndexSettings) -> Any | None:
    """Build FAISS's inverted file of vectors (n, H), quantised to 8 bits and numbered by row.

    Returns:
        The FAISS index, or None if the settings ask for exact search.
    """
    list_count = settings.list_count(len(vectors))
    if not list_count:
        return None
    faiss = _import_faiss()
    index = faiss.index_factory(
        vectors.shape[1], f"IVF{list_count},SQ8", faiss.METRIC_INNER_PRODUCT
    )
    index.train(vectors)
    index.add(vectors)
    index.nprobe = settings.nprobe
    return index


def _write_inverted_file(index: Any, path: Path) -> None:
    """Write an inverted file of FAISS, with its lists in memory.

    For lists that are mapped from a file, FAISS would write only the path of this file.
    """
    faiss = _import_faiss()
    lists = faiss.downcast_InvertedLists(index.invlists)
    if isinstance(lists, faiss.OnDiskInvertedLists):
        read_lists = faiss.ArrayInvertedLists(lists.nlist, lists.code_size)
        lists.copy_subset_to(read_lists, faiss.InvertedLists.SUBSET_TYPE_ID_RANGE, 0, index.ntotal)
        index.replace_invlists(read_lists, True)
        # The FAISS index owns the lists now, so Python must not delete them.
        read_lists.this.disown()
    faiss.write_index(index, str(path))


def _map_inverted_file(path: Path, settings: IndexSettings) -> Any:
    """Open an inverted file of FAISS without reading its lists into memory.

    The lists are mapped from the file, so that the kernel can free their memory at any time.
    """
    faiss = _import_faiss()
    index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP)
    # By default, FAISS reads the lists of each query ahead in 32 threads. 0 switches this off.
    faiss.downcast_InvertedLists(index.invlists).prefetch_nthread = 0
    index.nprobe = settings.nprobe
    return index


def require_faiss(settings: IndexSettings, vectors: int) -> None:
    """Check that FAISS is installed if an index of this size needs it.

    A build calls it before it spends hours on encoding.

    Args:
        settings: How the index is searched.
        vectors: Number of vectors to index.

    Raises:
        FreshetError: If FAISS is needed and not installed.
    """
    if settings.list_count(vectors):
        _import_faiss()


def _import_faiss() -> Any:
    """Import FAISS when it is needed: it is optional, and its import is slow."""
    try:
        import faiss
    except ModuleNotFoundError as error:
        raise FreshetError(
            "an index of this size needs faiss, which is not installed: run pip install -e "
            "'.[cpu]', or set index.flat_below above the number of vectors to search exactly; "
            "then build again"
        ) from error
    return faiss


def _check_vectors(vectors: np.ndarray, rows: int, dimension: int) -> None:
    """Raise FreshetError unless vectors have the shape (rows, dimension) and are finite."""
    if vectors.ndim != 2 or vectors.shape != (rows, dimension):
        raise FreshetError(
            f"vectors of shape {vectors.shape} do not fit {rows} passages of {dimension} dimensions"
        )
    if not np.isfinite(vectors).all():
        raise FreshetError(
            "vectors hold NaN or infinite values; the encoder diverged: train it again"
        )
