"""Read files that hold one document each.

Every reader returns text with Markdown headings such as `## Setup`, each between empty lines. A
page of a PDF begins with a heading such as `# Page 3`. Passages and hits can therefore name
sections in files of any format.

A file is refused only if it has no text that can be read. Smaller faults become reading notes.
Examples are text that was lost, pages without text, or an invalid date.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from freshet.results import ReadingNote
from model_code.corpus.cleaning import MAX_FIELD_CHARACTERS, MAX_FIELDS
from model_code.corpus.formats.extraction import Extraction, measure_completeness
from model_code.corpus.rows import RefusedRow, Row, RowError
from model_code.text.documents import EXPIRES, is_date, parse_date
from model_code.text.words import is_valid_utf8

# Largest size of a file, in bytes. Larger files are refused.
MAX_FILE_BYTES = 50_000_000

# Longest message of a library, or text of an invalid date, that a reason or note quotes.
MAX_ERROR_CHARACTERS = 200

# A field whose value is nested deeper, in levels, is left out and noted.
MAX_FIELD_LEVELS = 50

# For each suffix the reader as "module:function", in the package `corpus.formats`. The module is
# imported at the first file that needs it, because the libraries of the formats load slowly.
_READERS: Mapping[str, str] = {
    ".md": "markdown:read_markdown",
    ".markdown": "markdown:read_markdown",
    ".mdown": "markdown:read_markdown",
    ".mkd": "markdown:read_markdown",
    ".mdx": "markdown:read_markdown",
    ".qmd": "markdown:read_markdown",
    ".rmd": "markdown:read_markdown",
    ".html": "html:read_html",
    ".htm": "html:read_html",
    ".xhtml": "html:read_html",
    ".mhtml": "mhtml:read_mhtml",
    ".mht": "mhtml:read_mhtml",
    ".txt": "plain_text:read_plain_text",
    ".text": "plain_text:read_plain_text",
    ".log": "plain_text:read_plain_text",
    ".org": "plain_text:read_org",
    ".adoc": "plain_text:read_asciidoc",
    ".asciidoc": "plain_text:read_asciidoc",
    ".tex": "plain_text:read_latex",
    ".textile": "plain_text:read_plain_text",
    ".wiki": "plain_text:read_plain_text",
    ".mediawiki": "plain_text:read_plain_text",
    ".rst": "plain_text:read_restructured_text",
    ".pdf": "pdf:read_pdf",
    ".docx": "docx:read_docx",
    ".docm": "docx:read_docx",
    ".dotx": "docx:read_docx",
    ".dotm": "docx:read_docx",
    ".pptx": "pptx:read_pptx",
    ".pptm": "pptx:read_pptx",
    ".ppsx": "pptx:read_pptx",
    ".potx": "pptx:read_pptx",
    ".xlsx": "xlsx:read_xlsx",
    ".xlsm": "xlsx:read_xlsx",
    ".xltx": "xlsx:read_xlsx",
    ".odt": "odt:read_odt",
    ".ott": "odt:read_odt",
    ".ods": "odt:read_ods",
    ".ots": "odt:read_ods",
    ".odp": "odt:read_odp",
    ".otp": "odt:read_odp",
    ".rtf": "rtf:read_rtf",
    ".epub": "epub:read_epub",
    ".eml": "mail:read_mail",
    ".ipynb": "notebook:read_notebook",
}
DOCUMENT_SUFFIXES = tuple(_READERS)

_OLD_OFFICE = "an old Office format; save it in the new one, with an x at the end of the suffix"
_OTHER_BOOK = "an e-book without a reader here; convert it to .epub"
_PICTURE = "a picture; its text needs text recognition first"
# Suffixes of files that may hold a document but have no reader, with the reason and the remedy.
UNREAD_SUFFIXES: Mapping[str, str] = {
    ".doc": _OLD_OFFICE,
    ".dot": _OLD_OFFICE,
    ".xls": _OLD_OFFICE,
    ".ppt": _OLD_OFFICE,
    ".pps": _OLD_OFFICE,
    ".xlsb": "a binary workbook; save it as .xlsx",
    ".fodt": "a flat OpenDocument text; save it as .odt",
    ".wpd": "a document of WordPerfect; save it as .docx",
    ".wps": "a document of Works or WPS; save it as .docx",
    ".pages": "a document of Apple Pages; export it as .docx",
    ".key": "a presentation of Apple Keynote, or a key; export a presentation as .pptx",
    ".numbers": "a workbook of Apple Numbers; export it as .xlsx",
    ".msg": "an Outlook e-mail; save it as .eml",
    ".mbox": "a mailbox of several e-mails; save each of them as .eml",
    ".mobi": _OTHER_BOOK,
    ".azw": _OTHER_BOOK,
    ".azw3": _OTHER_BOOK,
    ".fb2": _OTHER_BOOK,
    ".ps": "a PostScript file; convert it to .pdf",
    ".xps": "an XPS document; convert it to .pdf",
    ".djvu": "scanned pages; convert it to .pdf with text recognition",
    ".png": _PICTURE,
    ".jpg": _PICTURE,
    ".jpeg": _PICTURE,
    ".gif": _PICTURE,
    ".bmp": _PICTURE,
    ".tif": _PICTURE,
    ".tiff": _PICTURE,
    ".webp": _PICTURE,
    ".heic": _PICTURE,
    ".svg": _PICTURE,
}

# Suffixes of files that may hold many documents. A folder of documents reports such files as
# unread.
_TABLE = "a table of rows, each of which may be a document; add it with `freshet add`"
TABLE_SUFFIXES: Mapping[str, str] = {
    ".csv": _TABLE,
    ".tsv": _TABLE,
    ".jsonl": _TABLE,
    ".ndjson": _TABLE,
    ".parquet": _TABLE,
}

# A heading stands between empty lines, so a comment in code such as `# load` is not taken for one.
_FIRST_HEADING = re.compile(r"\s*# +([^\n]+)(?:\n[ \t]*\n|\s*\Z)")
_MAIN_HEADING = re.compile(r"(?:\A|(?<=\n\n))# +([^\n]+)(?=\n\n|\s*\Z)")
# A date in ISO order with other signs, or without zeros, such as 2024/05/01 or 2024-5-1.
_LOOSE_DATE = re.compile(r"^(\d{4})([-/.])(\d{1,2})\2(\d{1,2})(?!\d)")
_SURROGATES = re.compile(r"[\ud800-\udfff]")
# Codes by which a terminal changes colours, as in logs and in the outputs of notebooks.
_TERMINAL_CODE = re.compile(r"\x1b\[[0-9;:?]*[A-Za-z]")


def read_document(path: Path, document_id: str, name: str) -> Row | RefusedRow:
    """Read the document in a file.

    The folder in the id becomes the field `folder`. The date is the one that the content of the
    file states. The modification time is not used, so that a copy of a file gives an equal
    document.

    Args:
        path: The file. Its suffix is one of `DOCUMENT_SUFFIXES`.
        document_id: Id of the document, usually its path below a folder.
        name: Name of the file in the location.

    Returns:
        The row with title, text, date and fields under our names, or a refused row if the file
        cannot be read.
    """
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise _huge_file(size)
        data = path.read_bytes()
    except RowError as error:
        return _refuse(document_id, name, error)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return _refuse(document_id, name, RowError("unreadable file", reason))
    return read_document_bytes(data, path.suffix, document_id, name)


def read_document_bytes(data: bytes, suffix: str, document_id: str, name: str) -> Row | RefusedRow:
    """Read the document in the bytes of a file, as `read_document` does.

    Args:
        data: The whole file.
        suffix: Suffix of the file's name, such as `.pdf`.
        document_id: Id of the document.
        name: Name of the file in the location.
    """
    try:
        extraction = _extract(data, suffix.lower())
    except RowError as error:
        return _refuse(document_id, name, error)
    except Exception as error:
        # Libraries raise exceptions of many types for broken files.
        message = " ".join(str(error).split())[:MAX_ERROR_CHARACTERS]
        unreadable = RowError("unreadable file", f"{type(error).__name__}: {message}")
        return _refuse(document_id, name, unreadable)

    notes: list[ReadingNote] = []
    for remark in extraction.remarks:
        notes.append(ReadingNote(document_id, remark.kind, remark.detail, remark.share))
    values = _make_values(extraction, document_id)
    return Row("documents", f"{name}:1", values, tuple(notes))


def is_document_file(path: Path) -> bool:
    """Return whether a file holds one document, by its suffix.

    This includes formats without a reader. `read_document` refuses such files with a reason.

    Args:
        path: The file.
    """
    suffix = path.suffix.lower()
    return suffix in DOCUMENT_SUFFIXES or suffix in UNREAD_SUFFIXES


def unread_reason(name: str) -> str | None:
    """Return why a file in a folder is not read although it may hold documents; else None.

    Args:
        name: Name of the file.
    """
    suffix = PurePosixPath(name).suffix.lower()
    return UNREAD_SUFFIXES.get(suffix) or TABLE_SUFFIXES.get(suffix)


def _extract(data: bytes, suffix: str) -> Extraction:
    """Read the bytes of a file, and clean and check the result.

    Raises:
        RowError: If the file cannot be read, or has no text.
    """
    if suffix in UNREAD_SUFFIXES:
        raise RowError("unreadable file", f"it is {UNREAD_SUFFIXES[suffix]}")
    if len(data) > MAX_FILE_BYTES:
        raise _huge_file(len(data))
    extraction = _reader(suffix)(data)
    _remove_terminal_codes(extraction)
    if not extraction.text.strip():
        raise RowError("empty text", _empty_reason(extraction))

    extraction.title = _printable_title(extraction)
    _keep_readable_fields(extraction)
    _keep_readable_date(extraction)
    _keep_readable_expiry(extraction)
    if _SURROGATES.search(extraction.text):
        extraction.text = _SURROGATES.sub("\ufffd", extraction.text)
        extraction.note("unreadable value", "some letters of the text cannot be read")
    for remark in measure_completeness(extraction):
        extraction.note(remark.kind, remark.detail, remark.share)
    return extraction


def _remove_terminal_codes(extraction: Extraction) -> None:
    """Remove the codes of terminals, which would become a part of the words beside them."""
    if "\x1b" not in extraction.text:
        return
    extraction.text = _TERMINAL_CODE.sub("", extraction.text)
    if extraction.all_text is not None:
        extraction.all_text = [_TERMINAL_CODE.sub("", piece) for piece in extraction.all_text]


def _empty_reason(extraction: Extraction) -> str:
    """Return why a file without text has none, as far as its reader knows."""
    if extraction.remarks:
        details = "; ".join(remark.detail for remark in extraction.remarks)
        return f"the file holds none that is read: {details}"[:MAX_ERROR_CHARACTERS]
    if any(text.strip() for text in extraction.left_out):
        return "the file holds only hidden text and navigation"
    return "the file holds none"


def _reader(suffix: str) -> Callable[[bytes], Extraction]:
    """Import and return the function that reads files with a suffix."""
    module_name, _, function_name = _READERS[suffix].partition(":")
    module = importlib.import_module(f"model_code.corpus.formats.{module_name}")
    return getattr(module, function_name)


def _huge_file(size: int) -> RowError:
    return RowError("huge file", f"{size:,} bytes, at most {MAX_FILE_BYTES:,} are read")


def _printable_title(extraction: Extraction) -> str:
    """Return the title on one line; empty, with a note, if it is not valid text."""
    title = extraction.title
    if not is_valid_utf8(title):
        extraction.note("unreadable value", "its title cannot be read")
        return ""
    return " ".join(title.split())


def _keep_readable_fields(extraction: Extraction) -> None:
    """Remove fields that a document cannot hold, and note each of them.

    The limits are stricter than those of a document, because the fields `folder` and `date` may be
    added later.
    """
    kept: dict[str, Any] = {}
    characters = 0
    for name, value in extraction.fields.items():
        text = _field_json(value)
        if text is not None:
            characters += len(name) + len(text)
        is_readable = text is not None and is_valid_utf8(name)
        has_room = characters <= MAX_FIELD_CHARACTERS // 2 and len(kept) < MAX_FIELDS - 2
        if is_readable and has_room:
            kept[name] = value
        else:
            readable_name = _SURROGATES.sub("\ufffd", name)
            extraction.note("unreadable value", f"the value of {readable_name!r} is left out")
    extraction.fields = kept


def _field_json(value: Any) -> str | None:
    """Return a value of a field as JSON; None if a document cannot hold it."""
    if _is_deep(value):
        return None
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, TypeError, RecursionError):
        return None
    return text if is_valid_utf8(text) else None


def _is_deep(value: Any) -> bool:
    """Return whether mappings and lists are nested deeper than `MAX_FIELD_LEVELS`.

    The value is searched level by level, because recursion could exceed Python's limit.
    """
    level_values = [value]
    for _ in range(MAX_FIELD_LEVELS):
        inner_values: list[Any] = []
        for item in level_values:
            if isinstance(item, Mapping):
                inner_values.extend(item.values())
            elif isinstance(item, list | tuple | set):
                inner_values.extend(item)
        if not inner_values:
            return False
        level_values = inner_values
    return True


def _keep_readable_date(extraction: Extraction) -> None:
    """Bring the date into ISO order, and remove and note a date that is not an ISO date."""
    date = extraction.date
    if isinstance(date, str):
        date = _to_iso_order(date.strip())
    if date is None or date == "":
        extraction.date = None
    elif parse_date(date) is not None:
        extraction.date = date
    else:
        extraction.date = None
        one_line = " ".join(str(date).split())
        quoted_date = _SURROGATES.sub("\ufffd", one_line)[:MAX_ERROR_CHARACTERS]
        detail = f"the date {quoted_date!r} is no ISO date, and is left out"
        extraction.note("unreadable value", detail)


def _to_iso_order(date: str) -> str:
    """Return a date with the signs and zeros of ISO.

    >>> _to_iso_order("2024/5/1 10:00"), _to_iso_order("May 2024")
    ('2024-05-01 10:00', 'May 2024')
    """
    match = _LOOSE_DATE.match(date)
    if match is None:
        return date
    return f"{match[1]}-{match[3]:0>2}-{match[4]:0>2}{date[match.end() :]}"


def _keep_readable_expiry(extraction: Extraction) -> None:
    """Remove an `expires` that is not a date, and note it."""
    value = extraction.fields.get(EXPIRES)
    if value is None or value == "" or is_date(value):
        return
    del extraction.fields[EXPIRES]
    text = _SURROGATES.sub("\ufffd", " ".join(str(value).split()))[:MAX_ERROR_CHARACTERS]
    extraction.note(
        "unreadable value",
        f"its {EXPIRES} {text!r} is no ISO date, and is left out: the document does not expire",
    )


def _make_values(extraction: Extraction, document_id: str) -> dict[str, Any]:
    """Return the values of the document's row, by our names of the columns."""
    path = PurePosixPath(document_id)
    fields = dict(extraction.fields)
    if path.parent.name:
        fields.setdefault("folder", path.parent.as_posix())

    title, text = _title_and_text(extraction)
    return {
        "id": document_id,
        "title": title or path.stem,
        "text": text,
        "date": extraction.date,
        "fields": fields,
    }


def _title_and_text(extraction: Extraction) -> tuple[str, str]:
    """Return the title and the text. Without a stated title, the first main heading is the title.

    If the text begins with the title as a heading, the heading is removed from the text, unless
    nothing else would be left.
    """
    title = extraction.title
    text = extraction.text
    if not extraction.may_use_heading:
        return title, text

    first_heading = _FIRST_HEADING.match(text)
    if first_heading is not None:
        heading_text = first_heading[1].strip()
        title = title or heading_text
        if title == heading_text:
            text = text[first_heading.end() :].strip() or text
    if not title:
        main_heading = _MAIN_HEADING.search(text)
        title = "" if main_heading is None else main_heading[1].strip()
    return title, text


def _refuse(document_id: str, name: str, error: RowError) -> RefusedRow:
    """Return the refused row of a file, of which nothing but its name is known."""
    return RefusedRow(
        "documents",
        f"{name}:1",
        error.reason,
        error.detail,
        excerpt="",
        record_id=document_id,
        has_valid_id=True,
    )
