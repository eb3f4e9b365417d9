"""Read plain text and reStructuredText."""

from __future__ import annotations

import re

from model_code.corpus.formats.encodings import decode_text
from model_code.corpus.formats.extraction import Extraction
from model_code.corpus.rows import RowError

# Markdown, to which texts are converted, has six levels of headings.
MAX_HEADING_LEVEL = 6

# The first bytes of formats that are written with letters, but are no text.
_MARKS_OF_OTHER_FORMATS = ((b"%PDF-", ".pdf"), (b"{\\rtf1", ".rtf"))

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
