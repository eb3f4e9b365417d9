"""Report how fresh a live collection is, as plain values and as text.

Reading the status never creates a ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from model_code.collection.generations.generation_store import (
    GenerationStore,
    default_retriever,
    retrievers,
)
from model_code.collection.generations.refinements import summarize_refinements
from model_code.collection.index.project_ledger import (
    open_ledger_if_exists,
    open_matching_ledger,
)
from model_code.collection.ledger.events import EventState
from model_code.collection.ledger.ledger import Ledger
from model_code.collection.ledger.states import Event, LedgerView
from model_code.collection.ledger.tasks import EventRange, Task
from model_code.collection.segments.solved import SolvedSummary
from model_code.files import MANIFEST, read_json, write_json
from model_code.project import Project

if TYPE_CHECKING:
    from model_code.collection.generations.searcher import Searcher

# Name of the file in the project's state with the last result of `probe_newest_document`.
CANARY = "canary.json"

# Number of hits among which `probe_newest_document` looks for the document.
PROBE_DEPTH = 10

# Number of events of the newest batch that `probe_newest_document` reads. It takes the first
# document among them that is live.
MAX_PROBED_EVENTS = 20

# Number of characters of the text that are searched if the document has no title.
PROBE_TEXT_LENGTH = 200

# Number of most recent tasks, and of most recent refused rows, in the status.
RECENT_ENTRIES = 5

# Number of most recent drift reports, and of tasks, that `deciding_report` looks at.
MAX_EARLIER_REPORTS = 20

# Decisions of a drift report that request a task. The kind of the task has the same name.
REQUESTING_ACTIONS = ("pilot", "retrain")

# Columns of ledger tables that contain times.
TIME_COLUMNS = ("recorded", "received", "asked", "ended")


def live_status(project: Project, retriever: str) -> dict[str, Any]:
    """Return how up to date the current generation of a retriever is, as plain values.

    A generation is a snapshot of the index, which searches read.

    Args:
        project: The project.
        retriever: Name of the retriever.

    Returns:
        A dict with these keys. Times are texts in ISO 8601, in UTC.

        - "retriever": name of the retriever
        - "generation": number of the current generation
        - "watermark": id of the last ledger event (recorded change) that the generation contains
        - "newest": how a search found one of the newest documents, as `probe_newest_document`
          returns it; None if none was searched for
        - "refined": `SolvedSummary` as a dict; None if no document has a vector that IncDSI solved
          for its queries
        - "ledger": a dict; None if there is no ledger. It has the number of events in each state,
          and the number and age of the events that are not searchable yet. It also has the last
          tasks, the last refused rows, the last drift report, and the last one that asked for a
          training

    Raises:
        FreshetError: If the generation was made from another ledger, or its ledger is missing.
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
    if ledger is not None:
        with ledger:
            status["ledger"] = _ledger_status(ledger, ledger.view_at(generation.cursor))
    return status


def _ledger_status(ledger: Ledger, ledger_view: LedgerView) -> dict[str, Any]:
    """Return the part of the status that comes from the ledger.

    Args:
        ledger: Ledger, opened for the retriever.
        ledger_view: View of the ledger from the retriever's current generation.
    """
    event_counts = {str(state): number for state, number in ledger_view.counts().items()}
    backlog = ledger_view.backlog()
    tasks = [task.as_dict() for task in ledger.tasks.last(ledger.retriever, RECENT_ENTRIES)]
    status: dict[str, Any] = {
        "documents": event_counts,
        "lag": {"pending": backlog.number, "seconds": backlog.seconds},
        "work": _with_iso_times(tasks),
        "drift": None,
        "deciding": None,
        "rejections": _with_iso_times(ledger.recent_rejections(RECENT_ENTRIES)),
    }
    drift_reports = _with_iso_times(ledger.recent_drift_reports(1))
    if drift_reports:
        status["drift"] = drift_reports[0]
    deciding = _find_deciding_report(ledger)
    if deciding is not None:
        status["deciding"] = asdict(deciding)
    return status


@dataclass(frozen=True)
class DecidingReport:
    """The last drift report that requested a pilot or a retrain.

    A drift report compares new documents with old ones. A pilot is a short training on a sample,
    which tells whether a retrain would help.

    Attributes:
        recorded: Time of the report, in ISO 8601.
        action: "pilot" or "retrain".
        reasons: Reasons for it, one sentence each.
        state: State of the requested task. None if the task is not found.
        run_id: Id of the last Dagster run of the task. None if there was no run.
    """

    recorded: str
    action: str
    reasons: tuple[str, ...]
    state: str | None = None
    run_id: str | None = None

    @property
    def text(self) -> str:
        """The decision on one line, and each reason on a further line."""
        headline = f"{self.action}, by the check of {self.recorded[:16]}"
        if self.state is not None:
            headline += f" ({self.state})"
        lines = [headline]
        lines.extend(f"  - {reason}" for reason in self.reasons)
        return "\n".join(lines)


