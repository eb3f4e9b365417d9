"""Cleaning of texts, and the checks that a document's row must pass."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any

from model_code.corpus.rows import Row, Unfit
from model_code.documents import Document

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\ufeff]")  # C0, C1 and the byte order mark
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_BLANKS = re.compile(r"[^\S\n]+")
_EMPTY_LINES = re.compile(r"\n{3,}")
_UNSPEAKABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # in an id: control characters and line ends
MOST_ID_BYTES = 2048  # Parquet's statistics, by which documents are found, leave longer ones out


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


def parse_date(value: Any) -> datetime | None:
    """The instant that an ISO date, a `date` or a `datetime` names (UTC where it names no zone); None for all else.

    >>> parse_date("2025-01-31").isoformat()
    '2025-01-31T00:00:00+00:00'
    >>> parse_date("last spring")
    """
    if isinstance(value, date):
        value = value.isoformat()
    try:
        instant = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def document_of(row: Row, max_characters: int, keep_title_only: bool) -> Document:
    """The clean document in a row; raises `Unfit` if it has no id, no text or too much, or bytes that are no UTF-8."""
    document_id = identifier(row.values, "id")
    title = clean_line(text_in(row.values, "title", default=""))
    text = clean_text(text_in(row.values, "text"))
    if len(text) + len(title) > max_characters:
        raise Unfit("huge text", f"{len(text):,} characters, corpus.max_characters is {max_characters:,}")
    if not text and not (title and keep_title_only):
        raise Unfit("empty text", "title only; corpus.keep_title_only keeps such documents" if title else "no title")
    fields, written = dict(row.values.get("fields") or {}), row.values.get("date")
    instant = parse_date(written)
    if instant is None and written is not None:
        fields["date"] = written
    whole = require_whole(_as_json(fields), "fields")
    return Document(document_id, title, text, json.loads(whole), date=None if instant is None else instant.isoformat())


def identifier(values: Mapping[str, Any], name: str) -> str:
    """The id in `values[name]`: a text, stripped, or an integer. Anything else is `Unfit`, and so is one with control
    characters, which lists and run files could not hold, or of more than `MOST_ID_BYTES`.

    >>> identifier({"id": 17}, "id")
    '17'
    """
    value = values.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise Unfit("missing id", f"{name} is {value!r}")
    text = require_whole(value.strip(), name)
    if _UNSPEAKABLE.search(text):
        raise Unfit("bad id", f"{name} holds a control character or a line end: {text!r}")
    if len(text.encode()) > MOST_ID_BYTES:
        raise Unfit("bad id", f"{name} has {len(text.encode()):,} bytes, at most {MOST_ID_BYTES:,} are possible")
    return text


def _as_json(fields: Mapping[str, Any]) -> str:
    """The fields as JSON; NaN and infinities, which JSON does not have and databases refuse, are null."""
    try:
        return json.dumps(fields, sort_keys=True, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:
        return json.dumps(_without_nan(fields), sort_keys=True, ensure_ascii=False, default=str, allow_nan=False)


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nan(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def text_in(values: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """The text in `values[name]`, as it is; raises `Unfit` if it is none, or (without `default`) absent."""
    if name not in values and default is None:
        raise Unfit("missing column", f"the row has no column for {name}")
    value = values.get(name, default)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Unfit("wrong type", f"{name} is {type(value).__name__}, not text")
    return require_whole(value, name)


def is_whole(text: str) -> bool:
    """Whether every byte of the text was UTF-8: readers decode another one as a lone surrogate.

    >>> is_whole("café"), is_whole("caf\\udce9")
    (True, False)
    """
    return _SURROGATE.search(text) is None


def require_whole(text: str, name: str) -> str:
    """The same text; raises `Unfit` unless `is_whole`."""
    if not is_whole(text):
        raise Unfit("invalid UTF-8", f"{name} holds bytes that are no UTF-8")
    return text
