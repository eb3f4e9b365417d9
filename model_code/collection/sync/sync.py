"""`freshet sync`: make the index hold what a source holds.

A sync has three steps. `source_contents` reads the source and remembers it, `plan` decides what
changes, and this module records the changes and makes them searchable.

Documents that `freshet add`, the inbox or another source brought stay. A sync deletes only
documents of its own source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
    differing_ids,
    expected_hashes,
    plan_sync,
    require_plausible_deletions,
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

LISTED_CHANGES = 20


@dataclass
class SyncReport(ChangeReport):
    """Changes of a sync.

    Attributes:
        source: Name of the source; "default" for the project's own one.
        beside: Number of documents in the index that are of another origin. They stay.
        kept: Number of documents of this source that stay although no row names them, because a
            row without a readable id may be theirs.
    """

    source: str = DEFAULT_SOURCE_NAME
    beside: int = 0
    kept: int = 0

    @property
    def rejections(self) -> list[Rejection]:
        """The refused rows as the ledger names them, each with its file in the reason."""
        rejections: list[Rejection] = []
        for row in self.rejected:
            reason = f"{row['file']}: {row['reason']}"
            rejections.append(Rejection(row["row"] or 1, row["document_id"], reason))
        return rejections

    def __str__(self) -> str:
        """The counts, then the names of the first changes."""
        changes = [
            f"  {change:9} {document_id}"
            for change in CHANGES
            for document_id in getattr(self, change)
        ]
        lines = [super().__str__(), *changes[:LISTED_CHANGES]]
        if self.source != DEFAULT_SOURCE_NAME:
            lines[0] = f"{self.source}: {lines[0]}"
        if len(changes) > LISTED_CHANGES:
            lines.append(f"  and {len(changes) - LISTED_CHANGES:,} more: --json names all")
        if self.beside:
            lines.append(f"  {self.beside:,} documents of another origin stay")
        if self.kept:
            lines.append(
                f"  {self.kept:,} documents stay: no row names them, but one of the rows without "
                "an id may be theirs: mend those, or use --force"
            )
        return "\n".join(lines)


def sync(
    index: LiveIndex,
    path: str | None = None,
    force: bool = False,
    dry_run: bool = False,
    cwd: Path | None = None,
    publish: Callable[[], int | None] | None = None,
    name: str | None = None,
) -> SyncReport:
    """Make the index hold what a source holds.

    A document whose file or row cannot be read stays as it is. If a refused row has no readable
    id, all documents that no row names stay, unless `force` is set.

    Args:
        index: Live index to change.
        path: Source to follow. By default this is the place of the source `name`, or the project's
            own source.
        force: Delete documents even if much of the source is gone.
        dry_run: Only report the changes.
        cwd: Folder that a relative `path` is resolved against, by default the working directory.
        publish: See `apply_changes`.
        name: Name of the source. A source at another place than the project's own one has a name,
            by default one that is made of its path; see `find_source`.

    Raises:
        FreshetError: If the source cannot be read or named, or lacks so many of its documents that
            `force` is needed. Nothing is changed then.
    """
    project = index.project
    with file_lock(project.state / "sync.lock", "waiting for another sync of this project"):
        followed = find_source(project, index.settings, path, name, cwd or Path.cwd())
        source = open_source(followed.settings, project.root)
        units = list_units(source, followed.settings)

        hashes_before = index.content_hashes()
        sources = read_sources(project)
        origins = _document_origins(index, hashes_before, sources)
        if followed.name is not None and followed.name not in sources:
            _require_unused_prefix(followed, hashes_before, origins)

        memory = SourceMemory(memory_path(project, followed.label), followed.label, followed.name)
        contents = memory.update(units, followed.settings, hashes_before.keys())
        if followed.name is None:
            contents = _refuse_ids_of_named_sources(contents, sources)
        plan = plan_sync(contents, hashes_before, origins, followed.label, force)
        notes = [*contents.notes, *_unread_file_notes(source, followed.name)]
        report = _make_report(plan, contents, notes, followed.name)
        report.ignored = describe_ignored_files(source)
        if dry_run:
            return report

        if not force:
            require_plausible_deletions(plan, contents, followed.label)
        if followed.name is not None:
            sources[followed.name] = followed.location
            write_sources(project, sources)
        documents = read_documents(units, followed.settings, contents, plan.to_put, followed.name)
        receipts = _record_changes(index, report, documents, followed.label)
        apply_changes(index, report, receipts, publish)
        _verify_result(index, expected_hashes(plan, contents, hashes_before))

        # The memory must not forget that documents which are kept came from this source.
        if not report.kept:
            memory.save()
        replace_source_notes(project, followed.label, [*notes, *_refusal_notes(contents)])
        record_sync_time(project, followed.name)
        if followed.name is None:
            write_json(synced_source_file(project), {"content_hash": _content_hash(units)})
    return report


def synced_source_file(project: Project) -> Path:
    """Return the file with the hash of the project's source at the last sync.

    A build accepts this state of the source without another `freshet ingest`.
    """
    return project.state / "sync" / "source.json"


def _content_hash(units: Sequence[SourceUnit]) -> str:
    """Return the hash of a source's content as `corpus.lock.json` states it."""
    if [unit.name for unit in units] == [WHOLE_SOURCE]:
        return units[0].content_hash
    hashes = {unit.name: unit.content_hash for unit in units}
    content_hash: str = describe_files(hashes)["content_hash"]
    return content_hash


