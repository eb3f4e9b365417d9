"""Guards the exchange of searchers: what is wrong with one retriever is neither hidden by another
nor told twice.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading

import pytest

from model_code.collection.generations.searcher import Searcher
from orchestration.service import searchers as module
from orchestration.service.errors import NotFound
from orchestration.service.searchers import Searchers, SearchPool
from tests.orchestration.service.conftest import FakeLive, FakeSearcher


@pytest.fixture(autouse=True)
def _seldom(monkeypatch):
    monkeypatch.setattr(module, "POLL_SECONDS", 60)


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Gives the searchers of `lives`, by the retriever's name."""

    def of(lives):
        for name in lives:
            (tmp_path / name).mkdir()
            (tmp_path / name / "current").write_text("0\n")
        (tmp_path / "current").write_text("good\n")
        monkeypatch.setattr(Searcher, "open", lambda live, name: FakeSearcher(lives[name], name))
        return Searchers(tmp_path)

    return of


def test_a_failure_stays_told_while_others_go_on(make, caplog):
    lives = {"bad": FakeLive(), "good": FakeLive()}
    searchers = make(lives)
    for name in lives:
        searchers.current(name)
    lives["bad"].broken = True
    for live in lives.values():
        live.change(("c", "cake"))
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            searchers.refresh()
    assert searchers.failure == "bad: generation is damaged"
    assert len(caplog.records) == 1
    assert [searchers.current(name).generation.number for name in lives] == [0, 1]
    lives["bad"].broken = False
    searchers.refresh()
    assert (searchers.failure, searchers.current("bad").generation.number) == (None, 1)


def test_deleted_retriever_is_closed(make, tmp_path):
    searchers = make({"other": FakeLive(), "good": FakeLive()})
    searchers.current("other"), searchers.current("good")
    shutil.rmtree(tmp_path / "other")
    searchers.refresh()
    assert (searchers.failure, list(searchers.opened())) == (None, ["good"])
    with pytest.raises(NotFound, match="retriever 'other' is not live"):
        searchers.current("other")


def test_deleted_default_retriever_still_answers(make, tmp_path):
    lives = {"good": FakeLive()}
    searchers = make(lives)
    searchers.current()
    shutil.rmtree(tmp_path / "good")
    lives["good"].change()
    lives["good"].broken = True
    searchers.refresh()
    assert searchers.current().generation.number == 0
    assert searchers.failure is not None


def test_newest_generation_is_named_once_open(make):
    lives = {"good": FakeLive()}
    searchers = make(lives)
    assert searchers.newest() == ("good", 0)
    lives["good"].change(("c", "cake"))
    lives["good"].broken = True
    assert searchers.newest() == ("good", None)
    lives["good"].broken = False
    assert searchers.newest() == ("good", 1)


@pytest.fixture
def pool(monkeypatch):
    """Of one thread."""
    monkeypatch.setattr(module, "SEARCH_THREADS", 1)
    return SearchPool()


def asked_behind(pool, *asked):
    """What each of `asked` (kind, texts) gets, all of which wait behind a search; and what was
    searched together.
    """
    begun, go_on, together = threading.Event(), threading.Event(), []

    def search(texts):
        together.append(texts)
        if "bad" in texts:
            raise ZeroDivisionError
        return [text.upper() for text in texts]

    def first():
        begun.set()
        assert go_on.wait(30)

    async def ask():
        running = [asyncio.create_task(pool.run(first))]
        while not begun.is_set():
            await asyncio.sleep(0.01)
        waiting = [asyncio.create_task(pool.search(kind, texts, search)) for kind, texts in asked]
        await asyncio.sleep(0)  # all of them are in line
        go_on.set()
        return await asyncio.gather(*waiting, *running, return_exceptions=True)

    return asyncio.run(ask())[:-1], together


def test_waiting_searches_of_one_kind_run_together(pool):
    answers, together = asked_behind(
        pool, ("k=1", ["a"]), ("k=2", ["b"]), ("k=1", ["c", "d"]), ("k=1", ["e"])
    )
    assert answers == [["A"], ["B"], ["C", "D"], ["E"]]
    assert together == [["a", "c", "d", "e"], ["b"]]


def test_so_many_are_searched_at_once(pool, monkeypatch):
    monkeypatch.setattr(module, "MAX_GROUP_QUERIES", 3)
    asked = [("k", list(texts)) for texts in ("abcd", "e", "fgh", "ij")]
    answers, together = asked_behind(pool, *asked)
    assert answers == [[text.upper() for text in texts] for _, texts in asked]
    assert ["".join(texts) for texts in together] == ["abcd", "eij", "fgh"]


def test_nobody_suffers_from_anothers_search(pool):
    answers, _ = asked_behind(pool, ("k", ["a"]), ("k", ["bad"]), ("k", ["c"]))
    assert [answers[0], answers[2]] == [["A"], ["C"]]
    assert isinstance(answers[1], ZeroDivisionError)
    assert pool.inside == 0


def test_cancelled_search_does_not_run(pool):
    searched = []

    async def ask():
        gone = asyncio.create_task(pool.search("k", ["gone"], searched.append))
        await asyncio.sleep(0)
        gone.cancel()
        return await pool.search("k", ["here"], lambda texts: searched.extend(texts) or texts)

    begun = threading.Event()
    pool._threads.submit(begun.wait, 30)  # until both are in line
    threading.Timer(0.3, begun.set).start()
    assert asyncio.run(ask()) == ["here"]
    assert searched == ["here"]
    assert pool.inside == 0


def test_close_waits_for_searches_within_limit():
    pool, begun, go_on = SearchPool(), threading.Event(), threading.Event()

    def search():
        begun.set()
        return go_on.wait(30)

    asking = threading.Thread(target=lambda: asyncio.run(pool.run(search)))
    asking.start()
    assert begun.wait(30)
    assert not pool.close(0.05)
    threading.Timer(0.2, go_on.set).start()
    assert pool.close(10)
    asking.join(30)
