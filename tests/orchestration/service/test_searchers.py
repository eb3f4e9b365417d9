"""Test the exchange of searchers, and the pool that groups searches.

A fault of one retriever is not hidden by another one, and is logged once.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from model_code.collection.generations.searcher import Searcher
from orchestration.service import searchers as module
from orchestration.service.errors import NotFound
from orchestration.service.searchers import Searchers, SearchPool
from tests.orchestration.service.conftest import FakeLive, FakeSearcher


@pytest.fixture(autouse=True)
def no_polling(monkeypatch):
    monkeypatch.setattr(module, "POLL_SECONDS", 60)


@pytest.fixture
def lives(tmp_path) -> dict[str, FakeLive]:
    """Return the collections of the default retriever "good" and of "other"."""
    lives = {}
    for name in ("other", "good"):
        lives[name] = FakeLive()
        (tmp_path / name).mkdir()
        (tmp_path / name / "current").write_text("0\n")
    (tmp_path / "current").write_text("good\n")
    return lives


@pytest.fixture
def searchers(lives, tmp_path, monkeypatch) -> Searchers:
    def open_searcher(folder: Path, name: str) -> FakeSearcher:
        return FakeSearcher(lives[name], name)

    monkeypatch.setattr(Searcher, "open", open_searcher)
    return Searchers(tmp_path)


@pytest.fixture
def broken_other(lives, searchers) -> FakeLive:
    """Return the collection of "other", whose new generation cannot be opened."""
    for name in lives:
        searchers.current(name)
        lives[name].change(("c", "cake"))
    lives["other"].is_broken = True
    return lives["other"]


def test_failure_remains_while_others_are_exchanged(searchers, broken_other):
    for _ in range(3):
        searchers.refresh()

    assert searchers.failure == "other: generation is damaged"
    assert searchers.current("other").generation.number == 0
    assert searchers.current("good").generation.number == 1


def test_repeated_failure_is_logged_once(searchers, broken_other, caplog):
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            searchers.refresh()

    assert len(caplog.records) == 1


def test_failure_ends_with_the_next_success(searchers, broken_other):
    searchers.refresh()

    broken_other.is_broken = False
    searchers.refresh()

    assert searchers.failure is None
    assert searchers.current("other").generation.number == 1


def test_deleted_retriever_is_closed(searchers, tmp_path):
    searchers.current("other")
    searchers.current("good")

    shutil.rmtree(tmp_path / "other")
    searchers.refresh()

    assert searchers.failure is None
    assert list(searchers.opened()) == ["good"]
    with pytest.raises(NotFound, match="retriever 'other' is not live"):
        searchers.current("other")


def test_deleted_default_retriever_still_answers(searchers, lives, tmp_path):
    searchers.current()

    shutil.rmtree(tmp_path / "good")
    lives["good"].change()
    lives["good"].is_broken = True
    searchers.refresh()

    assert searchers.current().generation.number == 0
    assert searchers.failure is not None


def test_newest_generation_is_named_once_open(searchers, lives):
    assert searchers.newest() == ("good", 0)

    lives["good"].change(("c", "cake"))
    lives["good"].is_broken = True
    assert searchers.newest() == ("good", None)

    lives["good"].is_broken = False
    assert searchers.newest() == ("good", 1)


@pytest.fixture
def pool(monkeypatch) -> SearchPool:
    """Return a pool of one thread."""
    monkeypatch.setattr(module, "SEARCH_THREADS", 1)
    return SearchPool()


def search_behind_another(pool, *requests):
    """Search while the only thread is busy, so that all requests wait at the same time.

    A search returns its texts in upper case, and fails for "bad".

    Args:
        requests: Kind and texts of each request.

    Returns:
        The answer or error of each request, and the texts of each group that was searched.
    """
    is_busy = threading.Event()
    may_end = threading.Event()
    groups = []

    def search(texts):
        groups.append(texts)
        if "bad" in texts:
            raise ZeroDivisionError
        return [text.upper() for text in texts]

    def keep_busy():
        is_busy.set()
        assert may_end.wait(30)

    async def run_all():
        busy_task = asyncio.create_task(pool.run(keep_busy))
        while not is_busy.is_set():
            await asyncio.sleep(0.01)
        tasks = [asyncio.create_task(pool.search(kind, texts, search)) for kind, texts in requests]
        # Let each task join the queue.
        await asyncio.sleep(0)
        may_end.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        await busy_task
        return answers

    return asyncio.run(run_all()), groups


def test_waiting_searches_of_one_kind_run_together(pool):
    answers, groups = search_behind_another(
        pool, ("k=1", ["a"]), ("k=2", ["b"]), ("k=1", ["c", "d"]), ("k=1", ["e"])
    )

    assert answers == [["A"], ["B"], ["C", "D"], ["E"]]
    assert groups == [["a", "c", "d", "e"], ["b"]]


def test_groups_have_a_limited_size(pool, monkeypatch):
    monkeypatch.setattr(module, "MAX_GROUP_QUERIES", 3)

    answers, groups = search_behind_another(
        pool, ("k", list("abcd")), ("k", ["e"]), ("k", list("fgh")), ("k", list("ij"))
    )

    assert answers == [list("ABCD"), ["E"], list("FGH"), list("IJ")]
    assert groups == [list("abcd"), list("eij"), list("fgh")]


def test_idle_threads_share_waiting_searches():
    pool = SearchPool(threads=2)
    answer_calls = []
    pool._threads = SimpleNamespace(submit=answer_calls.append)
    groups = []

    def search(texts):
        groups.append(texts)
        if len(groups) == 1:
            # The second thread begins while the first one searches.
            answer_calls[1]()
        return texts

    async def search_four():
        tasks = [asyncio.create_task(pool.search("k", [text], search)) for text in "abcd"]
        # Let each task join the queue.
        await asyncio.sleep(0)
        answer_calls[0]()
        await asyncio.gather(*tasks)

    asyncio.run(search_four())

    assert groups == [["a", "b"], ["c", "d"]]


def test_failed_search_does_not_affect_its_group(pool):
    answers, _ = search_behind_another(pool, ("k", ["a"]), ("k", ["bad"]), ("k", ["c"]))

    assert answers[0] == ["A"]
    assert isinstance(answers[1], ZeroDivisionError)
    assert answers[2] == ["C"]
    assert pool.inside == 0


def test_cancelled_search_does_not_run(pool):
    searched_texts = []

    def search(texts):
        searched_texts.extend(texts)
        return texts

    async def cancel_the_first():
        cancelled = asyncio.create_task(pool.search("k", ["cancelled"], search))
        await asyncio.sleep(0)
        cancelled.cancel()
        return await pool.search("k", ["kept"], search)

    # The only thread is busy until both searches are in the queue.
    may_begin = threading.Event()
    pool._threads.submit(may_begin.wait, 30)
    threading.Timer(0.3, may_begin.set).start()

    assert asyncio.run(cancel_the_first()) == ["kept"]
    assert searched_texts == ["kept"]
    assert pool.inside == 0


def test_close_waits_for_searches_within_limit():
    pool = SearchPool()
    has_begun = threading.Event()
    may_end = threading.Event()

    def search():
        has_begun.set()
        return may_end.wait(30)

    def run_search():
        asyncio.run(pool.run(search))

    thread = threading.Thread(target=run_search)
    thread.start()
    assert has_begun.wait(30)

    assert not pool.close(0.05)
    threading.Timer(0.2, may_end.set).start()
    assert pool.close(10)
    thread.join(30)
