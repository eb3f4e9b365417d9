"""The sources that the live index is synced with.

A source is, for example, a folder of documents. The project has its own source, which the corpus is
built from. Further sources have names. `sources.json` in the project's root lists their locations.
The ids of all documents of a named source begin with its name and a colon; see `source_ids`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from freshet.results import SourceState
from model_code.collection.generations.generation import live_rows
from model_code.collection.generations.generation_store import (
    GenerationStore,
    default_retriever,
    retrievers,
)
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.source_ids import (
    DEFAULT_SOURCE_NAME,
    require_source_name,
    source_of_id,
    suggest_source_name,
)
from model_code.corpus.sources.base import resolve_source_kind
from model_code.corpus.sources.file_names import require_utf8_path
from model_code.errors import FreshetError
from model_code.files import hash_text, read_json, write_json
from model_code.project import Project, file_lock

# Origin, in the ledger, of documents of the project's own source. Documents of the build without
# events have this origin, too.
OWN_SOURCE = "sync"

# Number of hexadecimal digits in the name of a source's memory file; see `memory_path`.
MEMORY_NAME_CHARACTERS = 12
_TIMES_FILE = "sync_times.json"
_LOCK = "sync_times.lock"


@dataclass(frozen=True)
class FollowedSource:
    """A source that the live index is synced with.

    Attributes:
        name: Name of the source. None for the project's own source.
        settings: Settings by which the source is read. Its kind is never "auto".
        location: Path or data set, as in `sources.json`.
    """

    name: str | None
    settings: CorpusSettings
    location: str

    @property
    def label(self) -> str:
        """Origin of the source's documents in the ledger; see `source_label`."""
        return source_label(self.name)


def source_label(name: str | None) -> str:
    """Return the origin of a source's documents in the ledger: the command that syncs the source.

    Args:
        name: Name of the source. None for the project's own source.
    """
    if name is None:
        return OWN_SOURCE
    return f"{OWN_SOURCE} --source {name}"


def read_sources(project: Project) -> dict[str, str]:
    """Return the location of each named source, a path or a data set, by ascending name.

    Raises:
        FreshetError: If `sources.json` is damaged.
    """
    path = project.sources
    if not path.is_file():
        return {}
    remedy = "restore it from git or a backup"
    try:
        stored = read_json(path)
    except ValueError:
        raise FreshetError(f"{path} is no JSON; {remedy}") from None
    is_table = isinstance(stored, Mapping)
    if not is_table or not all(isinstance(location, str) for location in stored.values()):
        raise FreshetError(f"{path} is no table of names and places; {remedy}")
    return {require_source_name(name): stored[name] for name in sorted(stored)}


def write_sources(project: Project, sources: Mapping[str, str]) -> None:
    """Write the locations of the named sources to `sources.json`, if they changed."""
    if dict(sources) != read_sources(project):
        write_json(project.sources, dict(sorted(sources.items())))


def find_source(
    project: Project, own: CorpusSettings, path: str | None, name: str | None, cwd: Path
) -> FollowedSource:
    """Find the source that a user means by a path, a name, or both.

    Without path and name, it is the project's own source, which also has the name "default". A path
    without a name means the source at this path. If there is no source at the path, a new source is
    returned, whose name is the last part of the path.

    Args:
        project: The project.
        own: Settings of the project's own source.
        path: A folder, a file or a data set, or None.
        name: Name of the source, or None. "default" is the name of the project's own source.
        cwd: Folder that a relative `path` is relative to.

    Raises:
        FreshetError: If there is no source with this name, or the name or the path belongs to
            another source.
    """
    if path is not None:
        return _find_source_at(project, own, path, name, cwd)
    if name is None or name == DEFAULT_SOURCE_NAME:
        return _own_source(project, own)

    name = require_source_name(name)
    sources = read_sources(project)
    if name not in sources:
        known = ", ".join(sources) or "none yet"
        raise FreshetError(
            f"there is no source {name!r} (named sources: {known}); name its folder, too: "
            f"freshet sync --source {name} FOLDER"
        )
    return _make_source(project, own, name, sources[name])


def _own_source(project: Project, own: CorpusSettings) -> FollowedSource:
    """Return the project's own source, given its settings."""
    settings = resolve_source_kind(own, project.root)
    return FollowedSource(None, settings, _location(settings, project.root))


def _find_source_at(
    project: Project, own: CorpusSettings, path: str, name: str | None, cwd: Path
) -> FollowedSource:
    """Return the source at a path, or a new one if there is none; see `find_source`.

    Args:
        project: The project.
        own: Settings of the project's own source.
        path: A folder, a file or a data set.
        name: Name that the source must have. None accepts any, and lets a new one be named by its
            path.
        cwd: Folder that a relative `path` is relative to.

    Raises:
        FreshetError: If the source at this path has another name, or the name belongs to another
            source.
    """
    location = _location_of_path(project, path, cwd)
    if location == _location(own, project.root):
        if name is None or name == DEFAULT_SOURCE_NAME:
            return _own_source(project, own)
        raise FreshetError(
            f"{path} is the project's own source, whose documents have plain ids; sync it without "
            "--source"
        )

    sources = read_sources(project)
    for known_name, known_location in sources.items():
        if known_location != location:
            continue
        if name is not None and name != known_name:
            raise FreshetError(
                f"{path} is the source {known_name!r} already; leave out --source, or rename it: "
                f"freshet sources rename {known_name} {name}"
            )
        return _make_source(project, own, known_name, location)

    # There is no source at this path, so this is a new one.
    if name is not None:
        return _make_source(project, own, require_source_name(name), location)
    suggested = suggest_source_name(location)
    if suggested in sources:
        raise FreshetError(
            f"{suggested!r} is the name of the source at {sources[suggested]}; give {path} another "
            f"one: freshet sync --source NAME {path}"
        )
    return _make_source(project, own, suggested, location)


