"""Read entries of release notes that name exactly one definition.

An entry is an item of a list, such as "Added `DataFrame.explode` to turn lists into rows". The name
of the definition and the markup are removed from its text. The rest is a description of the
definition in people's words, which is used as a query.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# Limits of an entry that becomes a query, in words.
MIN_WORDS = 6
MAX_WORDS = 40

# Item of a list: its indentation and the beginning of its text.
_ITEM = re.compile(r"^(\s*)[-*] (.*)$")
# Role with its target, such as :func:`numpy.sort`, and roles whose target is a definition.
_ROLE = re.compile(r":(?:\w+:)?(?P<role>\w+):`(?P<target>[^`]+)`")
_REFERENCE_ROLES = {"func", "meth", "class", "attr", "obj", "data", "mod"}
# Literal, such as ``numpy.sort``.
_LITERAL = re.compile(r"``?([^`]+)``?")
# Link, such as `text <address>`_ or `text`_.
_LINK = re.compile(r"`[^`<]*<[^>]*>`__?|`[^`]+`_\b")
# Numbers of pull requests and issues, such as (#123) and gh-123, and names of users in roles.
_TICKET = re.compile(r":(?:pr|issue|user):`[^`]*`|\((?:gh-)?#?\d+\)|\bgh-\d+\b")
# Names of the authors at the end, such as "By Jane Doe and John Smith".
_CREDIT = re.compile(r"\s[Bb]y[\s,.:]*(?:(?:`[^`]*`_?|and|[A-Z][\w-]*\.?)[\s,.]*)*$")
# Mark of the kind of change, such as |Feature|.
_BADGE = re.compile(r"\|[\w ]+\|")
# Titles of pull requests begin like this. scipy lists them below its notes.
_PULL_REQUEST = re.compile(r"^[A-Z]{3,6}(?:[/, ]+[A-Z]{3,6})*\b\s*[:;\\]")
_SPACES = re.compile(r"\s+")
_WORD = re.compile(r"[A-Za-z]{2,}")


@dataclass(frozen=True)
class Entry:
    """An entry of release notes.

    Attributes:
        text: Text of the entry, without markup and without the name of the definition.
        definition: Stable name of the definition that the entry is about; see `stable_name`.
    """

    text: str
    definition: str


class NameIndex:
    """Finds the definition that a name in release notes refers to, which may be incomplete."""

    def __init__(self, names: Iterable[str]) -> None:
        """Index the stable names of one release."""
        # Names by each of their endings, such as `DataFrame.explode` and `explode`.
        self._by_suffix: dict[str, set[str]] = defaultdict(set)
        for name in names:
            parts = name.split(".")
            for start in range(len(parts)):
                self._by_suffix[".".join(parts[start:])].add(name)

    def find(self, reference: str) -> str | None:
        """Return the definition whose name ends with a reference.

        None if no definition or several definitions have such a name.
        """
        # Roles mark names by `~`, `.` or `!`, and functions may have brackets.
        suffix = reference.strip().lstrip("~.!").removesuffix("()")
        names = self._by_suffix.get(suffix, set())
        if not names and suffix.startswith("np."):
            names = self._by_suffix.get(suffix.removeprefix("np."), set())
        if len(names) != 1:
            return None
        (name,) = names
        return name


def read_entries(notes: str, names: NameIndex) -> list[Entry]:
    """Return the entries of a file of release notes that name one definition.

    Args:
        notes: Text of the file.
        names: Names of the definitions of that release.
    """
    entries: list[Entry] = []
    seen: set[str] = set()
    for text in split_items(notes):
        entry = read_entry(text, names)
        if entry is not None and entry.text not in seen:
            seen.add(entry.text)
            entries.append(entry)
    return entries


def split_items(notes: str) -> Iterator[str]:
    """Yield the items of all lists in a reStructuredText, each joined to one line.

    Lines that are indented like the text of an item belong to it. Any other line ends the item.
    """
    # Lines of the present item, and the indentation of its text.
    item: list[str] = []
    indent = 0
    for line in notes.splitlines():
        match = _ITEM.match(line)
        continues_item = bool(line.strip()) and line.startswith(" " * indent)
        if item and match is None and continues_item:
            item.append(line.strip())
            continue

        if item:
            yield " ".join(item)
            item = []
        if match is not None:
            item = [match[2]]
            indent = len(match[1]) + 2
    if item:
        yield " ".join(item)


def read_entry(text: str, names: NameIndex) -> Entry | None:
    """Return the entry of an item, or None if it does not name exactly one definition.

    >>> names = NameIndex(["pandas.DataFrame.explode", "pandas.DataFrame"])
    >>> entry = read_entry("Added :meth:`DataFrame.explode` to turn lists into rows", names)
    >>> entry == Entry("Added to turn lists into rows", "pandas.DataFrame.explode")
    True
    """
    is_pull_request = _PULL_REQUEST.match(_LINK.sub("", text).strip(" :"))
    if is_pull_request:
        return None

    # References to each definition that the item names.
    references: dict[str, set[str]] = defaultdict(set)
    for reference in _references(text):
        definition = names.find(reference)
        if definition is not None:
            references[definition].add(reference)
    if len(references) != 1:
        return None

    ((definition, removed),) = references.items()
    words = _plain_words(text, removed, definition)
    is_long_enough = len(_WORD.findall(words)) >= MIN_WORDS
    is_too_long = len(words.split()) > MAX_WORDS
    if not is_long_enough or is_too_long:
        return None
    return Entry(words, definition)


def _references(text: str) -> Iterator[str]:
    """Yield the names that roles such as :func:`...` and literals mention, in this order."""
    without_links = _LINK.sub(" ", text)
    for match in _ROLE.finditer(without_links):
        if match["role"] in _REFERENCE_ROLES:
            yield match["target"]
    for match in _LITERAL.finditer(_ROLE.sub(" ", without_links)):
        yield match[1]


def _plain_words(text: str, removed: set[str], definition: str) -> str:
    """Remove markup, credits, and every form of the definition's name."""
    words = _BADGE.sub(" ", _TICKET.sub(" ", text))
    words = _CREDIT.sub(" ", words.rstrip(" ."))
    words = _LINK.sub(" ", words)

    def keep_target(match: re.Match[str]) -> str:
        """Return the target of a role, or a space if it is the definition or no reference."""
        if match["role"] not in _REFERENCE_ROLES or match["target"] in removed:
            return " "
        return match["target"].lstrip("~.")

    def keep_literal(match: re.Match[str]) -> str:
        """Return the text of a literal, or a space if it is the definition."""
        return " " if match[1] in removed else match[1]

    words = _ROLE.sub(keep_target, words)
    words = _LITERAL.sub(keep_literal, words)

    # The name can also occur in the text without markup.
    last_part = definition.rpartition(".")[2]
    words = re.sub(rf"\b(?:[\w.]+\.)?{re.escape(last_part)}\b(?:\(\))?", " ", words)
    words = _SPACES.sub(" ", words).strip(" .,;:")
    return re.sub(r"\s+([.,;:])", r"\1", words)


