"""Readers of files that hold one document each: Markdown, HTML, plain text, reStructuredText, PDF
and DOCX.

All of them give text whose headings are Markdown's (`## Setup`, alone between empty lines), a page
of a PDF being `# Page 3`, so that `passages.cut: sections` and a hit can tell sections whatever the
file was. A reader imports the library of its format itself: rows of JSON, the most that comes, need
none.
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

MOST_BYTES = 50_000_000  # of a file
_FRONT_MATTER = re.compile(r"\A---\n(.*?\n)(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.S)
_FIRST_HEADING = re.compile(r"\s*# +([^\n]+)(?:\n|\Z)")
_CHARSET = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?([\w-]+)", re.I)
_UNDERLINED = re.compile(
    r"(?m)^(?:([=\-~^\"'#*+.`:_])\1{2,}\n)?[ ]?(\S[^\n]*)\n([=\-~^\"'#*+.`:_])\3{2,}$"
)
# in code, which is no heading
_LONE_COMMENT = re.compile(r"(?:\A|(?<=\n\n))(#{1,6} [^\n]*)(?=\n\n|\n?\Z)")
_UNSHOWN = ("head", "script", "style", "template", "noscript", "svg", "nav", "iframe", "form")
_HEADINGS = {f"h{level}": "#" * level for level in range(1, 7)}
_BLOCKS = re.compile(
    "address|article|aside|blockquote|body|dd|details|div|dl|dt|fieldset|figcaption|figure|footer|header|hr|li|main|ol|"
    "p|pre|section|summary|table|tbody|tfoot|thead|tr|ul"
)
_DATES = (
    "//meta[@property='article:published_time' or @name='date' or @name='dcterms.date']/@content"
)


def read_document(path: Path, document_id: str, name: str) -> Row | RefusedRow:
    """The document in a file: its title, text, date and fields, under our names; refused if it
    cannot be read.

    name: what locations call it. The date is one that the file states, never that of the file: a
    copy changes nothing.
    """
    location = f"{name}:1"
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise RowError("huge file", f"{size:,} bytes, at most {MOST_BYTES:,} are read")
        values = _READERS[path.suffix.lower()](path.read_bytes())
        if not values["text"].strip():
            raise RowError("empty text", "the file holds none")
    except RowError as unfit:
        return RefusedRow("documents", location, unfit.reason, unfit.detail, "", document_id)
    except Exception as error:  # libraries raise whatever a broken file makes them stumble over
        detail = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return RefusedRow("documents", location, "unreadable file", detail, "", document_id)
    relative, place = PurePosixPath(document_id), values.setdefault("fields", {})
    if relative.parent.name:
        place.setdefault("folder", relative.parent.as_posix())
    title = values.get("title") or relative.stem
    return Row("documents", location, values | {"id": document_id, "title": title})


def _decoded(data: bytes, charset: str | None = None) -> str:
    """The text in UTF-8, in UTF-16 with its mark, or in the `charset` that the file names."""
    encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else charset or "utf-8-sig"
    try:
        text = data.decode(encoding)
    except (UnicodeDecodeError, LookupError) as error:
        if charset is None and b"\0" in data:
            raise RowError("binary file", "holds zero bytes: this is no text") from None
        raise RowError("invalid UTF-8", f"{error}; save the file as UTF-8") from None
    if "\0" in text:
        raise RowError("binary file", "holds zero bytes: this is no text")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _markdown(data: bytes) -> dict[str, Any]:
    from markdown_it import MarkdownIt

    source = _decoded(data)
    front = _FRONT_MATTER.match(source)
    matter = _yaml(front[1]) if front else None
    body = source[front.end() :] if front and matter is not None else source
    values, fields = _html_text(MarkdownIt("commonmark").enable("table").render(body)), matter or {}
    title, date = fields.pop("title", None), fields.pop("date", None)
    return values | {"title": str(title or values["title"]), "date": date, "fields": fields}


def _yaml(text: str) -> dict[str, Any] | None:
    """The front matter; None if the lines between two rules are no mapping, but part of the text."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        value = YAML(typ="safe").load(text)
    except (YAMLError, ValueError):
        return None
    return {str(key): item for key, item in value.items()} if isinstance(value, Mapping) else None


def _html(data: bytes) -> dict[str, Any]:
    try:
        markup = _decoded(data)
    except RowError:
        named = _CHARSET.search(data[:4096])
        if named is None:
            raise
        markup = _decoded(data, named[1].decode())
    return _html_text(markup)


