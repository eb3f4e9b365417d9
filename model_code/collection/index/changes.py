"""Add, update and delete documents: record the changes, then make them searchable.

Each `freshet add` is a new process that should start fast. So modules that most calls do not need
are imported inside functions.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
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
from model_code.collection.segments.documents import has_expired
from model_code.collection.segments.solved import SolvedSummary
from model_code.corpus.clean_rows import (
    CleanRows,
    locate_rows,
    read_file,
    require_known_columns,
)
from model_code.corpus.cleaning import is_possible_id, text_key
from model_code.corpus.reading_notes import note_lines, refusal_note
from model_code.corpus.rows import RefusedRow, Rejection, Row, printable
from model_code.corpus.sources.document_files import is_document_file
from model_code.corpus.sources.file_names import escape_name, is_usable_id, refuse_name
from model_code.errors import FreshetError
from model_code.text.documents import EXPIRES, Document, Remove

# File name on the command line that means standard input.
STANDARD_INPUT = Path("-")

# Largest number of merged documents that the text of a report lists.
MAX_LISTED_MERGES = 10

# Attributes of `ChangeReport` that list changed documents.
CHANGES = ("added", "updated", "deleted")


@dataclass
class ChangeReport:
    """The changes that a command made, for the user.

    Attributes:
        added: Ids of the documents that become searchable.
        updated: Ids of the documents whose content changes.
        deleted: Ids of the documents that are removed.
        waiting: Ids of the documents whose changes are recorded but not searchable yet.
        erased: Ids of the documents whose texts were deleted from all files.
        unchanged: Number of documents that did not change.
        expired: Number of received documents that have expired. No search finds them, so they are
            neither added nor updated.
        merged: New documents that were left out, because another document has the same text or
            title. Id of the other document by the id of the document that was left out.
        ignored: Sentence that names files and folders which were left out because git ignores
            them. Empty if there are none.
        rejected: Refused rows, each with the keys file, row, document_id and reason.
        notes: Statements about parts of files that were not read, or read by a guess.
        generation: Number of the generation that contains the changes. None in a dry run.
        refined: Counts that show the effect of IncDSI on the changed documents. None if it solved
            no vector.
        behind: Error messages of other live retrievers that could not apply the changes, by the
            name of the retriever.
    """

    added: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    erased: list[str] = field(default_factory=list)
    unchanged: int = 0
    expired: int = 0
    merged: dict[str, str] = field(default_factory=dict)
    ignored: str = ""
    rejected: list[dict[str, Any]] = field(default_factory=list)
    notes: list[ReadingNote] = field(default_factory=list)
    generation: int | None = None
    refined: SolvedSummary | None = None
    behind: dict[str, str] = field(default_factory=dict)

    @property
    def changed(self) -> list[str]:
        """Ids of all documents that were added, updated or deleted."""
        return [*self.added, *self.updated, *self.deleted]

    @property
    def failed(self) -> bool:
        """Whether all rows were refused, and there was at least one row."""
        has_accepted_rows = bool(self.unchanged or self.expired or self.changed or self.waiting)
        return bool(self.rejected) and not has_accepted_rows

    def add_rejection(self, file: str, rejection: Rejection) -> None:
        """Add a refused row.

        Args:
            file: Name of the file, or of another origin such as a command.
            rejection: The row, with the reason.
        """
        entry: dict[str, Any] = {"file": file}
        entry.update(vars(rejection))
        self.rejected.append(entry)

    def add_ignored(self, sentence: str) -> None:
        """Add a sentence about files that git ignores. Nothing is added if it is empty."""
        if self.ignored and sentence:
            self.ignored += "; "
        self.ignored += sentence

    def mark_as_waiting(self) -> None:
        """Move all changed documents to `waiting`: their changes are not searchable yet."""
        self.waiting = self.changed
        self.added = []
        self.updated = []
        self.deleted = []

    def __str__(self) -> str:
        """Return the report as text: a line of counts, then the details, one per line."""
        counts = {
            "added": len(self.added),
            "updated": len(self.updated),
            "deleted": len(self.deleted),
            "erased": len(self.erased),
            "waiting": len(self.waiting),
            "rejected": len(self.rejected),
            "unchanged": self.unchanged,
            "expired": self.expired,
            "merged": len(self.merged),
        }
        parts = [f"{number:,} {name}" for name, number in counts.items() if number]
        headline = ", ".join(parts) or "nothing to do: no document was found"
        if self.generation is not None:
            headline += f" (generation {self.generation})"

        lines = [headline]
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
    """A file to read, and its name in the ledger.

    Attributes:
        name: Printable name. It is the source of the rows, or the id of the document in the file.
        path: Path of the file.
        is_usable: Whether the name can be the id of a document.
    """

    name: str
    path: Path
    is_usable: bool = True


class _Duplicates:
    """Filters out new documents that have the same text or title as another document.

    The setting `corpus.merge_duplicates` decides whether texts, titles or nothing is compared.
    Documents are compared as they are after all recorded changes and after the added rows. So no
    document is left out because of a text that another document loses.

    Args:
        index: The live index. Its documents are read for the first row that is compared.
        batches: All rows that are added.
        merged: Receives an entry for each document that is left out: the id of the document with
            the same text or title, by the id of the document that is left out.
    """

    def __init__(
        self, index: LiveIndex, batches: Iterable[CleanRows], merged: dict[str, str]
    ) -> None:
        self._index = index
        self._compared_part = index.settings.merge_duplicates
        self._merged = merged
        self._now = datetime.now(UTC)
        # If several rows have one id, the last one counts.
        self._added: dict[str, Document] = {}
        for rows in batches:
            for document in rows.documents:
                self._added[document.document_id] = document

    @cached_property
    def _known_hashes(self) -> Mapping[str, str]:
        """Content hash of each document after all recorded changes, by document id."""
        return self._index.content_hashes()

    @cached_property
    def _kept_ids(self) -> dict[str, str]:
        """Id of the first document with each text or title, by the key of the text or title."""
        kept_ids: dict[str, str] = {}
        # Documents whose contents are neither in the generation nor among the added rows.
        waiting_ids = set(self._known_hashes) - self._added.keys()
        columns = ("document_id", "content_hash", "fields", self._compared_part)
        for document_id, content_hash, fields, value in live_rows(self._index.generation, *columns):
            # A document with another hash has a recorded change that is not searchable yet.
            is_current = self._known_hashes.get(document_id) == content_hash
            if not is_current or document_id in self._added:
                continue
            waiting_ids.discard(document_id)
            if not _is_expired(json.loads(fields), self._now):
                kept_ids.setdefault(text_key(value), document_id)

        others = list(self._index.present_documents(waiting_ids).values())
        others.extend(
            document
            for document_id, document in self._added.items()
            if document_id in self._known_hashes
        )
        for document in others:
            if not _is_expired(document.fields, self._now):
                key = text_key(getattr(document, self._compared_part))
                kept_ids.setdefault(key, document.document_id)
        return kept_ids

    def leave_out(self, rows: CleanRows) -> CleanRows:
        """Return the rows without new documents that have the same text or title as another.

        Documents that exist already are never left out, because they may be updated. An expired
        document is no copy, because it is not found.
        """
        if self._compared_part == "none":
            return rows
        documents: list[Document] = []
        locations: list[str] = []
        for document, location in zip(rows.documents, rows.locations, strict=True):
            document_id = document.document_id
            # The compared part of a document is its title or its text. An empty part has an empty
            # key, and equals no other part.
            key = text_key(getattr(document, self._compared_part))
            is_new = document_id not in self._known_hashes
            kept_id = document_id
            if key and is_new and not _is_expired(document.fields, self._now):
                # The id of the first document with this key, which can be this document.
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
    """Add or update the documents of files and folders, and make them searchable.

    Args:
        index: Live index to change.
        files: Files of rows, files that are one document each, and folders. "-" means standard
            input.
        suffix: File name suffix for the format of standard input.
        only_known: Whether to refuse documents that do not exist yet.
        dry_run: Whether to report the changes without making them.

    Raises:
        FreshetError: If a file cannot be read, or two files would be the same document.
    """
    report = ChangeReport()
    named_files: list[_NamedFile] = []
    for file in files:
        named_files.extend(_name_files(index, file, report))
    _require_different_ids(named_files)

    rows_of_files = [_read_rows(index, file, suffix, only_known) for file in named_files]
    duplicates = _Duplicates(index, rows_of_files, report.merged)
    batches: list[tuple[str, CleanRows]] = []
    documents: list[Document] = []
    refusals: list[ReadingNote] = []
    for named_file, rows_of_file in zip(named_files, rows_of_files, strict=True):
        rows = duplicates.leave_out(rows_of_file)
        batches.append((named_file.name, rows))
        documents.extend(rows.documents)
        report.notes.extend(rows.notes)
        for rejection in rows.rejected:
            report.add_rejection(named_file.name, rejection)
            if is_document_file(named_file.path):
                refusals.append(refusal_note(named_file.name, rejection.reason))

    expected = forecast_changes(index.generation, documents)
    # If several rows have one id, the last one counts.
    last_documents = {document.document_id: document for document in documents}
    expired_ids = _expired_ids(last_documents.values())
    changed_count = len(expected["added"]) + len(expected["updated"])
    report.unchanged = len(last_documents) - changed_count
    for change in ("added", "updated"):
        for document_id in expected[change]:
            if document_id in expired_ids:
                report.expired += 1
            else:
                getattr(report, change).append(document_id)
    if dry_run:
        return report

    receipts = [index.receive(rows, name) for name, rows in batches]
    file_names = [file.name for file in named_files]
    update_reading_notes(index.project, file_names, [*report.notes, *refusals])
    apply_changes(index, report, receipts)
    return report


def _expired_ids(documents: Iterable[Document]) -> set[str]:
    """Return the ids of the documents that have expired."""
    now = datetime.now(UTC)
    expired: set[str] = set()
    for document in documents:
        if _is_expired(document.fields, now):
            expired.add(document.document_id)
    return expired


def _is_expired(fields: Mapping[str, Any], now: datetime) -> bool:
    """Return whether the field `expires` of a document is a past date."""
    expires = fields.get(EXPIRES)
    return expires is not None and has_expired(expires, now)


def delete_documents(
    index: LiveIndex, document_ids: Sequence[str], source: str = "freshet delete"
) -> ChangeReport:
    """Remove documents, and make the removal effective in searches. Unknown ids are refused.

    Args:
        index: Live index to change.
        document_ids: Ids of the documents.
        source: Origin of the removal, which the ledger records.
    """
    removals = [Remove(document_id) for document_id in document_ids if is_possible_id(document_id)]
    deleted = set(forecast_changes(index.generation, removals)["deleted"])
    # Documents that wait are not searchable yet. They are deleted as well.
    deleted.update(index.existing_ids(document_ids))
    receipt = index.remove(document_ids, source)
    update_reading_notes(index.project, document_ids, [])

    report = ChangeReport(deleted=sorted(deleted))
    for rejection in receipt.rejected:
        report.add_rejection(source, rejection)
    report.unchanged = receipt.received - len(report.rejected) - len(report.deleted)
    apply_changes(index, report, [receipt])
    return report


def delete_matching(
    index: LiveIndex,
    filters: Sequence[str],
    dry_run: bool = False,
    source: str = "freshet delete --filter",
) -> ChangeReport:
    """Remove the documents that match filters, and make the removal effective in searches.

    Args:
        index: Live index to change.
        filters: Conditions as a user types them, such as "year>=2020".
        dry_run: Whether to report the documents without removing them.
        source: Origin of the removal, which the ledger records.
    """
    if dry_run:
        return ChangeReport(deleted=list(index.matching_versions(filters)))
    matched, receipt = index.remove_matching(filters, source)
    report = ChangeReport()
    # A removal is refused if another writer changed the document after it was matched.
    refused_ids: set[str | None] = set()
    for rejection in receipt.rejected:
        refused_ids.add(rejection.document_id)
        report.add_rejection(source, rejection)
    report.deleted = [document_id for document_id in matched if document_id not in refused_ids]
    apply_changes(index, report, [receipt])
    return report


def update_partially(
    index: LiveIndex, files: Sequence[Path], suffix: str = ".jsonl"
) -> ChangeReport:
    """Change single values of documents: those that the rows name; see `LiveIndex.receive_partial`.

    Args:
        index: Live index to change.
        files: Files of rows. "-" means standard input.
        suffix: File name suffix for the format of standard input.
    """
    report = ChangeReport()
    receipts: list[Receipt] = []
    for file in files:
        name = "standard input" if file == STANDARD_INPUT else _printable_name(file.name)
        with _readable_file(file, suffix) as path:
            rows = list(read_file(path, name, index.settings.columns))
            if path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv")):
                rows = [_without_empty_cells(row) for row in rows]
        document_ids: set[str] = set()
        for row in locate_rows(rows, index.settings.columns, name):
            document_id = possible_id(row)
            if document_id is not None:
                document_ids.add(document_id)

        before = _versions(index, document_ids)
        receipt = index.receive_partial(rows, name)
        after = _versions(index, document_ids)

        receipts.append(receipt)
        for document_id in sorted(after):
            if after[document_id] != before.get(document_id):
                report.updated.append(document_id)
        report.unchanged += receipt.unchanged
        for rejection in receipt.rejected:
            report.add_rejection(name, rejection)
    apply_changes(index, report, receipts)
    return report


def _without_empty_cells(row: Row | RefusedRow) -> Row | RefusedRow:
    """Return a row of a delimited file without its empty cells.

    Such a file has a cell for each column. In a partial update, an empty one changes nothing.
    """
    if isinstance(row, RefusedRow):
        return row
    values = {name: value for name, value in row.values.items() if value != ""}
    fields = {name: value for name, value in values["fields"].items() if value != ""}
    values["fields"] = fields
    return replace(row, values=values)


def _versions(index: LiveIndex, document_ids: Collection[str]) -> dict[str, str]:
    """Return the content hashes of documents after all recorded changes, by document id."""
    versions: dict[str, str] = {}
    for document_id, document in index.present_documents(document_ids).items():
        versions[document_id] = document.content_hash
    return versions


@contextmanager
def _readable_file(file: Path, suffix: str) -> Iterator[Path]:
    """Context manager that yields the path of a file that can be read several times.

    Standard input can be read only once. So it is copied to a temporary file, whose suffix names
    the format.

    Args:
        file: The file, or `STANDARD_INPUT`.
        suffix: File name suffix of the temporary file.
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
    """Make recorded changes searchable, and complete the report about them.

    If a service is running, it applies the changes of the default retriever, because it has the
    encoder in memory. Otherwise this process applies the changes to all retrievers.

    Nothing is done if neither the report nor the receipts contain a change. Receipts alone are not
    enough, because they only tell what this process has recorded. An earlier process may have
    recorded a document and been killed before applying it. Adding this document again creates no
    event, but it still has to be applied.

    Args:
        index: Live index whose pending events are applied.
        report: Expected changes. It receives the number of the generation. If the changes are not
            searchable yet, it marks them as waiting.
        receipts: Receipts of the events that were just recorded.
        publish: Function that applies the changes instead. The service itself uses it. It returns
            the number of the first generation that contains the changes, or None if there is no
            such generation yet.
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
        current = index.generation if applied is None else applied.generation
        generation = current.number

    if generation is None:
        # The changes are recorded, but no generation contains them yet.
        report.mark_as_waiting()
        generation = index.generation.number
    else:
        report.refined = summarize_refinements(index.generation, report.changed)
    report.generation = generation


def _name_files(index: LiveIndex, file: Path, report: ChangeReport) -> Iterator[_NamedFile]:
    """Yield a file, or each document file of a folder, with its name.

    The name of a document file is its path relative to the folder. If the file is in the folder of
    the project's corpus, its path is relative to that folder. So it has the same id as in the
    corpus. Characters that a ledger cannot store are escaped.

    Args:
        index: The live index.
        file: A file, a folder, or `STANDARD_INPUT`.
        report: Receives a note for each file in a folder that cannot be read, and a sentence about
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
        # The import takes long, and is not needed for files of rows.
        from model_code.corpus.sources.folder import (
            FolderSource,
            describe_ignored_files,
            list_unread_files,
        )

        folder_settings = settings.replace(source="folder", path=str(path))
        folder = FolderSource(folder_settings, path)
        document_paths = folder.files.values()
        report.notes.extend(list_unread_files(folder))
        report.add_ignored(describe_ignored_files(folder))

    corpus_folder = None
    if settings.path:
        configured_folder = (index.project.root / settings.path).resolve()
        if configured_folder.is_dir():
            corpus_folder = configured_folder
    for document_path in document_paths:
        base = path if path.is_dir() else path.parent
        if corpus_folder is not None and document_path.is_relative_to(corpus_folder):
            base = corpus_folder
        name = document_path.relative_to(base).as_posix()
        yield _NamedFile(escape_name(name), document_path, is_usable_id(name))


