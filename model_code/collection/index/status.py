"""How fresh a live collection is, as plain values and as text; reading makes no ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.project_ledger import open_matching_ledger
from model_code.collection.ledger.events import EventState
from model_code.collection.ledger.states import LedgerView
from model_code.files import MANIFEST, read_json, write_json
from model_code.project import Project

# in the project's state; hits among which a new document is looked for
CANARY, DEPTH = "canary.json", 10
TRIED = 20  # events of a batch among which one is looked for whose document is still there
SHOWN = 5  # of each kind of thing that is remembered
TIMES = {"recorded", "received", "asked", "ended"}


def live_status(project: Project, retriever: str) -> dict[str, Any]:
    """The retriever's generation and watermark, and of its ledger: documents by state, lag, work,
    drift.

    Times are texts in ISO 8601, in UTC. `ledger` is None if no document ever arrived; FreshetError
    if it is lost.
    """
    current = GenerationStore(project.live, retriever).current()
    status = {
        "retriever": retriever,
        "generation": current.number,
        "watermark": current.watermark,
        "ledger": None,
    }
    newest = read_canary(project)
    status["newest"] = newest if newest and newest["retriever"] == retriever else None
    ledger = open_matching_ledger(project, current)
    if ledger is None:
        return status
    with ledger:
        ledger_view = ledger.view_at(current.cursor)
        waits = ledger_view.backlog()
        status["ledger"] = {
            "documents": {str(state): number for state, number in ledger_view.counts().items()},
            "lag": {"pending": waits.number, "seconds": waits.seconds},
            "work": _dated(work.as_dict() for work in ledger.tasks.last(retriever, SHOWN)),
            "drift": next(iter(_dated(ledger.recent_drift_reports(1))), None),
            "rejections": _dated(ledger.recent_rejections(SHOWN)),
        }
    return status


def probe_newest_document(
    project: Project, searcher: Searcher, ledger_view: LedgerView
) -> dict[str, Any] | None:
    """How the first document of the newest batch fared, kept for `read_canary`; None where a generation
    brought none.

    lag: seconds from the ledger to searchable. rank: where a search for its own title finds it,
    None if not among the first ten. The canary is a real document: one of our own would be in the
    log, in exports and in every retrain.
    """
    generation = searcher.generation
    if "events" not in generation.manifest["provenance"]:
        return None
    first, last = generation.manifest["provenance"]["events"]
    events = ledger_view.events(first, min(last, first + TRIED))
    event = next(
        (event for event in events if event.state == EventState.LIVE and event.document), None
    )
    if event is None or event.document is None:
        return None
    published = (generation.folder / MANIFEST).stat().st_mtime
    hits = searcher.search(event.document.title or event.document.text[:200], DEPTH)
    rank = next((hit.rank for hit in hits if hit.document_id == event.document_id), None)
    lag = round(max(0.0, published - event.received), 3)
    facts = {
        "retriever": generation.retriever,
        "document": event.document_id,
        "rank": rank,
        "lag": lag,
    }
    write_json(project.state / CANARY, facts)
    return facts


def read_canary(project: Project) -> dict[str, Any] | None:
    """What `probe_newest_document` saw last, in whichever process; None before the first document."""
    path = project.state / CANARY
    return read_json(path) if path.is_file() else None


def _dated(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the ledger with their times in ISO 8601, as all times of `freshet status` are.

    >>> _dated([{"id": 1, "recorded": 0.5}])
    [{'id': 1, 'recorded': '1970-01-01T00:00:00.500000+00:00'}]
    """
    iso = lambda seconds: datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")  # noqa: E731
    return [
        dict(row) | {name: iso(row[name]) for name in TIMES & row.keys() if row[name] is not None}
        for row in rows
    ]


def live_status_lines(status: Mapping[str, Any], default: bool = True) -> Iterator[str]:
    """The status in a few lines; none if no document ever arrived.

    Of a retriever that is not searched by default only how far it is behind.
    """
    ledger = status["ledger"]
    if ledger is None:
        return
    states = [
        f"{number:,} {state.replace('_', ' ')}"
        for state, number in ledger["documents"].items()
        if number
    ]
    if default:
        yield f"documents   {', '.join(states) or 'none arrived'} (after event {status['watermark']})"
    number, seconds = ledger["lag"]["pending"], ledger["lag"]["seconds"]
    yield "lag         " + (
        f"{number:,} waiting, the oldest for {_span(seconds)}" if number else "none waiting"
    )
    if not default:
        return
    if newest := status.get("newest"):
        where = (
            f"at rank {newest['rank']} by its title"
            if newest["rank"]
            else "not among the first ten by its title"
        )
        yield f"newest      {newest['document']}: searchable after {newest['lag']:.1f} s, found {where}"
    if ledger["drift"]:
        yield from _drift_lines(ledger["drift"]["report"])
    for work in ledger["work"]:
        yield f"work        {work['kind']} ({work['state']}): {work['outcome'] or work['reason']}"


def _drift_lines(record: Mapping[str, Any]) -> Iterator[str]:
    """What of the last report is past its threshold, and what it called for."""
    report, decision = record.get("report", record), record.get("decision")
    measures = report.get("measures", ())
    over = [
        f"{measure['name']} {measure['value']:.3g} is past its threshold {measure['threshold']:.3g}"
        for measure in measures
        if measure["tripped"]
    ]
    yield f"drift       {'; '.join(over) or f'none of {len(measures)} measures is past its threshold'}"
    for measure in report.get("unmeasured", ()):
        if measure["name"] == "protected_old":
            yield f"            whether additions push old documents down was not measured: {measure['why']}"
    if decision:
        yield f"decision    {decision['action']}: {'; '.join(decision['reasons'])}"


def _span(seconds: float) -> str:
    """A duration in one unit.

    >>> _span(30), _span(150), _span(7200), _span(172800)
    ('30 s', '2 min', '2 h', '2 d')
    """
    for size, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"
