"""Read Rich Text (RTF): body, tables, text boxes, formulas, headers, footers, notes and comments.

Rich Text consists of groups in braces, control words such as `\\par`, and text. A group whose first
control word is a destination, such as `\\footnote`, has text of its own or no text at all.

The library striprtf is not used, because its patterns take cubic time: a file of 60 kB with 1,000
links takes 13 seconds. It also returns deleted text, and leaves out the text of boxes and formulas.
"""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from model_code.corpus.formats.extraction import Extraction, separate_raised_text
from model_code.corpus.formats.office_xml import MAX_HEADING_LEVEL
from model_code.corpus.formats.properties import add_property
from model_code.corpus.formats.titles import clean_title
from model_code.corpus.rows import RowError

# Deepest nesting of groups. Each open group needs memory.
MAX_GROUP_LEVELS = 5_000

_SIGNATURE = b"{\\rtf"
_DEFAULT_ENCODING = "cp1252"
_UTF_8 = "utf-8"
# The number by which Windows names UTF-8.
_UTF_8_CODE_PAGE = 65001
# Name of the destination of the text outside of all others.
_BODY = "body"
_TOKEN = re.compile(
    r"\\(?P<word>[a-zA-Z]{1,32})(?P<number>-?\d{1,10})?[ ]?"
    r"|\\'(?P<hex>[0-9a-fA-F]{2})"
    r"|\\(?P<sign>[^a-zA-Z])"
    r"|(?P<brace>[{}])"
    r"|[\r\n\0]+"
    r"|(?P<text>[^\\{}\r\n\0]+)"
    r"|\\",
    re.S,
)

# Destinations with a text of their own that follows the body.
_SIDE_DESTINATIONS = frozenset(
    ("header", "headerl", "headerr", "headerf", "footer", "footerl", "footerr", "footerf")
    + ("footnote", "annotation")
)
# Destinations of text boxes. Their text is a paragraph of its own, before the one around it.
_BOX_DESTINATIONS = frozenset(("shptxt", "dptxbxtext"))
# Destinations of text that continues the paragraph, though a destination around it is not read:
# the result of a field, the runs of a formula, and text in Unicode beside text that is not.
_FORMULA_RUN = "mr"
_INLINE_DESTINATIONS = frozenset(("fldrslt", "ud", _FORMULA_RUN))
# Destinations whose text is read in another way than as a paragraph.
_VALUE_DESTINATIONS = frozenset(
    ("title", "creatim", "fonttbl", "fldinst", "sn", "sv", "propname", "staticval")
    + ("keywords", "subject", "doccomm")
)
# Name of the field for each destination that describes the content.
_FIELD_NAMES = {"keywords": "keywords", "subject": "subject", "doccomm": "description"}
# Destinations that repeat text for old programs, or describe styles: nothing inside is read.
_REPEATED_DESTINATIONS = frozenset(
    ("shprslt", "nonesttables", "mmathPict", "pgdsctbl", "nonshppict", "stylesheet", "ftnsep")
    + ("ftnsepc", "ftncn", "aftnsep", "aftnsepc", "aftncn", "listtext", "pntext")
)
# Destinations that hold no text of the document. Other ones begin with `\*`, by which a program
# knows that it may pass over them. The text in inner groups, such as text boxes, may be read.
_DESTINATIONS_WITHOUT_TEXT = frozenset(
    [
        "atnauthor",
        "atndate",
        "atnid",
        "author",
        "background",
        "bkmkend",
        "bkmkstart",
        "buptim",
        "category",
        "colortbl",
        "comment",
        "company",
        "file",
        "filetbl",
        "generator",
        "hlinkbase",
        "info",
        "listoverridetable",
        "listtable",
        "manager",
        "nextfile",
        "operator",
        "pict",
        "pn",
        "pntxta",
        "pntxtb",
        "printim",
        "private",
        "revtbl",
        "revtim",
        "rxe",
        "sp",
        "tc",
        "template",
        "txe",
        "upr",
        "userprops",
        "xe",
    ]
)

