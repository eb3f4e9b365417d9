"""Readers of files that hold one document each.

The formats are Markdown, HTML, plain text, reStructuredText, PDF and DOCX. Every reader gives text
whose headings are Markdown's: `## Setup`, alone between empty lines. A page of a PDF is
`# Page 3`. So `passages.cut: sections` and hits can tell sections of any format.

A reader imports the library of its format inside the function, because most rows are JSON and need
none of these libraries.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from model_code.corpus.rows import RefusedRow, Row, RowError

if TYPE_CHECKING:
    from docx.document import Document as DocxDocument

MAX_FILE_BYTES = 50_000_000
MAX_ERROR_CHARACTERS = 200

# The charset of an HTML page must be named within so many bytes.
CHARSET_PREFIX_BYTES = 4096

MAX_HEADING_LEVEL = 6

_FRONT_MATTER = re.compile(r"\A---\n(.*?\n)(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.S)
_FIRST_HEADING = re.compile(r"\s*# +([^\n]+)(?:\n|\Z)")
_CHARSET = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?([\w-]+)", re.I)

# A title of reStructuredText, with a line below it and perhaps one above it.
_UNDERLINED_TITLE = re.compile(
    r"(?m)^(?:([=\-~^\"'#*+.`:_])\1{2,}\n)?[ ]?(\S[^\n]*)\n([=\-~^\"'#*+.`:_])\3{2,}$"
)

# A line of code that stands alone and would read as a heading of Markdown.
_HEADING_LIKE_CODE = re.compile(r"(?:\A|(?<=\n\n))(#{1,6} [^\n]*)(?=\n\n|\n?\Z)")

# Elements that a browser does not show, or shows for navigation.
_SKIPPED_ELEMENTS = (
    "head",
    "script",
    "style",
    "template",
    "noscript",
    "svg",
    "nav",
    "iframe",
    "form",
)
_HEADING_MARKS = {f"h{level}": "#" * level for level in range(1, MAX_HEADING_LEVEL + 1)}
_BLOCK_ELEMENTS = re.compile(
    "address|article|aside|blockquote|body|dd|details|div|dl|dt|fieldset|figcaption|figure|footer"
    "|header|hr|li|main|ol|p|pre|section|summary|table|tbody|tfoot|thead|tr|ul"
)
_HTML_DATES = (
    "//meta[@property='article:published_time' or @name='date' or @name='dcterms.date']/@content"
)


def read_document(path: Path, document_id: str, name: str) -> Row | RefusedRow:
    """Read the document in a file.

    The folder of the id becomes the field `folder`. The date is one that the file states. The time
    of the file is not used, so a copy is the same document.

    Args:
        path: The file. Its suffix is one of `DOCUMENT_SUFFIXES`.
        document_id: Id of the document, usually its path below a folder.
        name: Name of the file in the location.

    Returns:
        The row with title, text, date and fields under our names, or a refused row if the file
        cannot be read.
    """
    location = f"{name}:1"
    try:
        values = _read_values(path)
    except RowError as error:
        return _refuse(location, document_id, error)
    except Exception as error:
        # Libraries raise errors of any kind for broken files.
        message = " ".join(str(error).split())[:MAX_ERROR_CHARACTERS]
        unreadable = RowError("unreadable file", f"{type(error).__name__}: {message}")
        return _refuse(location, document_id, unreadable)

    relative = PurePosixPath(document_id)
    fields = values.setdefault("fields", {})
    if relative.parent.name:
        fields.setdefault("folder", relative.parent.as_posix())
    values["id"] = document_id
    values["title"] = values.get("title") or relative.stem
    return Row("documents", location, values)


def _read_values(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise RowError("huge file", f"{size:,} bytes, at most {MAX_FILE_BYTES:,} are read")
    values = _READERS[path.suffix.lower()](path.read_bytes())
    if not values["text"].strip():
        raise RowError("empty text", "the file holds none")
    return values


def _refuse(location: str, document_id: str, error: RowError) -> RefusedRow:
    return RefusedRow("documents", location, error.reason, error.detail, "", document_id, True)


def _decode(data: bytes, charset: str | None = None) -> str:
    """Decode UTF-8, UTF-16 with its byte order mark, or the charset that the file names."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "utf-16"
    else:
        encoding = charset or "utf-8-sig"

    try:
        text = data.decode(encoding)
    except (UnicodeDecodeError, LookupError) as error:
        if charset is None and b"\0" in data:
            raise RowError("binary file", "holds zero bytes: this is no text") from None
        raise RowError("invalid UTF-8", f"{error}; save the file as UTF-8") from None
    if "\0" in text:
        raise RowError("binary file", "holds zero bytes: this is no text")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _read_plain_text(data: bytes) -> dict[str, Any]:
    return {"text": _decode(data)}