def _refusal_notes(contents: SourceContents) -> list[ReadingNote]:
    """Return a note for each refused file that is one document."""
    notes: list[ReadingNote] = []
    for row in contents.refused:
        if row["row"] is None:
            notes.append(refusal_note(row["file"], row["reason"]))
    return notes


def _document_origins(
    index: LiveIndex, document_ids: Iterable[str], sources: Collection[str]
) -> dict[str, str]:
    """Return the source that each document last arrived from, by id.

    The ledger does not name built documents. Their ids do.
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
    """Check that no other document has an id that looks like one of a new source.

    Raises:
        FreshetError: If there is one.
    """
    for document_id in sorted(document_ids):
        is_alike = source_of_id(document_id, (str(followed.name),)) is not None
        if is_alike and origins[document_id] != followed.label:
            raise FreshetError(
                f"the document {document_id!r} is of another source, but its id begins with "
                f"'{followed.name}:'; choose another name for the new source: --source NAME"
            )


def _refuse_ids_of_named_sources(
    contents: SourceContents, sources: Collection[str]
) -> SourceContents:
    """Return the contents of the own source without ids that a named source may have."""
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
    notes = list_unread_files(source)
    return notes if source_name is None else name_notes(notes, source_name)


def _make_report(
    plan: SyncPlan, contents: SourceContents, notes: list[ReadingNote], source_name: str | None
) -> SyncReport:
    return SyncReport(
        source=DEFAULT_SOURCE_NAME if source_name is None else source_name,
        merged=dict(contents.merged),
        added=plan.added,
        updated=plan.updated,
        deleted=plan.deleted,
        unchanged=plan.unchanged,
        rejected=contents.refused,
        notes=notes,
        beside=plan.from_other_sources,
        kept=plan.kept,
    )


def _record_changes(
    index: LiveIndex, report: SyncReport, documents: Sequence[Document], label: str
) -> list[Receipt]:
    receipts: list[Receipt] = []
    if documents:
        receipts.append(index.record(documents, label, report.rejections))
    if report.deleted:
        receipts.append(index.remove(report.deleted, label))
    return receipts


def _verify_result(index: LiveIndex, expected: dict[str, str]) -> None:
    """Check that the index holds what it held, with the changes of the source.

    Raises:
        FreshetError: If it does not, because the source or the index changed meanwhile.
    """
    wrong = sorted(differing_ids(index.content_hashes(), expected))
    if wrong:
        raise FreshetError(
            f"{len(wrong):,} documents are not as the source has them, {wrong[0]!r} among them: it "
            "changed meanwhile, or another command changed them; run `freshet sync` again"
        )
