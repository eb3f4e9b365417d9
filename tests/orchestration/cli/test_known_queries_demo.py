"""Tests of the part of `freshet demo` about known queries."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_code.collection.generations.searcher import Searcher
from model_code.text.words import split_words
from orchestration.cli.known_queries_demo import (
    ASKED_DOCUMENTS,
    find_ranks,
    known_queries_lines,
)
from tests.disk import skip_fsync
from tests.model_code.collection.known_collection import open_known_collection


@pytest.fixture(autouse=True)
def without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_fsync(monkeypatch)


def test_words_are_only_in_queries() -> None:
    for asked in ASKED_DOCUMENTS:
        document = asked.document
        assert asked.word in split_words(" ".join(document.queries).lower())
        assert asked.word not in f"{document.title} {document.text}".lower()


def test_documents_are_found_by_words_of_their_queries(tmp_path: Path) -> None:
    live = open_known_collection(tmp_path)
    searcher = Searcher.open(live)

    ranks = find_ranks(searcher, ASKED_DOCUMENTS, tmp_path / "scratch")

    assert ranks is not None
    assert [found.before for found in ranks] == [None, None, None]
    assert [found.after for found in ranks] == [1, 1, 1]


def test_collection_stays_as_it_is(tmp_path: Path) -> None:
    live = open_known_collection(tmp_path)
    before = sorted(live.rglob("*"))

    lines = list(known_queries_lines(Searcher.open(live), tmp_path / "scratch"))

    assert "none -> 1" in lines[2]
    assert len(lines) == 2 + len(ASKED_DOCUMENTS)
    assert sorted(live.rglob("*")) == before
    assert list((tmp_path / "scratch").iterdir()) == []


def test_output_says_where_queries_do_not_count(tmp_path: Path) -> None:
    live = open_known_collection(tmp_path, words=None)

    lines = list(known_queries_lines(Searcher.open(live), tmp_path / "scratch"))

    assert lines[0] == "Known queries do not count as words of documents in bm25_known"
