"""Read the live documents with the texts and vectors of their passages, for a hand-over."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from model_code.collection.generations.searcher import Searcher
from model_code.collection.segments.documents import document_from_row
from model_code.collection.segments.segment import SegmentView
from model_code.errors import FreshetError
from model_code.text.documents import Document

# Number of documents that are read at a time. It bounds the memory.
DOCUMENTS_PER_READ = 256
# Number of hexadecimal digits of a digest. 128 bits are enough to distinguish versions of a
# document.
DIGEST_CHARACTERS = 32


@dataclass(frozen=True)
class EncodedDocument:
    """A live document with its passages.

    Attributes:
        document: The document.
        texts: Text of each passage, without the title.
        vectors: Vectors of the n passages, shape (n, H), float32. The score of a passage is the
            inner product of its vector and the query's vector.
    """

    document: Document
    texts: Sequence[str]
    vectors: np.ndarray


def vector_dimension(searcher: Searcher) -> int:
    """Return the dimension of the passage vectors.

    Raises:
        FreshetError: If the retriever has no vectors.
    """
    return int(_vectors(searcher.base_view).shape[1])


def document_digests(searcher: Searcher) -> dict[str, str]:
    """Return a digest of each live document, by document id.

    A digest is a hash of the content hash and the vectors of a document. So it changes if the
    content or a vector changes. No texts are read.

    Args:
        searcher: Searcher of the generation that is copied.

    Raises:
        FreshetError: If the retriever has no vectors.
    """
    digests: dict[str, str] = {}
    for view in searcher.views:
        vectors = _vectors(view)
        hashes = view.segment.content_hashes
        for document_id in view.document_ids():
            rows = view.segment.rows.rows_by_document[document_id]
            digest = sha256(hashes[document_id].encode())
            digest.update(np.asarray(vectors[list(rows)], np.float32).tobytes())
            digests[document_id] = digest.hexdigest()[:DIGEST_CHARACTERS]
    return digests


def read_encoded_documents(
    searcher: Searcher, document_ids: Collection[str]
) -> Iterator[list[EncodedDocument]]:
    """Yield live documents with their passages, in lists of limited size.

    Args:
        searcher: Searcher of the generation that is copied.
        document_ids: Ids of the documents. Documents that are not live are left out.

    Yields:
        Lists of at most `DOCUMENTS_PER_READ` documents.

    Raises:
        FreshetError: If the number of passages of a document differs from the number of its
            vectors.
    """
    for view in searcher.views:
        wanted = [document_id for document_id in view.document_ids() if document_id in document_ids]
        for start in range(0, len(wanted), DOCUMENTS_PER_READ):
            yield _read_batch(searcher, view, wanted[start : start + DOCUMENTS_PER_READ])


def _read_batch(
    searcher: Searcher, view: SegmentView, document_ids: Sequence[str]
) -> list[EncodedDocument]:
    """Read live documents of a segment with their passages.

    Args:
        searcher: Searcher of the generation.
        view: Segment that holds the documents.
        document_ids: Ids of the documents.

    Raises:
        FreshetError: If a document has more or fewer passages than vectors.
    """
    rules = searcher.generation.text
    vectors = _vectors(view)
    stored_documents = view.segment.document_file.read(document_ids)

    batch: list[EncodedDocument] = []
    for document_id in document_ids:
        document = document_from_row(stored_documents[document_id])
        spans = rules.passage_spans(document.text)
        # Positions of the document's passages among the vectors of the segment.
        rows = list(view.segment.rows.rows_by_document[document_id])
        if len(spans) != len(rows):
            raise FreshetError(
                f"document {document_id!r} has {len(spans)} passages by the rules of the build, "
                f"but {len(rows)} vectors; the segment is damaged: freshet repair"
            )
        texts = [span.read(document.text) for span in spans]
        document_vectors = np.asarray(vectors[rows], dtype=np.float32)
        batch.append(EncodedDocument(document, texts, document_vectors))
    return batch


def _vectors(view: SegmentView) -> np.ndarray:
    """Return the vectors of all passages of a segment, shape (n, H).

    Raises:
        FreshetError: If the retriever has no vectors.
    """
    dense = view.segment.retriever.dense
    if dense is None:
        raise FreshetError(
            f"a {view.segment.kind} retriever has no vectors to hand over; choose one of kind "
            "dense, dsi or fused: --retriever NAME"
        )
    return dense.passage_vectors(view.segment.rows.document_ids)
