"""Check and normalise single rows of documents and queries, and merge duplicate documents.

Documents with the same text or title can be merged into one. Judgements of a merged document then
count for the document that is kept. There are two reasons to merge. If only one of two equal
documents is judged relevant, a retriever that finds the other one is scored as wrong. And a
retriever with one learned vector per document cannot tell equal documents apart. IncDSI's authors
merged Natural Questions by title for this reason.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from typing import Any

from freshet.json_values import read_id_value, replace_missing, to_json_value
from model_code.corpus.rows import Row, RowError, printable
from model_code.text.documents import EXPIRES, Document, is_date, parse_date
from model_code.text.words import is_valid_utf8

# Control characters of C0 and C1 except tab and line feed, and the byte order mark.
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\ufeff]")
_BLANKS = re.compile(r"[^\S\n]+")
_EMPTY_LINES = re.compile(r"\n{3,}")

# Control characters and line ends, which an id must not have.
_NOT_IN_IDS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

# Longest id of a document, in UTF-8 bytes. Documents are looked up by the minimum and maximum id
# that Parquet states for a block of rows. Parquet does not state them for longer ids.
MAX_ID_BYTES = 2048

# Largest number of fields of one document, and of characters of all its fields as JSON.
MAX_FIELDS = 1000
MAX_FIELD_CHARACTERS = 1_000_000


def clean_text(text: str) -> str:
    """Normalise the characters and the white space of a text.

    The result is in Unicode form NFC, without control characters. Several blanks become one, and
    several empty lines become one.

    >>> clean_text("Cafe\\u0301  au\\tlait \\r\\n\\n\\n\\nserved\\x00hot ")
    'Café au lait\\n\\nserved hot'
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = unicodedata.normalize("NFC", text)
    text = _CONTROL_CHARACTERS.sub(" ", text)
    text = _BLANKS.sub(" ", text)
    text = text.replace(" \n", "\n").replace("\n ", "\n")
    return _EMPTY_LINES.sub("\n\n", text).strip()


def clean_line(text: str) -> str:
    """Normalise a title or a query: `clean_text` on one line.

    >>> clean_line("two\\n lines")
    'two lines'
    """
    return " ".join(clean_text(text).split())


def clean_document(row: Row, max_characters: int) -> Document:
    """Return the clean document of a row.

    A date that is not an ISO date is kept as a field `date`. Fields hold only values that JSON
    can represent. Other values become text, and NaN and infinity become null.

    Args:
        row: Row of documents, with our names for its columns.
        max_characters: Limit of title and text together.

    Raises:
        RowError: If the row has no id, has neither text nor title, is too long, holds text that is
            not UTF-8, has queries that are not a list of texts, or an `expires` that is not a date.
    """
    values = row.values
    document_id = read_id(values, "id")
    title = clean_line(read_text_value(values, "title", default=""))
    text = clean_text(read_text_value(values, "text"))
    _require_length(len(title) + len(text), max_characters)
    if not text and not title:
        raise RowError("empty text", "no title")

    fields = dict(values.get("fields") or {})
    written_date = _plain_value(values.get("date"))
    date = parse_date(written_date)
    iso_date = None if date is None else date.isoformat()
    if iso_date is None and written_date is not None:
        fields["date"] = written_date

    fields = _clean_fields(fields)
    _require_expiry_date(fields.get(EXPIRES))
    return Document(
        document_id,
        title,
        text,
        fields=fields,
        queries=_clean_queries(values.get("queries")),
        date=iso_date,
    )


