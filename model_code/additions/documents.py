"""What arrives for a live collection, as IncDSI takes it: an encoding, and the vectors of what shall find it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from model_code.additions.memory import has_one
from model_code.additions.representatives import query_vectors
from model_code.documents import Change, Document
from model_code.incdsi.documents import NewDocument
from model_code.live.searcher import Searcher
from model_code.live.segment import new_passages

Encoded = tuple[np.ndarray, np.ndarray]
"""A document's encoding (H), and the vectors (m, H) of the queries that it came with"""


def of_one_vector(ids: Sequence[str], vectors: np.ndarray, queries: Sequence[np.ndarray]) -> dict[str, Encoded]:
    """The rows of documents that have no other: vectors (n, H), and for each row the vectors (m, H) of its queries."""
    rows = zip(ids, vectors, queries, has_one(ids), strict=True)
    return {key: (vector, asked) for key, vector, asked, alone in rows if alone}


def new_documents(
    searcher: Searcher, spans: int, steps: Sequence[Change], lasting: Mapping[str, Encoded]
) -> dict[int, NewDocument]:
    """By the number of its step, each document of one vector that `steps` put.

    lasting: by id, those that no later step changes, which are encoded already.
    """
    last = {step.document_id: number for number, step in enumerate(steps)}
    puts = {number: step for number, step in enumerate(steps) if isinstance(step, Document)}
    passing = {number: put for number, put in puts.items() if number != last[put.document_id]}
    encoded = {last[key]: own for key, own in lasting.items()} | _encoded(searcher, passing)
    own_texts = [(puts[number].title, puts[number].text) for number in encoded]
    made = query_vectors(searcher.base.retriever.encoder, own_texts, spans)
    return {
        number: NewDocument(puts[number].document_id, np.concatenate([own, asked]), encoding)
        for (number, (encoding, asked)), own in zip(encoded.items(), made, strict=True)
    }


def _encoded(searcher: Searcher, puts: Mapping[int, Document]) -> dict[int, Encoded]:
    """Of puts by their numbers, those of one vector; the same document may be put several times."""
    if not puts:
        return {}
    base, numbered = searcher.base, [replace(put, document_id=str(number)) for number, put in puts.items()]
    new = new_passages(numbered, searcher.generation.text)
    numbers, vectors = base.retriever.encodings(new)
    found = of_one_vector(numbers, vectors, base.retriever.query_vectors(new, numbers))
    return {int(number): own for number, own in found.items()}
