"""Add, update and delete documents: record the changes, then make them searchable.

Each `freshet add` is a new process, so everything that most calls do without is imported inside
functions.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from freshet.results import ReadingNote
from model_code.collection.generations.generation import live_rows
from model_code.collection.generations.generation_store import default_retriever
from model_code.collection.generations.refinements import summarize_refinements
from model_code.collection.index.conditional import possible_id
from model_code.collection.index.live_index import LiveIndex, forecast_changes
from model_code.collection.index.maintenance import BackgroundMaintenance
from model_code.collection.index.reading_notes_file import update_reading_notes
from model_code.collection.ledger.events import Receipt
from model_code.collection.segments.solved import SolvedSummary
from model_code.corpus.clean_rows import (
    CleanRows,
    locate_rows,
    read_file,
    require_known_columns,
)
from model_code.corpus.cleaning import is_possible_id, text_key
from model_code.corpus.reading_notes import note_lines, refusal_note
from model_code.corpus.rows import printable
from model_code.corpus.sources.document_files import is_document_file
from model_code.corpus.sources.file_names import escape_name, is_usable_id, refuse_name
from model_code.errors import FreshetError
from model_code.text.documents import Document, Remove

# The name by which a command reads standard input.
STANDARD_INPUT = Path("-")

# Number of merged documents that a report lists.
MAX_LISTED_MERGES = 10

# The attributes of a report that list changed documents.
CHANGES = ("added", "updated", "deleted")


@dataclass
class ChangeReport:
    """Changes of a command, as document ids.

    Attributes:
        added: Documents that are new to searches.
        updated: Documents that have another content.
        deleted: Documents that are removed.
        waiting: Documents that are recorded and not searchable yet.
        erased: Documents whose texts were removed as well.
        unchanged: Number of documents that were as they are.
        merged: New documents that were left out, each with the document that says the same.
        ignored: The files and folders that are left out because git ignores them, as a sentence;
            empty if there are none.
        rejected: Refused rows, each with its file, row number, document id and reason.
        notes: What was not read of the files, or was guessed.
        generation: Number of the generation that has the changes.
        refined: What IncDSI did for the changed documents; None if it solved none of them.
        behind: Why other live retrievers could not take the changes in, by their names.
    """

    added: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    erased: list[str] = field(default_factory=list)
    unchanged: int = 0
    merged: dict[str, str] = field(default_factory=dict)
    ignored: str = ""
    rejected: list[dict[str, Any]] = field(default_factory=list)
    notes: list[ReadingNote] = field(default_factory=list)
    generation: int | None = None
    refined: SolvedSummary | None = None
    behind: dict[str, str] = field(default_factory=dict)

    @property
    def changed(self) -> list[str]:
        """The documents that change for searches."""
        return [*self.added, *self.updated, *self.deleted]

    @property
    def failed(self) -> bool:
        """Whether rows were refused and none was accepted."""
        has_accepted_rows = bool(self.unchanged or self.changed or self.waiting)
        return bool(self.rejected) and not has_accepted_rows

    def mark_as_waiting(self) -> None:
        """State that the changes are recorded and not searchable yet."""
        self.waiting = self.changed
        self.added = []
        self.updated = []
        self.deleted = []

    def __str__(self) -> str:
        """The counts on one line, then refused rows, notes, and retrievers that are behind."""
        counts = {
            "added": len(self.added),
            "updated": len(self.updated),
            "deleted": len(self.deleted),
            "erased": len(self.erased),
            "waiting": len(self.waiting),
            "rejected": len(self.rejected),
            "unchanged": self.unchanged,
            "merged": len(self.merged),
        }
        parts = [f"{number:,} {name}" for name, number in counts.items() if number]
        line = ", ".join(parts) or "nothing to do"
        if self.generation is not None:
            line += f" (generation {self.generation})"

        lines = [line]
        if self.refined is not None:
            lines.append(f"  {self.refined.sentence()}")
        lines.extend(_rejection_line(row) for row in self.rejected)
        lines.extend(_merge_lines(self.merged))
        if self.ignored:
            lines.append(f"  {self.ignored}")
        lines.extend(note_lines(self.notes))
        for retriever, reason in sorted(self.behind.items()):
            lines.append(f"  behind    {retriever}  {reason}")
        return "\n".join(lines)


@dataclass(frozen=True)
class _NamedFile:
    """A file and the name that its rows or its document go by.

    Attributes:
        name: The name, which can be printed.
        path: The file.
        is_usable: Whether the name of the file can be the id of its document.
    """

    name: str
    path: Path
    is_usable: bool = True


class _Duplicates:
    """Leaves out new documents that say the same as others, if `corpus.merge_duplicates` says so.

    Args:
        index: The live index. Its documents are read when the first row is looked at.
        merged: Receives the id of each document that is left out, with that of the other one.
    """

    def __init__(self, index: LiveIndex, merged: dict[str, str]) -> None:
        self._index = index
        self._compared_part = index.settings.merge_duplicates
        self._merged = merged

    @cached_property
    def _known_ids(self) -> Collection[str]:
        return self._index.content_hashes().keys()

    @cached_property
    def _kept_ids(self) -> dict[str, str]:
        """The document that has a text or title, by its key."""
        kept_ids: dict[str, str] = {}
        rows = live_rows(self._index.generation, "document_id", self._compared_part)
        for document_id, value in rows:
            kept_ids.setdefault(text_key(value), document_id)
        return kept_ids

    def leave_out(self, rows: CleanRows) -> CleanRows:
        """Return the rows without new documents that say the same as others."""
        if self._compared_part == "none":
            return rows
        documents: list[Document] = []
        locations: list[str] = []
        for document, location in zip(rows.documents, rows.locations, strict=True):
            document_id = document.document_id
            key = text_key(getattr(document, self._compared_part))
            kept_id = document_id
            if key and document_id not in self._known_ids:
                kept_id = self._kept_ids.setdefault(key, document_id)
            if kept_id == document_id:
                documents.append(document)
                locations.append(location)
            else:
                self._merged[document_id] = kept_id
        return replace(rows, documents=tuple(documents), locations=tuple(locations))


def add_files(
    index: LiveIndex,
    files: Sequence[Path],
    suffix: str = ".jsonl",
    only_known: bool = False,
    dry_run: bool = False,
) -> ChangeReport:
    """Add or update the documents of files and folders.

    Args:
        index: Live index to change.
        files: Files of rows, files that are one document, and folders; "-" is standard input.
        suffix: Format of standard input.
        only_known: Refuse ids of documents that do not exist.
        dry_run: Only report the changes.

    Raises:
        FreshetError: If a file cannot be read, or two files would be the same document.
    """
    report = ChangeReport()
    named_files: list[_NamedFile] = []
    for file in files:
        named_files.extend(_name_files(index, file, report))
    _require_different_ids(named_files)

    duplicates = _Duplicates(index, report.merged)
    batches: list[tuple[str, CleanRows]] = []
    documents: list[Document] = []
    refusals: list[ReadingNote] = []
    for named_file in named_files:
        rows = _read_rows(index, named_file, suffix, only_known)
        rows = duplicates.leave_out(rows)
        batches.append((named_file.name, rows))
        documents.extend(rows.documents)
        report.notes.extend(rows.notes)
        for rejection in rows.rejected:
            report.rejected.append({"file": named_file.name, **vars(rejection)})
            if is_document_file(named_file.path):
                refusals.append(refusal_note(named_file.name, rejection.reason))

    expected = forecast_changes(index.generation, documents)
    report.added = expected["added"]
    report.updated = expected["updated"]
    document_ids = {document.document_id for document in documents}
    report.unchanged = len(document_ids) - len(report.changed)
    if dry_run:
        return report

    receipts = [index.receive(rows, name) for name, rows in batches]
    note_files = [file.name for file in named_files]
    update_reading_notes(index.project, note_files, [*report.notes, *refusals])
    apply_changes(index, report, receipts)
    return report


def delete_documents(
    index: LiveIndex, document_ids: Sequence[str], source: str = "freshet delete"
) -> ChangeReport:
    """Remove documents. Ids of no document are refused.

    Args:
        index: Live index to change.
        document_ids: Ids of the documents.
        source: Where the removal comes from.
    """
    removals = [Remove(document_id) for document_id in document_ids if is_possible_id(document_id)]
    expected = forecast_changes(index.generation, removals)
    receipt = index.remove(document_ids, source)
    update_reading_notes(index.project, document_ids, [])

    report = ChangeReport(deleted=expected["deleted"])
    for rejection in receipt.rejected:
        report.rejected.append({"file": source, **vars(rejection)})
    report.unchanged = receipt.received - len(report.rejected) - len(report.deleted)
    apply_changes(index, report, [receipt])
    return report


def delete_matching(
    index: LiveIndex,
    filters: Sequence[str],
    dry_run: bool = False,
    source: str = "freshet delete --filter",
) -> ChangeReport:
    """Remove the documents that match filters.

    Args:
        index: Live index to change.
        filters: Filters as one types them.
        dry_run: Only report the documents.
        source: Where the removal comes from.
    """
    if dry_run:
        return ChangeReport(deleted=list(index.matching_versions(filters)))
    matched, receipt = index.remove_matching(filters, source)
    report = ChangeReport()
    refused: set[str | None] = set()
    for rejection in receipt.rejected:
        refused.add(rejection.document_id)
        report.rejected.append({"file": source, **vars(rejection)})
    report.deleted = [document_id for document_id in matched if document_id not in refused]
    apply_changes(index, report, [receipt])
    return report


def update_partially(
    index: LiveIndex, files: Sequence[Path], suffix: str = ".jsonl"
) -> ChangeReport:
    """Change some values of documents; see `LiveIndex.receive_partial`.

    Args:
        index: Live index to change.
        files: Files of rows; "-" is standard input.
        suffix: Format of standard input.
    """
    report = ChangeReport()
    receipts: list[Receipt] = []
    for file in files:
        name = "standard input" if file == STANDARD_INPUT else _printable_name(file.name)
        with _readable_file(file, suffix) as path:
            rows = list(read_file(path, name, index.settings.columns))
        located = locate_rows(rows, index.settings.columns, name)
        ids = {document_id for row in located if (document_id := possible_id(row)) is not None}
        before = _versions(index, ids)
        receipt = index.receive_partial(rows, name)
        after = _versions(index, ids)

        receipts.append(receipt)
        report.updated.extend(sorted(name for name in after if after[name] != before.get(name)))
        report.unchanged += receipt.unchanged
        for rejection in receipt.rejected:
            report.rejected.append({"file": name, **vars(rejection)})
    apply_changes(index, report, receipts)
    return report


def _versions(index: LiveIndex, document_ids: Collection[str]) -> dict[str, str]:
    documents = index.present_documents(document_ids)
    return {name: document.content_hash for name, document in documents.items()}


@contextmanager
def _readable_file(file: Path, suffix: str) -> Iterator[Path]:
    """Yield the path of a file.

    Standard input is copied to a file, which can be read twice and tells its format.
    """
    if file != STANDARD_INPUT:
        yield file
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / f"input{suffix}"
        copy.write_bytes(sys.stdin.buffer.read())
        yield copy


def apply_changes(
    index: LiveIndex,
    report: ChangeReport,
    receipts: Iterable[Receipt],
    publish: Callable[[], int | None] | None = None,
) -> None:
    """Make recorded changes searchable and complete `report`.

    A running service applies the changes of the default retriever, because its encoder is already
    loaded. Everything else is applied in this process.

    `report.changed` is checked as well as the receipts. If an earlier process was killed after it
    had recorded a document, adding the document again creates no new event.

    Args:
        index: Live index whose pending events are applied.
        report: Expected changes. Receives the generation, or has its changes marked as waiting.
        receipts: Receipts of the events just recorded.
        publish: Applies the changes in another way, as the service itself does. Returns the first
            generation in which searches find them, or None if that does not exist yet.
    """
    has_new_events = any(receipt.events for receipt in receipts)
    if not report.changed and not has_new_events:
        report.generation = index.generation.number
        return

    generation: int | None
    service = None
    if publish is None and index.retriever == default_retriever(index.project.live):
        service = index.find_service(index.project)

    if publish is not None:
        generation = publish()
    elif service is not None:
        generation = service.apply().generation
    else:
        applied = index.apply()
        maintenance = BackgroundMaintenance(index.project, {index.retriever: index}.get)
        report.behind = maintenance.run_all(except_retriever=index.retriever)
        generation = (applied or index).generation.number

    if generation is None:
        report.mark_as_waiting()
        generation = index.generation.number
    else:
        report.refined = summarize_refinements(index.generation, report.changed)
    report.generation = generation


def _name_files(index: LiveIndex, file: Path, report: ChangeReport) -> Iterator[_NamedFile]:
    """Yield a file, or each document file of a folder, with its name.

    A document in the folder of the project's corpus has the same id as there. Names are texts that
    any ledger can hold.

    Args:
        index: The live index.
        file: A file or a folder.
        report: Receives a note for each file of a folder that has no reader, and the number of
            files that git ignores.
    """
    if file == STANDARD_INPUT:
        yield _NamedFile("standard input", file)
        return
    if not is_document_file(file) and not file.is_dir():
        yield _NamedFile(_printable_name(file.name), file)
        return

    path = file.resolve()
    settings = index.settings
    document_paths: Iterable[Path] = [path]
    if path.is_dir():
        # The import takes long, and files of rows do without it.
        from model_code.corpus.sources.folder import (
            FolderSource,
            describe_ignored_files,
            list_unread_files,
        )

        folder_settings = settings.replace(source="folder", path=str(path))
        folder = FolderSource(folder_settings, path)
        document_paths = folder.files.values()
        report.notes.extend(list_unread_files(folder))
        report.ignored = "; ".join(filter(None, (report.ignored, describe_ignored_files(folder))))

    corpus_folder = None
    if settings.path:
        corpus_folder = (index.project.root / settings.path).resolve()
    for document_path in document_paths:
        base = path if path.is_dir() else path.parent
        if corpus_folder is not None and corpus_folder.is_dir():
            if document_path.is_relative_to(corpus_folder):
                base = corpus_folder
        name = document_path.relative_to(base).as_posix()
        yield _NamedFile(escape_name(name), document_path, is_usable_id(name))


def _printable_name(name: str) -> str:
    return printable(name, len(name))


def _require_different_ids(named_files: Sequence[_NamedFile]) -> None:
    """Check that no two different files are the same document.

    Raises:
        FreshetError: If two files have the same id.
    """
    paths: dict[str, Path] = {}
    for file in named_files:
        if not is_document_file(file.path):
            continue
        first = paths.setdefault(file.name, file.path)
        if first.resolve() != file.path.resolve():
            raise FreshetError(
                f"{first} and {file.path} would both be the document {file.name!r}: add the folder "
                "around them instead, in which their paths are their ids"
            )


def _read_rows(index: LiveIndex, file: _NamedFile, suffix: str, only_known: bool) -> CleanRows:
    """Read and clean the rows of a file."""
    if file.path == STANDARD_INPUT:
        with _readable_file(file.path, suffix) as copy:
            return _read_rows(index, _NamedFile(file.name, copy), suffix, only_known)

    if not file.is_usable:
        return CleanRows((), (), (refuse_name(file.name),))

    columns = index.settings.columns
    rows = index.clean_rows(read_file(file.path, file.name, columns), file.name, only_known)
    if rows.refused and not rows.documents:
        require_known_columns(file.path, file.name, columns)
    return rows


def _merge_lines(merged: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for the first documents that were merged into others."""
    for document_id in sorted(merged)[:MAX_LISTED_MERGES]:
        yield f"  merged    {document_id}  says the same as {merged[document_id]}"
    unlisted = len(merged) - MAX_LISTED_MERGES
    if unlisted > 0:
        yield f"  and {unlisted:,} more merged: --json names all"


def _rejection_line(row: Mapping[str, Any]) -> str:
    place = ""
    if row["row"] is not None:
        place = f"{row['file']}:{row['row']}  "
    return f"  rejected  {place}{row['document_id'] or '(no id)'}  {row['reason']}"
