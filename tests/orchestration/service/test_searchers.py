"""Guards the exchange of searchers: what is wrong with one retriever is neither hidden by another nor told twice."""

from __future__ import annotations

import logging

from orchestration.service.searchers import Searchers
from tests.orchestration.service.conftest import FakeLive, FakeSearcher


def make(tmp_path, lives):
    for name in lives:
        (tmp_path / name).mkdir()
        (tmp_path / name / "current").write_text("0\n")
    (tmp_path / "current").write_text("good\n")
    return Searchers(tmp_path, 60, lambda live, name: FakeSearcher(lives[name]))


def test_a_failure_stays_told_while_others_go_on(tmp_path, caplog):
    lives = {"bad": FakeLive(), "good": FakeLive()}
    searchers = make(tmp_path, lives)
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
