"""Rows that change documents only under a condition, or only in some of their values.

A row with the key `if_version` is recorded only if its document still has that version. The version
of a document is the hash of its content.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from freshet.json_values import replace_missing
from model_code.collection.ledger.events import Receipt, VersionCondition
from model_code.corpus.clean_rows import CleanRows
from model_code.corpus.cleaning import clean_document, read_id
from model_code.corpus.rows import RefusedRow, Rejection, Row, RowError, row_number
from model_code.text.documents import Document

# Key of a row whose value is the version that the document must have.
IF_VERSION = "if_version"

# Value of this key that requires that the document does not exist.
ABSENT = "absent"


@dataclass(frozen=True)
class ConditionalRows:
    """Clean documents with the versions that they must replace.

    Attributes:
        documents: The documents, without the key `if_version`.
        rejected: Rows that were refused.
        conditions: Versions that documents must have, by document id.
        explicit: Ids of the documents whose rows have the key `if_version`.
    """

    documents: tuple[Document, ...]
    rejected: tuple[Rejection, ...]
    conditions: Mapping[str, VersionCondition]
    explicit: frozenset[str]


def take_conditions(
    rows: CleanRows,
    read_base_versions: Callable[[Collection[str]], Mapping[str, str]],
    versions: Mapping[str, str] = {},
) -> ConditionalRows:
    """Remove the key `if_version` from the fields of documents, and return it as conditions.

    Args:
        rows: Clean rows.
        read_base_versions: Function that takes document ids, and returns the versions that these
            documents have in the files of the current generation, by document id.
        versions: Versions that documents must have if their rows do not have the key, by document
            id.
    """
    documents: list[Document] = []
    rejected = list(rows.rejected)
    # The version that each document must have, and the number of the row that requires it. The
    # version None requires that the document does not exist.
    required: dict[str, tuple[str | None, int]] = {}
    explicit: set[str] = set()
    repeated = _repeated_ids(rows)
    for document, location in zip(rows.documents, rows.locations, strict=True):
        number = row_number(location) or 1
        document_id = document.document_id
        is_valid = _is_version(document.fields.get(IF_VERSION, ABSENT))
        if document_id in repeated and is_valid:
            reason = (
                f"repeated id: a row with {IF_VERSION} must be the only row of its document in a "
                "request; send the rows one after the other"
            )
            rejected.append(Rejection(number, document_id, reason))
            continue
        if document_id in versions:
            required[document_id] = (versions[document_id], number)
        if IF_VERSION not in document.fields:
            documents.append(document)
            continue

        fields = dict(document.fields)
        version = fields.pop(IF_VERSION)
        if not _is_version(version):
            reason = (
                f"wrong type: {IF_VERSION} is {version!r}; it must be the version of a "
                f"document or {ABSENT!r}"
            )
            rejected.append(Rejection(number, document_id, reason))
            continue
        required_version = None if version == ABSENT else version
        required[document_id] = (required_version, number)
        explicit.add(document_id)
        documents.append(replace(document, fields=fields))

    # The files of the generation are only read if there are versions to compare.
    base_versions: Mapping[str, str] = {}
    if required:
        base_versions = read_base_versions(required.keys())
    conditions: dict[str, VersionCondition] = {}
    for document_id, (version, number) in required.items():
        base_version = base_versions.get(document_id)
        conditions[document_id] = VersionCondition(version, base_version, number)
    return ConditionalRows(tuple(documents), tuple(rejected), conditions, frozenset(explicit))


def has_conditions(rows: CleanRows) -> bool:
    """Return whether a row has the key `if_version`."""
    return any(IF_VERSION in document.fields for document in rows.documents)


def _repeated_ids(rows: CleanRows) -> set[str]:
    """Return the ids of documents with several rows, of which one has the key `if_version`.

    Only the last row of a document is recorded. The condition of an earlier row would be lost.
    """
    counts: Counter[str] = Counter()
    conditional: set[str] = set()
    for document in rows.documents:
        if IF_VERSION in document.fields:
            if not _is_version(document.fields[IF_VERSION]):
                # The row is refused for another reason.
                continue
            conditional.add(document.document_id)
        counts[document.document_id] += 1
    return {document_id for document_id in conditional if counts[document_id] > 1}


def _is_version(value: Any) -> bool:
    """Return whether a value of the key `if_version` is a version or the text "absent"."""
    return isinstance(value, str) and bool(value)


def possible_id(row: Row | RefusedRow) -> str | None:
    """Return the document id of a row. None if the row has no valid id."""
    if isinstance(row, RefusedRow):
        return None
    try:
        return read_id(row.values, "id")
    except RowError:
        return None


def merge_rows(
    rows: Sequence[Row | RefusedRow],
    ids: Sequence[str | None],
    present: Mapping[str, Document],
    max_characters: int,
) -> list[Row | RefusedRow]:
    """Complete partial rows with the present values of their documents.

    A value of a row replaces the value of the document. Fields are replaced one by one, and null
    removes a field. A field `a.b` is the field `b` of the object `a`, if the document has such an
    object. If several rows have the same id, they are applied one after the other. A row that
    will be refused does not change the rows after it.

    Args:
        rows: Rows whose columns have Freshet's names.
        ids: Document id of each row, or None.
        present: Present documents by id. Rows of other documents are not completed.
        max_characters: Limit of title and text together.

    Returns:
        A complete row for each row. A row whose text is empty is refused, because it would erase
        the text of its document.
    """
    merged: list[Row | RefusedRow] = []
    # The values of each document after the rows that were read so far.
    values_by_id: dict[str, dict[str, Any]] = {}
    for document_id, document in present.items():
        values = document.payload
        values["id"] = document_id
        values_by_id[document_id] = values

    for row, row_id in zip(rows, ids, strict=True):
        if isinstance(row, RefusedRow) or row_id not in values_by_id:
            merged.append(_with_text(row))
            continue
        present_values = values_by_id[row_id]
        if present_values["text"] and _has_empty_text(row):
            merged.append(_refuse_empty_text(row, row_id))
            continue
        complete_row = replace(row, values=_merge_values(present_values, row.values))
        merged.append(complete_row)
        accepted_values = _accepted_values(complete_row, max_characters)
        if accepted_values is not None:
            values_by_id[row_id] = accepted_values
    return merged


def _accepted_values(row: Row, max_characters: int) -> dict[str, Any] | None:
    """Return the values of a complete row without its condition; None if it will be refused."""
    try:
        clean_document(row, max_characters)
    except RowError:
        return None
    fields = dict(row.values["fields"])
    version = fields.pop(IF_VERSION, ABSENT)
    if not _is_version(version):
        return None
    values = dict(row.values)
    values["fields"] = fields
    return values


def _merge_values(present: Mapping[str, Any], partial: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a document after a partial row.

    Args:
        present: All values of the document. The value of the key "fields" is a mapping.
        partial: Values of the row. None removes the date, the queries, or a single field.
    """
    values = dict(present)
    fields = dict(present["fields"])
    if "date" in partial:
        # A date that could not be read was kept as a field.
        fields.pop("date", None)
    for key, value in partial.items():
        if key == "fields":
            for name, field_value in value.items():
                fields = _with_field(fields, name, field_value)
        elif value is None and key in ("date", "queries"):
            values.pop(key, None)
        else:
            values[key] = value
    values["fields"] = {name: value for name, value in fields.items() if value is not None}
    return values


