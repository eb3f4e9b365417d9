"""Shadow mode: it counts, waits for nobody, stores no text, and survives what may be missing."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from model_code.errors import FreshetError
from orchestration.registry.shadow_record import FOLDER, load_record
from orchestration.service import shadow
from orchestration.service.shadow import (
    Challenger,
    Comparison,
    ShadowJob,
    ShadowThread,
    compare_ranks,
)
from tests.orchestration.service.conftest import until

QUERY = "who is Jane Doe"
CHAMPION = ["a", "b", "c", "new"]
CHALLENGER = ["b", "a", "gone", "d"]


class Rankings:
    """A retriever that gives the same ranking to every query."""

    def __init__(self, *ids: str) -> None:
        self.ids = ids
        self.texts: list[str] = []

    def search(self, texts, depth):
        self.texts.extend(texts)
        return [[(name, 1.0) for name in self.ids[:depth]] for _ in texts]


class StandInSearcher:
    """The champion's searcher, which knows four live documents and one new one."""

    def __init__(self, fingerprint: str = "f1") -> None:
        self.plain_retriever = Rankings(*CHAMPION)
        self.views = [{"a", "b", "c", "d"}, {"new"}]
        self.generation = SimpleNamespace(
            retriever="untrained", fingerprint=fingerprint, tuned=None
        )


class Registry:
    """The challenger in MLflow, as the service finds it."""

    def __init__(self) -> None:
        self.version: str | None = "4"
        self.looks: list[str] = []
        self.error = ""

    def find(self, project, opened):
        self.looks.append(opened)
        if self.error:
            raise FreshetError(self.error)
        if self.version is None:
            return None
        files = None if opened == self.version else "files"
        return {"version": self.version, "retriever": "fused", "files": files}


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def searcher() -> StandInSearcher:
    return StandInSearcher()


@pytest.fixture
def opened() -> list[Challenger]:
    return []


@pytest.fixture
def thread(project, registry, searcher, opened, monkeypatch) -> ShadowThread:
    """A thread that is not started; a test processes its jobs."""
    monkeypatch.setattr(shadow, "CHALLENGER_SECONDS", 0.0)
    monkeypatch.setattr(shadow, "SAVE_SECONDS", 0.0)

    def open_files(version: str, retriever: str, files: Path) -> Challenger:
        assert files == Path("files")
        ids = frozenset({"a", "b", "c", "d", "gone"})
        challenger = Challenger(version, retriever, Rankings(*CHALLENGER).search, ids)
        opened.append(challenger)
        return challenger

    return ShadowThread(project, 1.0, lambda: searcher, lambda: False, registry.find, open_files)


def compare(thread: ShadowThread, text: str = QUERY) -> None:
    thread.process(ShadowJob(text))


def rate(thread: ShadowThread, document_id: str, verdict: str = "up") -> None:
    thread.process(ShadowJob(QUERY, document_id, verdict))


def counts(thread: ShadowThread) -> tuple[int, int, int]:
    return thread.record.wins, thread.record.losses, thread.record.ties


def test_only_documents_that_both_know_are_compared(thread):
    compare(thread)

    # The champion's [a, b, c] and the challenger's [b, a, d] have two documents in common.
    assert thread.record.queries == 1
    assert thread.record.mean_overlap == pytest.approx(2 / 3)
    assert 0 < thread.record.mean_rbo < 1


def test_praise_for_a_document_that_challenger_ranks_higher_is_a_win(thread):
    compare(thread)
    rate(thread, "b")
    rate(thread, "a")

    assert counts(thread) == (1, 1, 0)


def test_later_opinion_replaces_the_earlier_one(thread):
    compare(thread)
    rate(thread, "b")
    rate(thread, "b", "down")

    assert counts(thread) == (0, 1, 0)


def test_feedback_on_other_queries_and_documents_does_not_count(thread):
    compare(thread, "something else")
    rate(thread, "b")
    compare(thread)
    rate(thread, "unknown")

    assert counts(thread) == (0, 0, 0)


@pytest.mark.parametrize(
    ("document_id", "verdict", "outcome"),
    [
        ("only champion", "click", "losses"),
        ("only challenger", "up", "wins"),
        ("both", "up", "ties"),
        ("both", "down", "ties"),
        ("neither", "up", None),
    ],
)
def test_credit_follows_the_ranks(document_id, verdict, outcome):
    comparison = Comparison(["both", "only champion"], ["both", "only challenger"])

    assert compare_ranks(comparison, document_id, verdict) == outcome


def test_counts_survive_a_restart(thread, project, registry, searcher):
    compare(thread)
    thread.stop()

    again = ShadowThread(
        project, 1.0, lambda: searcher, lambda: False, registry.find, thread._open_files
    )
    compare(again)

    assert again.record.queries == 2
    assert load_record(project, "4").queries == 2


def test_last_counts_are_written_without_another_query(thread, project, monkeypatch):
    monkeypatch.setattr(shadow, "STOP_POLL_SECONDS", 0.01)
    monkeypatch.setattr(shadow, "SAVE_SECONDS", 0.2)
    thread.start()

    thread.offer([QUERY])
    thread.offer(["another query"])

    def is_written() -> bool:
        record = load_record(project, "4")
        return record is not None and record.queries == 2

    assert until(is_written)
    thread.stop()


