"""Compute and cache the data that IncDSI starts from.

IncDSI needs two vectors for each document of the collection: its row of V, which is searched, and
its row of Z. The row of Z is called the representative query. It is the mean of the vectors of the
document's known queries. If a document has none, it is the mean of several parts of its text.

Z has three sources:

- Documents that IncDSI added have it in their segment (`RefinedDocuments`).
- Documents of a DSI build, whose vectors were learned, have it from training.
- For all other documents, it is encoded from their texts once and cached, in one folder for each
  segment. The cache may be deleted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

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
    read_json,
    write_array,
)
from model_code.incdsi.adder import NewDocument
from model_code.incdsi.cache import (
    ENCODING,
    CacheFormat,
    complete_cache,
    fill_once,
    hashed_folder,
)
from model_code.incdsi.state import IncDsiState, deviation
from model_code.settings import require
from model_code.text import words
from model_code.text.documents import Change, Document

# Number of words of a span, which is a piece of a document's text. A long query has about as many.
SPAN = 12

# Format of the cache folders, and their file.
CACHE_FORMAT = CacheFormat("incdsi", number=2)
QUERIES = "queries.npy"

Encoded = tuple[np.ndarray, np.ndarray]
"""Encoding (H,) of a document, and vectors (m, H) of the m queries that it is known to answer."""


def constraint_texts(title: str, text: str, spans: int) -> list[str]:
    """Return texts of a document that stand for its queries, if it has no known queries.

    These are its title, its first sentence, and up to `spans` pieces of `SPAN` words. The pieces
    are evenly spread over the rest of the text. No returned text is empty or occurs twice. The
    result is empty only if the document has no text at all.

    >>> constraint_texts("sort", "Sort a list. In place, that is.", spans=4)
    ['sort', 'Sort a list.', 'In place, that is.']
    """
    first, rest = words.split_first_sentence(text)
    texts = [" ".join(title.split()), first]

    word_positions = words.word_spans(rest)
    piece_count = min(spans, math.ceil(len(word_positions) / SPAN))
    # The first piece begins at word 0, and the last one at `last_start`.
    last_start = max(0, len(word_positions) - SPAN)
    for number in range(piece_count):
        start = round(last_start * number / max(1, piece_count - 1))
        end = min(start + SPAN, len(word_positions))
        texts.append(words.join_words(rest, word_positions, start, end))
    return [text for text in dict.fromkeys(texts) if text]


def representatives(segment: LoadedSegment, spans: int, folder: Path) -> dict[str, np.ndarray]:
    """Return the representative query of each document of a segment, computed or from a cache.

    Documents with several vectors are left out, because IncDSI does not handle them.

    Args:
        segment: An open segment.
        spans: Largest number of spans of each document; see `constraint_texts`.
        folder: Folder of the caches.

    Returns:
        Representative query z (H,) float32 by document id.
    """
    ids = segment.dense.index.document_ids
    if isinstance(segment, BaseSegment) and isinstance(segment.dense, DsiRetriever):
        return dict(zip(ids, segment.dense.representatives, strict=True))

    found = dict(RefinedDocuments.load(segment.folder).queries)
    missing: list[str] = []
    for document_id, has_one_vector in zip(ids, single_mask(ids), strict=True):
        if has_one_vector and document_id not in found:
            missing.append(document_id)
    if not missing:
        return found

    cache = cache_folder(read_json(segment.folder / MANIFEST), spans, folder)
    fill_once(cache, CACHE_FORMAT, partial(_fill_cache, cache, segment, missing, spans))
    cached_queries = np.load(cache / QUERIES, mmap_mode="r")
    found.update(zip(missing, cached_queries, strict=True))
    return found


def cache_folder(manifest: Mapping[str, Any], spans: int, folder: Path) -> Path:
    """Return the folder that caches the representative queries of a segment.

    Its name depends on the documents, the text rules, the encoder and `spans`; see
    `hashed_folder`.

    Args:
        manifest: Manifest in the folder of the segment.
        spans: Largest number of spans of each document; see `constraint_texts`.
        folder: Folder of the caches.
    """
    facts = {
        "fingerprint": manifest["fingerprint"],
        "text": manifest["text"],
        "documents": manifest["checksums"][DOCUMENTS],
        "spans": spans,
        "format": CACHE_FORMAT.number,
    }
    return hashed_folder(folder, manifest["retriever"], facts)


def _fill_cache(cache: Path, segment: LoadedSegment, ids: Sequence[str], spans: int) -> None:
    """Compute the representative query of each document, and write them to a cache folder.

    They are cached because encoding the texts of a large segment takes long.

    Args:
        cache: Folder to write.
        segment: Segment that holds the documents.
        ids: Ids of the documents.
        spans: Largest number of pieces of each document's text to encode; see `constraint_texts`.
    """
    representative_queries = _encode_representatives(segment, ids, spans, cache / ENCODING)
    write_array(cache / QUERIES, representative_queries)
    complete_cache(cache, CACHE_FORMAT)


def _encode_representatives(
    segment: LoadedSegment, ids: Sequence[str], spans: int, folder: Path
) -> np.ndarray:
    """Compute the representative query of each document, (n, H).

    It is the mean of the vectors of several texts that should find the document: its title, its
    first sentence, and some pieces of its text.

    Args:
        segment: Segment that holds the documents.
        ids: Ids of the n documents.
        spans: Largest number of pieces of each document's text; see `constraint_texts`.
        folder: Folder of finished batches, from which an interrupted encoding resumes.
    """
    columns = read_columns(segment.documents, "document_id", "title", "text")
    texts_by_id: dict[str, list[str]] = {}
    for document_id, title, text in zip(*columns, strict=True):
        texts_by_id[document_id] = constraint_texts(title, text, spans)

    texts: list[str] = []
    counts: list[int] = []
    for document_id in ids:
        texts.extend(texts_by_id[document_id])
        counts.append(len(texts_by_id[document_id]))
    vectors = encode_resumably(segment.dense.encoder.pytorch, texts, folder)
    groups = np.repeat(np.arange(len(ids)), counts)
    return mean_by_owner(vectors, groups, len(ids))[0]


def query_vectors(
    encoder: Encoder, texts: Sequence[tuple[str, str]], spans: int
) -> list[np.ndarray]:
    """Encode the texts that stand for the queries of documents; see `constraint_texts`.

    Args:
        encoder: Encoder of the collection.
        texts: Title and text of each document.
        spans: Largest number of spans of each document.

    Returns:
        For each document, the vectors (m, H) of its m texts.
    """
    if not texts:
        return []
    groups = [constraint_texts(title, text, spans) for title, text in texts]
    vectors = encoder.encode_queries([text for group in groups for text in group])
    group_ends = np.cumsum([len(group) for group in groups])
    return np.split(vectors, group_ends[:-1])


def single_rows(
    ids: Sequence[str], vectors: np.ndarray, queries: Sequence[np.ndarray]
) -> dict[str, Encoded]:
    """Return the encodings of the documents with exactly one row, by document id.

    IncDSI solves one vector per document, so it cannot handle the others.

    Args:
        ids: Document id of each row, (n,).
        vectors: Encoding of each row, (n, H).
        queries: For each row, the vectors (m, H) of the known queries of its document.
    """
    encoded: dict[str, Encoded] = {}
    for row, has_one_row in enumerate(single_mask(ids)):
        if has_one_row:
            encoded[ids[row]] = (vectors[row], queries[row])
    return encoded


def new_documents(
    searcher: Searcher,
    spans: int,
    changes: Sequence[Change],
    lasting: Mapping[str, Encoded],
) -> dict[int, NewDocument]:
    """Prepare changed documents for IncDSI: encode them, and the texts that should find them.

    A document with known queries is solved for these alone. If its title and parts of its text are
    added to them, its vector is no better than its encoding (see `experiments/README.md`). So a
    document without known queries keeps its encoding.

    Documents with several vectors are left out. Documents that a later change overwrites are
    included, because they affect the vectors of the documents between both changes.

    Args:
        searcher: Searcher of the generation that is changed.
        spans: Largest number of spans of each document; see `constraint_texts`.
        changes: Changes in their order.
        lasting: Encodings that are known already, by document id: the encoding of the content that
            the last change of a document puts.

    Returns:
        Prepared documents, by the position in `changes` of the change that puts them.
    """
    # The document of each change that puts one, and the position of each document's last change.
    puts: dict[int, Document] = {}
    last_numbers: dict[str, int] = {}
    for number, change in enumerate(changes):
        last_numbers[change.document_id] = number
        if isinstance(change, Document):
            puts[number] = change

    overwritten: dict[int, Document] = {}
    for number, document in puts.items():
        if number != last_numbers[document.document_id]:
            overwritten[number] = document
    encoded = {last_numbers[document_id]: value for document_id, value in lasting.items()}
    encoded.update(_encode_documents(searcher, overwritten))

    # Parts of the text stand for the queries of documents without known queries.
    without_known = [number for number, (_, known) in encoded.items() if not len(known)]
    texts = [(puts[number].title, puts[number].text) for number in without_known]
    text_vectors = query_vectors(searcher.base.dense.encoder.pytorch, texts, spans)
    stand_ins = dict(zip(without_known, text_vectors, strict=True))

    documents: dict[int, NewDocument] = {}
    for number, (encoding, known) in encoded.items():
        has_no_known = number in stand_ins
        documents[number] = NewDocument(
            puts[number].document_id,
            queries=stand_ins.get(number, known),
            encoding=encoding,
            keeps_encoding=has_no_known,
        )
    return documents


def _encode_documents(searcher: Searcher, puts: Mapping[int, Document]) -> dict[int, Encoded]:
    """Encode the documents that have one vector, and return their encodings by number.

    Args:
        searcher: Searcher of the generation that is changed.
        puts: Documents by number. The same document id may occur several times, so the numbers
            replace the ids while the documents are encoded.
    """
    if not puts:
        return {}
    dense = searcher.base.dense
    numbered = [replace(document, document_id=str(number)) for number, document in puts.items()]
    held_out = searcher.base.build_queries.held_out
    new = new_passages(numbered, searcher.generation.text, held_out=held_out)
    numbers, vectors = dense.encode_new_passages(new)
    encoded = single_rows(numbers, vectors, dense.encode_known_queries(new, numbers))
    return {int(number): value for number, value in encoded.items()}


def single_mask(document_ids: Sequence[str]) -> list[bool]:
    """Return for each row whether its document has no other row.

    >>> single_mask(["a", "b", "b"])
    [True, False, False]
    """
    rows = Counter(document_ids)
    return [rows[document_id] == 1 for document_id in document_ids]


def require_one_vector(base: LoadedSegment) -> None:
    """Raise an error unless at least half of the documents have exactly one vector.

    IncDSI solves only such documents. With fewer, the setting is probably a mistake.

    Args:
        base: Base segment, which holds the documents that the retriever was built from.

    Raises:
        SettingsError: If most documents have several vectors, or the retriever has no dense
            vectors.
    """
    require(
        base.retriever.dense is not None,
        f"additions cannot be refined for a retriever of kind {base.kind!r}: IncDSI needs one "
        "dense vector per document; set additions.refine to false",
    )
    ids = base.dense.index.document_ids
    require(
        2 * sum(single_mask(ids)) >= len(set(ids)),
        "additions cannot be refined where most documents have several passages or vectors: set "
        "additions.refine to false, or passages.words to 0 and build again",
    )


def load_state(searcher: Searcher, spans: int, folder: Path) -> IncDsiState:
    """Return the state from which IncDSI solves vectors: the live documents of a generation.

    Documents with several vectors are left out. The unit of margins is the deviation of scores in
    the base segment, so that it stays the same while documents are added. If a document was added
    while `additions.refine` was off, its representative query leaves out its known queries.

    Args:
        searcher: Searcher of the generation.
        spans: Largest number of spans of each document; see `constraint_texts`.
        folder: Folder of the caches.
    """
    ids: list[str] = []
    vectors: list[np.ndarray] = []
    queries: list[np.ndarray] = []
    unit: float | None = None
    for view in searcher.views:
        index = view.segment.dense.index
        # `v` and `z` have a row for each document with one vector.
        z_by_id = representatives(view.segment, spans, folder)
        row_of_id = {document_id: row for row, document_id in enumerate(index.document_ids)}
        v = index.vectors[[row_of_id[document_id] for document_id in z_by_id]]
        # The array of an empty list has no width, so the shape is taken from `v`.
        z = np.array(list(z_by_id.values()), np.float32).reshape(v.shape)
        # The first segment is that of the build. Its scores give the unit of the solver's margins,
        # by which a document should win its query.
        if unit is None:
            unit = deviation(v, z)

        is_live = np.array([document_id in view for document_id in z_by_id], bool)
        ids.extend(document_id for document_id in z_by_id if document_id in view)
        vectors.append(v[is_live])
        queries.append(z[is_live])
    return IncDsiState(np.concatenate(vectors), np.concatenate(queries), ids, unit)