def _clean_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with only those values that JSON can represent, in sorted order of keys.

    The fields are written as JSON and parsed again, twice. The first round turns NaN and infinity
    into null. The second round sorts the keys, and its text is the one that is measured.

    Raises:
        RowError: If there are too many fields, if they are too long, or if their text is not UTF-8.
    """
    try:
        text = json.dumps(fields, ensure_ascii=False, default=_field_value)
    except (TypeError, ValueError, RecursionError) as error:
        raise RowError("wrong type", f"fields cannot be written as JSON: {error}") from None
    # `parse_constant` is called for NaN and the infinities only.
    finite = json.loads(text, parse_constant=lambda _: None)
    sorted_text = json.dumps(finite, sort_keys=True, ensure_ascii=False)
    require_valid_text(sorted_text, "fields")

    if len(fields) > MAX_FIELDS or len(sorted_text) > MAX_FIELD_CHARACTERS:
        raise RowError(
            "huge text",
            f"{len(fields):,} fields of {len(sorted_text):,} characters together, "
            f"at most {MAX_FIELDS:,} of {MAX_FIELD_CHARACTERS:,} are possible",
        )
    return json.loads(sorted_text)


def _require_expiry_date(value: Any) -> None:
    """Check the field `expires`. A document whose value is not a date would never expire.

    Raises:
        RowError: If the value is neither missing nor a date.
    """
    is_missing = value is None or (isinstance(value, str) and not value.strip())
    if not is_missing and not is_date(value):
        raise RowError(
            "wrong type",
            f"{EXPIRES} is {printable(value)!r}, but it is the date from which the document is not "
            "found: write it as 2030-06-01 or with a time, and call other fields otherwise",
        )


def _field_value(value: Any) -> Any:
    """Return a value in a form that JSON can represent; `str(value)` if there is no other form."""
    try:
        return to_json_value(value)
    except TypeError:
        return str(value)


def _clean_queries(queries: Any) -> tuple[str, ...]:
    """Return the non-empty queries of a document. A missing value or an empty cell means no query.

    Raises:
        RowError: If the value is not a list of texts.
    """
    queries = _plain_value(queries)
    if queries is None or queries == "":
        return ()
    if not isinstance(queries, list):
        kind = type(queries).__name__
        raise RowError(
            "wrong type", f"queries is a {kind}, not a list of texts; call a field otherwise"
        )

    texts: list[str] = []
    for query in queries:
        if not isinstance(query, str):
            raise RowError("wrong type", f"queries holds a {type(query).__name__}, not text")
        text = clean_line(require_valid_text(query, "queries"))
        if text:
            texts.append(text)
    return tuple(texts)


def _require_length(characters: int, max_characters: int) -> None:
    """Refuse a row whose texts together have more characters than the setting allows."""
    if characters > max_characters:
        raise RowError(
            "huge text", f"{characters:,} characters, corpus.max_characters is {max_characters:,}"
        )


def read_id(values: Mapping[str, Any], name: str) -> str:
    """Return the id in `values[name]`: a stripped text, or a whole number as text.

    Raises:
        RowError: If the value is neither text nor a whole number, or has more than `MAX_ID_BYTES`
            bytes. Control characters are refused too, because files with one id per line, such as
            TREC runs, cannot hold them.

    >>> read_id({"id": 17}, "id"), read_id({"id": 17.0}, "id")
    ('17', '17')
    """
    value = _plain_value(values.get(name))
    text = read_id_value(value)
    if value is not None and text is None:
        raise RowError("bad id", f"{name} is {value!r}; an id is a text or a whole number")
    if text is None or not text.strip():
        raise RowError("missing id", f"{name} is {value!r}")

    text = require_valid_text(text.strip(), name)
    if _NOT_IN_IDS.search(text):
        raise RowError("bad id", f"{name} holds a control character or a line end: {text!r}")
    size = len(text.encode())
    if size > MAX_ID_BYTES:
        raise RowError(
            "bad id", f"{name} has {size:,} bytes, at most {MAX_ID_BYTES:,} are possible"
        )
    return text


def written_id(value: Any) -> str:
    """Return the id that a value means, or the value as text if it is not an id.

    >>> written_id(" a "), written_id(12.0), written_id(None)
    ('a', '12', 'None')
    """
    document_id = read_id_value(_plain_value(value))
    return str(value).strip() if document_id is None else document_id.strip()


def _plain_value(value: Any) -> Any:
    """Return a value in its JSON form, such as the text of a UUID; None for NaN.

    A value without a JSON form is returned unchanged, so that the caller can refuse it.
    """
    if value is None or isinstance(value, str | int | list | dict):
        return value
    if isinstance(value, float):
        # Tables of pandas hold NaN in place of a missing value.
        return replace_missing(value)
    try:
        return to_json_value(value)
    except TypeError:
        return value


def is_possible_id(text: str) -> bool:
    """Return whether a document can have this id.

    Ids that come from outside, such as names of files or ids in requests, may be impossible.

    >>> is_possible_id("17"), is_possible_id("caf\\udce9"), is_possible_id("x" * 3000)
    (True, False, False)
    """
    return is_valid_utf8(text) and len(text.encode()) <= MAX_ID_BYTES


def read_text_value(values: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """Return the text in `values[name]`, unchanged; an empty text if the value is None.

    Raises:
        RowError: If the value is not text or not UTF-8, or if there is neither a value nor a
            `default`.
    """
    if name not in values and default is None:
        raise RowError("missing column", f"the row has no column for {name}")
    value = _plain_value(values.get(name, default))
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RowError("wrong type", f"{name} is {type(value).__name__}, not text")
    return require_valid_text(value, name)


def require_valid_text(text: str, name: str) -> str:
    """Return a text unchanged if it is valid UTF-8.

    Raises:
        RowError: If the text holds bytes that are not UTF-8. The message calls the text `name`.
    """
    if not is_valid_utf8(text):
        raise RowError("invalid UTF-8", f"{name} holds bytes that are no UTF-8")
    return text


@dataclass(frozen=True, slots=True)
class SourceQuery:
    """A clean query of a source.

    Attributes:
        query_id: Id of the query.
        text: Text of the query, on one line.
        answers: Strings that answer the query, as data sets of questions name them.
        has_unread_answers: Whether the row has answers that could not be read.
    """

    query_id: str
    text: str
    answers: tuple[str, ...] = ()
    has_unread_answers: bool = False


def clean_query(row: Row, max_characters: int) -> SourceQuery:
    """Return the clean query of a row.

    Bad answers never refuse a query. Answers only filter the negatives of training, so they must
    not decide which queries a corpus has.

    Args:
        row: Row of queries, with our names for its columns.
        max_characters: Limit of the text, and of all answers together.

    Raises:
        RowError: If the row has no id, no text or too much of it.
    """
    query_id = read_id(row.values, "id")
    text = clean_line(read_text_value(row.values, "text"))
    _require_length(len(text), max_characters)
    if not text:
        raise RowError("empty text", "no text")

    answers = _clean_answers(row.values.get("answers"), max_characters)
    if answers is None:
        return SourceQuery(query_id, text, has_unread_answers=True)
    return SourceQuery(query_id, text, answers)


def _clean_answers(value: Any, max_characters: int) -> tuple[str, ...] | None:
    """Return the distinct, non-empty answers of a query; None if they cannot be read.

    Answers may be a list, SQuAD's `{"text": list}` or a single answer. They may also be a list as
    JSON text, because CSV and TSV have no lists. Answers that are together longer than
    `max_characters` count as unreadable.
    """
    if isinstance(value, str):
        value = _parse_json_list(value)
    if isinstance(value, Mapping):
        # A mapping without a text stays one, and counts as an unreadable answer below.
        value = value.get("text", value)
    if value is None:
        value = []
    elif not isinstance(value, list):
        value = [value]
    if not all(_is_answer(answer) for answer in value):
        return None

    answers: dict[str, None] = {}
    for answer in value:
        text = clean_line(str(answer))
        if text:
            answers[text] = None
    if sum(len(answer) for answer in answers) > max_characters:
        return None
    return tuple(answers)


def _parse_json_list(text: str) -> Any:
    """Return the parsed value if a text is a JSON list or null; otherwise return the text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if value is None or isinstance(value, list):
        return value
    return text


