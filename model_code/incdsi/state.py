"""The data that IncDSI works on: a vector and a representative query for each document.

The representative query of a document is the mean of the vectors of texts that should find it.
These are its known queries, or parts of its text if it has none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model_code.errors import FreshetError
from model_code.incdsi.scanned_rows import (
    GrowingRows,
    ScannedRows,
    float32_error,
    hole_fillings,
    row_dots,
    row_norms,
    vector_norm,
)
from model_code.settings import require

# Largest number of documents from which the deviation of scores is computed. It bounds the score
# matrix to 2,048 x 2,048 values.
DEVIATION_SAMPLE = 2048


class IncDsiState:
    """The documents of a collection with their vectors V and representative queries Z.

    Document j has the vector v_j, a row of V, and the query z_j, the same row of Z.

    Scores and norms are computed in float64, row by row. So a state that is rebuilt from V and Z
    equals the state to which documents were added one by one, to the last bit.

    Attributes:
        vectors: V (n, H) float32, by which documents are searched.
        queries: Z (n, H) float32, the mean query of each document.
        own_scores: Scores s_j = z_j.v_j (n,) of each document for its representative query.
        vector_lengths: Norms |v_j| (n,) of the documents' vectors.
        query_lengths: Norms |z_j| (n,) of the representative queries.
        ids: Ids of the documents.
        score_deviation: Standard deviation of the scores z_i.v_j. It is the unit of the margins
            `gamma1` and `gamma2`.
    """

    def __init__(
        self,
        vectors: np.ndarray,
        queries: np.ndarray,
        ids: Sequence[str],
        score_deviation: float | None = None,
    ) -> None:
        """Copy vectors and queries.

        Args:
            vectors: V (n, H).
            queries: Z (n, H).
            ids: Different ids of the n documents.
            score_deviation: Unit of margins. None computes it from V and Z. If a state is built
                again after documents were added, pass the value of the first state, so that the
                margins stay the same.

        Raises:
            SettingsError: If a number is not finite, or an id occurs twice.
        """
        is_finite = bool(np.isfinite(vectors).all() and np.isfinite(queries).all())
        require(is_finite, "vectors or queries hold a number that is not finite: encode them again")
        vectors = np.asarray(vectors, np.float32)
        queries = np.asarray(queries, np.float32)
        self.vectors = ScannedRows(vectors)
        self.queries = ScannedRows(queries)
        self.vector_lengths = GrowingRows(row_norms(vectors))
        self.query_lengths = GrowingRows(row_norms(queries))
        self.own_scores = GrowingRows(row_dots(vectors, queries))
        self.ids = list(ids)
        self._rows = {document_id: row for row, document_id in enumerate(self.ids)}
        require(len(self._rows) == len(self.ids), "a document id occurs twice in a collection")
        if score_deviation is None:
            score_deviation = deviation(vectors, queries)
        self.score_deviation = score_deviation

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def row(self, key: str) -> int:
        """Return the row of a document.

        Raises:
            FreshetError: If the document is not in the collection.
        """
        if key not in self._rows:
            raise FreshetError(f"document {key!r} is not in the collection: add it first")
        return self._rows[key]

    def append(self, key: str, vector: np.ndarray, query: np.ndarray) -> None:
        """Add a document at the end.

        Args:
            key: Id of the document.
            vector: Vector (H,) of the document. It is rounded to float32 first.
            query: Representative query (H,) of the document. It is rounded to float32 first.

        Raises:
            FreshetError: If the document is in the collection already.
        """
        if key in self._rows:
            raise FreshetError(f"document {key!r} is in the collection already: delete it first")
        vectors = np.asarray(vector, np.float32)[None]
        queries = np.asarray(query, np.float32)[None]
        self.vectors.append(vectors)
        self.queries.append(queries)
        self.vector_lengths.append(row_norms(vectors))
        self.query_lengths.append(row_norms(queries))
        self.own_scores.append(row_dots(vectors, queries))
        self._rows[key] = len(self.ids)
        self.ids.append(key)

    def delete(self, rows: np.ndarray) -> None:
        """Delete documents by their rows (k,).

        Documents from the end move to the freed rows. This changes no later result, because no
        vector depends on the row of a document.
        """
        rows = np.unique(rows)
        for growing in self._all_rows():
            growing.delete(rows)
        for row in rows.tolist():
            del self._rows[self.ids[row]]

        # The last rows have filled the holes of the deleted ones, and the ids move with them.
        holes, fillers = hole_fillings(rows, len(self.ids))
        for hole, filler in zip(holes.tolist(), fillers.tolist(), strict=True):
            self.ids[hole] = self.ids[filler]
            self._rows[self.ids[hole]] = hole
        del self.ids[len(self.ids) - len(rows) :]

    def truncate(self, count: int) -> None:
        """Delete all documents after the first `count`, to undo additions."""
        for growing in self._all_rows():
            growing.truncate(count)
        for key in self.ids[count:]:
            del self._rows[key]
        del self.ids[count:]

    def may_exceed(self, rows: np.ndarray, vector: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Return the older documents whose query a new vector may score at or above a limit.

        The score of the vector v of a new document for the query z_j of older document j is z_j.v.
        It is computed in float32, which is cheap, with a bound on the rounding error. This proves
        for most documents that the score is below the limit. Only the returned documents need an
        exact test in float64.

        Args:
            rows: Rows j of the older documents to test, (k,).
            vector: Vector v (H,) of a new document.
            scores: For each of these rows, the limit of the score, (k,).

        Returns:
            The rows that may reach their limit, in the given order.
        """
        approximate = self.queries.view[rows] @ vector.astype(np.float32)
        # `float32_error` bounds the rounding error of the scores. Twice this bound also covers the
        # rounding error of the sum below.
        slack = 2 * float32_error(len(vector)) * vector_norm(vector)
        return rows[approximate + slack * self.query_lengths.view[rows] >= scores]

    def _all_rows(self) -> list[GrowingRows]:
        """Return all arrays with one row per document, which are changed together."""
        return [
            self.vectors,
            self.queries,
            self.vector_lengths,
            self.query_lengths,
            self.own_scores,
        ]


def deviation(vectors: np.ndarray, queries: np.ndarray) -> float:
    """Return the standard deviation of the scores of all queries with all documents.

    Of larger collections, 2,048 evenly spaced documents and their queries are used. The result is 0
    for fewer than two documents.

    >>> deviation(np.array([[1.0], [3.0]]), np.array([[1.0], [1.0]]))
    1.0

    Args:
        vectors: Vectors of the documents, (n, H).
        queries: Representative queries of the documents, (n, H).
    """
    count = len(vectors)
    if count < 2:
        return 0.0
    rows = np.linspace(0, count - 1, min(DEVIATION_SAMPLE, count)).astype(np.int64)
    scores = queries[rows].astype(np.float64) @ vectors[rows].astype(np.float64).T
    return float(scores.std())
