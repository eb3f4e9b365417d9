"""Open the zip archives of office documents and e-books within bounded memory and time.

An archive states the size of each part before any part is unpacked. Python never unpacks more than
the stated size, so the limits below bound the memory. XML is first read by expat as a stream, which
refuses declared entities and deep nesting before a tree is built.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from xml.parsers import expat

from model_code.corpus.formats.extraction import separate_raised_text
from model_code.corpus.rows import RowError

# Most parts (files) of an archive.
MAX_PARTS = 10_000

# Largest unpacked size of all parts of an archive together, including pictures.
MAX_UNPACKED_BYTES = 300_000_000

# Largest unpacked size of all XML and HTML parts together. A parsed tree takes about ten times as
# much memory.
MAX_XML_BYTES = 40_000_000

# Most elements of a part that is parsed into a tree. A tree needs some hundred bytes per element.
MAX_XML_ELEMENTS = 1_000_000

# Deepest nesting of elements. libxml2 has a similar limit.
MAX_XML_LEVELS = 250

# Largest damaged XML part that is repaired, in bytes. Its elements are not counted before.
MAX_REPAIRED_BYTES = 1_000_000

# Number of unpacked bytes that are read at once.
_CHUNK_BYTES = 65_536
# First bytes of the binary formats of old versions of Office, such as .doc.
_OLD_OFFICE_SIGNATURE = b"\xd0\xcf\x11\xe0"
# Bit in the flags of a part that marks the part as encrypted.
_ENCRYPTED_FLAG = 1


class UnsafeXmlError(RowError):
    """XML that is refused because parsing it could take unbounded memory or time."""

    def __init__(self, detail: str) -> None:
        super().__init__("unreadable file", detail)


@dataclass(frozen=True)
class TextNames:
    """The elements of an XML format that `list_text` reads.

    Attributes:
        counted: Local names of the elements whose text is listed; None for all elements.
        skipped: Local names of the elements that are left out with everything inside.
        blocks: Local names of the elements that begin and end a piece of text, such as a paragraph.
        gaps: Local names of the elements that are read as a blank, or have one on either side.
        separates_raised_text: Whether a raised number behind a word is a word of its own.
    """

    counted: frozenset[str] | None = frozenset()
    skipped: frozenset[str] = frozenset()
    blocks: frozenset[str] = frozenset()
    gaps: frozenset[str] = frozenset()
    separates_raised_text: bool = False


class Archive:
    """A zip archive whose stated sizes are within the limits of this module.

    Attributes:
        names: The names of its parts, in their order.
    """

    def __init__(self, data: bytes) -> None:
        """Open the archive in a file.

        Args:
            data: The whole file.

        Raises:
            RowError: If the file is not an archive, needs a password, or exceeds a limit.
        """
        if data.startswith(_OLD_OFFICE_SIGNATURE):
            raise RowError(
                "unreadable file",
                "it needs a password, or is of an old format that has another suffix; save it "
                "without a password, or in the new format",
            )
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
        except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
            raise RowError("unreadable file", f"the archive is damaged: {error}") from None
        _check_limits(self._zip.infolist())
        # Some programs of Windows separate folders by backslashes.
        self._parts = {info.filename.replace("\\", "/"): info for info in self._zip.infolist()}
        self.names = list(self._parts)

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def copy_without(self, left_out_name: str) -> bytes:
        """Return a copy of the archive without one of its parts."""
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as copy:
            for name in self.names:
                if name != left_out_name:
                    copy.writestr(name, self.read(name))
        return stream.getvalue()

    def read(self, name: str) -> bytes:
        """Return the unpacked bytes of a part.

        Raises:
            RowError: If the part is missing or damaged.
        """
        try:
            return self._zip.read(self._parts[name])
        except KeyError:
            raise RowError("unreadable file", f"the archive lacks its part {name}") from None
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise RowError("unreadable file", f"the part {name} is damaged: {error}") from None
        except RuntimeError:
            # `zipfile` raises this error for a part that is encrypted.
            raise RowError("unreadable file", "it needs a password") from None

    def check_all_xml(self, max_elements: int | None = MAX_XML_ELEMENTS) -> None:
        """Check every XML part, before a library reads the archive as a whole.

        Args:
            max_elements: Elements that a part may have; None if the library builds no trees.

        Raises:
            UnsafeXmlError: If a part declares entities or is nested too deep.
        """
        names = [name for name in self.names if name.lower().endswith((".xml", ".rels"))]
        self.find_damaged(names, max_elements)

    def find_damaged(
        self, names: Iterable[str], max_elements: int | None = MAX_XML_ELEMENTS
    ) -> list[str]:
        """Return the names of the XML parts that cannot be read.

        Args:
            names: Names of the parts.
            max_elements: Elements that a part may have; None for no limit.

        Raises:
            UnsafeXmlError: If a part declares entities or is nested too deep.
        """
        damaged: list[str] = []
        for name in names:
            try:
                _PartReader(name, TextNames(), max_elements).read(self.read(name))
            except UnsafeXmlError:
                # An unsafe part refuses the whole file. A damaged part is only left out.
                raise
            except RowError:
                damaged.append(name)
        return damaged

    def has_readable(self, name: str) -> bool:
        """Return whether the archive has an XML part that is not damaged.

        Raises:
            UnsafeXmlError: If the part declares entities or is nested too deep.
        """
        return name in self and not self.find_damaged([name])

    def parse(self, name: str) -> Any:
        """Return the root element of an XML part."""
        return parse_xml(self.read(name), name)


def _check_limits(parts: Iterable[zipfile.ZipInfo]) -> None:
    """Check the sizes that an archive states.

    Raises:
        RowError: If the archive has too many parts, or they are too large together.
    """
    count = 0
    unpacked_bytes = 0
    xml_bytes = 0
    for part in parts:
        count += 1
        unpacked_bytes += part.file_size
        if part.filename.lower().endswith((".xml", ".rels", ".xhtml", ".html", ".htm", ".opf")):
            xml_bytes += part.file_size
        if part.flag_bits & _ENCRYPTED_FLAG:
            raise RowError("unreadable file", "it needs a password")

    if count > MAX_PARTS:
        raise RowError("huge file", f"it has {count:,} parts, at most {MAX_PARTS:,} are read")
    if unpacked_bytes > MAX_UNPACKED_BYTES:
        raise RowError(
            "huge file",
            f"it unpacks to {unpacked_bytes:,} bytes, at most {MAX_UNPACKED_BYTES:,} are read",
        )
    if xml_bytes > MAX_XML_BYTES:
        raise RowError(
            "huge file",
            f"its text unpacks to {xml_bytes:,} bytes of XML, at most {MAX_XML_BYTES:,} are read",
        )


def parse_xml(data: bytes, name: str) -> Any:
    """Parse XML into a tree, without entities and without access to files or the network.

    Args:
        data: The XML.
        name: Name of the part, for the error.

    Raises:
        RowError: If the part is not XML, declares entities, or is nested too deep.
    """
    from lxml import etree

    # Reading the part as a stream refuses unsafe XML before a tree is built.
    _PartReader(name, TextNames(), MAX_XML_ELEMENTS).read(data)
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, huge_tree=True, recover=False
    )
    try:
        return etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        raise RowError("unreadable file", f"the part {name} is no XML: {error.msg}") from None


def repair_xml(data: bytes, name: str) -> Any:
    """Parse XML into a tree, also if it has faults such as an ampersand that is not escaped.

    Args:
        data: The XML.
        name: Name of the part, for the error.

    Raises:
        RowError: If the part is empty, too large to be repaired, or not safe to read.
    """
    from lxml import etree

    try:
        return parse_xml(data, name)
    except UnsafeXmlError:
        raise
    except RowError:
        if len(data) > MAX_REPAIRED_BYTES:
            raise
        parser = etree.XMLParser(
            resolve_entities=False, no_network=True, load_dtd=False, recover=True
        )
        with suppress(etree.XMLSyntaxError):
            root = etree.fromstring(data, parser)
            if root is not None:
                return root
        raise


# Properties of a run of OOXML that may raise its text.
RAISING_PROPERTIES = frozenset(("vertAlign", "rPr"))
# Elements that hold text of one format, and all elements that say whether text is raised.
_RUNS = frozenset(("r", "span"))
_RAISING_ELEMENTS = _RUNS | RAISING_PROPERTIES | {"style", "text-properties"}


def is_raised_position(position: str) -> bool:
    """Return whether a position of OpenDocument, such as "super 58%" or "33% 58%", is raised."""
    height = position.partition(" ")[0]
    return height == "super" or height.rstrip("%").strip("0").isdecimal()


def is_raising_property(name: str, value: str, baseline: str) -> bool:
    """Return whether a property of a run of OOXML raises its text.

    Args:
        name: Local name of the element.
        value: Its attribute `val`, which Word uses.
        baseline: Its attribute `baseline`, which PowerPoint uses: a height in thousandths.
    """
    if name == "vertAlign":
        return value == "superscript"
    return name == "rPr" and baseline.isdecimal() and int(baseline) > 0


class _PartReader:
    """Reads an XML part of an archive with expat, and collects its text without building a tree.

    Attributes:
        pieces: The text in pieces, such as paragraphs.
    """

    def __init__(self, name: str, text_names: TextNames, max_elements: int | None = None) -> None:
        """Prepare to read one part.

        Args:
            name: Name of the part, for errors.
            text_names: The elements whose text is collected.
            max_elements: Elements that the part may have; None for no limit.
        """
        self.pieces: list[str] = []
        self._name = name
        self._counted = text_names.counted
        self._skipped = text_names.skipped
        self._blocks = text_names.blocks
        self._gaps = text_names.gaps
        self._separates_raised_text = text_names.separates_raised_text
        self._max_elements = max_elements

        # The text of each piece that has not ended yet, the innermost last. A footnote, for
        # example, stands inside of a paragraph. The first piece is the text outside of all blocks.
        self._open_pieces: list[list[str]] = [[]]
        # Number of elements so far, and of those that are open.
        self._elements = 0
        self._level = 0
        # Level of the open element that is left out with everything inside, if there is one.
        self._skipped_at: int | None = None
        # Whether the text of the open run or span is raised. In OpenDocument, a style raises text.
        self._is_raised = False
        self._style_name = ""
        self._raising_styles: set[str] = set()
        # Number of open elements whose text is listed. Such elements may be nested.
        self._open_counted = 0

    def read(self, data: bytes) -> None:
        """Read the part.

        Raises:
            RowError: If the part is not XML, declares entities, or is nested too deep.
        """
        parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.EntityDeclHandler = self._refuse_entity
        # An empty set of elements means that the part is only checked. None means all elements.
        collects_text = self._counted is None or len(self._counted) > 0
        if collects_text:
            parser.CharacterDataHandler = self._add_text
        try:
            for start in range(0, len(data), _CHUNK_BYTES):
                parser.Parse(data[start : start + _CHUNK_BYTES], False)
            parser.Parse(b"", True)
        except expat.ExpatError as error:
            raise RowError("unreadable file", f"the part {self._name} is no XML: {error}") from None
        self._end_piece()

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        """Begin an element: check the limits, and note how its text is treated."""
        self._level += 1
        self._elements += 1
        if self._level > MAX_XML_LEVELS:
            raise UnsafeXmlError(
                f"the part {self._name} nests elements more than {MAX_XML_LEVELS} deep"
            )
        if self._max_elements is not None and self._elements > self._max_elements:
            raise UnsafeXmlError(
                f"the part {self._name} has more than {self._max_elements:,} elements"
            )
        local_name = name.rpartition(":")[2]
        self._follow_raised_text(local_name, attributes)
        if self._skipped_at is None and local_name in self._skipped:
            self._skipped_at = self._level
        if self._counted is not None and local_name in self._counted:
            self._open_counted += 1
        if local_name in self._gaps:
            self._open_pieces[-1].append(" ")
        if local_name in self._blocks:
            if len(self._open_pieces) == 1:
                self._end_piece()
            self._open_pieces.append([])

    def _end(self, name: str) -> None:
        """End an element. The end of a block ends its piece of text."""
        local_name = name.rpartition(":")[2]
        if local_name in _RUNS:
            self._is_raised = False
        if self._counted is not None and local_name in self._counted:
            self._open_counted -= 1
        if self._skipped_at == self._level:
            self._skipped_at = None
        if local_name in self._gaps:
            self._open_pieces[-1].append(" ")
        if local_name in self._blocks:
            self._end_piece()
            self._open_pieces.pop()
        self._level -= 1

    def _add_text(self, text: str) -> None:
        """Add text to the current piece, if it is inside of a listed element and not left out."""
        is_counted = self._counted is None or self._open_counted > 0
        if is_counted and self._skipped_at is None:
            piece = self._open_pieces[-1]
            if self._is_raised and self._separates_raised_text:
                text = separate_raised_text(text, "".join(piece[-3:]))
            piece.append(text)

    def _follow_raised_text(self, local_name: str, attributes: dict[str, str]) -> None:
        """Note whether an element begins raised text, or is a style that raises text."""
        if local_name not in _RAISING_ELEMENTS:
            return
        values: dict[str, str] = {}
        for key, value in attributes.items():
            values[key.rpartition(":")[2]] = value

        if local_name == "style":
            self._style_name = values.get("name", "")
        elif local_name == "text-properties":
            if is_raised_position(values.get("text-position", "")):
                self._raising_styles.add(self._style_name)
        elif local_name == "span":
            self._is_raised = values.get("style-name") in self._raising_styles
        elif local_name == "r":
            self._is_raised = False
        elif is_raising_property(local_name, values.get("val", ""), values.get("baseline", "")):
            self._is_raised = True

    def _end_piece(self) -> None:
        """List the innermost open piece of text, and empty it."""
        piece = "".join(self._open_pieces[-1])
        self._open_pieces[-1].clear()
        if piece.strip():
            self.pieces.append(piece)

    def _refuse_entity(self, *_: Any) -> None:
        """Refuse a part that declares an entity, which may expand to gigabytes of text."""
        raise UnsafeXmlError(
            f"the part {self._name} declares XML entities, which can grow without limit"
        )


def list_text(archive: Archive, names: Iterable[str], text_names: TextNames) -> list[str]:
    """Return all text of XML parts in pieces, independently of the readers of formats.

    `measure_completeness` compares it with the text that a reader returned, to find lost text.

    Args:
        archive: The archive.
        names: Names of the parts.
        text_names: The elements that hold text.

    Raises:
        RowError: If a part is damaged, declares entities, or is nested too deep.
    """
    pieces: list[str] = []
    for name in names:
        reader = _PartReader(name, text_names)
        reader.read(archive.read(name))
        pieces.extend(reader.pieces)
    return pieces