def section_of(notes: str, version: str) -> str:
    """Return the part of a file that is about one version; the whole file if it names no others.

    Args:
        notes: The file. scikit-learn keeps the notes of 1.0.2, 1.0.1 and 1.0.0 in one file.
        version: The version, such as "1.0.0".
    """
    headings = list(re.finditer(r"^Version ([\d.]+)\n[=-]+$", notes, re.MULTILINE))
    if not headings:
        return notes

    # The notes call 1.0.0 also 1.0. If there are several headings, the first one is the title.
    wanted = {version, version.removesuffix(".0")}
    for number, heading in enumerate(headings):
        is_title = number == 0 and len(headings) > 1
        if heading[1] in wanted and not is_title:
            is_last = number + 1 == len(headings)
            end = len(notes) if is_last else headings[number + 1].start()
            return notes[heading.end() : end]
    # Without such a heading, the last part is taken, which is about the oldest version.
    return notes[headings[-1].end() :]


def notes_file(pattern: str, version: str) -> str:
    """Return the name of the file with the notes of a version.

    >>> notes_file("v{minor}.rst", "0.23.0")
    'v0.23.rst'
    >>> notes_file("{version}-notes.rst", "1.20.0")
    '1.20.0-notes.rst'
    """
    minor = ".".join(version.split(".")[:2])
    return pattern.format(version=version, minor=minor)
