"""Decode text files in any encoding.

The encoding is, in this order: the one of a byte order mark; UTF-8 if the bytes are valid UTF-8;
the one that the file declares; UTF-8 if most bytes beyond ASCII are UTF-8; a guess.
"""

from __future__ import annotations

import codecs
import re
from typing import NamedTuple

from model_code.corpus.rows import RowError

# Byte order marks at the beginning of a file. UTF-32 comes first, because its mark begins like that
# of UTF-16.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF8, "utf-8-sig"),
)

# The most frequent encoding among files that are not Unicode.
FALLBACK_ENCODING = "cp1252"

# Name of UTF-8 in which some bytes are of another encoding.
_DAMAGED_UTF8 = "UTF-8 with other bytes"

# chardet guesses the encoding of a text. Its guess is used from this confidence on, and the
# fallback otherwise. The limit is low, because chardet is not confident about short texts.
MIN_CONFIDENCE = 0.085

# If the encoding cannot be guessed, a text with a larger share of bytes beyond ASCII is refused. In
# other texts a wrong encoding damages only a few letters.
MAX_UNSURE_SHARE = 0.1

# Least share of kana and full-width signs by which East Asian text in UTF-16 without a mark is
# recognised.
MIN_SIGN_SHARE = 0.05

# Number of bytes at the beginning of a file that a guess uses.
SAMPLE_BYTES = 200_000

# Least share of zero bytes at every second position by which UTF-16 without a mark is recognised.
MIN_ZERO_SHARE = 0.3

# Largest share of zero bytes at the positions of the letters' low bytes in UTF-16. The zero bytes
# of Latin text are at the other positions.
MAX_LOW_ZERO_SHARE = 0.05

# A shorter file without a mark is not tested for other alphabets than Latin.
MIN_ALPHABET_BYTES = 40

# High bytes in UTF-16 of Latin, Greek, Cyrillic, Hebrew, Arabic, Thai and Georgian letters, and of
# signs.
_ALPHABET_BLOCKS = frozenset((0, 1, 2, 3, 4, 5, 6, 0x0E, 0x10, 0x1E, 0x1F, 0x20, 0x21, 0x22))

# The frequent letters beyond ASCII of French, German, Spanish, Italian and Scandinavian languages.
_WESTERN_LETTERS = frozenset("àáâãäåæçèéêëìíîïñòóôõöøùúûüßœÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØÙÚÛÜŒªº")
# Signs of the fallback encoding that stand inside of words only if another encoding was meant.
_SIGN_IN_WORD = re.compile(
    r"\w[\u00a1-\u00a9\u00ab-\u00b4\u00b6-\u00b9\u00bb-\u00bf\u00d7\u00f7\u2020-\u2022\u2030\ufffd]\w"
    r"|\w[\u201a\u201e]"
)

_EAST_ASIAN = re.compile(
    r"[\t\n\r\x20-\x7e\u2010-\u2030\u3000-\u30ff\u3400-\u9fff\uac00-\ud7a3\uff00-\uffef]"
)
_KANA_OR_SIGN = re.compile(r"[\u3001-\u30ff\uff01-\uffef]")

# Encodings that old programs used. All of them write ASCII characters as ASCII.
_GUESSABLE = frozenset(
    codecs.lookup(name).name
    for name in [
        "cp1250",
        "cp1251",
        "cp1252",
        "cp1253",
        "cp1254",
        "cp1255",
        "cp1256",
        "cp1257",
        "cp1258",
        "cp866",
        "koi8-r",
        "koi8-u",
        "iso8859-1",
        "iso8859-2",
        "iso8859-5",
        "iso8859-7",
        "iso8859-8",
        "iso8859-9",
        "iso8859-15",
        "mac-roman",
        "mac-cyrillic",
        "cp850",
        "cp437",
        "cp932",
        "shift_jis",
        "euc_jp",
        "iso2022_jp",
        "gb18030",
        "gb2312",
        "gbk",
        "big5",
        "cp949",
        "euc_kr",
        "cp874",
        "tis-620",
    ]
)