# Control words that stand for text.
_TEXT_WORDS = {
    "tab": "\t",
    "line": "\n",
    "cell": " ",
    "nestcell": " ",
    "emdash": "\u2014",
    "endash": "\u2013",
    "emspace": " ",
    "enspace": " ",
    "qmspace": " ",
    "bullet": "\u2022",
    "lquote": "\u2018",
    "rquote": "\u2019",
    "ldblquote": "\u201c",
    "rdblquote": "\u201d",
    "zwj": "\u200d",
    "zwnj": "\u200c",
}
# Control words that end a paragraph, or the row of a table.
_PARAGRAPH_ENDS = frozenset(("par", "row", "nestrow", "sect", "page", "column"))
# Signs behind a backslash, and the text that they stand for.
_SIGNS = {"\\": "\\", "{": "{", "}": "}", "~": " ", "-": "\u00ad", "_": "-", "\t": "\t"}

# Encoding of the characters that are written as bytes, by the `\fcharset` of their font.
_FONT_ENCODINGS = {
    77: "mac_roman",
    78: "cp932",
    79: "cp949",
    80: "cp936",
    81: "cp950",
    83: "cp1255",
    84: "cp1256",
    85: "mac_greek",
    86: "mac_turkish",
    88: "mac_latin2",
    89: "mac_cyrillic",
    128: "cp932",
    129: "cp949",
    130: "johab",
    134: "cp936",
    136: "cp950",
    161: "cp1253",
    162: "cp1254",
    163: "cp1258",
    177: "cp1255",
    178: "cp1256",
    186: "cp1257",
    204: "cp1251",
    222: "cp874",
    238: "cp1250",
    254: "cp437",
    255: "cp850",
}
# Encoding of the characters that are written as bytes, by the control word of the document.
_DOCUMENT_ENCODINGS = {"mac": "mac_roman", "pc": "cp437", "pca": "cp850"}
# Properties of a shape that hold text: the alt text, the title, and the text of word art.
_SHAPE_TITLE = "wzName"
_SHAPE_TEXTS = frozenset(("wzDescription", _SHAPE_TITLE, "gtextUNICODE"))
# A title of a shape that a program made up, such as "Picture 3".
_NUMBERED_TITLE = re.compile(r"[^\W\d_]+(?: [^\W\d_]+)? ?\d+")
# A field that draws a reading above a base text, as Word writes readings of East Asian signs.
_READING = re.compile(r"\\up\s*-?\d*\s*\(([^()]*)\)\s*,\s*([^()]*)\)")


@dataclass(slots=True)
class _Group:
    """The state of an open group. An inner group begins with a copy.

    Attributes:
        destination: The destination that the text of the group belongs to; "body" for the
            document itself, and empty for text that is not read.
        opened: The destination that the group itself began; empty if it began none.
        is_start: Whether no control word has followed the opening brace yet.
        may_be_unknown: Whether `\\*` preceded the first control word.
        is_repeated: Whether nothing inside is read.
        is_hidden: Whether the text is formatted as hidden.
        is_deleted: Whether a tracked change deleted the text.
        is_raised: Whether the text is raised, as the mark of a footnote is.
        fallback_characters: Number of characters for old programs that follow each character that
            is written in Unicode.
        font: Number of the font, by which bytes are decoded.
    """

    destination: str = _BODY
    opened: str = ""
    is_start: bool = True
    may_be_unknown: bool = False
    is_repeated: bool = False
    is_hidden: bool = False
    is_deleted: bool = False
    is_raised: bool = False
    fallback_characters: int = 1
    font: str = ""


