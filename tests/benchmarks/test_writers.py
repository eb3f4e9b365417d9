"""Test that `freshet bench writers` counts lost, stale and mixed answers, and measures a service.

Run: python -m pytest tests/benchmarks/test_writers.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import writers
from benchmarks.freshness import MARKERS, SearchLog, documents
from benchmarks.writers import WRITERS, Lane, Log, Trial, rows
from freshet.errors import Unavailable
from tests.benchmarks.rows import COLUMNS
from tests.tiny_encoder import make_tiny_encoder


class FakeService:
    """A service in memory that is searchable at once, with faults that tests switch on.

    Attributes:
        titles: Title of each document.
        kills: How often the service was killed.
        ready_since: Time from which on it runs.
        forgets: Whether an acknowledged write is not made.
        lags: Whether searches show the documents from before the last write.
        failures: Number of requests that are not answered next.
    """

    def __init__(self) -> None:
        self.titles: dict[str, str] = {}
        self.before: dict[str, str] = {}
        self.generation = 0
        self.kills = 0
        self.ready_since = -1.0
        self.forgets = False
        self.lags = False
        self.failures = 0
        self.client: Any = self

    def add(self, rows: list[dict[str, Any]], wait: bool = True) -> SimpleNamespace:
        return self._change({row["_id"]: row["title"] for row in rows}, ())

    def delete(self, document_ids: list[str], wait: bool = True) -> SimpleNamespace:
        return self._change({}, document_ids)

    def search(self, text: str, k: int) -> SimpleNamespace:
        self._answer()
        shown = self.before if self.lags else self.titles
        hits = [SimpleNamespace(document_id=name, title=title) for name, title in shown.items()]
        return SimpleNamespace(hits=hits, generation=self.generation - int(self.lags))

    def documents(self) -> Iterator[SimpleNamespace]:
        for name, title in self.titles.items():
            yield SimpleNamespace(document_id=name, title=title)

    def apply(self) -> None:
        self._answer()

    def _answer(self) -> None:
        if self.failures:
            self.failures -= 1
            raise Unavailable("the service does not answer")

    def _change(self, titles: dict[str, str], removed: Any) -> SimpleNamespace:
        self._answer()
        self.generation += 1
        self.before = dict(self.titles)
        if not self.forgets:
            self.titles.update(titles)
            for name in removed:
                del self.titles[name]
        return SimpleNamespace(generation=self.generation)


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def trial(service: FakeService) -> Trial:
    return Trial(service, ["some text of the base"], readers=1)  # type: ignore[arg-type]


def send_writes(trial: Trial, count: int) -> Log:
    """Let one writer send some writes that wait until they are found."""
    log = Log()
    lane = Lane(1)
    for number in range(count):
        # Even sums of the number and the round wait.
        trial.write(lane, 2 * number * (WRITERS + 1) + 2, 0.0, log)
    return log


def test_each_writer_adds_changes_and_deletes() -> None:
    lane = Lane(3)

    writes = [lane.next_write() for _ in range(4)]

    assert writes[0] == ("writer3.0", "writer3 page 0 version 0")
    assert writes[1] == ("writer3.0", "writer3 page 0 version 1")
    assert writes[2] == ("writer3.0", None)
    assert writes[3][0] == "writer3.1"


def test_writes_are_found(trial: Trial) -> None:
    log = send_writes(trial, 4)

    assert len(log.found) == 4
    assert log.stale == []
    assert trial.lost_documents() == []


def test_forgotten_write_is_lost_and_stale(trial: Trial, service: FakeService) -> None:
    service.forgets = True

    log = send_writes(trial, 1)

    assert trial.lost_documents() == ["writer1.0"]
    assert len(log.stale) == 1


def test_deleted_document_that_is_still_found_is_stale(trial: Trial, service: FakeService) -> None:
    send_writes(trial, 2)
    service.lags = True
    lane = Lane(1)
    lane.writes = 2
    log = Log()

    trial.write(lane, 2, 0.0, log)

    assert len(log.stale) == 1


def test_marked_documents_get_one_title(trial: Trial, service: FakeService) -> None:
    log = Log()

    trial.write_edition(log)

    assert len(service.titles) == MARKERS
    assert log.searches.editions == {1: "edition 1"}


def test_request_is_repeated_after_a_kill(trial: Trial, service: FakeService) -> None:
    service.kills = 1
    service.failures = 2

    log = send_writes(trial, 1)

    assert service.titles == {"writer1.0": "writer1 page 0 version 0"}
    assert log.written == ["writer1.0"]


def test_write_that_was_due_before_a_restart_has_no_time(
    trial: Trial, service: FakeService
) -> None:
    service.ready_since = 1.0

    log = send_writes(trial, 1)

    assert log.written == ["writer1.0"]
    assert log.found == []


def test_service_that_was_not_killed_must_answer(trial: Trial, service: FakeService) -> None:
    service.failures = 1

    with pytest.raises(Unavailable):
        send_writes(trial, 1)


def test_runs_are_combined(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = iter([(0.3, []), (0.1, ["lost.1"]), (0.2, [])])

    def run_once(*arguments: object) -> tuple[Log, Log, list[str]]:
        found, lost = next(runs)
        alone = Log(searches=SearchLog(seconds=[1.0]), seconds=1.0)
        together = Log(found=[found], searches=SearchLog(seconds=[1.5]), seconds=1.0)
        return alone, together, lost

    monkeypatch.setattr(writers, "_run_once", run_once)

    combined = {row["what"].split(": ")[1]: row for row in rows(runs=3)}

    assert combined["found p99 (s)"]["ours"] == pytest.approx(0.2)
    assert combined["search p95, against readers alone (s)"]["ratio"] == 1.5
    assert combined["lost documents, of all writes"]["ours"] == 1


@pytest.mark.full
def test_rows_are_measured_over_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FRESHET_STATE", raising=False)
    texts = [f"{row['title']} {row['text']}" for row in documents("single", 30)]
    base = make_tiny_encoder(tmp_path / "tiny", texts)

    found = rows(passages=300, seconds=5.0, kills=1, base=base)

    assert [list(row) for row in found] == [COLUMNS] * len(found)
    by_name = {row["what"].split(": ")[1]: row for row in found}
    for fault in ("lost documents", "stale answers", "mixed answers"):
        assert by_name[f"{fault}, of all" + " writes" * (fault == "lost documents")]["ours"] == 0
    assert by_name["longest time until a search (s)"]["ours"] > 0