def _html_text(markup: str) -> dict[str, Any]:
    """Title, text and date of a page; what a browser does not show, or shows to find one's way, is
    left out.
    """
    from lxml import etree, html

    if not markup.strip():
        return {"title": "", "text": "", "date": None}
    tree = html.document_fromstring(markup.encode(), parser=html.HTMLParser(encoding="utf-8"))
    titles, dates = tree.xpath("//head/title//text()"), tree.xpath(_DATES)
    etree.strip_elements(tree, *_UNSHOWN, with_tail=False)
    etree.strip_tags(tree, etree.Comment, etree.ProcessingInstruction)
    text = re.sub(r"[ \t]*\n[ \t]*", "\n", "".join(_pieces(tree)))
    text = re.sub(r"\n{3,}", "\n\n", text).strip()
    return _titled(" ".join(" ".join(titles).split()), text) | {"date": next(iter(dates), None)}


def _titled(title: str, text: str) -> dict[str, Any]:
    """A text and its title, or else its first heading, which is no part of the text then."""
    first = _FIRST_HEADING.match(text)
    title = title or (first[1] if first else "")
    body = text[first.end() :].strip() if first and first[1] == title else ""
    return {"title": title, "text": body or text}


def _pieces(tree: Any) -> Iterator[str]:
    from lxml import etree

    for heading in tree.xpath("//h1|//h2|//h3|//h4|//h5|//h6"):
        content, tail = " ".join("".join(heading.itertext()).split()), heading.tail
        heading.clear()
        heading.text, heading.tail = content, tail
    verbatim = 0
    for event, element in etree.iterwalk(tree, events=("start", "end")):
        tag, start = element.tag, event == "start"
        if tag == "pre":
            verbatim += 1 if start else -1
        if tag in _HEADINGS:
            yield f"\n\n{_HEADINGS[tag]} " if start else "\n\n"
        elif _BLOCKS.fullmatch(tag):
            yield "\n\n" if tag in ("p", "pre") else "\n"
        elif tag in ("br", "td", "th"):
            yield ("\n" if tag == "br" else " ") if start else ""
        if start and tag == "li":
            yield "- "
        words = (element.text if start else element.tail) or ""
        yield _LONE_COMMENT.sub(r"\\\1", words) if verbatim else re.sub(r"\s+", " ", words)


def _restructured(data: bytes) -> dict[str, Any]:
    """The text as it is, so that no directive takes its content along, with underlined titles as
    headings.
    """
    marks: list[str] = []

    def heading(match: re.Match[str]) -> str:
        mark = match[3] * (2 if match[1] == match[3] else 1)
        if mark not in marks:
            marks.append(mark)
        return f"\n{'#' * min(marks.index(mark) + 1, 6)} {match[2].strip()}\n"

    return _titled("", _UNDERLINED.sub(heading, _decoded(data)).strip())


def _pdf(data: bytes) -> dict[str, Any]:
    from pypdf import PdfReader

    # which warns of every oddity that it reads all the same
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
    text = "\n\n".join(f"# Page {number}\n\n{page}" for number, page in enumerate(pages, 1) if page)
    about = reader.metadata
    date = about.creation_date if about else None
    return {"title": (about and about.title) or "", "text": text, "date": date and date.isoformat()}


def _docx(data: bytes) -> dict[str, Any]:
    import docx

    document = docx.Document(io.BytesIO(data))
    about = document.core_properties
    date = about.created and about.created.isoformat()
    return _titled(about.title, "\n".join(_docx_lines(document))) | {"date": date}


def _docx_lines(document: DocxDocument) -> Iterator[str]:
    from docx.table import Table

    for block in document.iter_inner_content():
        if isinstance(block, Table):
            yield from (" ".join(cell.text for cell in row.cells) for row in block.rows)
            continue
        style = block.style.name if block.style is not None and block.style.name else ""
        level = re.fullmatch(r"Heading (\d)|Title", style)
        yield (
            f"\n{'#' * min(int(level[1] or 1), 6)} {block.text}\n"
            if level and block.text.strip()
            else block.text
        )


_READERS: dict[str, Callable[[bytes], dict[str, Any]]] = {
    ".md": _markdown,
    ".markdown": _markdown,
    ".html": _html,
    ".htm": _html,
    ".txt": lambda data: {"text": _decoded(data)},
    ".rst": _restructured,
    ".pdf": _pdf,
    ".docx": _docx,
}
DOCUMENT_SUFFIXES = tuple(_READERS)
