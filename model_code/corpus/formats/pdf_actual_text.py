"""Read the text that a PDF states in place of letters that it draws.

A program can mark drawn letters with their `/ActualText`. Programs mark soft hyphens, ligatures,
and letters that a font lacks in this way. pypdf reads the drawn letters instead.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from typing import Any

# The operators of a page that begin and end marked content, choose a font and show text.
_BEGIN_MARKED = (b"BMC", b"BDC")
_END_MARKED = b"EMC"
_CHOOSE_FONT = b"Tf"
_SHOW_TEXTS = b"TJ"
# The place of the text among the operands of each other operator that shows text.
_TEXT_OPERANDS = {b"Tj": 0, b"'": 0, b'"': 2}

_ACTUAL_TEXT = "/ActualText"
# Fonts of this kind have codes of two bytes.
_TWO_BYTE_FONT = "/Type0"


class StatedText(str):
    """A text that replaces drawn letters, and is as wide as they are.

    pypdf adds the text to the page. To measure its width, pypdf looks up the codes over which the
    text iterates. These are the codes of the drawn letters.
    """

    _codes: str

    def __new__(cls, text: str, codes: str) -> StatedText:
        """Make the text.

        Args:
            text: The text that the file states.
            codes: The codes of the drawn letters in their font.
        """
        stated = super().__new__(cls, text)
        stated._codes = codes
        return stated

    def __iter__(self) -> Iterator[str]:
        """Yield the codes of the drawn letters."""
        return iter(self._codes)


class ActualTextVisitor:
    """Replaces drawn letters by the text that the page states for them.

    Pass the object to pypdf's `extract_text` as `visitor_operand_before`.
    """

    def __init__(self, fonts: Any, is_kept: Callable[[str], bool]) -> None:
        """Begin a page.

        Args:
            fonts: The fonts of the page by name, as in its resources.
            is_kept: Returns whether drawn letters are kept, for the text that is stated for them.
        """
        self._fonts = fonts
        self._is_kept = is_kept
        self._has_two_bytes = False
        # The text of each open marked content; None where none is stated. A text becomes empty
        # once it is shown.
        self._stated_texts: list[str | None] = []

    def __call__(self, operator: bytes, operands: Any, *_: Any) -> None:
        """Follow an operator of the page. Change its operands if a text is stated for them."""
        if operator in _BEGIN_MARKED:
            self._stated_texts.append(self._stated_text(operands))
        elif operator == _END_MARKED:
            del self._stated_texts[-1:]
        elif operator == _CHOOSE_FONT and operands:
            self._choose_font(operands[0])
        elif operator == _SHOW_TEXTS or operator in _TEXT_OPERANDS:
            self._replace(operator, operands)

    def _stated_text(self, operands: Any) -> str | None:
        """Return the text that marked content states; None if it states none that is read."""
        properties = operands[1] if len(operands) > 1 else None
        if not isinstance(properties, dict) or _ACTUAL_TEXT not in properties:
            return None
        text = _decode_text(properties[_ACTUAL_TEXT])
        if not text or self._is_kept(text):
            return None
        return text

    def _choose_font(self, name: Any) -> None:
        """Note whether the codes of a font have two bytes."""
        font = self._fonts.get(name) if isinstance(self._fonts, dict) else None
        if font is not None:
            font = font.get_object()
        self._has_two_bytes = isinstance(font, dict) and font.get("/Subtype") == _TWO_BYTE_FONT

    def _replace(self, operator: bytes, operands: Any) -> None:
        """Replace the text that an operator shows by the text of the innermost marked content."""
        level = len(self._stated_texts) - 1
        while level >= 0 and self._stated_texts[level] is None:
            level -= 1
        if level < 0:
            return

        place = _TEXT_OPERANDS.get(operator, 0)
        if len(operands) <= place:
            return
        shown = operands[place]
        pieces = shown if operator == _SHOW_TEXTS else [shown]
        if not isinstance(pieces, list):
            return
        drawn = b"".join(piece for piece in pieces if isinstance(piece, bytes))
        stated = StatedText(self._stated_texts[level] or "", self._decode(drawn))
        # Further letters of the same marked content show nothing more.
        self._stated_texts[level] = ""
        if operator == _SHOW_TEXTS:
            pieces[:] = [stated]
        else:
            operands[place] = stated

    def _decode(self, drawn: bytes) -> str:
        """Return the codes of drawn letters in the current font."""
        if self._has_two_bytes:
            return drawn.decode("utf-16-be", "replace")
        return drawn.decode("latin-1")


def _decode_text(value: Any) -> str:
    """Return a text of a PDF, which is in UTF-16, in UTF-8, or in an encoding like Latin-1."""
    if isinstance(value, str):
        return str(value)
    if not isinstance(value, bytes):
        return ""
    if value.startswith(codecs.BOM_UTF16_BE):
        return value[len(codecs.BOM_UTF16_BE) :].decode("utf-16-be", "replace")
    if value.startswith(codecs.BOM_UTF8):
        return value[len(codecs.BOM_UTF8) :].decode("utf-8", "replace")
    return value.decode("latin-1")
