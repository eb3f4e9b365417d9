"""How fresh a live collection is, as plain values and as text. Reading never makes a ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.generations.refinements import summarize_refinements
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.project_ledger import open_matching_ledger
from model_code.collection.ledger.events import EventState
from model_code.collection.ledger.states import Event, LedgerView
from model_code.collection.segments.solved import SolvedSummary
from model_code.files import MANIFEST, read_json, write_json
from model_code.project import Project

# File in the project's state with the last result of `probe_newest_document`.
CANARY = "canary.json"

# Number of hits among which a new document is looked for.
PROBE_DEPTH = 10

# Number of a batch's first events among which a document is chosen that is still searchable.
MAX_PROBED_EVENTS = 20

# Number of characters that a probe searches for, if the document has no title.
PROBE_TEXT_LENGTH = 200

# Number of most recent tasks, and of most recent refused rows, in the status.
RECENT_ENTRIES = 5

# Columns of the ledger's rows that hold times.
TIME_COLUMNS = ("recorded", "received", "asked", "ended")


def live_status(project: Project, retriever: str) -> dict[str, Any]:
    """Return the freshness of a retriever as plain values.

    Args:
        project: The project.
        retriever: Name of the retriever.

    Returns:
        The keys "retriever", "generation", "watermark", "newest" (see `probe_newest_document`),
        "refined" (a `SolvedSummary`, or None if no document was refined) and "ledger".
        The ledger's value has the documents by state, the lag, and the last tasks, drift report
        and refused rows. It is None if no document ever arrived. Times are texts in ISO 8601, in
        UTC.

    Raises:
        FreshetError: If the ledger is missing, or another one.
    """
    generation = GenerationStore(project.live, retriever).current()
    status: dict[str, Any] = {
        "retriever": retriever,
        "generation": generation.number,
        "watermark": generation.watermark,
        "ledger": None,
        "newest": None,
        "refined": None,
    }
    refined = summarize_refinements(generation)
    if refined is not None:
        status["refined"] = asdict(refined)
    newest = read_canary(project)
    if newest is not None and newest["retriever"] == retriever:
        status["newest"] = newest

    ledger = open_matching_ledger(project, generation)
    if ledger is None:
        return status
    with ledger:
        ledger_view = ledger.view_at(generation.cursor)
        backlog = ledger_view.backlog()
        drift_reports = _with_iso_times(ledger.recent_drift_reports(1))
        last_drift_report = drift_reports[0] if drift_reports else None
        event_counts = {str(state): number for state, number in ledger_view.counts().items()}
        tasks = [task.as_dict() for task in ledger.tasks.last(retriever, RECENT_ENTRIES)]
        status["ledger"] = {
            "documents": event_counts,
            "lag": {"pending": backlog.number, "seconds": backlog.seconds},
            "work": _with_iso_times(tasks),
            "drift": last_drift_report,
            "rejections": _with_iso_times(ledger.recent_rejections(RECENT_ENTRIES)),
        }
    return status


def probe_newest_document(
    project: Project, searcher: Searcher, ledger_view: LedgerView
) -> dict[str, Any] | None:
    """Search for a document of the newest batch by its title, and save the result.

    The probe uses a real document. An artificial one would appear in the ledger, in exports and in
    every retrain.

    Args:
        project: The project.
        searcher: Searcher of the generation that has the batch.
        ledger_view: The ledger as seen from this generation.

    Returns:
        The retriever, the document's id, its rank from 1 (None if it is not among the first ten
        hits), and its lag: the seconds from its arrival in the ledger until it was searchable.
        None if the generation added no document.
    """
    generation = searcher.generation
    provenance = generation.manifest["provenance"]
    if "events" not in provenance:
        return None
    first, last = provenance["events"]
    event = _first_live_event(ledger_view.events(first, min(last, first + MAX_PROBED_EVENTS)))
    if event is None or event.document is None:
        return None

    document = event.document
    rank = None
    for hit in searcher.search(document.title or document.text[:PROBE_TEXT_LENGTH], PROBE_DEPTH):
        if hit.document_id == event.document_id:
            rank = hit.rank
            break

    published = (generation.folder / MANIFEST).stat().st_mtime
    result = {
        "retriever": generation.retriever,
        "document": event.document_id,
        "rank": rank,
        "lag": round(max(0.0, published - event.received), 3),
    }
    write_json(project.state / CANARY, result)
    return result


def read_canary(project: Project) -> dict[str, Any] | None:
    """Return the last result of `probe_newest_document` in any process, or None."""
    path = project.state / CANARY
    if not path.is_file():
        return None
    return read_json(path)


def live_status_lines(status: Mapping[str, Any], default: bool = True) -> Iterator[str]:
    """Yield the status as lines of text; none if no document ever arrived.

    Args:
        status: Status from `live_status`.
        default: Whether this is the default retriever. For others, only the lag is shown.
    """
    ledger = status["ledger"]
    if ledger is None:
        return
    lag = _lag_line(ledger["lag"])
    if not default:
        yield lag
        return

    states: list[str] = []
    for state, number in ledger["documents"].items():
        if number:
            states.append(f"{number:,} {state.replace('_', ' ')}")
    arrived = ", ".join(states) or "none arrived"
    yield f"documents   {arrived} (after event {status['watermark']})"
    yield lag

    newest = status.get("newest")
    if newest:
        yield _newest_line(newest)
    if status.get("refined"):
        yield f"refined     {SolvedSummary(**status['refined']).sentence()}"
    if ledger["drift"]:
        yield from _drift_lines(ledger["drift"]["report"])
    for task in ledger["work"]:
        yield f"work        {task['kind']} ({task['state']}): {task['outcome'] or task['reason']}"


def _first_live_event(events: Iterable[Event]) -> Event | None:
    """Return the first event whose document is searchable now, or None."""
    for event in events:
        if event.state == EventState.LIVE and event.document is not None:
            return event
    return None


def _with_iso_times(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of the ledger with their times as texts in ISO 8601, in UTC.

    >>> _with_iso_times([{"id": 1, "recorded": 0.5}])
    [{'id': 1, 'recorded': '1970-01-01T00:00:00.500000+00:00'}]
    """
    converted: list[dict[str, Any]] = []
    for row in rows:
        values = dict(row)
        for name in TIME_COLUMNS:
            if values.get(name) is not None:
                time = datetime.fromtimestamp(values[name], UTC)
                values[name] = time.isoformat(timespec="microseconds")
        converted.append(values)
    return converted