def deciding_report(project: Project) -> DecidingReport | None:
    """Return the last drift report of the default retriever that requested a pilot or a retrain.

    A drift report compares new documents with old ones. A pilot is a short training on a sample.

    It may not be the newest report: a newer one may have had too few documents to decide. The
    user should still see the reason for the task that is open.

    Args:
        project: The project.

    Returns:
        The report. None if no recent report requested a task.
    """
    ledger = _open_ledger_of_default_retriever(project)
    if ledger is None:
        return None
    with ledger:
        return _find_deciding_report(ledger)


def _open_ledger_of_default_retriever(project: Project) -> Ledger | None:
    """Open the ledger as the default retriever sees it; None if nothing is live or recorded."""
    if not retrievers(project.live):
        return None
    return open_ledger_if_exists(project, default_retriever(project.live))


def held_back_step(project: Project) -> str | None:
    """Return the step that the newest drift report calls for and holds back, with the reason.

    A step, such as a retrain, is held back if it may not start now, for example because the gate
    has too few judged queries.

    Args:
        project: The project, whose default retriever is looked at.

    Returns:
        One sentence. None if nothing is held back.
    """
    ledger = _open_ledger_of_default_retriever(project)
    if ledger is None:
        return None
    with ledger:
        reports = ledger.recent_drift_reports(1)
    if not reports:
        return None
    decision = reports[0]["report"].get("decision")
    if decision is None:
        return None
    is_held_back = decision.get("wanted", decision["action"]) != decision["action"]
    if not is_held_back:
        return None
    # The last reason of such a decision says what holds the step back.
    return f"{decision['wanted']} {decision['reasons'][-1]}"


def _find_deciding_report(ledger: Ledger) -> DecidingReport | None:
    """Return the last report of the ledger's retriever that requested a task; None without one."""
    for row in _with_iso_times(ledger.recent_drift_reports(MAX_EARLIER_REPORTS)):
        decision = row["report"].get("decision")
        if decision is None or decision["action"] not in REQUESTING_ACTIONS:
            continue
        event_range = EventRange(row["first_event"], row["last_event"])
        task = _find_requested_task(ledger, decision["action"], event_range)
        report = DecidingReport(row["recorded"], decision["action"], tuple(decision["reasons"]))
        if task is not None:
            report = replace(report, state=str(task.state), run_id=task.run_id)
        return report
    return None


def _find_requested_task(ledger: Ledger, kind: str, event_range: EventRange) -> Task | None:
    """Return the task that a drift report about some events requested.

    Args:
        ledger: Ledger of the report.
        kind: Kind of the task, which is the action that the report decided on.
        event_range: Events that the report is about.

    Returns:
        The task. None if it is not among the most recent tasks.
    """
    for task in ledger.tasks.last(ledger.retriever, MAX_EARLIER_REPORTS):
        if task.kind == kind and task.event_range == event_range:
            return task
    return None


def describe_unmeasured(unmeasured: Iterable[Mapping[str, Any]]) -> str:
    """Return a text that names the drift measures which could not be computed, with the reasons.

    Measures with the same reason are named together.

    Args:
        unmeasured: Entries of a drift report with the keys name, why and scope.

    >>> describe_unmeasured([{"name": "a", "why": "too few", "scope": "batch"}])
    'a: too few'
    """
    names_by_reason: dict[str, list[str]] = {}
    for measure in unmeasured:
        names = names_by_reason.setdefault(measure["why"], [])
        if measure["name"] not in names:
            names.append(measure["name"])
    sentences: list[str] = []
    for reason, names in names_by_reason.items():
        listed = ", ".join(names)
        sentences.append(f"{listed}: {reason}")
    return "; ".join(sentences)


