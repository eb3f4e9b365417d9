"""`freshet sync`: make the index hold what a source holds.

A sync has three steps. `source_contents` reads the source and remembers it, `plan` decides what
changes, and this module records the changes and makes them searchable.

Documents that `freshet add`, the inbox or another source brought stay. A sync deletes only
documents of its own source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from freshet.results import ReadingNote
from model_code.collection.index.changes import CHANGES, ChangeReport, apply_changes
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.reading_notes_file import replace_source_notes
from model_code.collection.ledger.events import Receipt
from model_code.collection.sync.plan import (
    OWN_SOURCE,
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
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.base import describe_files, open_source, resolve_source_kind
from model_code.corpus.sources.folder import list_unread_files
from model_code.errors import FreshetError
from model_code.files import hash_text, write_json
from model_code.project import Project, file_lock
from model_code.text.documents import Document

LISTED_CHANGES = 20
MEMORY_NAME_CHARACTERS = 12


@dataclass
class SyncReport(ChangeReport):
    """Changes of a sync.

    Attributes:
        beside: Number of documents in the index that are of another origin. They stay.
        kept: Number of documents of this source that stay although no row names them, because a
            row without a readable id may be theirs.
    """

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
) -> SyncReport:
    """Make the index hold what a source holds.

    A document whose file or row cannot be read stays as it is. If a refused row has no readable
    id, all documents that no row names stay, unless `force` is set.

    Args:
        index: Live index to change.
        path: Source to follow. By default this is the project's own source.
        force: Delete documents even if much of the source is gone.
        dry_run: Only report the changes.
        cwd: Folder that a relative `path` is resolved against, by default the working directory.
        publish: See `apply_changes`.

    Raises:
        FreshetError: If the source cannot be read, or lacks so many of its documents that `force`
            is needed. Nothing is changed then.
    """
    project = index.project
    own_settings = resolve_source_kind(index.settings, project.root)
    settings = own_settings
    if path is not None:
        settings = _settings_for_path(index, path, cwd or Path.cwd())
    label = _source_label(settings, own_settings, project)

    with file_lock(project.state / "sync.lock", "waiting for another sync of this project"):
        memory = SourceMemory(_memory_path(project, label), label)
        source = open_source(settings, project.root)
        units = list_units(source, settings)
        contents = memory.update(units, settings)

        hashes_before = index.content_hashes()
        ledger = index.ledger_if_exists
        origins = {} if ledger is None else ledger.document_sources()
        plan = plan_sync(contents, hashes_before, origins, label, force)
        notes = [*contents.notes, *list_unread_files(source)]
        report = _make_report(plan, contents, notes)
        if dry_run:
            return report

        if not force:
            require_plausible_deletions(plan, contents)
        documents = read_documents(units, settings, contents, plan.to_put)
        receipts = _record_changes(index, report, documents, label)
        apply_changes(index, report, receipts, publish)
        _verify_result(index, expected_hashes(plan, contents, hashes_before))

        # The memory must not forget that documents which are kept came from this source.
        if not report.kept:
            memory.save()
        replace_source_notes(project, label, [*notes, *_refusal_notes(contents)])
        if label == OWN_SOURCE:
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


def _settings_for_path(index: LiveIndex, path: str, cwd: Path) -> CorpusSettings:
    """Return the settings of another source, which is read by the project's rules."""
    place = cwd / Path(path).expanduser()
    resolved = str(place.resolve()) if place.exists() else path
    settings = index.settings.replace(source="auto", path=resolved)
    return resolve_source_kind(settings, index.project.root)


def _source_label(settings: CorpusSettings, own_settings: CorpusSettings, project: Project) -> str:
    """Return the origin of the source's documents, which names the command that follows it."""
    identity = _source_identity(settings, project)
    if identity == _source_identity(own_settings, project):
        return OWN_SOURCE
    return f"sync {identity}"


def _source_identity(settings: CorpusSettings, project: Project) -> str:
    if settings.source == "hub":
        return f"hub {settings.hub.name}"
    if settings.path:
        return str((project.root / settings.path).resolve())
    return settings.source


def _memory_path(project: Project, label: str) -> Path:
    name = hash_text(label)[:MEMORY_NAME_CHARACTERS]
    return project.state / "sync" / f"{name}.json"


def _make_report(plan: SyncPlan, contents: SourceContents, notes: list[ReadingNote]) -> SyncReport:
    return SyncReport(
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