# The encoding that browsers use in place of a declared one. Programs declare the older encoding,
# but write letters that only the newer one has, such as curly quotes.
_DECLARED_ENCODINGS = {
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "tis-620": "cp874",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "big5": "big5hkscs",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
}
# Names of encodings that Python does not know.
_OTHER_NAMES = {
    "x-sjis": "cp932",
    "windows-31j": "cp932",
    "x-gbk": "gb18030",
    "x-mac-cyrillic": "mac-cyrillic",
}


class DecodedText(NamedTuple):
    """A decoded text with its encoding.

    Attributes:
        text: The text, with `\\n` as line end.
        encoding: Name of the encoding.
        is_guessed: Whether the encoding is a guess: there is no mark, the text is not valid UTF-8,
            and no usable encoding is declared.
    """

    text: str
    encoding: str
    is_guessed: bool


def decode_text(data: bytes, declared: str | None = None) -> DecodedText:
    """Decode the bytes of a text file.

    Args:
        data: The whole file.
        declared: Encoding that the file names, as HTML does.

    Raises:
        RowError: If the bytes are not text.
    """
    encoding, is_guessed = _choose_encoding(data, declared)
    try:
        if encoding == _DAMAGED_UTF8:
            text = data.decode("utf-8", _decode_other_bytes.__name__)
        else:
            text = data.decode(encoding)
    except UnicodeDecodeError:
        # Some bytes have no letter in the fallback encoding, cp1252. Latin-1 reads any byte.
        encoding = "latin-1"
        is_guessed = True
        text = data.decode(encoding)
    if "\0" in text:
        raise RowError("binary file", "holds zero bytes: this is no text")
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return DecodedText(text, encoding, is_guessed)


def detect_encoding(sample: bytes, is_whole: bool) -> str | None:
    """Detect the encoding of a file from its first bytes; None for UTF-8, also with bad bytes.

    A file with both UTF-8 and faulty bytes counts as UTF-8, so that only its faulty rows are
    refused.

    Args:
        sample: The first bytes.
        is_whole: Whether the sample is the whole file.
    """
    for mark, encoding in _MARKS:
        if sample.startswith(mark):
            # "utf-8-sig" is UTF-8 with a byte order mark.
            return None if encoding == "utf-8-sig" else encoding
    unmarked = _unmarked_utf16(sample)
    if unmarked is not None:
        return unmarked
    if _is_utf8(sample, is_whole) or _has_utf8_sequence(sample):
        return None
    return _guess_encoding(sample)


def _choose_encoding(data: bytes, declared: str | None) -> tuple[str, bool]:
    """Return the encoding of a file, and whether it is a guess.

    Args:
        data: The whole file.
        declared: Encoding that the file names, if any.

    Raises:
        RowError: If the bytes are not text.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return _require_decodable(data, encoding), False
    unmarked = _unmarked_utf16(data)
    if unmarked is not None:
        return unmarked, True
    if b"\0" in data:
        raise RowError("binary file", "holds zero bytes: this is no text")
    # ISO-2022-JP has only bytes of ASCII, so it is valid UTF-8 as well.
    if _is_utf8(data, is_whole=True) and not _is_escaped_japanese(data):
        return "utf-8", False
    if declared is not None:
        for encoding in _declared_candidates(declared):
            if _can_decode(data, encoding):
                return encoding, False
    if _is_damaged_utf8(data):
        return _DAMAGED_UTF8, True
    return _guess_encoding(data[:SAMPLE_BYTES]), True


def _declared_candidates(declared: str) -> list[str]:
    """Return the encodings that a declaration may mean, the most likely one first.

    >>> _declared_candidates("ISO-8859-1"), _declared_candidates("x-sjis")
    (['cp1252', 'ISO-8859-1'], ['cp932'])
    """
    other_name = _OTHER_NAMES.get(declared.lower())
    if other_name is not None:
        return [other_name]
    python_name = _lookup_encoding(declared) or ""
    wider = _DECLARED_ENCODINGS.get(python_name)
    return [declared] if wider is None else [wider, declared]


def _is_damaged_utf8(data: bytes) -> bool:
    """Return whether only a few bytes are not UTF-8, as in a log with lines of other programs."""
    if _has_utf8_sequence(data):
        return True
    # A file that was cut inside of a letter is valid up to there.
    is_cut = _is_utf8(data, is_whole=False)
    valid_text = data.decode("utf-8", "ignore")
    return is_cut and not valid_text.isascii()


def _decode_other_bytes(error: UnicodeError) -> tuple[str, int]:
    """Decode bytes that are not UTF-8 as the most frequent other encoding.

    This is an error handler of `bytes.decode`, which calls it for each run of invalid bytes.

    Returns:
        The text for the invalid bytes, and the position at which decoding goes on.
    """
    if not isinstance(error, UnicodeDecodeError):
        raise error
    damaged = error.object[error.start : error.end]
    return damaged.decode(FALLBACK_ENCODING, "replace"), error.end


codecs.register_error(_decode_other_bytes.__name__, _decode_other_bytes)


def _require_decodable(data: bytes, encoding: str) -> str:
    """Return the encoding that the byte order mark of a file names, after checking the whole file.

    A program may append bytes of another encoding to a file that begins with the mark of UTF-8. The
    encoding of such a file is guessed.

    Raises:
        RowError: If the file has bytes that the encoding does not have.
    """
    try:
        data.decode(encoding)
    except UnicodeDecodeError as error:
        if encoding == "utf-8-sig":
            return _guess_encoding(data[:SAMPLE_BYTES])
        name = encoding.upper()
        raise RowError(
            "invalid UTF-8", f"its mark names {name}, but {error.reason}; save the file as UTF-8"
        ) from None
    return encoding


def _is_utf8(data: bytes, is_whole: bool) -> bool:
    """Return whether bytes are valid UTF-8. Unless they are the whole file, a letter may be cut."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        decoder.decode(data, final=is_whole)
    except UnicodeDecodeError:
        return False
    return True