def _is_answer(value: Any) -> bool:
    """Return whether a value can be an answer: valid text or a finite number, but not a boolean."""
    if isinstance(value, str):
        return is_valid_utf8(value)
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def text_key(text: str) -> str:
    """Return the key under which two texts count as the same.

    Compatibility forms, case and white space do not matter.

    >>> text_key("The  ﬁrst\\nDocument") == text_key("the first document")
    True
    """
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def merge_duplicates(
    documents: Collection[Document], by: str, known_ids: Set[str] = frozenset()
) -> tuple[list[Document], dict[str, str]]:
    """Keep the first document of each group of duplicates, and all known documents.

    A document that is in the index already is never merged into another one, so it keeps its id.

    Args:
        documents: Documents in the order of their source.
        by: The attribute that duplicates have in common: "text", "title" or "none" (no merging).
            Documents with an empty text or title are not duplicates of each other.
        known_ids: Ids of documents that are in the index already.

    Returns:
        The documents that are kept, and {id of a merged document: id of the kept one}.
    """
    if by == "none":
        return list(documents), {}

    # The id of the kept document, by the normalised text or title of its group.
    kept_ids: dict[str, str] = {}
    for document in documents:
        if document.document_id in known_ids:
            kept_ids.setdefault(text_key(getattr(document, by)), document.document_id)

    kept: list[Document] = []
    merged: dict[str, str] = {}
    for document in documents:
        document_id = document.document_id
        key = text_key(getattr(document, by))
        may_be_merged = key != "" and document_id not in known_ids
        kept_id = kept_ids.setdefault(key, document_id) if may_be_merged else document_id
        if kept_id == document_id:
            kept.append(document)
        else:
            merged[document_id] = kept_id
    return kept, merged
