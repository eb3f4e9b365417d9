"""Read plain text and reStructuredText."""

from __future__ import annotations

import re

from model_code.corpus.formats.character_sets import decode_text
from model_code.corpus.formats.extraction import Extraction
from model_code.corpus.formats.titles import clean_title
from model_code.corpus.rows import RowError

# Markdown, to which texts are converted, has six levels of headings.
MAX_HEADING_LEVEL = 6

# The first bytes of formats that are written with letters, but are no text.
_MARKS_OF_OTHER_FORMATS = ((b"%PDF-", ".pdf"), (b"{\\rtf1", ".rtf"))

_ORG_TITLE = re.compile(r"(?im)^#\+title:[ \t]*(\S[^\n]*)")
# A date with or without the brackets of Org and the name of the day, such as <2024-05-01 Wed>.
_ORG_DATE = re.compile(r"(?im)^#\+date:[ \t]*[<\[]?(\d{4}-\d{2}-\d{2})")
# Comments and attributes may stand before the title.
_ASCIIDOC_TITLE = re.compile(r"\A\s*(?:(?://|:)[^\n]*\n\s*)*[=#] +(\S[^\n]*)")
_LATEX_TITLE = re.compile(r"(?m)^[^%\n]*?\\title(?:\[[^\]]*\])?\{((?:[^{}]|\{[^{}]*\}){1,2000})\}")
_LATEX_COMMAND = re.compile(r"\\(?:[A-Za-z]+\*?|.)|[{}~]")

# A title of reStructuredText, with a line below it and perhaps one above it.
_UNDERLINED_TITLE = re.compile(
    r"(?m)^(?:([=\-~^\"'#*+.`:_])\1{2,}\n)?[ ]?(\S[^\n]*)\n([=\-~^\"'#*+.`:_])\3{2,}$"
)


def read_plain_text(data: bytes) -> Extraction:
    """Read a text file in any encoding.

    Raises:
        RowError: If the bytes are not text, or are a file of PDF or RTF with a wrong suffix.
    """
    for mark, suffix in _MARKS_OF_OTHER_FORMATS:
        if data.startswith(mark):
            raise RowError("unreadable file", f"it is no plain text; give it the suffix {suffix}")
    decoded = decode_text(data)
    extraction = Extraction(decoded.text, may_use_heading=False)
    extraction.note_encoding(decoded)
    return extraction


def read_org(data: bytes) -> Extraction:
    """Read Org as text. Its keywords `#+TITLE:` and `#+DATE:` state the title and the date."""
    extraction = read_plain_text(data)
    extraction.title = _find_title(_ORG_TITLE, extraction.text)
    date = _ORG_DATE.search(extraction.text)
    extraction.date = None if date is None else date[1]
    return extraction


def read_asciidoc(data: bytes) -> Extraction:
    """Read AsciiDoc as text. A first line such as `= Tides` is the title."""
    extraction = read_plain_text(data)
    extraction.title = _find_title(_ASCIIDOC_TITLE, extraction.text)
    return extraction


def read_latex(data: bytes) -> Extraction:
    r"""Read LaTeX as text. The command `\title` states the title."""
    extraction = read_plain_text(data)
    title = _find_title(_LATEX_TITLE, extraction.text)
    # Other commands inside of the title, such as a line break, are no words of it.
    extraction.title = " ".join(_LATEX_COMMAND.sub(" ", title).split())
    return extraction


def _find_title(pattern: re.Pattern[str], text: str) -> str:
    """Return the title that a pattern finds in a source; empty if there is none."""
    match = pattern.search(text)
    return "" if match is None else clean_title(match[1])


def read_restructured_text(data: bytes) -> Extraction:
    """Read the source text. Underlined titles become headings.

    Directives are not interpreted. Their content therefore stays in the text.
    """
    # Kinds of lines around titles, in the order in which they first occur. This order is that of
    # the heading levels. Two signs stand for a title with a line above and below it.
    marks: list[str] = []

    def to_heading(match: re.Match[str]) -> str:
        """Return an underlined title as a heading of Markdown."""
        overline, title, underline = match.groups()
        mark = underline * 2 if overline == underline else underline
        if mark not in marks:
            marks.append(mark)
        level = min(marks.index(mark) + 1, MAX_HEADING_LEVEL)
        return f"\n{'#' * level} {title.strip()}\n"

    extraction = read_plain_text(data)
    source = extraction.text
    extraction.text = _UNDERLINED_TITLE.sub(to_heading, source).strip()
    extraction.all_text = source.splitlines()
    extraction.may_use_heading = True
    return extraction