def _has_empty_text(row: Row) -> bool:
    """Return whether a row has a text that is null, missing or blank."""
    if "text" not in row.values:
        return False
    text = replace_missing(row.values["text"])
    return text is None or (isinstance(text, str) and not text.strip())


def _refuse_empty_text(row: Row, document_id: str | None) -> RefusedRow:
    """Return the refusal of a partial row that would erase the text of its document."""
    detail = "the text would be erased; leave out the text to keep it, or delete the document"
    return RefusedRow("documents", row.location, "empty text", detail, "", document_id, True)


def _with_field(fields: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Return fields with one field replaced. A dotted name is that of a field inside an object.

    >>> _with_field({"author": {"name": "Ann", "age": 30}}, "author.name", "Bo")
    {'author': {'name': 'Bo', 'age': 30}}
    """
    changed = dict(fields)
    outer, _, inner = name.partition(".")
    inside = fields.get(outer)
    if inner and name not in fields and isinstance(inside, Mapping):
        changed[outer] = _with_field(inside, inner, value)
    else:
        changed[name] = value
    return changed


def _with_text(row: Row | RefusedRow) -> Row | RefusedRow:
    """Give a row of an unknown document some text, if it has none.

    Otherwise the row would be refused because of the missing text. The user should read that the id
    is unknown.
    """
    if isinstance(row, RefusedRow) or "text" in row.values:
        return row
    values = dict(row.values)
    values["text"] = "-"
    return replace(row, values=values)


def join_receipts(receipts: Sequence[Receipt]) -> Receipt:
    """Combine receipts, the results of recording rows in the ledger, into one receipt."""
    rejected: list[Rejection] = []
    events: list[int] = []
    for receipt in receipts:
        rejected.extend(receipt.rejected)
        events.extend(receipt.events)
    return Receipt(
        received=sum(receipt.received for receipt in receipts),
        unchanged=sum(receipt.unchanged for receipt in receipts),
        rejected=tuple(rejected),
        events=tuple(events),
    )


def document_fields(document: Document) -> dict[str, Any]:
    """Return the fields of a document that filters can name.

    The date of the document is the field `date`, unless there is such a field.
    """
    fields = dict(document.fields)
    if document.date is not None:
        fields.setdefault("date", document.date)
    return fields
