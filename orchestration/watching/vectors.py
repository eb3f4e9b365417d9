"""The vectors of live documents, one per document, in the space of the retriever that is live."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model_code.live.part import Part


def passage_vectors(part: Part) -> np.ndarray:
    """The unit vectors (n, H) of all passages of a part, in the order of its rows."""
    vectors = part.retriever.passage_vectors(part.rows.document_ids)
    return unit(np.asarray(vectors, np.float32))


def document_vectors(part: Part, document_ids: Sequence[str]) -> np.ndarray:
    """The unit vectors (m, H) of the first passages of some documents of a part."""
    first = [int(part.rows.rows_of([document])[0]) for document in document_ids]
    return passage_vectors(part)[first]


def first_rows(document_ids: Sequence[str]) -> np.ndarray:
    """The row of each document's first passage, ascending.

    >>> first_rows(["a", "a", "b"]).tolist()
    [0, 2]
    """
    seen: set[str] = set()
    return np.array([row for row, one in enumerate(document_ids) if not (one in seen or seen.add(one))], np.int64)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Rows scaled to unit norm; rows of zeros stay."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1)
