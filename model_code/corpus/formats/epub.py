"""Read EPUB: its chapters are pages of HTML, in the order of the book."""

from __future__ import annotations

import posixpath
from typing import Any
from urllib.parse import unquote

from model_code.corpus.formats.archives import Archive, repair_xml
from model_code.corpus.formats.extraction import Extraction
from model_code.corpus.formats.html import read_html
from model_code.corpus.formats.office_xml import local_name
from model_code.corpus.formats.titles import clean_title
from model_code.corpus.rows import RowError

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_PAGE_TYPES = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml")


def read_epub(data: bytes) -> Extraction:
    """Read a book.

    The package of a book is the part that lists its pages, their order and its metadata.

    Raises:
        RowError: If the file is not an EPUB, is protected against copying, or is not safe to read.
    """
    archive = Archive(data)
    package_name = _find_package(archive)
    # Programs forget to escape signs of titles and names.
    package = repair_xml(archive.read(package_name), package_name)
    folder = posixpath.dirname(package_name)
    extraction = Extraction("", all_text=[], may_use_heading=False)
    _read_metadata(package, extraction)

    chapters: list[str] = []
    all_text: list[str] = []
    protected = _protected_parts(archive)
    names_without_case = {name.casefold(): name for name in archive.names}
    for name in _reading_order(package, folder):
        if name not in archive:
            # Programs that ignore case write other letters into the list than into the archive.
            same_name = names_without_case.get(name.casefold())
            if same_name is None:
                extraction.note("unread part", f"the chapter {name} is missing")
                continue
            name = same_name
        if name in protected:
            raise RowError("unreadable file", "the book is protected against copying")

        page = read_html(archive.read(name))
        extraction.remarks.extend(page.remarks)
        extraction.left_out.extend(page.left_out)
        all_text.extend(page.all_text or ())
        # The title in the head of a page is not part of its text, but most chapters repeat it.
        if page.title and page.title not in page.text:
            extraction.left_out.append(page.title)
        if page.text:
            chapters.append(page.text)

    extraction.text = "\n\n".join(chapters)
    extraction.all_text = all_text
    return extraction


def _find_package(archive: Archive) -> str:
    """Return the name of the package, which the container of a book states."""
    if _CONTAINER not in archive:
        raise RowError("unreadable file", "the archive holds no book: its container is missing")
    for element in archive.parse(_CONTAINER).iter():
        if local_name(element) == "rootfile" and element.get("full-path"):
            return element.get("full-path")
    raise RowError("unreadable file", "the container of the book names no package")


def _read_metadata(package: Any, extraction: Extraction) -> None:
    """Set the first title, the first date and all authors that the package of a book states."""
    authors: list[str] = []
    for element in package.iter():
        name = local_name(element)
        text = " ".join((element.text or "").split())
        if not text:
            continue
        if name == "title" and not extraction.title:
            extraction.title = clean_title(text)
        elif name == "date" and extraction.date is None:
            extraction.date = text
        elif name == "creator":
            authors.append(text)
    if authors:
        extraction.fields["author"] = ", ".join(authors)


def _reading_order(package: Any, folder: str) -> list[str]:
    """Return the names of the pages in the order of the book, each once.

    Pages that the order lacks follow, except the page with the table of contents.

    Args:
        package: Root element of the package. Its elements `item` list the parts of the book, and
            its elements `itemref` give the order by the ids of the items.
        folder: Folder of the package in the archive.
    """
    # Name of each page in the archive by the id of its item, and the ids of tables of contents.
    names: dict[str, str] = {}
    contents_pages: set[str] = set()
    for element in package.iter():
        if local_name(element) == "item" and element.get("media-type") in _PAGE_TYPES:
            path = unquote(element.get("href") or "")
            item_id = element.get("id") or ""
            names[item_id] = posixpath.normpath(posixpath.join(folder, path))
            if "nav" in (element.get("properties") or "").split():
                contents_pages.add(item_id)

    ordered: dict[str, None] = {}
    for element in package.iter():
        if local_name(element) == "itemref" and element.get("idref") in names:
            ordered[names[element.get("idref")]] = None
    for item_id, name in names.items():
        if item_id not in contents_pages:
            ordered[name] = None
    return list(ordered)


def _protected_parts(archive: Archive) -> set[str]:
    """Return the names of the parts that are encrypted, which a part of the archive lists."""
    if _ENCRYPTION not in archive:
        return set()
    parts: set[str] = set()
    for element in archive.parse(_ENCRYPTION).iter():
        if local_name(element) == "CipherReference":
            parts.add(unquote(element.get("URI") or ""))
    return parts
