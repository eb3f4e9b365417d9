"""Reading notes: statements that a part of a file was not read, or was read by a guess.

A note does not refuse a document. Refused rows are in the quarantine instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Literal

from freshet.results import ReadingNote

NoteKind = Literal[
    "lost text",
    "pages without text",
    "refused file",
    "unread file",
    "unread part",
    "unreadable value",
    "encoding",
    "left out",
]

# The order of notes in summaries, with the most serious kind first.
NOTE_KINDS: tuple[NoteKind, ...] = (
    "lost text",
    "pages without text",
    "refused file",
    "unread file",
    "unread part",
    "unreadable value",
    "encoding",
    "left out",
)

# Kind of the notes that `refusal_note` makes.
REFUSED_FILE: NoteKind = "refused file"

# Name of the file with the notes of a build, among the tables of the corpus.
READING_NOTES = "reading_notes.json"

# Number of notes of each kind that a summary lists. It counts the other notes.
MAX_LISTED_NOTES = 10


def refusal_note(file: str, reason: str) -> ReadingNote:
    """Return a note that a file was refused, so that `freshet status` can still show it later.

    The reports of a build or a sync need no such note, because they list refused files themselves.
    """
    return ReadingNote(file, REFUSED_FILE, reason, None)


def note_message(note: ReadingNote) -> str:
    """Return the detail of a note, with the affected share of the file's words if it is known."""
    if note.share is None:
        return note.detail
    return f"{note.detail} ({format_share(note.share)} of its words)"


def format_share(share: float) -> str:
    """Format a share in whole percent, so that no share reads as 0 % or 100 % by rounding.

    >>> format_share(0.256), format_share(0.0004), format_share(0.9999)
    ('26 %', 'under 1 %', 'over 99 %')
    """
    if 0 < share < 0.01:
        return "under 1 %"
    if 0.99 < share < 1:
        return "over 99 %"
    return f"{share:.0%}".replace("%", " %")


def sort_notes(notes: Iterable[ReadingNote]) -> list[ReadingNote]:
    """Return notes in the order of `NOTE_KINDS`, then by descending share, then by file."""

    def sort_key(note: ReadingNote) -> tuple[int, float, str, str]:
        # Kinds that another version of Freshet wrote come last.
        is_known = note.kind in NOTE_KINDS
        kind_number = NOTE_KINDS.index(note.kind) if is_known else len(NOTE_KINDS)
        share = note.share or 0.0
        return kind_number, -share, note.file, note.detail

    return sorted(notes, key=sort_key)


def note_lines(notes: Iterable[ReadingNote], indent: str = "  ") -> list[str]:
    """Return notes as lines of text: a heading per kind, and its first notes.

    Args:
        notes: The notes, in any order.
        indent: Text before each line.
    """
    by_kind: dict[str, list[ReadingNote]] = {}
    for note in sort_notes(notes):
        by_kind.setdefault(note.kind, []).append(note)

    lines: list[str] = []
    for kind, kind_notes in by_kind.items():
        files = len({note.file for note in kind_notes})
        unit = "file" if files == 1 else "files"
        lines.append(f"{indent}{kind}: {files:,} {unit}")
        for note in kind_notes[:MAX_LISTED_NOTES]:
            lines.append(f"{indent}  {note.file}  {note_message(note)}")
        unlisted = len(kind_notes) - MAX_LISTED_NOTES
        if unlisted > 0:
            lines.append(f"{indent}  and {unlisted:,} more")
    return lines


def notes_to_json(notes: Iterable[ReadingNote]) -> list[dict[str, Any]]:
    """Return notes in the order of `sort_notes` as JSON values."""
    return [asdict(note) for note in sort_notes(notes)]


def notes_from_json(values: Iterable[dict[str, Any]]) -> list[ReadingNote]:
    """Return the notes that `notes_to_json` wrote."""
    return [ReadingNote(**value) for value in values]