def probe_newest_document(
    project: Project, searcher: Searcher, ledger_view: LedgerView
) -> dict[str, Any] | None:
    """Check that a search finds a document of the newest batch by its title, and save the result.

    A real document is searched. An artificial one would appear in the ledger, in exports and in
    every retrain.

    Args:
        project: The project.
        searcher: Searcher of the generation that added the batch.
        ledger_view: View of the ledger from this generation.

    Returns:
        None if the generation added no document. Otherwise a dict with these keys:

        - "retriever": name of the retriever
        - "document": id of the document
        - "rank": rank of the document from 1, or None if it is not among the first ten hits
        - "lag": seconds from the arrival of the document until it was searchable
    """
    generation = searcher.generation
    provenance = generation.manifest["provenance"]
    if "events" not in provenance:
        return None
    # Ids of the first and the last ledger event that the generation added.
    first, last = provenance["events"]
    last_probed = min(last, first + MAX_PROBED_EVENTS)
    event = _first_live_event(ledger_view.events(first, last_probed))
    if event is None or event.document is None:
        return None

    document = event.document
    query = document.title or document.text[:PROBE_TEXT_LENGTH]
    rank = None
    for hit in searcher.search(query, PROBE_DEPTH):
        if hit.document_id == event.document_id:
            rank = hit.rank
            break

    # The manifest is written last, so its time is when the generation was finished.
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
    """Return the last result of `probe_newest_document`, or None. Any process may have saved it."""
    path = project.state / CANARY
    if not path.is_file():
        return None
    return read_json(path)


def live_status_lines(status: Mapping[str, Any], default: bool = True) -> Iterator[str]:
    """Yield the status as lines of text. Without a ledger, there are no lines.

    Args:
        status: Status from `live_status`.
        default: Whether this is the default retriever. Only the lag is shown for other retrievers.
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
    # These are the documents that arrived since the build, and not all documents.
    arrived = ", ".join(states) or "none"
    yield f"arrived     {arrived} (after event {status['watermark']})"
    yield lag

    newest = status.get("newest")
    if newest:
        yield _newest_line(newest)
    if status.get("refined"):
        yield f"refined     {SolvedSummary(**status['refined']).sentence()}"
    if ledger["drift"]:
        yield from _drift_lines(ledger["drift"]["report"])
        yield from _deciding_lines(ledger)
    else:
        yield "drift       not measured yet: fewer than drift.minimum_batch documents arrived"
    for task in ledger["work"]:
        explanation = task["outcome"] or task["reason"]
        yield f"work        {task['kind']} ({task['state']}): {explanation}"


def _first_live_event(events: Iterable[Event]) -> Event | None:
    """Return the first event whose document is live with the content of the event, or None."""
    for event in events:
        if event.state == EventState.LIVE and event.document is not None:
            return event
    return None


def _with_iso_times(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of ledger tables with their times converted to texts in ISO 8601, in UTC.

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
    """Return a line about the documents that wait to become searchable."""
    if not lag["pending"]:
        return "lag         none waiting"
    age = _format_duration(lag["seconds"])
    return f"lag         {lag['pending']:,} waiting, the oldest for {age}"


def _newest_line(newest: Mapping[str, Any]) -> str:
    """Return a line about the result of `probe_newest_document`."""
    result = "not among the first ten by its title"
    if newest["rank"]:
        result = f"at rank {newest['rank']} by its title"
    return (
        f"newest      {newest['document']}: searchable after {newest['lag']:.1f} s, found {result}"
    )


def _drift_lines(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about a drift report, which compares new documents with old ones.

    They name the measures that exceed their thresholds, the measures that were not computed, and
    the decision.

    Args:
        record: Drift report, or a dict with the keys "report" and "decision".
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

    others = []
    for measure in report.get("unmeasured", ()):
        if measure["name"] == "protected_old":
            yield (
                "            whether additions push old documents down was not measured: "
                f"{measure['why']}"
            )
        else:
            others.append(measure)
    if others:
        yield f"            not measurable yet: {describe_unmeasured(others)}"
    decision = record.get("decision")
    if decision:
        yield f"decision    {decision['action']}: {'; '.join(decision['reasons'])}"


def _deciding_lines(ledger: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line about the last report that requested a task, unless it is the newest report.

    Args:
        ledger: Value of the key "ledger" in the status.
    """
    deciding = ledger.get("deciding")
    newest_decision = ledger["drift"]["report"].get("decision") or {}
    newest_requested_task = newest_decision.get("action") in REQUESTING_ACTIONS
    if deciding is not None and not newest_requested_task:
        headline = DecidingReport(**deciding).text.splitlines()[0]
        yield f"earlier     {headline}"


def _format_duration(seconds: float) -> str:
    """Return a duration as text in one unit, such as "2 min".

    >>> _format_duration(30), _format_duration(150), _format_duration(7200)
    ('30 s', '2 min', '2 h')
    >>> _format_duration(172800)
    '2 d'
    """
    for unit_seconds, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        # Below two units, the smaller unit says more: "90 min" instead of "2 h".
        if seconds >= 2 * unit_seconds:
            return f"{seconds / unit_seconds:.0f} {unit}"
    return f"{seconds:.0f} s"