def _has_utf8_sequence(data: bytes) -> bool:
    """Return whether more letters beyond ASCII are valid UTF-8 than bytes are invalid.

    Bytes of another encoding hardly ever form a valid letter by chance.
    """
    valid_text = data.decode("utf-8", "ignore")
    invalid_bytes = len(data) - len(valid_text.encode())
    letters_beyond_ascii = sum(1 for character in valid_text if character > "\x7f")
    return letters_beyond_ascii > invalid_bytes


def _is_escaped_japanese(data: bytes) -> bool:
    """Return whether the file is ISO-2022-JP, which has only bytes of ASCII."""
    return b"\x1b$B" in data or b"\x1b$@" in data


def _unmarked_utf16(data: bytes) -> str | None:
    """Return the variant of UTF-16 or UTF-32 that a file without a mark is in, or None.

    An ASCII letter takes two bytes in UTF-16, of which one is zero. It takes four bytes in UTF-32,
    of which three are zero. The positions of the zero bytes therefore tell the variant.
    """
    sample = data[:SAMPLE_BYTES]
    length = len(sample) // 4 * 4
    if length < 4 or b"\0" not in sample:
        return None

    # Share of zero bytes at each position in the groups of four bytes.
    groups = length // 4
    zeros = [sample[position:length:4].count(0) / groups for position in range(4)]
    even_zeros = (zeros[0], zeros[2])
    odd_zeros = (zeros[1], zeros[3])
    candidates: list[str] = []
    if min(zeros[1:]) > MIN_ZERO_SHARE and zeros[0] == 0:
        candidates = ["utf-32-le"]
    elif min(zeros[:3]) > MIN_ZERO_SHARE and zeros[3] == 0:
        candidates = ["utf-32-be"]
    elif min(odd_zeros) > MIN_ZERO_SHARE and max(even_zeros) < MAX_LOW_ZERO_SHARE:
        candidates = ["utf-16-le"]
    elif min(even_zeros) > MIN_ZERO_SHARE and max(odd_zeros) < MAX_LOW_ZERO_SHARE:
        candidates = ["utf-16-be"]

    # Text in another alphabet has zero bytes only in its blanks and line ends.
    if not candidates and len(sample) >= MIN_ALPHABET_BYTES:
        candidates = _alphabet_candidates(sample[:length])
    for encoding in candidates:
        decoded = sample[:length].decode(encoding, "replace")
        if _looks_like_text(decoded):
            return encoding
    return None


def _alphabet_candidates(sample: bytes) -> list[str]:
    """Return the variants of UTF-16 in which all letters are of `_ALPHABET_BLOCKS`."""
    candidates: list[str] = []
    for encoding, high_byte_position in (("utf-16-le", 1), ("utf-16-be", 0)):
        high_bytes = set(sample[high_byte_position::2])
        if high_bytes <= _ALPHABET_BLOCKS:
            candidates.append(encoding)
    return candidates