@dataclass
class _Paragraph:
    """A paragraph that is open.

    Attributes:
        destination: The destination that it belongs to.
        pieces: Its text so far.
        level: Its level as heading; 0 for other paragraphs.
        is_in_table: Whether it is in a cell of a table.
    """

    destination: str = _BODY
    pieces: list[str] = field(default_factory=list)
    level: int = 0
    is_in_table: bool = False


def read_rtf(data: bytes) -> Extraction:
    """Read a document of Rich Text: its body, then headers, footers, notes and comments.

    Raises:
        RowError: If the file is not Rich Text, or nests groups too deep.
    """
    if not data.lstrip().startswith(_SIGNATURE):
        raise RowError("unreadable file", "it is no Rich Text, though its suffix says so")
    # Every byte becomes one character here. The reader decodes text by the encodings of its fonts.
    source = data.decode("latin-1")
    reader = _RichTextReader()
    reader.read(source)

    # Sections of a document often repeat the same header, which is read once.
    side_blocks = dict.fromkeys(reader.side_blocks)
    blocks = [*reader.blocks, *side_blocks]
    extraction = Extraction("\n".join(blocks).strip(), left_out=reader.left_out)
    extraction.title = clean_title(" ".join(reader.title.split()))
    extraction.date = reader.date
    extraction.all_text = list_rich_text(source)
    for name, text in reader.properties:
        add_property(extraction, name, text)
    return extraction


