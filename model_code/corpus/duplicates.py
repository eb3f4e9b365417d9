"""Duplicates: documents with the same text or title become one, and judgements follow the one that is kept.

Of two documents that say the same, a judgement of one is an error about the other, and no index that learns one vector
per document can tell them apart (IncDSI's authors merged Natural Questions by title for this reason).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from model_code.corpus.cleaning import parse_date
from model_code.documents import Document


def normalised(text: str) -> str:
    """The key under which two texts count as the same: compatibility forms, case and white space do not matter.

    >>> normalised("The  ﬁrst\\nDocument") == normalised("the first document")
    True
    """
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def merge_duplicates(documents: Iterable[Document], by: str) -> tuple[list[Document], dict[str, str]]:
    """Keep the first of each group of duplicates; return the kept documents and {merged id: kept id}.

    `by` is "text", "title", "either" or "none"; an empty title or text makes no duplicate. With "either" a merged
    document's own title and text lead to the kept one from then on.
    """
    kept: list[Document] = []
    merged: dict[str, str] = {}
    first: dict[tuple[str, str], str] = {}  # (kind of key, key) -> id of the kept document
    for document in documents:
        keys = _keys(document, by)
        known = next((first[key] for key in keys if key in first), None)
        if known is None:
            kept.append(document)
        else:
            merged[document.document_id] = known
        for key in keys:
            first.setdefault(key, known or document.document_id)
    return kept, merged


def merge_into_earliest(documents: Iterable[Document], by: str) -> tuple[list[Document], dict[str, str]]:
    """`merge_duplicates`, but the earliest of each group is kept (of one date the first), in the order given.

    Every document must have a date.
    """
    given = list(documents)
    number = {document.document_id: place for place, document in enumerate(given)}
    kept, merged = merge_duplicates(sorted(given, key=lambda document: parse_date(document.date)), by)
    return sorted(kept, key=lambda document: number[document.document_id]), merged


def _keys(document: Document, by: str) -> list[tuple[str, str]]:
    texts = {"text": document.text, "title": document.title}
    chosen = texts if by == "either" else {by: texts[by]} if by in texts else {}
    return [(kind, key) for kind, text in chosen.items() if (key := normalised(text))]