def _lag_line(lag: Mapping[str, Any]) -> str:
    if not lag["pending"]:
        return "lag         none waiting"
    age = _format_duration(lag["seconds"])
    return f"lag         {lag['pending']:,} waiting, the oldest for {age}"


def _newest_line(newest: Mapping[str, Any]) -> str:
    place = "not among the first ten by its title"
    if newest["rank"]:
        place = f"at rank {newest['rank']} by its title"
    return (
        f"newest      {newest['document']}: searchable after {newest['lag']:.1f} s, found {place}"
    )


def _drift_lines(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the drift measures that exceed their thresholds, and the decision.

    Args:
        record: Entry of the ledger: a drift report, alone or with the decision about it.
    """
    report = record.get("report", record)
    measures = report.get("measures", ())
    exceeded: list[str] = []
    for measure in measures:
        if measure["tripped"]:
            exceeded.append(
                f"{measure['name']} {measure['value']:.3g} is past its threshold "
                f"{measure['threshold']:.3g}"
            )
    if exceeded:
        yield f"drift       {'; '.join(exceeded)}"
    else:
        yield f"drift       none of {len(measures)} measures is past its threshold"

    for measure in report.get("unmeasured", ()):
        if measure["name"] == "protected_old":
            yield (
                "            whether additions push old documents down was not measured: "
                f"{measure['why']}"
            )
    decision = record.get("decision")
    if decision:
        yield f"decision    {decision['action']}: {'; '.join(decision['reasons'])}"


def _format_duration(seconds: float) -> str:
    """Format a duration in one unit.

    >>> _format_duration(30), _format_duration(150), _format_duration(7200)
    ('30 s', '2 min', '2 h')
    >>> _format_duration(172800)
    '2 d'
    """
    for unit_seconds, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit_seconds:
            return f"{seconds / unit_seconds:.0f} {unit}"
    return f"{seconds:.0f} s"
