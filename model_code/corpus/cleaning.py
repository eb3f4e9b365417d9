"""Cleaning: the text of a source as it is kept, the checks that a document's or query's row must
pass, and duplicates.

Documents with the same text or title become one, and judgements follow the one that is kept: of two
documents that say the same, a judgement of one is an error about the other, and no index that
learns one vector per document can tell them apart (IncDSI's authors merged Natural Questions by
title for this reason).
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from model_code.corpus.rows import Row, RowError
from model_code.text.documents import Document, parse_date
from model_code.text.words import is_valid_utf8

# C0, C1 and the byte order mark
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\ufeff]")
_BLANKS = re.compile(r"[^\S\n]+")
_EMPTY_LINES = re.compile(r"\n{3,}")
# in an id: control characters and line ends
_UNSPEAKABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
MOST_ID_BYTES = 2048  # Parquet's statistics, by which documents are found, leave longer ones out

MOST_FIELDS, MOST_FIELD_CHARACTERS = 1000, 1_000_000  # of a document


def clean_text(text: str) -> str:
    """NFC, without control characters, runs of blanks as one, at most one empty line in a row.

    >>> clean_text("Cafe\\u0301  au\\tlait \\r\\n\\n\\n\\nserved\\x00hot ")
    'Café au lait\\n\\nserved hot'
    """
    text = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    text = _BLANKS.sub(" ", _CONTROL.sub(" ", text)).replace(" \n", "\n").replace("\n ", "\n")
    return _EMPTY_LINES.sub("\n\n", text).strip()


def clean_line(text: str) -> str:
    """`clean_text` on one line, for titles and queries.

    >>> clean_line("two\\n lines")
    'two lines'
    """
    return " ".join(clean_text(text).split())


def clean_document(row: Row, max_characters: int) -> Document:
    """The clean document in a row; raises `RowError` if it has no id, no text or too much, or bytes
    that are no UTF-8.
    """
    document_id = read_id(row.values, "id")
    title = clean_line(read_text_value(row.values, "title", default=""))
    text = clean_text(read_text_value(row.values, "text"))
    if len(text) + len(title) > max_characters:
        raise RowError(
            "huge text", f"{len(text):,} characters, corpus.max_characters is {max_characters:,}"
        )
    if not text and not title:
        raise RowError("empty text", "no title")
    fields, written = dict(row.values.get("fields") or {}), row.values.get("date")
    instant = parse_date(written)
    if instant is None and written is not None:
        fields["date"] = written
    fields_text = json.dumps(fields, ensure_ascii=False, default=str)
    finite = json.loads(fields_text, parse_constant=lambda _: None)  # null for NaN and infinity
    fields_json = require_valid_text(
        json.dumps(finite, sort_keys=True, ensure_ascii=False), "fields"
    )
    if len(fields_json) > MOST_FIELD_CHARACTERS or len(fields) > MOST_FIELDS:
        limits = f"at most {MOST_FIELDS:,} of {MOST_FIELD_CHARACTERS:,} are possible"
        raise RowError(
            "huge text",
            f"{len(fields):,} fields of {len(fields_json):,} characters together, {limits}",
        )
    return Document(
        document_id, title, text, json.loads(fields_json), date=instant and instant.isoformat()
    )


def read_id(values: Mapping[str, Any], name: str) -> str:
    """The id in `values[name]`: a text, stripped, or an integer. Anything else is `RowError`, and so
    is one with control characters, which lists and run files could not hold, or of more than
    `MOST_ID_BYTES`.

    >>> read_id({"id": 17}, "id")
    '17'
    """
    value = values.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise RowError("missing id", f"{name} is {value!r}")
    text = require_valid_text(value.strip(), name)
    if _UNSPEAKABLE.search(text):
        raise RowError("bad id", f"{name} holds a control character or a line end: {text!r}")
    if len(text.encode()) > MOST_ID_BYTES:
        raise RowError(
            "bad id",
            f"{name} has {len(text.encode()):,} bytes, at most {MOST_ID_BYTES:,} are possible",
        )
    return text


def is_possible_id(text: str) -> bool:
    """Whether a document can have this id: what is asked for, such as by a file's name, need not be
    one.

    >>> is_possible_id("17"), is_possible_id("caf\\udce9"), is_possible_id("x" * 3000)
    (True, False, False)
    """
    return is_valid_utf8(text) and len(text.encode()) <= MOST_ID_BYTES


def read_text_value(values: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """The text in `values[name]`, as it is; raises `RowError` if it is none, or (without `default`)
    absent.
    """
    if name not in values and default is None:
        raise RowError("missing column", f"the row has no column for {name}")
    value = values.get(name, default)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RowError("wrong type", f"{name} is {type(value).__name__}, not text")
    return require_valid_text(value, name)


def require_valid_text(text: str, name: str) -> str:
    """The same text; raises `RowError` unless `is_valid_utf8`."""
    if not is_valid_utf8(text):
        raise RowError("invalid UTF-8", f"{name} holds bytes that are no UTF-8")
    return text


@dataclass(frozen=True, slots=True)
class SourceQuery:
    """A clean query. `answers` are strings that answer it, as data sets of questions name them;
    others have none.

    `unread` says that the row names answers of a shape that is not known.
    """

    query_id: str
    text: str
    answers: tuple[str, ...] = ()
    unread: bool = False


def clean_query(row: Row, max_characters: int) -> SourceQuery:
    """The clean query in a row; raises `RowError` as `clean_document` does, but never for its answers.

    Answers only filter what training draws as negatives, so they must not decide which queries
    there are.
    """
    query_id = read_id(row.values, "id")
    text = clean_line(read_text_value(row.values, "text"))
    if len(text) > max_characters:
        raise RowError(
            "huge text", f"{len(text):,} characters, corpus.max_characters is {max_characters:,}"
        )
    if not text:
        raise RowError("empty text", "no text")
    answers = _answers(row.values.get("answers"), max_characters)
    return SourceQuery(query_id, text, answers or (), unread=answers is None)


def _answers(value: Any, max_characters: int) -> tuple[str, ...] | None:
    """The answers, cleaned, none of them empty or twice; None if they cannot be read, or are too
    long together.

    They are a list, that of SQuAD's {"text": list}, a single answer, or JSON of a list, since CSV
    and TSV have none.
    """
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            read = json.loads(value)
            value = read if read is None or isinstance(read, list) else value
    if isinstance(value, Mapping):
        value = value.get("text", value)
    listed = [] if value is None else value if isinstance(value, list) else [value]
    if not all(map(_is_answer, listed)):
        return None
    answers = tuple(dict.fromkeys(filter(None, (clean_line(str(answer)) for answer in listed))))
    return answers if sum(map(len, answers)) <= max_characters else None


def _is_answer(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return (
        is_valid_utf8(value)
        if isinstance(value, str)
        else isinstance(value, int) and not isinstance(value, bool)
    )


def text_key(text: str) -> str:
    """The key under which two texts count as the same: compatibility forms, case and white space do
    not matter.

    >>> text_key("The  ﬁrst\\nDocument") == text_key("the first document")
    True
    """
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def merge_duplicates(
    documents: Iterable[Document], by: str
) -> tuple[list[Document], dict[str, str]]:
    """Keep the first of each group of duplicates; return the kept documents and {merged id: kept
    id}.

    `by` is "text", "title" or "none"; an empty title or text makes no duplicate.
    """
    unique: list[Document] = []
    merged: dict[str, str] = {}
    first: dict[str, str] = {}  # by the key of what is compared: the id of the kept document
    for document in documents:
        key = "" if by == "none" else text_key(getattr(document, by))
        first_id = first.setdefault(key, document.document_id) if key else document.document_id
        if first_id == document.document_id:
            unique.append(document)
        else:
            merged[document.document_id] = first_id
    return unique, merged