def _looks_like_text(text: str) -> bool:
    """Return whether a text has no control characters and at most 1 % invalid characters."""
    if not text:
        return False
    controls = sum(1 for character in text if character < " " and character not in "\t\n\r\f")
    invalid = text.count("\ufffd")
    return controls == 0 and invalid <= len(text) // 100


def _guess_encoding(sample: bytes) -> str:
    """Guess the encoding of bytes that are not UTF-8.

    The guess of chardet is used if it is confident enough. Otherwise the most frequent encoding is
    assumed, unless so much of the text is beyond ASCII that a wrong encoding would spoil it.

    Raises:
        RowError: If the bytes are not text.
    """
    import chardet

    unmarked = _east_asian_utf16(sample)
    if unmarked is not None:
        return unmarked
    if _is_binary(sample):
        raise RowError("binary file", "holds bytes that no text has: this is no text")
    if _is_escaped_japanese(sample):
        return "iso2022_jp"
    if _is_western(sample.decode(FALLBACK_ENCODING, "replace")):
        return FALLBACK_ENCODING

    result = chardet.detect(sample)
    encoding = _lookup_encoding(result.get("encoding"))
    confidence = result.get("confidence") or 0.0
    if encoding == FALLBACK_ENCODING:
        return encoding
    is_sure = confidence >= MIN_CONFIDENCE and encoding in _GUESSABLE
    if encoding is not None and is_sure and _can_decode(sample, encoding, errors="ignore"):
        return encoding
    if _share_beyond_ascii(sample) > MAX_UNSURE_SHARE:
        raise RowError("invalid UTF-8", "its encoding cannot be told; save the file as UTF-8")
    return FALLBACK_ENCODING


def _share_beyond_ascii(sample: bytes) -> float:
    return sum(1 for byte in sample if byte > 127) / max(1, len(sample))


def _lookup_encoding(name: str | None) -> str | None:
    """Return Python's name of an encoding; None if Python does not know it."""
    if name is None:
        return None
    try:
        return codecs.lookup(name).name
    except (LookupError, ValueError):
        return None


def _east_asian_utf16(sample: bytes) -> str | None:
    """Return the variant of UTF-16 of a Chinese, Japanese or Korean text without a mark, or None.

    Such a text has kana or full-width signs, and nothing else than East Asian letters.
    """
    # A character takes two bytes, so an odd byte at the end is left out.
    sample = sample[: len(sample) // 2 * 2]
    for encoding in ("utf-16-le", "utf-16-be"):
        text = sample.decode(encoding, "replace")
        letters = len(_EAST_ASIAN.findall(text))
        signs = len(_KANA_OR_SIGN.findall(text))
        if letters == len(text) and signs >= MIN_SIGN_SHARE * len(text):
            return encoding
    return None


def _is_western(text: str) -> bool:
    """Return whether a text that was decoded by cp1252 has only letters of Western Europe.

    Detectors confuse a short Western text with several other encodings, so this check comes first.
    Text of another encoding would decode to rare letters, or to signs inside of words.
    """
    if _SIGN_IN_WORD.search(text):
        return False
    letters = {character for character in text if character > "\x7f" and character.isalpha()}
    return letters <= _WESTERN_LETTERS


def _is_binary(sample: bytes) -> bool:
    """Return whether more than one byte in fifty is a control character other than blanks."""
    blanks = b"\t\n\r\f\x1b\x08"
    controls = sum(1 for byte in sample if byte < 32 and byte not in blanks)
    return controls * 50 > len(sample)


def _can_decode(data: bytes, encoding: str, errors: str = "strict") -> bool:
    """Return whether Python knows an encoding, and can decode bytes with it.

    Args:
        data: The bytes.
        encoding: Name of the encoding, which a file may state wrongly.
        errors: Treatment of invalid bytes, as in `bytes.decode`.
    """
    try:
        data.decode(encoding, errors)
    except (ValueError, LookupError):
        # Some of Python's encodings, such as "idna", raise other errors than UnicodeDecodeError.
        return False
    return True
