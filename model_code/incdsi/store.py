"""What an added document should be found by, and the state that IncDSI goes on from.

Texts of a document as vectors, beside its own encoding, are what IncDSI takes; Z of a live
collection is, for each document, the mean of these vectors. V is what is searched. Z of refined
documents lies in their segment (`RefinedDocuments`), and that of learned ones is what training left. All
others have it made from their texts, once: it is kept in a folder per part, which may be deleted.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from model_code.collection.generations.generation import Generation, removed_by_segment
from model_code.collection.generations.searcher import Searcher
from model_code.collection.segments.documents import DOCUMENTS, read_columns
from model_code.collection.segments.refined import RefinedDocuments
from model_code.collection.segments.segment import BaseSegment, LoadedSegment, new_passages
from model_code.distributed.encoding import encode_resumably
from model_code.dsi.retriever import DsiRetriever
from model_code.dsi.vectors import mean_by_owner
from model_code.encoding.encoder import Encoder
from model_code.files import (
    MANIFEST,
    atomic_write,
    canonical_json,
    hash_text,
    read_json,
    read_manifest,
    verify_checksums,
    write_manifest,
)
from model_code.incdsi.adder import NewDocument
from model_code.incdsi.state import IncDsiState, deviation
from model_code.settings import require
from model_code.text import words
from model_code.text.documents import Change, Document

SPAN = 12  # words, about as many as a long query has
Encoded = tuple[np.ndarray, np.ndarray]
"""A document's encoding (H), and the vectors (m, H) of the queries that it came with"""
FORMAT, KIND, QUERIES = 2, "incdsi", "queries.npy"


