"""`freshet sync`: make the live index equal to a source, such as a folder.

A sync has three steps:

1. `source_contents` reads the source and remembers it.
2. `plan` decides which documents are added, updated and deleted.
3. This module records the changes in the ledger and makes them searchable.

A sync deletes only documents that came from its source. Documents from `freshet add`, from the
inbox or from other sources stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from freshet.results import ReadingNote
from model_code.collection.index.changes import CHANGES, ChangeReport, apply_changes
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.reading_notes_file import replace_source_notes
from model_code.collection.ledger.events import Receipt
from model_code.collection.sync.named_sources import (
    FollowedSource,
    find_source,
    memory_path,
    read_sources,
    record_sync_time,
    source_label,
    write_sources,
)
from model_code.collection.sync.plan import (
    SyncPlan,
    deletion_doubt,
    differing_ids,
    expected_hashes,
    plan_sync,
)
from model_code.collection.sync.source_contents import (
    WHOLE_SOURCE,
    SourceContents,
    SourceMemory,
    SourceUnit,
    list_units,
    read_documents,
)
from model_code.corpus.reading_notes import refusal_note
from model_code.corpus.rows import Rejection
from model_code.corpus.source_ids import DEFAULT_SOURCE_NAME, name_notes, source_of_id
from model_code.corpus.sources.base import Source, describe_files, open_source
from model_code.corpus.sources.folder import describe_ignored_files, list_unread_files
from model_code.errors import FreshetError
from model_code.files import write_json
from model_code.project import Project, file_lock
from model_code.text.documents import Document

# Largest number of changed documents that the text of a report lists.
LISTED_CHANGES = 20


@dataclass
class SyncReport(ChangeReport):
    """The changes that a sync made, for the user.

    Attributes:
        source: Name of the source. "default" for the project's own source.
        beside: Number of documents in the index that came from elsewhere. A sync does not change
            them.
        kept: Number of documents that are missing in the source but were not deleted. The reason is
            a refused row without a readable id, which may belong to any of them.
        doubt: In a dry run, why the sync will refuse its deletions unless it is forced. Empty if it
            will not.
    """

    source: str = DEFAULT_SOURCE_NAME
    beside: int = 0
    kept: int = 0
    doubt: str = ""

    @property
    def rejections(self) -> list[Rejection]:
        """The refused rows as rejections for the ledger. Each reason begins with the file."""
        rejections: list[Rejection] = []
        for row in self.rejected:
            reason = f"{row['file']}: {row['reason']}"
            rejections.append(Rejection(row["row"] or 1, row["document_id"], reason))
        return rejections

    def __str__(self) -> str:
        """Return the report as text: the counts, then the ids of the first changed documents."""
        changes: list[str] = []
        for change in CHANGES:
            for document_id in getattr(self, change):
                changes.append(f"  {change:9} {document_id}")

        counts = super().__str__()
        if self.source != DEFAULT_SOURCE_NAME:
            counts = f"{self.source}: {counts}"
        lines = [counts, *changes[:LISTED_CHANGES]]
        unlisted = len(changes) - LISTED_CHANGES
        if unlisted > 0:
            lines.append(f"  and {unlisted:,} more: --json names all")
        if self.beside:
            lines.append(f"  {self.beside:,} documents of another origin stay")
        if self.kept:
            lines.append(
                f"  {self.kept:,} documents are kept: a row without a readable id may belong to "
                "them. Fix these rows, or use --force"
            )
        if self.doubt:
            lines.append(f"  but it needs --force: {self.doubt}")
        return "\n".join(lines)


@dataclass
class AllSourcesReport:
    """The outcome of a sync with all sources.

    Attributes:
        reports: The reports of the synced sources, that of the project's own source first.
        failures: Why sources could not be synced, by their name.
    """

    reports: list[SyncReport] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def require_complete(self) -> None:
        """Raise an error if a source could not be synced.

        Raises:
            FreshetError: The message names each such source with the reason.
        """
        if self.failures:
            reasons = [f"{name}: {reason}" for name, reason in self.failures.items()]
            raise FreshetError(f"not synced: {'; '.join(reasons)}")


@dataclass(frozen=True)
class _IndexedDocuments:
    """The documents of the index before a sync, and the sources that the project follows.

    Attributes:
        hashes: Content hash of each document, by document id.
        origins: Origin of each document, by document id.
        named_sources: Location of each named source, by name.
    """

    hashes: dict[str, str]
    origins: dict[str, str]
    named_sources: dict[str, str]


def sync(
    index: LiveIndex,
    path: str | None = None,
    force: bool = False,
    dry_run: bool = False,
    cwd: Path | None = None,
    publish: Callable[[], int | None] | None = None,
    name: str | None = None,
) -> SyncReport:
    """Make the live index equal to a source.

    If the file or the row of a document cannot be read, the document does not change. If a refused
    row has no readable id, no document is deleted, unless `force` is set.

    Args:
        index: Live index to change.
        path: Path or data set of the source. None means the location of the source `name`, or the
            project's own source.
        force: Whether to delete documents even if many are missing in the source.
        dry_run: Whether to report the changes without making them.
        cwd: Folder that a relative `path` is relative to. None means the working directory.
        publish: Function that applies the changes instead; see `apply_changes`.
        name: Name of the source. If it is None and `path` is not the project's own source, the name
            is derived from the path; see `find_source`.

    Raises:
        FreshetError: If the source cannot be read or named, or so many documents are missing in it
            that `force` is needed. Nothing is changed then.
    """
    project = index.project
    if cwd is None:
        cwd = Path.cwd()
    with file_lock(project.state / "sync.lock", "waiting for another sync of this project"):
        followed = find_source(project, index.settings, path, name, cwd)
        source = open_source(followed.settings, project.root)
        units = list_units(source, followed.settings)
        expiry = None if dry_run else index.remove_expired()
        indexed = _read_index(index, followed)
        memory, contents = _read_source(index, followed, units, indexed)

        plan = plan_sync(contents, indexed.hashes, indexed.origins, followed.label, force)
        report = _make_report(plan, contents, source, followed.name)
        doubt = "" if force else deletion_doubt(plan, contents, followed.label)
        if dry_run:
            report.doubt = doubt
            return report

        # Record the changes, and make them searchable.
        if doubt:
            raise FreshetError(doubt)
        if followed.name is not None:
            named_sources = dict(indexed.named_sources)
            named_sources[followed.name] = followed.location
            write_sources(project, named_sources)
        documents = read_documents(
            units, followed.settings, contents, plan.to_put, followed.name, memory.forgotten
        )
        receipts = _record_changes(index, report, documents, followed.label)
        if expiry is not None:
            receipts.append(expiry)
        apply_changes(index, report, receipts, publish)
        _verify_result(index, expected_hashes(plan, contents, indexed.hashes))

        # The memory is not replaced if documents were kept: it records that they came from this
        # source, and the new contents do not have them.
        if report.kept == 0:
            memory.save()
        _record_sync(project, followed, units, [*report.notes, *_refusal_notes(contents)])
    return report


def sync_all(
    index: LiveIndex,
    force: bool = False,
    dry_run: bool = False,
    publish: Callable[[], int | None] | None = None,
) -> AllSourcesReport:
    """Sync the live index with the project's own source and all named sources.

    If a source cannot be synced, the others are synced nevertheless.

    Args:
        index: Live index to change.
        force: Whether to delete documents even if many are missing in their source.
        dry_run: Whether to report the changes without making them.
        publish: Function that applies the changes instead; see `apply_changes`.
    """
    report = AllSourcesReport()
    for name in (DEFAULT_SOURCE_NAME, *read_sources(index.project)):
        try:
            source_report = sync(index, force=force, dry_run=dry_run, publish=publish, name=name)
            report.reports.append(source_report)
        except FreshetError as error:
            report.failures[name] = str(error)
    return report


def synced_source_file(project: Project) -> Path:
    """Return the file with the content hash of the project's own source at the last sync.

    If the source still has this hash, a build accepts it without another `freshet ingest`.
    """
    return project.state / "sync" / "source.json"


def _read_index(index: LiveIndex, followed: FollowedSource) -> _IndexedDocuments:
    """Read what the index holds before a sync.

    Raises:
        FreshetError: If the source is new, and the id of another document begins with its name.
    """
    hashes = index.content_hashes()
    named_sources = read_sources(index.project)
    origins = _document_origins(index, hashes, named_sources)
    if followed.name is not None and followed.name not in named_sources:
        _require_unused_prefix(followed, hashes, origins)
    return _IndexedDocuments(hashes, origins, named_sources)


def _read_source(
    index: LiveIndex,
    followed: FollowedSource,
    units: Sequence[SourceUnit],
    indexed: _IndexedDocuments,
) -> tuple[SourceMemory, SourceContents]:
    """Read the units of a source that changed since its last sync.

    Args:
        index: The live index.
        followed: The source.
        units: All units of the source.
        indexed: Documents of the index before the sync.

    Returns:
        The memory of the source, which is not saved yet, and the contents of the source.
    """
    memory_file = memory_path(index.project, followed.label)
    forgotten = index.forgotten_queries()
    memory = SourceMemory(memory_file, followed.label, followed.name, forgotten)
    contents = memory.update(units, followed.settings, indexed.hashes.keys())
    if followed.name is None:
        contents = _refuse_ids_of_named_sources(contents, indexed.named_sources)
    return memory, contents


def _record_sync(
    project: Project,
    followed: FollowedSource,
    units: Sequence[SourceUnit],
    notes: Sequence[ReadingNote],
) -> None:
    """Record what a sync read, for `freshet status` and for builds.

    Args:
        project: The project.
        followed: The source.
        units: All units of the source.
        notes: Statements about files that were refused, not read, or read by a guess.
    """
    replace_source_notes(project, followed.label, notes)
    record_sync_time(project, followed.name)
    if followed.name is None:
        write_json(synced_source_file(project), {"content_hash": _content_hash(units)})


def _content_hash(units: Sequence[SourceUnit]) -> str:
    """Return the content hash of a source, computed like the hash in `corpus.lock.json`."""
    if [unit.name for unit in units] == [WHOLE_SOURCE]:
        return units[0].content_hash
    hashes = {unit.name: unit.content_hash for unit in units}
    content_hash: str = describe_files(hashes)["content_hash"]
    return content_hash


def _refusal_notes(contents: SourceContents) -> list[ReadingNote]:
    """Return a note for `freshet status` about each file that is one document and was refused."""
    notes: list[ReadingNote] = []
    for row in contents.refused:
        if row["row"] is None:
            notes.append(refusal_note(row["file"], row["reason"]))
    return notes


def _document_origins(
    index: LiveIndex, document_ids: Iterable[str], sources: Collection[str]
) -> dict[str, str]:
    """Return the origin of each document, by document id.

    The ledger has the origin of each document with events. For other documents, which are in the
    build, the origin follows from the id.

    Args:
        index: The live index.
        document_ids: Ids of all documents in the index.
        sources: Names of the named sources.
    """
    ledger = index.ledger_if_exists
    origins = {} if ledger is None else ledger.document_sources()
    for document_id in document_ids:
        if document_id not in origins:
            origins[document_id] = source_label(source_of_id(document_id, sources))
    return origins


def _require_unused_prefix(
    followed: FollowedSource, document_ids: Iterable[str], origins: Mapping[str, str]
) -> None:
    """Raise an error if the id of another document begins with the name of a new source.

    Ids that begin with the name of a source belong to it, so the document would count as one of the
    new source.

    Args:
        followed: The new source.
        document_ids: Ids of all documents in the index.
        origins: Origin of each document, by document id.

    Raises:
        FreshetError: If there is such a document.
    """
    for document_id in sorted(document_ids):
        has_prefix = source_of_id(document_id, (str(followed.name),)) is not None
        is_of_other_source = origins[document_id] != followed.label
        if has_prefix and is_of_other_source:
            raise FreshetError(
                f"the document {document_id!r} is of another source, but its id begins with "
                f"'{followed.name}:'; choose another name for the new source: --source NAME"
            )


def _refuse_ids_of_named_sources(
    contents: SourceContents, sources: Collection[str]
) -> SourceContents:
    """Refuse documents of the project's own source whose ids look like those of a named source.

    Args:
        contents: Documents of the project's own source.
        sources: Names of the named sources.

    Returns:
        The contents, with such documents among the refused rows.
    """
    hashes: dict[str, str] = {}
    refused = list(contents.refused)
    for document_id, content_hash in contents.hashes.items():
        source = source_of_id(document_id, sources)
        if source is None:
            hashes[document_id] = content_hash
            continue
        reason = (
            f"bad id: ids that begin with '{source}:' belong to the source {source!r}; rename the "
            f"document, or the source: freshet sources rename {source} NAME"
        )
        refused.append(
            {"file": document_id, "row": None, "document_id": document_id, "reason": reason}
        )
    return replace(contents, hashes=hashes, refused=refused)


def _unread_file_notes(source: Source, source_name: str | None) -> list[ReadingNote]:
    """Return a note for `freshet status` about each file of a source that cannot be read.

    The notes of a named source get the names that its documents have in the index.
    """
    notes = list_unread_files(source)
    if source_name is None:
        return notes
    return name_notes(notes, source_name)


def _make_report(
    plan: SyncPlan, contents: SourceContents, source: Source, source_name: str | None
) -> SyncReport:
    """Return the report about the planned changes of a sync, for the user.

    Args:
        plan: Changes of the sync.
        contents: Documents of the source.
        source: The source. It lists the files that were ignored or cannot be read.
        source_name: Name of the source. None for the project's own source.
    """
    notes = [*contents.notes, *_unread_file_notes(source, source_name)]
    reported_name = DEFAULT_SOURCE_NAME if source_name is None else source_name
    return SyncReport(
        source=reported_name,
        merged=dict(contents.merged),
        added=plan.added,
        updated=plan.updated,
        deleted=plan.deleted,
        unchanged=plan.unchanged,
        rejected=contents.refused,
        notes=notes,
        ignored=describe_ignored_files(source),
        beside=plan.from_other_sources,
        kept=plan.kept,
        expired=len(contents.expired),
    )


def _record_changes(
    index: LiveIndex, report: SyncReport, documents: Sequence[Document], label: str
) -> list[Receipt]:
    """Record the changes of a sync in the ledger, and return the results of recording them.

    Args:
        index: The live index.
        report: Changes of the sync. Its deletions and refused rows are recorded.
        documents: Documents to add or update.
        label: Origin of the changes.
    """
    receipts: list[Receipt] = []
    if documents:
        receipts.append(index.record(documents, label, report.rejections))
    if report.deleted:
        receipts.append(index.remove(report.deleted, label))
    return receipts


def _verify_result(index: LiveIndex, expected: dict[str, str]) -> None:
    """Raise an error unless the index has the expected contents after a sync.

    Args:
        index: The live index.
        expected: Content hash that each document should have, by document id.

    Raises:
        FreshetError: If the contents differ, because the source or the index changed meanwhile.
    """
    wrong = sorted(differing_ids(index.content_hashes(), expected))
    if wrong:
        raise FreshetError(
            f"{len(wrong):,} documents are not as the source has them, {wrong[0]!r} among them: it "
            "changed meanwhile, or another command changed them; run `freshet sync` again"
        )
