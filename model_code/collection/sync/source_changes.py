"""Remove and rename named sources, together with their documents.

The ids of a named source's documents begin with the name of the source. So both operations change
documents, and record this in the ledger like any other change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from model_code.collection.index.changes import ChangeReport, apply_changes
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.reading_notes_file import replace_source_notes
from model_code.collection.sync.named_sources import (
    forget_sync_time,
    memory_path,
    read_sources,
    source_label,
    write_sources,
)
from model_code.corpus.cleaning import is_possible_id
from model_code.corpus.source_ids import (
    SOURCE_FIELD,
    renamed_id,
    require_source_name,
    source_of_id,
)
from model_code.errors import FreshetError
from model_code.project import file_lock
from model_code.text.documents import Document


@dataclass
class SourceRenameReport(ChangeReport):
    """The changes that renaming a source made, for the user.

    Attributes:
        renamed: Number of renamed documents.
        judgements: Number of the project's own judgements that got the new document ids.
    """

    renamed: int = 0
    judgements: int = 0

    def __str__(self) -> str:
        """Return how many documents and judgements were renamed, as one line."""
        noun = "document" if self.renamed == 1 else "documents"
        line = (
            f"{self.renamed:,} {noun} renamed, with texts, known queries, feedback and "
            f"{self.judgements:,} own judgements"
        )
        if self.generation is not None:
            line += f" (generation {self.generation})"
        return line


def remove_source(index: LiveIndex, name: str, dry_run: bool = False) -> ChangeReport:
    """Remove a named source from the project, and its documents from the index.

    The folder or file of the source does not change. A rollback restores the documents, but not the
    source.

    Args:
        index: Live index to change.
        name: Name of the source.
        dry_run: Whether to report the documents without removing them.

    Raises:
        FreshetError: If there is no source with this name.
    """
    project = index.project
    with file_lock(project.state / "sync.lock", "waiting for a sync of this project"):
        sources = _require_source(index, name)
        report = ChangeReport(deleted=_documents_of(index, name))
        if dry_run:
            return report

        label = source_label(name)
        if report.deleted:
            receipt = index.remove(report.deleted, label)
            apply_changes(index, report, [receipt])
        # `sources.json` is written last, so that an interrupted removal can be repeated.
        _forget_files(index, name)
        del sources[name]
        write_sources(project, sources)
    return report


def rename_source(
    index: LiveIndex, old: str, new: str, dry_run: bool = False
) -> SourceRenameReport:
    """Rename a source and all its documents.

    The documents keep their queries, and feedback gets the new document ids. The caller must first
    rename the documents in the project's own judgements, with `renamed_id`. After a crash, the same
    calls can be repeated.

    Args:
        index: Live index to change.
        old: Present name of the source.
        new: New name of the source.
        dry_run: Whether to report the documents without renaming them.

    Raises:
        FreshetError: If there is no source `old`, there is a source `new`, or a document of another
            source has an id that begins with `new`.
    """
    project = index.project
    with file_lock(project.state / "sync.lock", "waiting for a sync of this project"):
        sources = _require_source(index, old)
        require_source_name(new)
        document_ids = _documents_of(index, old)
        _require_free_name(index, sources, new)
        report = SourceRenameReport(renamed=len(document_ids))
        if dry_run:
            return report

        documents = _renamed_documents(index, document_ids, old, new)
        if documents:
            receipt = index.rename_documents(documents, source_label(new))
            apply_changes(index, report, [receipt])
        # `sources.json` is written last, so that an interrupted renaming can be repeated.
        _forget_files(index, old)
        sources[new] = sources.pop(old)
        write_sources(project, sources)
    return report


def _require_source(index: LiveIndex, name: str) -> dict[str, str]:
    """Return the locations of all named sources, or raise an error if `name` is none of them."""
    sources = read_sources(index.project)
    if name not in sources:
        known = ", ".join(sources) or "none"
        raise FreshetError(f"there is no source {name!r}; named sources: {known}")
    return sources


def _documents_of(index: LiveIndex, source: str) -> list[str]:
    """Return the ids of a named source's documents, searchable or waiting, ascending."""
    document_ids: list[str] = []
    for document_id in sorted(index.content_hashes()):
        if source_of_id(document_id, (source,)) is not None:
            document_ids.append(document_id)
    return document_ids


def _require_free_name(index: LiveIndex, sources: dict[str, str], name: str) -> None:
    """Raise an error if a name cannot be used for a source.

    Args:
        index: The live index.
        sources: Locations of all named sources.
        name: The new name.

    Raises:
        FreshetError: If a source has this name, or the id of another source's document begins with
            it.
    """
    if name in sources:
        raise FreshetError(f"there is a source {name!r} already; choose another name")
    ledger = index.ledger_if_exists
    origins = {} if ledger is None else ledger.document_sources()
    for document_id in _documents_of(index, name):
        # An interrupted rename may have left documents with the new name as their origin. They are
        # allowed, so that the rename can be repeated.
        if origins.get(document_id) != source_label(name):
            raise FreshetError(
                f"the document {document_id!r} is of another source, but its id begins with "
                f"'{name}:'; choose another name"
            )


def _renamed_documents(
    index: LiveIndex, document_ids: Sequence[str], old: str, new: str
) -> dict[str, Document]:
    """Return the documents of a source as they are after a rename, by old id.

    They get new ids, and the new name in the field `SOURCE_FIELD`, which every document of a named
    source has.

    Raises:
        FreshetError: If a new id would be too long.
    """
    documents: dict[str, Document] = {}
    for document_id, document in index.present_documents(document_ids).items():
        new_id = renamed_id(document_id, old, new)
        if not is_possible_id(new_id):
            raise FreshetError(
                f"the id of {document_id!r} would be too long; choose a shorter name"
            )
        fields = dict(document.fields)
        fields[SOURCE_FIELD] = new
        documents[document_id] = replace(document, document_id=new_id, fields=fields)
    return documents


def _forget_files(index: LiveIndex, name: str) -> None:
    """Delete what syncs keep of a named source: its memory, reading notes and last sync time."""
    label = source_label(name)
    memory_path(index.project, label).unlink(missing_ok=True)
    replace_source_notes(index.project, label, [])
    forget_sync_time(index.project, name)
