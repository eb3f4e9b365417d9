"""Z of a live collection: for each document the mean vector of what it should be found by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from model_code.additions.texts import constraint_texts
from model_code.encoding.encoder import Encoder
from model_code.live.documents import read_columns
from model_code.live.part import Part
from model_code.retrievers.dsi import DsiRetriever
from model_code.scale.encoding import encode_resumably

Texts = Mapping[str, tuple[str, str]]
"""Title and text of each document."""


def read_texts(part: Part) -> dict[str, tuple[str, str]]:
    """Title and text of all documents of a part."""
    ids, titles, texts = read_columns(part.documents, "document_id", "title", "text")
    return {key: (title, text) for key, title, text in zip(ids, titles, texts, strict=True)}


def base_representatives(base: Part, spans: int, folder: Path) -> np.ndarray:
    """Z (n, H) of the base, in the order of its index: what training left, or else made from the texts.

    folder: where encoded texts are kept until all are.
    """
    if isinstance(base.retriever, DsiRetriever):
        return np.asarray(base.retriever.representatives.vectors)
    texts = read_texts(base)
    asked = [constraint_texts(*texts[key], spans) for key in base.retriever.index.document_ids]
    flat = encode_resumably(base.retriever.encoder, [one for own in asked for one in own], folder)
    return means(flat, [len(own) for own in asked])


def query_vectors(encoder: Encoder, texts: Sequence[tuple[str, str]], spans: int) -> list[np.ndarray]:
    """For each document, of a title and a text, the vectors (m, H) of its texts."""
    asked = [constraint_texts(title, text, spans) for title, text in texts]
    if not asked:
        return []
    flat = encoder.encode([one for own in asked for one in own])
    return np.split(flat, np.cumsum([len(own) for own in asked])[:-1])


def means(rows: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """The mean of each run of `counts` rows of (m, H), as float32.

    >>> means(np.array([[1.0], [3.0], [5.0]]), [2, 1]).tolist()
    [[2.0], [5.0]]
    """
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
    sums = np.add.reduceat(rows, starts, axis=0, dtype=np.float64)
    return (sums / np.array(counts)[:, None]).astype(np.float32)
