"""Read Jupyter notebooks with nbformat: texts, code and the text of outputs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from model_code.corpus.formats.character_sets import decode_text
from model_code.corpus.formats.extraction import Extraction
from model_code.corpus.formats.html import escape_headings, list_page_text, read_markup
from model_code.corpus.formats.markdown import read_markdown_text
from model_code.corpus.formats.titles import clean_title
from model_code.corpus.rows import RowError


def read_notebook(data: bytes) -> Extraction:
    """Read a notebook of any version: texts, code, and the text of outputs, in their order.

    Raises:
        RowError: If the file is not a notebook.
    """
    notebook = _parse_notebook(decode_text(data).text)

    blocks: list[str] = []
    all_text: list[str] = []
    extraction = Extraction("")
    for cell in notebook["cells"]:
        source = _joined(cell.get("source", ""))
        if cell.get("cell_type") == "markdown":
            page = read_markdown_text(source)
            blocks.append(page.text)
            all_text.extend(page.all_text or ())
            extraction.left_out.extend(page.left_out)
            extraction.remarks.extend(page.remarks)
        else:
            blocks.append(escape_headings(source))
            all_text.extend(source.splitlines())
        for output in cell.get("outputs", ()):
            for text, crude_list in _output_texts(output):
                blocks.append(text)
                all_text.extend(crude_list)

    metadata = notebook.get("metadata", {})
    title = metadata.get("title", "")
    extraction.title = clean_title(title) if isinstance(title, str) else ""
    extraction.date = metadata.get("date")
    extraction.text = "\n\n".join(block for block in blocks if block.strip())
    extraction.all_text = all_text
    return extraction


def _parse_notebook(text: str) -> Mapping[str, Any]:
    """Return a notebook in the structure of version 4, with its list of cells.

    Raises:
        RowError: If the text is not a notebook.
    """
    import nbformat

    # nbformat logs every oddity, even one that it can read.
    logging.getLogger("traitlets").setLevel(logging.CRITICAL)
    try:
        notebook = nbformat.reads(text, as_version=4)
        if not isinstance(notebook.cells, list):
            raise TypeError("the cells are not a list")
    except Exception as error:
        # The library raises errors of any kind, also for keys that reading can do without.
        unchecked_notebook = _parse_cells(text)
        if unchecked_notebook is None:
            message = " ".join(str(error).split())[:200]
            raise RowError("unreadable file", f"it is no notebook: {message}") from None
        return unchecked_notebook
    return notebook


def _parse_cells(text: str) -> dict[str, Any] | None:
    """Return a notebook that breaks the rules of its format; None if it has no cells."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("cells"), list):
        return None
    if not all(isinstance(cell, dict) for cell in value["cells"]):
        return None
    return value


def _output_texts(output: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield the texts of an output, each with a list of all its text to check the reader.

    Pictures have no text. An output often holds the same content in several forms. The first of
    Markdown, HTML and plain text is read.
    """
    if "text" in output:
        text = _joined(output["text"])
        yield escape_headings(text), text.splitlines()
    if output.get("output_type") == "error":
        text = f"{output.get('ename', '')}: {output.get('evalue', '')}"
        yield text, [text]

    data = output.get("data") or {}
    if "text/markdown" in data:
        page = read_markdown_text(_joined(data["text/markdown"]))
        yield page.text, list(page.all_text or ())
    elif "text/html" in data:
        markup = _joined(data["text/html"])
        yield read_markup(markup).text, list_page_text(markup)
    elif "text/plain" in data:
        text = _joined(data["text/plain"])
        yield escape_headings(text), text.splitlines()


def _joined(value: Any) -> str:
    """Return a text that a notebook may hold as a list of lines."""
    return "".join(map(str, value)) if isinstance(value, list) else str(value)
