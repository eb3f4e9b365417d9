"""Reuse the encodings of changed documents whose encoder would read the same text again.

Many changes lie beyond what an encoder reads: in a field, in known queries, behind the largest
number of tokens, or in another passage of the document. The encodings of the former version are
then kept for the new one. Encoding takes most of the time of an addition.
"""

from __future__ import annotations

from collections.abc import Sequence

from model_code.collection.segments.documents import document_from_row
from model_code.collection.segments.segment import BaseSegment, SegmentView, new_passages
from model_code.collection.segments.solved import solved_ids
from model_code.encoding.ahead import MAX_WAITING_TEXTS
from model_code.text.documents import Document
from model_code.text.passages import TextRules


def keep_unchanged_encodings(
    base: BaseSegment, views: Sequence[SegmentView], puts: Sequence[Document], text: TextRules
) -> None:
    """Let the next `write_segment` take the encodings that changed documents share with before.

    A vector that IncDSI solved is no encoding. So only the headline of a solved document is kept.

    Args:
        base: Base segment, whose retriever encodes new documents.
        views: Segments of the live generation, which hold the former versions.
        puts: Documents that are written next. At most `MAX_WAITING_TEXTS` are looked at, because
            no more encodings are kept.
        text: Rules by which documents are cut into passages.
    """
    new_versions = {document.document_id: document for document in puts[:MAX_WAITING_TEXTS]}
    for view in views:
        ids = [document_id for document_id in new_versions if document_id in view]
        if not ids:
            continue
        rows = view.segment.document_file.read(ids)
        former = [document_from_row(row) for row in rows.values()]
        new = [new_versions[document_id] for document_id in rows]
        base.retriever.keep_encodings(
            view.segment.retriever,
            new_passages(former, text),
            new_passages(new, text),
            solved=solved_ids(view.segment.folder),
        )
