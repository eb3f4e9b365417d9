"""Find the file that a document was read from, for sources that are folders of files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from model_code.collection.sync.named_sources import read_sources
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.source_ids import name_in_source, source_of_id
from model_code.corpus.sources.document_files import DOCUMENT_SUFFIXES
from model_code.corpus.sources.folder import FolderSource
from model_code.project import Project


def find_source_file(project: Project, document_id: str) -> Path | None:
    """Return the file that a document was read from.

    Only files that a sync would read are returned. Hidden and ignored files, files of other types
    and links that lead out of the folder are not.

    Args:
        project: The project.
        document_id: Id of the document. The document may belong to the project's own source or to a
            named source.

    Returns:
        The path of the file. None if the document does not come from a file of a folder.
    """
    possible = _find_possible_file(project, document_id)
    if possible is None:
        return None
    return FolderSource(possible.settings, project.root).files.get(possible.name)


def has_source_file(project: Project, document_id: str) -> bool:
    """Return whether a document seems to come from a file of a folder.

    This is a quick test, which can be wrong in one case. It does not ask git whether it ignores the
    file, because that takes longer than the rest of a request. So the result is also True if the
    file was added to `.gitignore` after the last sync, although `find_source_file` then returns
    None.

    Args:
        project: The project.
        document_id: Id of the document, as in `find_source_file`.
    """
    possible = _find_possible_file(project, document_id)
    if possible is None:
        return False
    # A name that begins with a dot is hidden. A sync reads no hidden files or folders.
    is_hidden = any(part.startswith(".") for part in Path(possible.name).parts)
    return not is_hidden


@dataclass(frozen=True)
class _PossibleFile:
    """A file that may be the origin of a document, because the document's id names it.

    Attributes:
        name: Name of the file below the folder.
        settings: Settings of the source that reads the folder.
    """

    name: str
    settings: CorpusSettings


def _find_possible_file(project: Project, document_id: str) -> _PossibleFile | None:
    """Return the existing file that a document's id names.

    None if the document's source is no folder, or if the folder has no such file. The id of a
    document in a named source begins with the name of the source, as in `manual:install.md`.
    """
    settings = project.settings("corpus", CorpusSettings)
    name = document_id
    sources = read_sources(project)
    source = source_of_id(document_id, sources)
    if source is not None:
        # A named source is read with the same settings from another folder.
        settings = settings.replace(source="auto", path=sources[source])
        name = name_in_source(document_id)
    if settings.source not in ("auto", "folder") or not settings.path:
        return None

    folder = (project.root / settings.path).resolve()
    path = folder / name
    if path.suffix.lower() not in DOCUMENT_SUFFIXES or not is_possible_path(path, folder):
        return None
    return _PossibleFile(name, settings)


def is_possible_path(path: Path, folder: Path) -> bool:
    """Return whether a path is a file below a folder, after links and dots are resolved."""
    try:
        resolved = path.resolve()
        return resolved.is_relative_to(folder) and resolved.is_file()
    except (OSError, ValueError):
        # The id cannot be a path: it is too long, or contains the character 0.
        return False