def _printable_name(name: str) -> str:
    """Return a file name with escapes for characters that a ledger cannot store, at full length."""
    return printable(name, len(name))


def _require_different_ids(named_files: Sequence[_NamedFile]) -> None:
    """Raise an error if two document files would get the same document id.

    Raises:
        FreshetError: If two different files have the same name.
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
    """Read and clean the rows of a file.

    Args:
        index: Live index, whose settings are used.
        file: The file.
        suffix: File name suffix for the format of standard input.
        only_known: Whether to refuse documents that do not exist yet.
    """
    if file.path == STANDARD_INPUT:
        with _readable_file(file.path, suffix) as copy:
            return _read_rows(index, _NamedFile(file.name, copy), suffix, only_known)

    if not file.is_usable:
        return CleanRows((), (), (refuse_name(file.name),))

    columns = index.settings.columns
    rows = index.clean_rows(read_file(file.path, file.name, columns), file.name, only_known)
    is_all_refused = bool(rows.refused) and not rows.documents
    if is_all_refused:
        # If all rows are refused, the columns probably have other names. Then one error names the
        # columns that are missing.
        require_known_columns(file.path, file.name, columns)
    return rows


def _merge_lines(merged: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each of the first merged documents, and a line with the number of others."""
    for document_id in sorted(merged)[:MAX_LISTED_MERGES]:
        yield f"  merged    {document_id}  says the same as {merged[document_id]}"
    unlisted = len(merged) - MAX_LISTED_MERGES
    if unlisted > 0:
        yield f"  and {unlisted:,} more merged: --json names all"


def _rejection_line(row: Mapping[str, Any]) -> str:
    """Return a line about a refused row, given an entry of `ChangeReport.rejected`."""
    location = ""
    if row["row"] is not None:
        location = f"{row['file']}:{row['row']}  "
    document_id = row["document_id"] or "(no id)"
    return f"  rejected  {location}{document_id}  {row['reason']}"
