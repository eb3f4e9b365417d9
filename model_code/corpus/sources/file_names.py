"""Use file names as document ids, and refuse the file names that cannot be an id."""

from __future__ import annotations

from model_code.corpus.cleaning import read_id
from model_code.corpus.rows import RefusedRow, RowError
from model_code.errors import FreshetError
from model_code.text.words import is_valid_utf8

# Python decodes a byte of a file name that is not UTF-8 as a character in this range
# ("surrogateescape" in PEP 383). The byte is the code of the character minus the offset.
FIRST_BYTE_SURROGATE = 0xDC80
LAST_BYTE_SURROGATE = 0xDCFF
BYTE_SURROGATE_OFFSET = 0xDC00


def refuse_name(printable_name: str) -> RefusedRow:
    """Return a refused row for a file whose name cannot be a document id.

    Args:
        printable_name: The name, as `escape_name` returns it.
    """
    detail = (
        "the file's name holds a line end, a control character or bytes that are no UTF-8, begins "
        "or ends with a blank, or is too long; rename the file"
    )
    return RefusedRow(
        "documents",
        f"{printable_name}:1",
        "bad id",
        detail,
        excerpt="",
        record_id=printable_name,
        has_valid_id=True,
    )


def is_usable_id(name: str) -> bool:
    """Return whether the name of a file can be the id of its document."""
    try:
        read_id({"id": name}, "id")
    except RowError:
        return False
    # `read_id` strips blanks. The id of a name with outer blanks would be the name of another file.
    return name == name.strip()


def require_utf8_path(path: str) -> str:
    """Return the path of a source unchanged if it is valid UTF-8, as settings files require.

    Raises:
        FreshetError: If the path holds bytes that are not UTF-8.
    """
    if not is_valid_utf8(path):
        raise FreshetError(
            f"the path {escape_name(path)} holds bytes that are no UTF-8; rename the folder or file"
        )
    return path


def escape_name(name: str) -> str:
    """Escape the unprintable characters of a file name, and its bytes that are not UTF-8.

    >>> escape_name("a\\nb.md"), escape_name("caf\\udce9.md")
    ('a\\\\nb.md', 'caf\\\\xe9.md')
    """
    characters: list[str] = []
    for character in name:
        code = ord(character)
        if FIRST_BYTE_SURROGATE <= code <= LAST_BYTE_SURROGATE:
            characters.append(f"\\x{code - BYTE_SURROGATE_OFFSET:02x}")
        elif character.isprintable():
            characters.append(character)
        else:
            characters.append(character.encode("unicode_escape").decode())
    return "".join(characters)
