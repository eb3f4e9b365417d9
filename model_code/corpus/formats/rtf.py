"""Read Rich Text (RTF) with striprtf."""

from __future__ import annotations

import re

from model_code.corpus.formats.extraction import Extraction
from model_code.corpus.formats.titles import clean_title
from model_code.corpus.rows import RowError

_SIGNATURE = b"{\\rtf"
# Title in the group of properties. It ends at the next brace.
_TITLE = re.compile(r"\{\\title\s+([^{}\\]+)\}")
_DEFAULT_ENCODING = "cp1252"
# Groups with text that striprtf leaves out: notes, comments, headers, footers and text boxes.
_LEFT_OUT_GROUP = re.compile(
    r"(?:\\\*)?\\(?:footnote|annotation|header[lrf]?|footer[lrf]?|shptxt)(?![a-z])"
)
_EMPTY_LINES = re.compile(r"\n\s*\n+")
# striprtf writes a bar after each cell of a table.
_CELL_END = re.compile(r"[ \t]*\|[ \t]*")


def read_rtf(data: bytes) -> Extraction:
    """Read a document of Rich Text.

    Raises:
        RowError: If the file is not Rich Text.
    """
    from striprtf.striprtf import rtf_to_text

    if not data.lstrip().startswith(_SIGNATURE):
        raise RowError("unreadable file", "it is no Rich Text, though its suffix says so")
    # Rich Text is ASCII. It writes other characters as codes of the encoding that it states.
    source = data.decode(_DEFAULT_ENCODING, "replace")
    whole_source = _LEFT_OUT_GROUP.sub(r"\\par", source)
    text = rtf_to_text(whole_source, encoding=_DEFAULT_ENCODING, errors="replace")
    # A character beyond the first 65,536, such as an emoji, is written as two codes.
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    text = _CELL_END.sub(" ", text)
    extraction = Extraction(_EMPTY_LINES.sub("\n\n", text).strip())
    title = _TITLE.search(source)
    if title is not None:
        extraction.title = clean_title(title[1].strip())
    return extraction
