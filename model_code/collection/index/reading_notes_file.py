"""Read and write the reading notes of a project.

A reading note states that a part of a file was not read, or was read by a guess. A build writes its
notes to the artifacts of the corpus. Later changes, such as a sync, `freshet add` and uploads,
write their notes to the state of the project. `freshet status` and the search page show both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from freshet.results import ReadingNote
from model_code.corpus.reading_notes import (
    READING_NOTES,
    notes_from_json,
    notes_to_json,
    sort_notes,
)
from model_code.errors import FreshetError
from model_code.files import read_json, write_json
from model_code.project import Project, file_lock

# The state has lists of notes by key. This is the key of notes about files that were added one by
# one. Other keys are names of sources that were synced.
ADDED = "added"

# Key of the notes about the project's own source. They replace the notes of the build.
OWN_SOURCE_KEY = "sync"

_LOCK = "reading_notes.lock"


def read_reading_notes(project: Project) -> list[ReadingNote]:
    """Return the notes about all files of a project, the most serious notes first.

    Args:
        project: The project.
    """
    stored = _read_state(project)
    notes: list[ReadingNote] = []
    if OWN_SOURCE_KEY not in stored:
        notes.extend(_read_build(project))
    for values in stored.values():
        notes.extend(notes_from_json(values))

    # A file that was added can be a file of the source as well. Equal notes are returned once.
    return sort_notes(dict.fromkeys(notes))


def update_reading_notes(
    project: Project, files: Iterable[str], notes: Iterable[ReadingNote]
) -> None:
    """Replace all reading notes about some files.

    A reading note states that a part of a file was not read, or was read by a guess.

    Args:
        project: The project.
        files: Names of the files that were read, or whose documents were deleted. Their old notes
            are removed.
        notes: New notes about these files or other files. Old notes about these other files are
            removed, too.
    """
    names = set(files)
    new_notes = list(notes)
    # Most calls have nothing to replace. Then nothing is locked or written.
    files_with_notes = {note.file for note in read_reading_notes(project)}
    if not new_notes and names.isdisjoint(files_with_notes):
        return

    with file_lock(project.state / _LOCK):
        stored = _read_state(project)
        # The notes of a build cannot be changed in its artifacts, so the state gets a copy.
        if OWN_SOURCE_KEY not in stored:
            stored[OWN_SOURCE_KEY] = notes_to_json(_read_build(project))
        names.update(note.file for note in new_notes)
        for key, values in stored.items():
            stored[key] = [value for value in values if value["file"] not in names]
        added = notes_from_json(stored.get(ADDED, []))
        stored[ADDED] = notes_to_json([*added, *new_notes])
        write_json(project.state / READING_NOTES, stored)


def replace_source_notes(project: Project, source: str, notes: Iterable[ReadingNote]) -> None:
    """Replace all reading notes about the files of a source.

    A reading note states that a part of a file was not read, or was read by a guess.

    Args:
        project: The project.
        source: Name of the source, or `OWN_SOURCE_KEY`.
        notes: New notes about its files.
    """
    values = notes_to_json(notes)
    stored = _read_state(project)
    if stored.get(source) == values:
        return
    with file_lock(project.state / _LOCK):
        stored = _read_state(project)
        stored[source] = values
        write_json(project.state / READING_NOTES, stored)


def _read_state(project: Project) -> dict[str, Any]:
    """Return the notes in the project's state, as lists of plain values by source.

    Raises:
        FreshetError: If the file with the notes is damaged.
    """
    path = project.state / READING_NOTES
    if not path.is_file():
        return {}
    remedy = "restore it from a backup, or move it away: the next sync writes its notes again"
    try:
        stored = read_json(path)
    except ValueError:
        raise FreshetError(f"{path} is no JSON; {remedy}") from None
    is_table = isinstance(stored, Mapping)
    if not is_table or not all(isinstance(notes, list) for notes in stored.values()):
        raise FreshetError(f"{path} is no table of lists of notes; {remedy}")
    return dict(stored)


def _read_build(project: Project) -> list[ReadingNote]:
    """Return the notes that the last build wrote to the artifacts of the corpus."""
    path = project.artifacts / "corpus" / READING_NOTES
    if not path.is_file():
        return []
    return notes_from_json(read_json(path))