def source_states(project: Project) -> list[SourceState]:
    """Return all sources with their numbers of documents and their times of the last sync.

    The project's own source comes first. Its number includes all documents that belong to no named
    source, such as documents from `freshet add`.
    """
    sources = read_sources(project)
    times = _read_times(project)
    counts = _count_documents(project, sources)
    own = project.settings("corpus", CorpusSettings)
    states = [_state(None, _location(own, project.root), counts, times)]
    for name, location in sources.items():
        states.append(_state(name, location, counts, times))
    return states


def _count_documents(project: Project, sources: Collection[str]) -> Mapping[str | None, int] | None:
    """Count the searchable documents of each source.

    Returns:
        Number of documents by the name of the source, with None for the project's own source. None
        if the index is damaged.
    """
    counts: Counter[str | None] = Counter()
    if not retrievers(project.live):
        return counts
    try:
        generation = GenerationStore(project.live, default_retriever(project.live)).current()
        if not sources:
            counts[None] = generation.manifest["documents"]
            return counts
        for (document_id,) in live_rows(generation, "document_id"):
            counts[source_of_id(document_id, sources)] += 1
    except FreshetError:
        # The status of the retriever reports the damage, so it is not reported here.
        return None
    return counts


def record_sync_time(project: Project, name: str | None) -> None:
    """Record the current time as the time of a source's last sync.

    Args:
        project: The project.
        name: Name of the source. None for the project's own source.
    """
    with file_lock(project.state / _LOCK):
        times = _read_times(project)
        times[source_label(name)] = time.time()
        write_json(project.state / _TIMES_FILE, times)


def forget_sync_time(project: Project, name: str) -> None:
    """Delete the time of the last sync of a source that was removed or renamed."""
    with file_lock(project.state / _LOCK):
        times = _read_times(project)
        if times.pop(source_label(name), None) is not None:
            write_json(project.state / _TIMES_FILE, times)


def memory_path(project: Project, label: str) -> Path:
    """Return the file that remembers the contents of a source between syncs; see `SourceMemory`.

    Args:
        project: The project.
        label: Origin of the source's documents; see `source_label`.
    """
    name = hash_text(label)[:MEMORY_NAME_CHARACTERS]
    return project.state / "sync" / f"{name}.json"


def _state(
    name: str | None,
    location: str,
    counts: Mapping[str | None, int] | None,
    times: Mapping[str, float],
) -> SourceState:
    """Return a source as the list of sources shows it.

    Args:
        name: Name of the source. None for the project's own source.
        location: Path or data set.
        counts: Number of documents of each source, by its name. None if it is unknown.
        times: Time of each source's last sync, by its label.
    """
    shown_name = DEFAULT_SOURCE_NAME if name is None else name
    documents = None if counts is None else counts.get(name, 0)
    return SourceState(shown_name, location, documents, times.get(source_label(name)))


def _make_source(project: Project, own: CorpusSettings, name: str, location: str) -> FollowedSource:
    """Return a named source, which is read by the settings of the project's own source.

    Only its location and its kind differ.
    """
    remedy = "name a folder, a file of rows or a data set such as BeIR/nq"
    if read_sources(project).get(name) == location:
        remedy = f"it is the place of the source {name!r} in {project.sources.name}"
    settings = resolve_source_kind(own.replace(source="auto", path=location), project.root, remedy)
    return FollowedSource(name, settings, location)


def _location_of_path(project: Project, path: str, cwd: Path) -> str:
    """Return the location of a source, given a path or a data set that a user typed.

    Raises:
        FreshetError: If the location is not valid UTF-8.
    """
    absolute_path = cwd / Path(path).expanduser()
    if not absolute_path.exists():
        return require_utf8_path(path)
    return require_utf8_path(_path_location(absolute_path, project.root))


def _location(settings: CorpusSettings, root: Path) -> str:
    """Return the location of the source that settings describe; their `source` may be "auto"."""
    if settings.path and (root / settings.path).exists():
        return _path_location(root / settings.path, root)
    return settings.hub.name or settings.path or settings.source


def _path_location(path: Path, root: Path) -> str:
    """Return the location of a source at an existing path.

    A path inside the project is relative to its root, so that the project can be moved.
    """
    resolved = path.resolve()
    if resolved != root and resolved.is_relative_to(root):
        return resolved.relative_to(root).as_posix()
    return str(resolved)


def _read_times(project: Project) -> dict[str, float]:
    """Return the time of each source's last sync, in seconds since 1970, by the source's label."""
    path = project.state / _TIMES_FILE
    return dict(read_json(path)) if path.is_file() else {}
