"""What additions read and change: a vector and a representative query for each document, and what
follows from them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model_code.errors import FreshetError
from model_code.incdsi.rows import (
    GrowingRows,
    ScannedRows,
    dots,
    fillings,
    float32_error,
    length,
    lengths,
)
from model_code.settings import require

# documents and queries from which the deviation of scores is estimated, evenly spread
SAMPLE = 2048


class IncDsiState:
    """V `vectors` (n, H), Z `queries` (n, H), both float32, and their `ids`.

    From these follow s `own_scores` (n) = z_j.v_j and the lengths of all rows, in float64 and
    always computed row by row, so that a state rebuilt from V and Z equals the one that grew.

    score_deviation: standard deviation of the scores z_i.v_j when the state was first made, the
    unit of margins; None:
      computed now. Store it with V and Z: margins must not drift as documents come.
    """

    def __init__(
        self,
        vectors: np.ndarray,
        queries: np.ndarray,
        ids: Sequence[str],
        score_deviation: float | None = None,
    ) -> None:
        finite = bool(np.isfinite(vectors).all() and np.isfinite(queries).all())
        require(finite, "vectors or queries hold a number that is not finite: encode them again")
        vectors, queries = np.asarray(vectors, np.float32), np.asarray(queries, np.float32)
        self.vectors, self.queries = ScannedRows(vectors), ScannedRows(queries)
        self.vector_lengths, self.query_lengths = (
            GrowingRows(lengths(vectors)),
            GrowingRows(lengths(queries)),
        )
        self.own_scores = GrowingRows(dots(vectors, queries))
        self.ids = list(ids)
        self._rows = {key: row for row, key in enumerate(self.ids)}
        require(len(self._rows) == len(self.ids), "a document id occurs twice in a collection")
        self.score_deviation = (
            deviation(vectors, queries) if score_deviation is None else score_deviation
        )

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def row(self, key: str) -> int:
        """The row of the document `key`; raises FreshetError if there is none."""
        if key not in self._rows:
            raise FreshetError(f"document {key!r} is not in the collection: add it first")
        return self._rows[key]

    def append(self, key: str, vector: np.ndarray, query: np.ndarray) -> None:
        """Add one document at the end; both arrays (H) are rounded to float32 first."""
        if key in self._rows:
            raise FreshetError(f"document {key!r} is in the collection already: delete it first")
        vectors, queries = np.asarray(vector, np.float32)[None], np.asarray(query, np.float32)[None]
        values = [vectors, queries, lengths(vectors), lengths(queries), dots(vectors, queries)]
        for rows, value in zip(self._all(), values, strict=True):
            rows.append(value)
        self._rows[key] = len(self.ids)
        self.ids.append(key)

    def delete(self, rows: np.ndarray) -> None:
        """Take out `rows`; the last documents take their places: where a document lies shows in no
        vector.
        """
        rows = np.unique(rows)
        for growing in self._all():
            growing.delete(rows)
        for row in rows.tolist():
            del self._rows[self.ids[row]]
        for hole, last in zip(
            *(places.tolist() for places in fillings(rows, len(self.ids))), strict=True
        ):
            self.ids[hole] = self.ids[last]
            self._rows[self.ids[hole]] = hole
        del self.ids[len(self.ids) - len(rows) :]

    def truncate(self, count: int) -> None:
        """Keep the first `count` documents."""
        for growing in self._all():
            growing.truncate(count)
        for key in self.ids[count:]:
            del self._rows[key]
        del self.ids[count:]

    def may_exceed(self, rows: np.ndarray, vector: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Those of `rows` (k) whose query may score above `scores` (k) with `vector` (H); the rest
        are proven not to.

        A cheap pass in float32 that spares most of them the test in float64.
        """
        rough = self.queries.view[rows] @ vector.astype(np.float32)
        slack = 2 * float32_error(len(vector)) * length(vector)  # twice: also for the addition here
        return rows[rough + slack * self.query_lengths.view[rows] >= scores]

    def _all(self) -> list[GrowingRows]:
        return [
            self.vectors,
            self.queries,
            self.vector_lengths,
            self.query_lengths,
            self.own_scores,
        ]


def deviation(vectors: np.ndarray, queries: np.ndarray) -> float:
    """The standard deviation of the scores of up to 2,048 queries with up to 2,048 documents; 0 for
    less than 2.

    >>> deviation(np.array([[1.0], [3.0]]), np.array([[1.0], [1.0]]))
    1.0
    """
    if len(vectors) < 2:
        return 0.0
    spread = np.linspace(0, len(vectors) - 1, min(SAMPLE, len(vectors))).astype(np.int64)
    return float((queries[spread].astype(np.float64) @ vectors[spread].astype(np.float64).T).std())