class _RichTextReader:
    """Reads the tokens of a document, and collects its paragraphs.

    Attributes:
        blocks: Paragraphs, headings and rows of tables.
        side_blocks: Paragraphs of headers, footers, notes and comments.
        left_out: Text that is formatted as hidden.
        title: Title that the properties state; empty if there is none.
        date: Day that the properties state in ISO order; None if there is none.
        properties: Names and texts of further properties.
    """

    def __init__(self) -> None:
        """Begin a document. It has the encoding of Western Europe until it states another one."""
        self.blocks: list[str] = []
        self.side_blocks: list[str] = []
        self.left_out: list[str] = []
        self.title = ""
        self.date: str | None = None
        self.properties: list[tuple[str, str]] = []

        self._group = _Group()
        self._outer_groups: list[_Group] = []
        # A text box or a note is a paragraph inside of another one.
        self._paragraphs = [_Paragraph()]

        # Text that is not decoded yet, and the number of characters for old programs to skip.
        self._bytes = bytearray()
        self._characters_to_skip = 0
        self._encoding = _DEFAULT_ENCODING
        self._font_encodings: dict[str, str] = {}
        self._default_font = ""
        self._font_in_table = ""

        # The text of the value that is open, the name of the last property of a shape or of the
        # document, and the parts of the date.
        self._value: list[str] = []
        self._property_name = ""
        self._date_parts: dict[str, int] = {}

    def read(self, source: str) -> None:
        """Read a document.

        Args:
            source: The file, with one character for each byte.

        Raises:
            RowError: If groups are nested too deep.
        """
        position = 0
        while position < len(source):
            # The pattern matches any character.
            token = _TOKEN.match(source, position)
            assert token is not None
            position = token.end()
            if token["word"] == "bin":
                # So many bytes of a picture follow, in which a brace is no brace.
                position += max(0, int(token["number"] or 0))
            else:
                self._read_token(token)
            if token[0] == "}" and not self._outer_groups:
                # Programs ignore everything behind the group of the document.
                break
        while self._outer_groups:
            self._end_group()
        self._end_paragraph()

    def _read_token(self, token: re.Match[str]) -> None:
        """Read a brace, a control word or sign, or a piece of text."""
        if token["text"]:
            self._add_source_text(token["text"])
        elif token["hex"]:
            self._add_source_byte(bytes.fromhex(token["hex"]))
        elif token["brace"] == "{":
            self._begin_group()
        elif token["brace"]:
            self._end_group()
        elif token["sign"]:
            self._read_sign(token["sign"])
        elif token["word"]:
            number = int(token["number"]) if token["number"] else None
            self._read_word(token["word"], number)

    def _begin_group(self) -> None:
        """Begin a group inside of the current one."""
        self._flush()
        self._characters_to_skip = 0
        if len(self._outer_groups) >= MAX_GROUP_LEVELS:
            raise RowError(
                "unreadable file", f"it nests groups more than {MAX_GROUP_LEVELS:,} deep"
            )
        self._outer_groups.append(self._group)
        self._group = replace(self._group, opened="", is_start=True, may_be_unknown=False)

    def _end_group(self) -> None:
        """End the current group, and keep the text or the value that it opened."""
        self._flush()
        self._characters_to_skip = 0
        if not self._outer_groups:
            return
        opened = self._group.opened
        self._group = self._outer_groups.pop()
        if opened in _VALUE_DESTINATIONS:
            self._end_value(opened)
        elif opened:
            self._end_paragraph()
            self._paragraphs.pop()

    def _end_value(self, destination: str) -> None:
        """Keep the text of a group that holds a value."""
        value = _join_surrogates("".join(self._value)).strip()
        self._value.clear()
        if destination == "title":
            self.title = self.title or value
        elif destination == "creatim":
            self._set_date()
        elif destination in _FIELD_NAMES:
            self.properties.append((_FIELD_NAMES[destination], value))
        elif destination in ("sn", "propname"):
            self._property_name = value
        elif destination == "staticval":
            self.properties.append((self._property_name, value))
        elif destination == "sv" and value:
            self._add_shape_text(value)
        elif destination == "fldinst" and value.startswith("EQ"):
            for reading, base in _READING.findall(value):
                self._paragraphs[-1].pieces.append(f"{base} {reading} ")

    def _add_shape_text(self, value: str) -> None:
        """Add the value of the last property of a shape, if it is text that people wrote."""
        name = self._property_name
        is_made_up = name == _SHAPE_TITLE and _NUMBERED_TITLE.fullmatch(value) is not None
        if name in _SHAPE_TEXTS and not is_made_up:
            self.blocks.append(value)

    def _set_date(self) -> None:
        """Set the date from the parts that the properties state. Programs write 0 if unknown."""
        year = self._date_parts.get("yr", 0)
        month = self._date_parts.get("mo", 0)
        day = self._date_parts.get("dy", 0)
        if year and month and day:
            self.date = f"{year:04}-{month:02}-{day:02}"

    def _read_sign(self, sign: str) -> None:
        """Read a sign that stood behind a backslash."""
        if sign == "*":
            self._group.may_be_unknown = True
        elif sign in "\r\n":
            self._end_paragraph()
        elif self._characters_to_skip:
            self._characters_to_skip -= 1
        elif sign in _SIGNS:
            self._flush()
            self._add_text(_SIGNS[sign])

    def _read_word(self, word: str, number: int | None) -> None:
        """Read a control word.

        Args:
            word: The word.
            number: The number behind it, if there is one.
        """
        self._flush()
        group = self._group
        is_start = group.is_start
        group.is_start = False
        if group.is_repeated or (is_start and self._begin_destination(word)):
            self._characters_to_skip = 0
        elif word == "u":
            self._add_unicode(number or 0)
        elif word in _TEXT_WORDS and self._characters_to_skip:
            # The word is the form of a character for old programs.
            self._characters_to_skip -= 1
        else:
            self._characters_to_skip = 0
            self._apply_word(word, number)

    def _apply_word(self, word: str, number: int | None) -> None:
        """Apply a control word that begins no destination."""
        group = self._group
        paragraph = self._paragraphs[-1]
        has_paragraphs = group.destination == paragraph.destination
        if word == "nestrow" or (word in _PARAGRAPH_ENDS and has_paragraphs):
            self._end_paragraph()
        elif word in _TEXT_WORDS:
            self._add_text(_TEXT_WORDS[word])
        elif word == "uc":
            group.fallback_characters = max(0, number or 0)
        elif word == "v":
            group.is_hidden = number != 0
        elif word == "deleted":
            group.is_deleted = number != 0
        elif word == "super":
            group.is_raised = number != 0
        elif word in ("nosupersub", "sub"):
            group.is_raised = False
        elif word == "plain":
            group.is_raised = False
            group.is_hidden = False
            group.is_deleted = False
            group.font = self._default_font
        elif word == "pard":
            paragraph.level = 0
            paragraph.is_in_table = False
        elif word == "intbl":
            paragraph.is_in_table = True
        elif word == "outlinelevel" and number is not None:
            paragraph.level = number + 1 if number < MAX_HEADING_LEVEL else 0
        elif group.destination == "creatim" and number is not None:
            self._date_parts[word] = number
        else:
            self._read_encoding(word, number)

    def _read_encoding(self, word: str, number: int | None) -> None:
        """Read a control word that chooses a font or an encoding; ignore any other word."""
        group = self._group
        is_in_font_table = group.destination == "fonttbl"
        if word == "f" and is_in_font_table:
            self._font_in_table = str(number)
        elif word == "f":
            group.font = str(number)
        elif word == "deff":
            self._default_font = str(number)
            group.font = str(number)
        elif word == "fcharset" and number in _FONT_ENCODINGS:
            self._font_encodings[self._font_in_table] = _FONT_ENCODINGS[number]
        elif word in ("ansicpg", "cpg") and number:
            encoding = _UTF_8 if number == _UTF_8_CODE_PAGE else f"cp{number}"
            if not _is_encoding(encoding):
                return
            if is_in_font_table:
                self._font_encodings[self._font_in_table] = encoding
            else:
                self._encoding = encoding
        elif word in _DOCUMENT_ENCODINGS:
            self._encoding = _DOCUMENT_ENCODINGS[word]

    def _begin_destination(self, word: str) -> bool:
        """Enter a destination, if the first control word of a group names one.

        Args:
            word: The control word.

        Returns:
            Whether the word names a destination.
        """
        group = self._group
        if word in _REPEATED_DESTINATIONS:
            group.is_repeated = True
        elif word in _SIDE_DESTINATIONS or word in _BOX_DESTINATIONS:
            self._paragraphs.append(_Paragraph(word))
            group.destination = word
            group.opened = word
        elif word in _VALUE_DESTINATIONS:
            self._value.clear()
            self._date_parts.clear()
            group.destination = word
            group.opened = word
        elif word in _INLINE_DESTINATIONS:
            group.destination = self._outer_destination()
            if word == _FORMULA_RUN:
                self._add_text(" ")
        elif word in _DESTINATIONS_WITHOUT_TEXT or group.may_be_unknown:
            group.destination = ""
        else:
            return False
        return True

    def _outer_destination(self) -> str:
        """Return the destination of the nearest group around the current one that has text."""
        for group in reversed(self._outer_groups):
            if group.destination:
                return group.destination
        return ""

    def _add_unicode(self, number: int) -> None:
        """Add a character in Unicode. The characters for old programs behind it are skipped.

        A number above 32,767 is written as a negative one.
        """
        if number < 0:
            number += 65_536
        if 0 < number <= sys.maxunicode:
            self._add_text(chr(number))
        self._characters_to_skip = self._group.fallback_characters

    def _add_source_text(self, text: str) -> None:
        """Add plain text of the file, without the characters that are there for old programs."""
        skipped = min(self._characters_to_skip, len(text))
        self._characters_to_skip -= skipped
        self._bytes += text[skipped:].encode("latin-1")

    def _add_source_byte(self, byte: bytes) -> None:
        """Add a character, or a part of one, that is written as the number of a byte."""
        if self._characters_to_skip:
            self._characters_to_skip -= 1
        else:
            self._bytes += byte

    def _flush(self) -> None:
        """Decode the bytes since the last control word. A character may have several bytes."""
        if not self._bytes:
            return
        encoding = self._font_encodings.get(self._group.font, self._encoding)
        text = self._bytes.decode(encoding, "replace")
        self._bytes.clear()
        self._add_text(text)

    def _add_text(self, text: str) -> None:
        """Add text to the destination of the current group."""
        group = self._group
        if group.is_repeated or group.is_deleted or not group.destination:
            return
        if group.destination in _VALUE_DESTINATIONS:
            self._value.append(text)
        elif group.is_hidden:
            self.left_out.append(text)
        else:
            pieces = self._paragraphs[-1].pieces
            if group.is_raised:
                text = separate_raised_text(text, "".join(pieces[-3:]))
            pieces.append(text)

    def _end_paragraph(self) -> None:
        """Make a block of the text since the last paragraph."""
        self._flush()
        paragraph = self._paragraphs[-1]
        text = _join_surrogates("".join(paragraph.pieces)).strip()
        paragraph.pieces.clear()
        if not text:
            return
        if paragraph.destination in _SIDE_DESTINATIONS:
            self.side_blocks.append(text)
        elif paragraph.level and not paragraph.is_in_table:
            marks = "#" * paragraph.level
            self.blocks.append(f"\n{marks} {' '.join(text.split())}\n")
        else:
            self.blocks.append(text)


