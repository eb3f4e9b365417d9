"""Ids of the documents of named sources: `wiki:setup.md` is `setup.md` of the source `wiki`.

A project has one source of its own, and may have further ones, which are named. Documents of the
project's own source have plain ids. Adding a named source therefore renames no document, and two
sources may use the same names.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from freshet.results import ReadingNote
from model_code.corpus.clean_rows import CleanRows
from model_code.corpus.cleaning import MAX_ID_BYTES, is_possible_id
from model_code.corpus.rows import RefusedRow, printable
from model_code.errors import FreshetError
from model_code.text.documents import Document

# Name of the project's own source in lists of sources. No named source may have this name.
DEFAULT_SOURCE_NAME = "default"

# Field of a document that holds the name of its source.
SOURCE_FIELD = "source"

# New name of a field `source` that the document had before.
ORIGINAL_SOURCE_FIELD = "original_source"

# Longest name of a named source, in characters.
MAX_NAME_CHARACTERS = 64
_SOURCE_NAME = re.compile(r"\w[\w.-]*")
_NOT_IN_NAMES = re.compile(r"[^\w.-]+")


def require_source_name(name: str) -> str:
    """Return a name unchanged if a named source can have it.

    Raises:
        FreshetError: If the name is reserved or too long, or has characters that are not allowed.
    """
    if name == DEFAULT_SOURCE_NAME:
        raise FreshetError(
            f"{name!r} is the project's own source, which `freshet sync` follows without --source; "
            "choose another name"
        )
    if not _SOURCE_NAME.fullmatch(name) or len(name) > MAX_NAME_CHARACTERS:
        raise FreshetError(
            f"{printable(name)!r} cannot be the name of a source; use letters, digits, '_', '-' "
            f"and '.', at most {MAX_NAME_CHARACTERS} characters"
        )
    return name


def suggest_source_name(location: str) -> str:
    """Return a name for a source, made from its path or from the name of its data set.

    Raises:
        FreshetError: If no allowed character of the location remains, or the name is reserved.

    >>> suggest_source_name("/srv/team wiki"), suggest_source_name("data/rows.csv")
    ('team-wiki', 'rows')
    """
    last_part = location.rstrip("/").rpartition("/")[2]
    stem = last_part.partition(".")[0] or last_part
    name = _NOT_IN_NAMES.sub("-", stem).strip("-.")[:MAX_NAME_CHARACTERS]
    if not name or name == DEFAULT_SOURCE_NAME:
        raise FreshetError(
            f"{printable(location)} gives no name for a source; name it: --source NAME"
        )
    return name


def source_document_id(source: str, name: str) -> str:
    """Return the id of a document of a named source.

    A colon in the name is escaped, so that the name can be recovered from the id.

    >>> source_document_id("wiki", "a.md"), source_document_id("wiki", "10:30.md")
    ('wiki:a.md', 'wiki:10\\\\:30.md')
    """
    escaped = name.replace("\\", "\\\\").replace(":", "\\:")
    return f"{source}:{escaped}"


def name_in_source(document_id: str) -> str:
    """Return the name that a document has in its named source, without the source and unescaped.

    >>> name_in_source("wiki:10\\\\:30.md")
    '10:30.md'
    """
    escaped = document_id.partition(":")[2]
    return re.sub(r"\\([\\:])", r"\1", escaped)


def source_of_id(document_id: str, sources: Collection[str]) -> str | None:
    """Return the named source at the beginning of a document's id; None if there is none.

    Args:
        document_id: Id of the document.
        sources: Names of all named sources.

    >>> source_of_id("wiki:a.md", ["wiki"])
    'wiki'
    >>> source_of_id("http://example.org", ["wiki"])
    """
    name, colon, _ = document_id.partition(":")
    return name if colon and name in sources else None


def renamed_id(document_id: str, old: str, new: str) -> str:
    """Return the id of a document after a source was renamed.

    >>> renamed_id("wiki:a.md", "wiki", "handbook"), renamed_id("a.md", "wiki", "handbook")
    ('handbook:a.md', 'a.md')
    """
    if source_of_id(document_id, (old,)) is None:
        return document_id
    return source_document_id(new, name_in_source(document_id))


def with_source(document: Document, source: str, document_id: str) -> Document:
    """Return a document with the id and the field of a named source.

    Args:
        document: The document. If it has a field `source` already, that field is renamed.
        source: Name of the source.
        document_id: The new id.
    """
    fields = dict(document.fields)
    if SOURCE_FIELD in fields:
        free_name = ORIGINAL_SOURCE_FIELD
        while free_name in fields:
            free_name += "_"
        fields[free_name] = fields[SOURCE_FIELD]
    fields[SOURCE_FIELD] = source
    return replace(document, document_id=document_id, fields=fields)


def name_documents(rows: CleanRows, source: str) -> CleanRows:
    """Prefix the ids of a named source's rows with its name, as in the index.

    A document is refused if the prefix makes its id too long.

    Args:
        rows: Rows with the ids that the source gives them.
        source: Name of the source.
    """
    documents: list[Document] = []
    locations: list[str] = []
    refused = [_name_refused_row(row, source) for row in rows.refused]
    for document, location in zip(rows.documents, rows.locations, strict=True):
        document_id = source_document_id(source, document.document_id)
        if is_possible_id(document_id):
            documents.append(with_source(document, source, document_id))
            locations.append(location)
        else:
            detail = f"with its source the id has more than {MAX_ID_BYTES:,} bytes"
            refused.append(
                RefusedRow(
                    "documents", location, "bad id", detail, excerpt="", record_id=document_id
                )
            )
    notes = name_notes(rows.notes, source)
    return CleanRows(tuple(documents), tuple(locations), tuple(refused), tuple(notes))


def name_notes(notes: Collection[ReadingNote], source: str) -> list[ReadingNote]:
    """Prefix the file names in notes about unread parts of files with the name of a source."""
    return [replace(note, file=source_document_id(source, note.file)) for note in notes]


def _name_refused_row(row: RefusedRow, source: str) -> RefusedRow:
    """Return a refused row with the id that its document would have in the index.

    A row without a valid id is returned unchanged.
    """
    if row.record_id is None or not row.has_valid_id:
        return row
    document_id = source_document_id(source, row.record_id)
    location = row.location
    # A file that is one document has its id as the location, so both are renamed.
    if location == f"{row.record_id}:1":
        location = f"{document_id}:1"
    return replace(row, record_id=document_id, location=location)