def constraint_texts(title: str, text: str, spans: int) -> list[str]:
    """Title, first sentence, and up to `spans` runs of `SPAN` words, evenly spread over what
    follows it.

    None is empty and none occurs twice; a document with any text has at least one. Nothing is drawn
    at random.

    >>> constraint_texts("sort", "Sort a list. In place, that is.", spans=4)
    ['sort', 'Sort a list.', 'In place, that is.']
    """
    first, rest = words.split_first_sentence(text)
    places = words.word_spans(rest)
    last = max(0, len(places) - SPAN)
    count = min(spans, -(-len(places) // SPAN))
    starts = [round(last * i / max(1, count - 1)) for i in range(count)]
    phrases = [
        " ".join(title.split()),
        first,
        *(
            words.join_words(rest, places, start, min(start + SPAN, len(places)))
            for start in starts
        ),
    ]
    return [phrase for phrase in dict.fromkeys(phrases) if phrase]


def representatives(part: LoadedSegment, spans: int, folder: Path) -> dict[str, np.ndarray]:
    """Z (H) of each document of one vector: what training or refinement left, or else made from its
    text.

    folder: below which that is kept.
    """
    ids = part.dense.index.document_ids
    if isinstance(part, BaseSegment) and isinstance(part.dense, DsiRetriever):
        return dict(zip(ids, part.dense.representatives, strict=True))
    refined = RefinedDocuments.load(part.folder).queries
    lacking = [
        key
        for key, alone in zip(ids, single_mask(ids), strict=True)
        if alone and key not in refined
    ]
    if not lacking:
        return refined
    cache = cache_folder(read_json(part.folder / MANIFEST), spans, folder)
    if not (cache / MANIFEST).is_file():
        queries = _from_texts(part, lacking, spans, cache / "encoding")
        with atomic_write(cache / QUERIES) as aside, aside.open("wb") as stream:
            np.save(stream, queries)
        shutil.rmtree(cache / "encoding")
        write_manifest(cache, FORMAT, {"kind": KIND})
    verify_checksums(
        cache,
        read_manifest(cache, FORMAT),
        f"delete {cache}, which is then made from the texts again",
    )
    return refined | dict(zip(lacking, np.load(cache / QUERIES, mmap_mode="r"), strict=True))


def cache_folder(stated: Mapping[str, Any], spans: int, folder: Path) -> Path:
    """The folder below `folder` for what is made from the texts of a part; stated: its manifest."""
    facts = {name: stated[name] for name in ("fingerprint", "text")}
    facts |= {"documents": stated["checksums"][DOCUMENTS], "spans": spans, "format": FORMAT}
    return folder / f"{stated['retriever']}-{hash_text(canonical_json(facts))[:16]}"


def _from_texts(part: LoadedSegment, ids: Sequence[str], spans: int, folder: Path) -> np.ndarray:
    """Z (n, H) of documents; folder: where encoded texts are until all are."""
    rows = zip(*read_columns(part.documents, "document_id", "title", "text"), strict=True)
    texts = {key: constraint_texts(title, text, spans) for key, title, text in rows}
    flat = encode_resumably(
        part.dense.encoder, [text for key in ids for text in texts[key]], folder
    )
    return mean_by_owner(
        flat, np.repeat(np.arange(len(ids)), [len(texts[key]) for key in ids]), len(ids)
    )[0]


def query_vectors(
    encoder: Encoder, texts: Sequence[tuple[str, str]], spans: int
) -> list[np.ndarray]:
    """For each document, of a title and a text, the vectors (m, H) of its texts."""
    groups = [constraint_texts(title, text, spans) for title, text in texts]
    if not groups:
        return []
    flat = encoder.encode([phrase for group in groups for phrase in group])
    return np.split(flat, np.cumsum([len(group) for group in groups])[:-1])


def single_rows(
    ids: Sequence[str], vectors: np.ndarray, queries: Sequence[np.ndarray]
) -> dict[str, Encoded]:
    """The rows of documents that have no other: vectors (n, H), and for each row the vectors (m, H)
    of its queries.
    """
    rows = zip(ids, vectors, queries, single_mask(ids), strict=True)
    return {key: (vector, query_rows) for key, vector, query_rows, alone in rows if alone}


def new_documents(
    searcher: Searcher, spans: int, steps: Sequence[Change], lasting: Mapping[str, Encoded]
) -> dict[int, NewDocument]:
    """By the number of its step, each document of one vector that `steps` put.

    lasting: by id, those that no later step changes, which are encoded already.
    """
    last = {step.document_id: number for number, step in enumerate(steps)}
    puts = {number: step for number, step in enumerate(steps) if isinstance(step, Document)}
    passing = {number: put for number, put in puts.items() if number != last[put.document_id]}
    encoded = {last[key]: constraints for key, constraints in lasting.items()} | _encoded(
        searcher, passing
    )
    own_texts = [(puts[number].title, puts[number].text) for number in encoded]
    text_vectors = query_vectors(searcher.base.dense.encoder, own_texts, spans)
    return {
        number: NewDocument(
            puts[number].document_id, np.concatenate([constraints, queries]), encoding
        )
        for (number, (encoding, queries)), constraints in zip(
            encoded.items(), text_vectors, strict=True
        )
    }


def _encoded(searcher: Searcher, puts: Mapping[int, Document]) -> dict[int, Encoded]:
    """Of puts by their numbers, those of one vector; the same document may be put several times."""
    if not puts:
        return {}
    base, numbered = (
        searcher.base,
        [replace(put, document_id=str(number)) for number, put in puts.items()],
    )
    new = new_passages(numbered, searcher.generation.text)
    numbers, vectors = base.dense.encode_new_passages(new)
    singles = single_rows(numbers, vectors, base.dense.encode_known_queries(new, numbers))
    return {int(number): encoded for number, encoded in singles.items()}


def single_mask(document_ids: Sequence[str]) -> list[bool]:
    """Whether each row is the only one of its document.

    >>> single_mask(["a", "b", "b"])
    [True, False, False]
    """
    rows = Counter(document_ids)
    return [rows[key] == 1 for key in document_ids]


def require_one_vector(base: LoadedSegment) -> None:
    """SettingsError unless documents have one vector, at least every other one; the others are left
    as they are.
    """
    require(
        base.retriever.dense is not None,
        f"additions cannot be refined for a retriever of kind {base.kind!r}: IncDSI needs one dense vector per "
        "document; set additions.refine to false",
    )
    ids = base.dense.index.document_ids
    require(
        2 * sum(single_mask(ids)) >= len(set(ids)),
        "additions cannot be refined where most documents have several passages or vectors: set additions.refine to "
        "false, or passages.words to 0 and build again",
    )


def load_state(searcher: Searcher, spans: int, folder: Path) -> IncDsiState:
    """The state of the searcher's generation: its documents of one vector; others are left as they
    are.

    Margins keep the unit of the base. Documents that were added while nothing was refined have Z
    without the queries that they came with.
    """
    ids: list[str] = []
    vectors, queries, unit = [], [], None
    for view in searcher.views:
        index, by_id = view.segment.dense.index, representatives(view.segment, spans, folder)
        places = {key: row for row, key in enumerate(index.document_ids)}
        rows, z = (
            index.vectors[[places[key] for key in by_id]],
            np.array(list(by_id.values()), np.float32),
        )
        unit = deviation(rows, z) if unit is None else unit
        alive = np.array([key in view for key in by_id], bool)
        ids += [key for key in by_id if key in view]
        vectors.append(rows[alive])
        queries.append(z.reshape(rows.shape)[alive])
    return IncDsiState(np.concatenate(vectors), np.concatenate(queries), ids, unit)


def statuses(generation: Generation) -> dict[str, str]:
    """The name of the `Status` of each document that was refined and that a generation finds, by
    id.
    """
    refined = {
        number: RefinedDocuments.load(generation.sibling(number)).statuses
        for number in generation.segments
    }
    gone = removed_by_segment(generation)
    return {
        key: status
        for number, part in refined.items()
        for key, status in part.items()
        if key not in gone[number]
    }