def _join_surrogates(text: str) -> str:
    """Join the halves of characters beyond the first 65,536, such as emoji."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _is_encoding(name: str) -> bool:
    """Return whether Python knows an encoding."""
    try:
        codecs.lookup(name)
    except LookupError:
        return False
    return True


# A crude list of all text shows whether the reader lost some. It is made by regular expressions,
# which know no fonts and no formats.
_PIECE_END = "\v"
_SIGN = re.compile(r"\\[\\{}~:|]")
_BINARY = re.compile(r"\\bin(\d{1,9}) ?")
# A brace. An opening one may have a star and the name of a destination behind it.
_BRACE = re.compile(r"\{[\r\n]*(?P<star>\\\*)?[\r\n]*(?:\\(?P<name>[a-zA-Z]+))?|\}")
_DELETION = re.compile(r"[-\d\r\n ]*(?:\\[a-z]+[-\d\r\n ]*){0,5}?\\deleted(?![a-z0])")
_UNICODE = re.compile(r"\\uc(?P<count>\d) ?|\\u(?P<number>-?\d{1,6}) ?")
_BYTE = re.compile(r"\\'[0-9a-fA-F]{2}|[\x80-\xff]")
_BREAK = re.compile(
    r"\\(?:par|line|tab|row|nestrow|cell|nestcell|sect|page|column|emspace|enspace|mr)"
    r"(?![a-z])"
)
_RAISED = re.compile(r"\\super(?:\d*) ?(?:\\[a-z]+-?\d* ?){0,20}[\d,-]{1,9}(?![\d,-])")
_CONTROL_WORD = re.compile(r"\\[a-zA-Z]{1,32}(?:-?\d{1,10})? ?|\\\*|[{}\r\n\0]")
# The mark of a character that is written as a byte, and a word that may have such marks.
_BYTE_MARK = "\ue000"
_MARKED_WORD = re.compile(r"[\w\ue000]+")
# Destinations without a text of their own, in which other destinations have text.
_CONTAINERS = frozenset(("do", "mmath", "moMath", "moMathPara", "shpgrp", "shpinst"))
_BLOCK_DESTINATIONS = _SIDE_DESTINATIONS | _BOX_DESTINATIONS
_COUNTED = _CONTAINERS | _BLOCK_DESTINATIONS | _INLINE_DESTINATIONS
_UNCOUNTED = _DESTINATIONS_WITHOUT_TEXT | _REPEATED_DESTINATIONS | _VALUE_DESTINATIONS


def list_rich_text(source: str) -> list[str]:
    """Return all text of a document in pieces, found by a much simpler method than the reader's.

    The text is compared with that of the reader, to find text that the reader lost. Words with a
    character that is written as a byte are left out, because its encoding depends on the font.

    Words beside raised digits are left out, too: they may be marks of footnotes, or powers.

    Args:
        source: The file, with one character for each byte.
    """
    text = _SIGN.sub(" ", _drop_binary(source))
    text = text.replace("\\-", "").replace("\\_", "-")
    text = "".join(_groups_with_text(text))
    text = _RAISED.sub(_BYTE_MARK, text)
    text = _replace_unicode(_BYTE.sub(_BYTE_MARK, text))
    text = _CONTROL_WORD.sub("", _BREAK.sub(_PIECE_END, text))
    text = _MARKED_WORD.sub(lambda word: "" if _BYTE_MARK in word[0] else word[0], text)
    pieces = _join_surrogates(text).split(_PIECE_END)
    return [piece for piece in pieces if piece.strip()]


def _drop_binary(source: str) -> str:
    """Return a document without the bytes of pictures, which may look like braces."""
    kept: list[str] = []
    position = 0
    while True:
        binary = _BINARY.search(source, position)
        if binary is None:
            kept.append(source[position:])
            return "".join(kept)
        kept.append(source[position : binary.start()])
        position = binary.end() + int(binary[1])


def _groups_with_text(source: str) -> Iterator[str]:
    """Yield the parts of a document outside of groups that hold no text or deleted text.

    Notes, headers and text boxes follow the text around them, each behind a mark for the end of a
    piece. A word with a footnote inside of it therefore stays one word.
    """
    level = 0
    skipped_at: int | None = None
    # Levels of the open notes, headers and text boxes, and the parts of each of them.
    block_levels: list[int] = []
    open_blocks: list[list[str]] = []
    # The parts of all notes, headers and text boxes that ended.
    blocks: list[str] = []
    position = 0
    for brace in _BRACE.finditer(source):
        is_read = skipped_at is None
        part = source[position : brace.start()]
        if brace[0] != "}":
            level += 1
            is_without_text = is_read and _has_no_text(source, brace)
            is_block = is_read and not is_without_text and brace["name"] in _BLOCK_DESTINATIONS
            if not is_without_text and not is_block:
                continue
            if open_blocks:
                open_blocks[-1].append(part)
            else:
                yield part
            if is_without_text:
                skipped_at = level
            else:
                block_levels.append(level)
                open_blocks.append([_PIECE_END])
                position = brace.end()
            continue

        if skipped_at == level:
            skipped_at = None
            position = brace.end()
        elif block_levels and block_levels[-1] == level:
            block_levels.pop()
            blocks.extend([*open_blocks.pop(), part])
            position = brace.end()
        level -= 1
        if level <= 0:
            # The group of the document ends here.
            yield source[position : brace.end()]
            position = len(source)
            break
    if skipped_at is None:
        yield source[position:]
    for block in open_blocks:
        yield from block
    yield from blocks


def _has_no_text(source: str, brace: re.Match[str]) -> bool:
    """Return whether a group holds no text, or text that a tracked change deleted."""
    name = brace["name"]
    if name == "deleted" or _DELETION.match(source, brace.end()) is not None:
        return True
    is_without_text = brace["star"] is not None or name in _UNCOUNTED
    return is_without_text and name not in _COUNTED


def _replace_unicode(text: str) -> str:
    """Return a text with its characters in Unicode, and without those for old programs."""
    kept: list[str] = []
    position = 0
    fallback_characters = 1
    while True:
        code = _UNICODE.search(text, position)
        if code is None:
            kept.append(text[position:])
            return "".join(kept)
        kept.append(text[position : code.start()])
        position = code.end()
        if code["count"]:
            fallback_characters = int(code["count"])
            continue
        kept.append(chr(int(code["number"]) % 65_536))
        for _ in range(fallback_characters):
            if text[position : position + 1] not in ("", "\\", "{", "}"):
                position += 1