def _read_markdown(data: bytes) -> dict[str, Any]:
    from markdown_it import MarkdownIt

    source = _decode(data)
    fields: dict[str, Any] = {}
    match = _FRONT_MATTER.match(source)
    if match:
        front_matter = _parse_front_matter(match[1])
        if front_matter is not None:
            fields = front_matter
            source = source[match.end() :]

    values = _read_markup(MarkdownIt("commonmark").enable("table").render(source))
    values["title"] = str(fields.pop("title", None) or values["title"])
    values["date"] = fields.pop("date", None)
    values["fields"] = fields
    return values


def _parse_front_matter(text: str) -> dict[str, Any] | None:
    """Return the mapping in YAML; None if the lines between two rules are part of the text."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        value = YAML(typ="safe").load(text)
    except (YAMLError, ValueError):
        return None
    if not isinstance(value, Mapping):
        return None
    return {str(key): item for key, item in value.items()}


def _read_html(data: bytes) -> dict[str, Any]:
    try:
        markup = _decode(data)
    except RowError:
        charset = _CHARSET.search(data[:CHARSET_PREFIX_BYTES])
        if charset is None:
            raise
        markup = _decode(data, charset[1].decode())
    return _read_markup(markup)


def _read_markup(markup: str) -> dict[str, Any]:
    """Return title, text and date of a page, without what a reader of the page does not see."""
    from lxml import etree, html

    if not markup.strip():
        return {"title": "", "text": "", "date": None}

    tree = html.document_fromstring(markup.encode(), parser=html.HTMLParser(encoding="utf-8"))
    title = " ".join(" ".join(tree.xpath("//head/title//text()")).split())
    dates = tree.xpath(_HTML_DATES)

    etree.strip_elements(tree, *_SKIPPED_ELEMENTS, with_tail=False)
    etree.strip_tags(tree, etree.Comment, etree.ProcessingInstruction)
    text = "".join(_render_text(tree))
    text = re.sub(r"[ \t]*\n[ \t]*", "\n", text)
    text = re.sub(r"\n{3,}", "\n\n", text).strip()

    values = _take_title(title, text)
    values["date"] = dates[0] if dates else None
    return values


def _take_title(title: str, text: str) -> dict[str, Any]:
    """Return title and text. Without a title, the first heading is the title.

    A first heading that is the title is taken out of the text, unless nothing else is left.
    """
    heading = _FIRST_HEADING.match(text)
    if heading and not title:
        title = heading[1]
    if heading and heading[1] == title:
        text = text[heading.end() :].strip() or text
    return {"title": title, "text": text}


def _render_text(tree: Any) -> Iterator[str]:
    """Yield the text of a tree in pieces, with Markdown headings and line breaks around blocks."""
    from lxml import etree

    # A heading is one line, whatever elements it has inside.
    for heading in tree.xpath("//h1|//h2|//h3|//h4|//h5|//h6"):
        content = " ".join("".join(heading.itertext()).split())
        tail = heading.tail
        heading.clear()
        heading.text = content
        heading.tail = tail

    open_pre_elements = 0
    for event, element in etree.iterwalk(tree, events=("start", "end")):
        is_start = event == "start"
        if element.tag == "pre":
            open_pre_elements += 1 if is_start else -1

        yield _separator(element.tag, is_start)
        text = (element.text if is_start else element.tail) or ""
        if open_pre_elements:
            yield _HEADING_LIKE_CODE.sub(r"\\\1", text)
        else:
            yield re.sub(r"\s+", " ", text)


def _separator(tag: Any, is_start: bool) -> str:
    """Return the text that stands for the start or the end of an element."""
    if tag in _HEADING_MARKS:
        return f"\n\n{_HEADING_MARKS[tag]} " if is_start else "\n\n"
    if tag == "br":
        return "\n" if is_start else ""
    if tag in ("td", "th"):
        return " " if is_start else ""
    if tag == "li":
        return "\n- " if is_start else "\n"
    if tag in ("p", "pre"):
        return "\n\n"
    if _BLOCK_ELEMENTS.fullmatch(tag):
        return "\n"
    return ""


def _read_restructured_text(data: bytes) -> dict[str, Any]:
    """Return the source with underlined titles as headings.

    Directives are not interpreted, so that none of them takes its content out of the text.
    """
    # The level of a heading is the order in which its kind of line first occurs.
    marks: list[str] = []

    def to_heading(match: re.Match[str]) -> str:
        overline, title, underline = match.groups()
        mark = underline * 2 if overline == underline else underline
        if mark not in marks:
            marks.append(mark)
        level = min(marks.index(mark) + 1, MAX_HEADING_LEVEL)
        return f"\n{'#' * level} {title.strip()}\n"

    text = _UNDERLINED_TITLE.sub(to_heading, _decode(data))
    return _take_title("", text.strip())


def _read_pdf(data: bytes) -> dict[str, Any]:
    from pypdf import PdfReader

    # pypdf warns of every oddity that it reads all the same.
    logging.getLogger("pypdf").setLevel(logging.ERROR)
    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        raise RowError("unreadable file", "it needs a password")

    pages = [page.extract_text().strip() for page in reader.pages]
    if not any(pages):
        raise RowError(
            "empty text",
            f"{len(pages)} pages without text: scanned pages need text recognition first",
        )
    sections = [f"# Page {number}\n\n{page}" for number, page in enumerate(pages, 1) if page]
    values: dict[str, Any] = {"title": "", "text": "\n\n".join(sections), "date": None}

    metadata = reader.metadata
    if metadata:
        values["title"] = metadata.title or ""
        if metadata.creation_date:
            values["date"] = metadata.creation_date.isoformat()
    return values


def _read_docx(data: bytes) -> dict[str, Any]:
    import docx

    document = docx.Document(io.BytesIO(data))
    properties = document.core_properties
    values = _take_title(properties.title, "\n".join(_docx_lines(document)))
    values["date"] = properties.created.isoformat() if properties.created else None
    return values


def _docx_lines(document: DocxDocument) -> Iterator[str]:
    from docx.table import Table

    for block in document.iter_inner_content():
        if isinstance(block, Table):
            for row in block.rows:
                yield " ".join(cell.text for cell in row.cells)
            continue

        style = ""
        if block.style is not None and block.style.name:
            style = block.style.name
        heading = re.fullmatch(r"Heading (\d)|Title", style)
        if heading and block.text.strip():
            level = min(int(heading[1] or 1), MAX_HEADING_LEVEL)
            yield f"\n{'#' * level} {block.text}\n"
        else:
            yield block.text


_READERS: dict[str, Callable[[bytes], dict[str, Any]]] = {
    ".md": _read_markdown,
    ".markdown": _read_markdown,
    ".html": _read_html,
    ".htm": _read_html,
    ".txt": _read_plain_text,
    ".rst": _read_restructured_text,
    ".pdf": _read_pdf,
    ".docx": _read_docx,
}
DOCUMENT_SUFFIXES = tuple(_READERS)