def test_files_hold_no_query(thread, project):
    compare(thread)
    rate(thread, "b")
    thread.stop()

    files = [path for path in (project.state / FOLDER).rglob("*") if path.is_file()]
    assert files
    for path in files:
        text = path.read_text().lower()
        assert "jane" not in text
        assert '"b"' not in text


def test_counts_begin_again_with_another_champion(thread, searcher):
    compare(thread)

    searcher.generation.fingerprint = "f2"
    compare(thread)

    assert thread.record.queries == 1


def test_counts_begin_again_after_a_retune(thread, searcher):
    compare(thread)

    searcher.generation.tuned = 3
    compare(thread)

    assert thread.record.queries == 1


def test_missing_challenger_is_no_failure(thread, registry, opened):
    registry.version = None

    compare(thread)
    assert thread.record is None
    assert thread.failure is None

    registry.version = "4"
    compare(thread)
    compare(thread)
    assert thread.record.queries == 2
    assert len(opened) == 1
    assert registry.looks == ["", "", "4"]


def test_promoted_challenger_is_closed(thread, registry, project):
    compare(thread)
    registry.version = None
    compare(thread)

    assert thread.record is None
    assert load_record(project, "4").queries == 1


def test_failure_is_reported_and_the_next_query_is_tried(thread, registry):
    registry.error = "the store does not answer"
    compare(thread)
    assert thread.failure == "the store does not answer"

    registry.error = ""
    compare(thread)
    assert thread.failure is None
    assert thread.record.queries == 1


def test_full_disk_does_not_end_the_thread(thread, monkeypatch):
    def fail(project, record):
        raise OSError("no space left on device")

    compare(thread)
    monkeypatch.setattr(shadow, "save_record", fail)
    monkeypatch.setattr(shadow, "SAVE_SECONDS", 0.0)
    thread._is_saved = False
    thread.start()
    try:
        assert until(lambda: thread.failure == "no space left on device")
        assert thread._thread.is_alive()
        monkeypatch.undo()
    finally:
        thread.stop()


def test_query_is_dropped_while_searches_run(thread, monkeypatch):
    compare(thread)
    monkeypatch.setattr(shadow, "MAX_IDLE_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(thread, "_is_busy", lambda: True)

    compare(thread)

    assert thread.record.queries == 1
    assert thread.record.dropped == 1
    assert thread.dropped == 1


def test_full_queue_drops_and_never_waits(thread):
    thread.offer(["text"] * (shadow.MAX_WAITING + 3))

    assert thread.dropped == 3


def test_share_of_zero_takes_no_query(thread):
    thread.share = 0.0

    thread.offer(["text"] * (shadow.MAX_WAITING + 3))

    assert thread.dropped == 0


def use_shadow_mode(project, monkeypatch) -> list[ShadowJob]:
    """Switch shadow mode on, and return the jobs that a service's thread takes."""
    jobs: list[ShadowJob] = []
    project.params_file.write_text("{retrievers: {hce: {}}, live: {shadow_share: 1.0}}")
    monkeypatch.setattr(ShadowThread, "process", lambda self, job: jobs.append(job))
    return jobs


def test_service_offers_queries_after_the_answer(serve, project, monkeypatch):
    jobs = use_shadow_mode(project, monkeypatch)
    client = serve()

    client.post("/search", json={"text": "apple"})
    client.post("/search/batch", json={"texts": ["bread", "tea"]})
    client.get("/search", params={"text": "cake"})

    assert until(lambda: len(jobs) == 4)
    assert {job.text for job in jobs} == {"apple", "bread", "tea", "cake"}


def test_restricted_searches_are_left_out(serve, project, monkeypatch):
    jobs = use_shadow_mode(project, monkeypatch)
    client = serve()

    client.post("/search", json={"text": "apple", "offset": 1})
    client.post("/search", json={"text": "apple", "sort": ["-date"]})
    client.post("/search", json={"text": 'apple -"river bank"'})
    client.post("/search", json={"text": "last"})

    assert until(lambda: jobs)
    assert [job.text for job in jobs] == ["last"]


def test_slow_challenger_does_not_delay_an_answer(serve, project, monkeypatch):
    use_shadow_mode(project, monkeypatch)
    can_end = threading.Event()
    monkeypatch.setattr(ShadowThread, "process", lambda self, job: can_end.wait(30))
    client = serve()

    for _ in range(shadow.MAX_WAITING + 5):
        assert client.post("/search", json={"text": "apple"}).status_code == 200
    state = client.get("/status").json()["shadow"]
    can_end.set()

    assert state["dropped"] > 0
    assert state["share"] == 1.0
    assert state["finding"] is None


def test_shadow_mode_is_off_by_default(serve):
    client = serve()

    assert client.app.state.service.shadow_thread is None
    assert client.get("/status").json()["shadow"] is None
    assert "freshet_shadow" not in client.get("/metrics").text


def test_metrics_tell_what_was_compared(thread):
    compare(thread)

    values = {gauge.name: gauge.samples[0].value for gauge in thread.gauges()}

    assert values["freshet_shadow_queries"] == 1
    assert values["freshet_shadow_overlap"] == pytest.approx(2 / 3)
    assert values["freshet_shadow_failing"] == 0
