"""How fresh a live collection is, as plain values and as text; reading makes no ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from model_code.files import read_json, write_json
from model_code.ledger.events import EventState
from model_code.manifest import MANIFEST
from orchestration.live.ledger import existing_ledger, standing_of
from orchestration.project import Project

if TYPE_CHECKING:
    from model_code.ledger.states import LogView
    from model_code.live.searcher import Searcher

CANARY, DEPTH = "canary.json", 10  # in the project's state; hits among which a new document is looked for
TRIED = 20  # events of a batch among which one is looked for whose document is still there
SHOWN = 5  # of each kind of thing that is remembered
TIMES = {"recorded", "received", "asked", "ended"}


def live_status(project: Project, retriever: str) -> dict[str, Any]:
    """The retriever's generation and watermark, and of its ledger: documents by state, lag, work, drift, runs.

    Times are texts in ISO 8601, in UTC. `ledger` is None if no document ever arrived.
    """
    from model_code.live.collection import Collection

    current = Collection(project.live, retriever).current()
    found = {"retriever": retriever, "generation": current.number, "watermark": current.watermark, "ledger": None}
    newest = canary(project)
    found["newest"] = newest if newest and newest["retriever"] == retriever else None
    ledger = existing_ledger(project, retriever)
    if ledger is None:
        return found
    with ledger:
        seen = ledger.seen_from(standing_of(ledger, current))
        found["ledger"] = {
            "documents": {str(state): number for state, number in seen.counts().items()},
            "lag": seen.lag(),
            "work": _dated(work.as_dict() for work in ledger.work.last(retriever, SHOWN)),
            "drift": next(iter(_dated(ledger.last_drift(1))), None),
            "training_runs": _dated(ledger.training_runs(SHOWN)),
            "rejections": _dated(ledger.last_rejections(SHOWN)),
        }
    return found


def look_for_newest(project: Project, searcher: Searcher, seen: LogView) -> dict[str, Any] | None:
    """How the first document of the newest batch fared, kept for `canary`; None where a generation brought none.

    lag: seconds from the ledger to searchable. rank: where a search for its own title finds it, None if not among the
    first ten. The canary is a real document: one of our own would be in the log, in exports and in every retrain.
    """
    generation = searcher.generation
    if "events" not in generation.manifest["provenance"]:
        return None
    first, last = generation.manifest["provenance"]["events"]
    events = seen.events(range(first, min(last, first + TRIED) + 1))
    event = next((event for event in events if event.state == EventState.LIVE and event.document), None)
    if event is None or event.document is None:
        return None
    published = (generation.folder / MANIFEST).stat().st_mtime
    hits = searcher.search(event.document.title or event.document.text[:200], DEPTH)
    rank = next((hit.rank for hit in hits if hit.document_id == event.document_id), None)
    lag = round(max(0.0, published - event.received), 3)
    found = {"retriever": generation.retriever, "document": event.document_id, "rank": rank, "lag": lag}
    write_json(project.state / CANARY, found)
    return found


def canary(project: Project) -> dict[str, Any] | None:
    """What `look_for_newest` saw last, in whichever process; None before the first document."""
    path = project.state / CANARY
    return read_json(path) if path.is_file() else None


def _dated(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the ledger with their times in ISO 8601, as all times of `freshet status` are.

    >>> _dated([{"id": 1, "recorded": 0.5}])
    [{'id': 1, 'recorded': '1970-01-01T00:00:00.500000+00:00'}]
    """
    return [dict(row) | {name: _iso(row[name]) for name in TIMES & row.keys() if row[name] is not None} for row in rows]


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")


def live_status_lines(status: Mapping[str, Any]) -> Iterator[str]:
    """The status in a few lines; none if no document ever arrived."""
    ledger = status["ledger"]
    if ledger is None:
        return
    states = [f"{number:,} {state.replace('_', ' ')}" for state, number in ledger["documents"].items() if number]
    yield f"documents   {', '.join(states) or 'none arrived'} (after event {status['watermark']})"
    yield f"lag         {_lag_text(ledger['lag'])}"
    if newest := status.get("newest"):
        where = f"at rank {newest['rank']} by its title" if newest["rank"] else "not among the first ten by its title"
        yield f"newest      {newest['document']}: searchable after {newest['lag']:.1f} s, found {where}"
    if ledger["drift"]:
        measures = list(_measures(ledger["drift"]["report"]))
        over = [_drift_text(*measure) for measure in measures if measure[1]["tripped"]]
        yield f"drift       {'; '.join(over) or f'none of {len(measures)} measures is past its threshold'}"
        yield from (f"            {text}" for text in _missing(ledger["drift"]["report"]))
        yield from _decision_lines(ledger["drift"]["report"])
    for work in ledger["work"]:
        yield f"work        {work['kind']} ({work['state']}): {work['outcome'] or work['reason']}"


def _decision_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """What the last report called for."""
    decision = report.get("decision") or {}
    if decision:
        yield f"decision    {decision['action']}: {'; '.join(decision['reasons'])}"


def other_lines(status: Mapping[str, Any]) -> Iterator[str]:
    """The same of a retriever that is not searched by default: only how far it is behind."""
    if status["ledger"] is not None:
        yield f"lag         {_lag_text(status['ledger']['lag'])}"


def _lag_text(lag: Mapping[str, Any]) -> str:
    return f"{lag['pending']:,} waiting, the oldest for {_span(lag['seconds'])}" if lag["pending"] else "none waiting"


def _span(seconds: float) -> str:
    """A duration in one unit.

    >>> _span(30), _span(150), _span(7200)
    ('30 s', '2 min', '2 h')
    """
    for size, name in ((172_800, "d"), (7200, "h"), (120, "min")):
        if seconds >= size:
            return f"{seconds / {'d': 86_400, 'h': 3600, 'min': 60}[name]:.0f} {name}"
    return f"{seconds:.0f} s"


def _measures(report: Any, name: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every object with a value and a threshold in a drift report, by the name that it stands under."""
    if isinstance(report, Mapping):
        if {"value", "threshold"} <= report.keys():
            yield str(report.get("name", name)), report
            return
        for key, part in report.items():
            yield from _measures(part, key)
    elif isinstance(report, list):
        for part in report:
            yield from _measures(part, name)


def _missing(found: Mapping[str, Any]) -> Iterator[str]:
    """Why the last report lacks the loss of protected queries, if it does."""
    for measure in (found.get("report") or {}).get("unmeasured", ()):
        if measure["name"] == "protected_old":
            yield f"whether additions push old documents down was not measured: {measure['why']}"


def _drift_text(name: str, measure: Mapping[str, Any]) -> str:
    value, threshold = (_number(measure[key]) for key in ("value", "threshold"))
    return f"{name} {value} is past its threshold {threshold}"


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
