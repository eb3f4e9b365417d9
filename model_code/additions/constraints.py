"""What an added document should be found by: texts of it as vectors, beside its own encoding, as IncDSI takes them.

Z of a live collection is, for each document, the mean of these vectors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from model_code import words
from model_code.documents import Change, Document
from model_code.dsi.vectors import sums_of
from model_code.encoding.encoder import Encoder
from model_code.incdsi.adder import NewDocument
from model_code.live.documents import read_columns
from model_code.live.part import Part
from model_code.live.searcher import Searcher
from model_code.live.writer import new_passages
from model_code.retrievers.dsi import DsiRetriever
from model_code.scale.encoding import encode_resumably

SPAN = 12  # words, about as many as a long query has
Encoded = tuple[np.ndarray, np.ndarray]
"""A document's encoding (H), and the vectors (m, H) of the queries that it came with"""


def constraint_texts(title: str, text: str, spans: int) -> list[str]:
    """Title, first sentence, and up to `spans` runs of `SPAN` words, evenly spread over what follows it.

    None is empty and none occurs twice; a document with any text has at least one. Nothing is drawn at random.

    >>> constraint_texts("sort", "Sort a list. In place, that is.", spans=4)
    ['sort', 'Sort a list.', 'In place, that is.']
    """
    first, rest = words.first_sentence(text)
    places = words.spans(rest)
    last = max(0, len(places) - SPAN)
    count = min(spans, -(-len(places) // SPAN))
    starts = [round(last * i / max(1, count - 1)) for i in range(count)]
    found = [
        " ".join(title.split()),
        first,
        *(words.slices(rest, places, start, min(start + SPAN, len(places))) for start in starts),
    ]
    return [one for one in dict.fromkeys(found) if one]


def read_texts(part: Part) -> dict[str, tuple[str, str]]:
    """Title and text of all documents of a part."""
    ids, titles, texts = read_columns(part.documents, "document_id", "title", "text")
    return {key: (title, text) for key, title, text in zip(ids, titles, texts, strict=True)}


def base_representatives(base: Part, spans: int, folder: Path) -> np.ndarray:
    """Z (n, H) of the base, in the order of its index: what training left, or else made from the texts.

    folder: where encoded texts are kept until all are.
    """
    if isinstance(base.dense, DsiRetriever):
        return np.asarray(base.dense.representatives.vectors)
    texts = read_texts(base)
    asked = [constraint_texts(*texts[key], spans) for key in base.dense.index.document_ids]
    flat = encode_resumably(base.dense.encoder, [one for own in asked for one in own], folder)
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
    sums, _ = sums_of(rows, np.repeat(np.arange(len(counts)), counts), len(counts))
    return (sums / np.array(counts)[:, None]).astype(np.float32)


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
    made = query_vectors(searcher.base.dense.encoder, own_texts, spans)
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
    numbers, vectors = base.dense.encodings(new)
    found = of_one_vector(numbers, vectors, base.dense.query_vectors(new, numbers))
    return {int(number): own for number, own in found.items()}


def has_one(document_ids: Sequence[str]) -> list[bool]:
    """Whether each row is the only one of its document.

    >>> has_one(["a", "b", "b"])
    [True, False, False]
    """
    rows = Counter(document_ids)
    return [rows[one] == 1 for one in document_ids]
