"""Who changed what: the audit log, joined with the ledger and the history of promotions.

The ledger knows the documents of a change, and the history knows the versions of a promotion. The
audit log adds the actor, and changes that neither of them records. Changes of documents without a
line in the audit log are listed with an unknown actor. They come from a process that was killed
before it wrote its line, or from another machine that shares the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from model_code.audit import AuditAction, AuditEntry, AuditLog
from model_code.collection.index.project_ledger import open_ledger_if_exists
from model_code.collection.ledger.events import EventKind
from model_code.collection.ledger.ledger import EventSummary
from model_code.errors import SettingsError
from model_code.project import Project
from orchestration.registry import history

UNKNOWN_ACTOR = "unknown"
# Number of document ids that one line of text shows.
MAX_SHOWN_DOCUMENTS = 3


@dataclass(frozen=True)
class TrailEntry:
    """One change of a project.

    Attributes:
        time: Time of the change, in seconds since 1970.
        actor: Who made the change.
        action: The kind of the change: a value of `AuditAction`, or an action of the history.
        count: Number of documents, opinions, judgements, settings or versions.
        documents: Ids of the documents, as far as the ledger knows them.
        erased: Those of `documents` whose contents were erased.
        source: Origin of the documents, as the ledger records it.
        detail: Further facts, such as the names of settings.
    """

    time: float
    actor: str
    action: str
    count: int
    documents: tuple[str, ...] = ()
    erased: tuple[str, ...] = ()
    source: str = ""
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the entry as values that JSON can hold, with the time in ISO form."""
        values: dict[str, Any] = dict(vars(self))
        values["time"] = self._moment.isoformat(timespec="seconds")
        values["documents"] = list(self.documents)
        values["erased"] = list(self.erased)
        return values

    @property
    def text(self) -> str:
        """The change as one line: time, actor, action, count and documents."""
        shown = []
        for document_id in self.documents[:MAX_SHOWN_DOCUMENTS]:
            mark = " (erased)" if document_id in self.erased else ""
            shown.append(f"{document_id}{mark}")
        if len(self.documents) > MAX_SHOWN_DOCUMENTS:
            shown.append(f"and {len(self.documents) - MAX_SHOWN_DOCUMENTS:,} more")

        description = [self.detail, ", ".join(shown)]
        if self.source:
            description.append(f"from {self.source}")
        what = "; ".join(part for part in description if part)

        # Time, actor, action and count are columns of fixed width.
        columns = f"{self._moment:%Y-%m-%d %H:%M:%S}  {self.actor:12}  {self.action:13}  "
        return f"{columns}{self.count:>6,}  {what}".rstrip()

    @property
    def _moment(self) -> datetime:
        return datetime.fromtimestamp(self.time, UTC)


def read_trail(project: Project) -> list[TrailEntry]:
    """Return all recorded changes of a project, oldest first."""
    ledger = open_ledger_if_exists(project)
    summaries: list[EventSummary] = []
    if ledger is not None:
        with ledger:
            summaries = ledger.event_summaries()

    lines = AuditLog(project.audit).read()
    entries = _promotions(history.read(project))
    entries.extend(_entries_of_lines(lines, summaries))
    entries.extend(_unclaimed_entries(lines, summaries))
    return sorted(entries, key=lambda entry: entry.time)


def filter_trail(
    entries: Iterable[TrailEntry],
    actor: str | None = None,
    action: str | None = None,
    document: str | None = None,
    since: datetime | None = None,
) -> list[TrailEntry]:
    """Return the entries that meet all conditions. A condition that is None is met by all."""
    kept = []
    for entry in entries:
        is_wanted = (
            (actor is None or entry.actor == actor)
            and (action is None or entry.action == action)
            and (document is None or document in entry.documents)
            and (since is None or entry.time >= since.timestamp())
        )
        if is_wanted:
            kept.append(entry)
    return kept


def parse_moment(text: str) -> datetime:
    """Return a date or time in ISO form as a moment. A time without a zone is in UTC.

    Raises:
        SettingsError: If the text is not a date or time.

    >>> parse_moment("2026-11-01").isoformat()
    '2026-11-01T00:00:00+00:00'
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(
            f"{text!r} is no date; write it as 2026-11-01 or 2026-11-01T15:30"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _promotions(lines: Sequence[Mapping[str, Any]]) -> list[TrailEntry]:
    """Return an entry for each promotion, refusal and rollback in the history of promotions."""
    entries = []
    for line in lines:
        moment = datetime.fromisoformat(line["when"])
        before = line["from"] or "none"
        after = line["to"] or "none"
        entries.append(
            TrailEntry(
                time=moment.timestamp(),
                actor=line.get("actor", UNKNOWN_ACTOR),
                action=line["action"],
                count=1,
                detail=f"version {before} -> {after}",
            )
        )
    return entries


def _entries_of_lines(
    lines: Sequence[AuditEntry], summaries: Sequence[EventSummary]
) -> list[TrailEntry]:
    """Return the lines of the audit log with the documents of their events.

    A line of the log names its events in the ledger by ranges of ids.
    """
    by_id = {summary.id: summary for summary in summaries}
    entries = []
    for line in lines:
        found = []
        for first, last in line.events:
            for number in range(first, last + 1):
                if number in by_id:
                    found.append(by_id[number])
        entries.append(_entry(line.time, line.actor, line.action, line.count, found, line.detail))
    return entries


def _unclaimed_entries(
    lines: Sequence[AuditEntry], summaries: Sequence[EventSummary]
) -> list[TrailEntry]:
    """Return entries for changes in the ledger that the audit log does not mention.

    They were made by a process that was killed before it wrote its line, or by another tool. Events
    of one kind that came from one source at one time are one entry.
    """
    claimed: set[int] = set()
    for line in lines:
        # The line of an erasure refers to events of earlier changes, which have their own lines.
        if line.action != AuditAction.ERASE:
            for first, last in line.events:
                claimed.update(range(first, last + 1))

    changes: dict[tuple[str, str, float], list[EventSummary]] = {}
    for summary in summaries:
        if summary.id not in claimed:
            key = (summary.kind, summary.source, summary.received)
            changes.setdefault(key, []).append(summary)
    entries = []
    for (kind, _, received), found in changes.items():
        entries.append(_entry(received, UNKNOWN_ACTOR, kind, len(found), found))
    return entries


def _entry(
    moment: float,
    actor: str,
    action: str,
    count: int,
    summaries: Sequence[EventSummary],
    detail: str = "",
) -> TrailEntry:
    """Return an entry of the audit trail for one change.

    Args:
        moment: Time of the change, in seconds since 1970.
        actor: Who made the change.
        action: Kind of the change.
        count: Number of documents, opinions, judgements, settings or versions.
        summaries: The events of the change in the ledger, which name its documents.
        detail: Further facts, such as the names of settings.
    """
    # A revert takes several documents back, and its event names none of them.
    of_documents = [summary for summary in summaries if summary.kind != EventKind.REVERT]
    documents = dict.fromkeys(summary.document_id for summary in of_documents)
    erased = dict.fromkeys(summary.document_id for summary in of_documents if summary.is_erased)
    source = summaries[0].source if summaries else ""
    return TrailEntry(moment, actor, action, count, tuple(documents), tuple(erased), source, detail)
