"""Guards how a ledger is opened: nothing by looking, versions, URLs, write-ahead log, and the
tables on PostgreSQL.
"""

from __future__ import annotations

import gc
import os
import sqlite3
import tracemalloc
from contextlib import closing
from dataclasses import replace

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from model_code.collection.ledger import database as schema
from model_code.collection.ledger import ledger as ledger_module
from model_code.collection.ledger.database import open_database, open_database_if_exists
from model_code.collection.ledger.events import Feedback
from model_code.collection.ledger.ledger import Ledger
from model_code.collection.ledger.states import SELECT_REVERTS, _last_by_document
from model_code.errors import FreshetError
from model_code.text.documents import Document


def test_looking_creates_nothing(tmp_path):
    url = f"sqlite:///{tmp_path}/live/ledger.sqlite"
    assert open_database_if_exists(url) is None
    assert list(tmp_path.iterdir()) == []
    Ledger.open(url).close()
    assert open_database_if_exists(url) is not None


def test_another_version_is_refused(tmp_path, sqlite_url):
    open_database(sqlite_url).close()
    with sqlite3.connect(tmp_path / "ledger.sqlite") as connection:
        connection.execute("UPDATE ledger_version SET version = 99")
    with pytest.raises(FreshetError, match=r"has format 99.*reads format 5;.*freshet export --all"):
        open_database(sqlite_url)


@pytest.mark.parametrize("url", ["nonsense", "sqlite", "nosuchbase://x/y"])
def test_a_wrong_url_is_explained(url):
    with pytest.raises(FreshetError, match="the ledger's URL cannot be opened"):
        open_database(url)


def test_commits_use_write_ahead_log_and_sync(sqlite_url):
    database = open_database(sqlite_url)
    with database.read() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_replaced_database_file_is_detected(tmp_path, sqlite_url):
    database = open_database(sqlite_url)
    assert not database.is_replaced()
    (tmp_path / "ledger.sqlite").rename(tmp_path / "moved.sqlite")
    assert database.is_replaced()
    open_database(sqlite_url).close()
    assert database.is_replaced()


def test_repeated_looks_leave_no_file_open(sqlite_url):
    Ledger.open(sqlite_url).close()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(10):
        if number % 2:
            with Ledger.open(sqlite_url) as ledger:
                assert ledger.position().event == 0
        else:
            assert Ledger.open(sqlite_url).position().event == 0
    assert len(os.listdir("/proc/self/fd")) == before


def test_reader_does_not_wait_for_writer(sqlite_url):
    database = open_database(sqlite_url)
    row = {"kind": "put", "document_id": "a", "content_hash": "", "source": "", "received": 0.0}
    with database.write() as writing:
        writing.execute(sa.insert(schema.events).values(row))
        with database.read() as reading:
            assert reading.scalar(sa.select(sa.func.count()).select_from(schema.events)) == 0


def test_process_that_blocks_ledger_is_named(tmp_path, sqlite_url, monkeypatch):
    monkeypatch.setattr("model_code.collection.ledger.database.BUSY_TIMEOUT_SECONDS", 0)
    ledger = Ledger.open(sqlite_url)
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(
            FreshetError, match=rf"process {os.getpid()} \(.*ledger.sqlite for 0 s.*wait for it"
        ):
            ledger.remove(["a"], "test")
    assert ledger.remove(["a"], "test").events


def test_tables_and_longest_statement_are_valid_postgresql():
    for table in schema.metadata.sorted_tables:
        assert "CREATE TABLE" in str(
            sa.schema.CreateTable(table).compile(dialect=postgresql.dialect())
        )
    for query in (_last_by_document([(0, 2), (5, 9)]).select(), SELECT_REVERTS):
        assert "FROM ledger_events" in str(query.compile(dialect=postgresql.dialect()))


def test_latest_opinion_counts_but_no_click_replaces_thumb(sqlite_url):
    opinions = [
        Feedback("q", "a", verdict, rank, who)
        for who, verdict, rank in (
            ("ada", "click", 2),
            ("ada", "up", 1),
            ("ada", "click", 3),
            ("bob", "click", 1),
            ("ada", "down", 4),
            ("bob", "click", 2),
        )
    ]
    with Ledger.open(sqlite_url) as ledger:
        counting = [
            ledger.record_feedback(opinion, now=time) for time, opinion in enumerate(opinions)
        ]

        assert counting == ["click", "up", "up", "click", "down", "click"]
        assert ledger.feedback() == [
            replace(opinions[4], received=4),
            replace(opinions[5], received=5),
        ]


def test_raised_thumb_does_not_replace_an_earlier_one(sqlite_url):
    up = Feedback("how?", "a", "up", who="ada")
    with Ledger.open(sqlite_url) as ledger:
        ledger.record_feedback(up, now=1)
        assert ledger.record_feedback(replace(up, raised=True), now=2) == "up"
        assert ledger.thumbs() == [replace(up, received=1)]

        ledger.record_feedback(replace(up, verdict="down", raised=True), now=3)
        assert [opinion.verdict for opinion in ledger.thumbs()] == ["down"]


def test_clicks_are_no_thumbs(sqlite_url):
    with Ledger.open(sqlite_url) as ledger:
        for time, verdict in enumerate(("up", "click", "down")):
            ledger.record_feedback(Feedback("how?", f"d{time}", verdict), now=time)

        assert [opinion.verdict for opinion in ledger.thumbs()] == ["up", "down"]


def test_withdrawn_opinion_is_deleted(sqlite_url):
    ada = Feedback("how?", "a", "up", who="ada")
    bob = Feedback("how?", "a", "up", who="bob")
    with Ledger.open(sqlite_url) as ledger:
        ledger.record_feedback(ada, now=1)
        ledger.record_feedback(bob, now=2)

        assert ledger.withdraw_feedback("ada", "how?", "a")
        assert not ledger.withdraw_feedback("ada", "how?", "a")

        assert ledger.feedback() == [replace(bob, received=2)]


def test_query_is_erased_without_reading_the_whole_ledger_at_once(sqlite_url, monkeypatch):
    monkeypatch.setattr(ledger_module, "ERASED_BATCH_ROWS", 5)
    documents = [Document(f"d{number}", "", f"{number}" * 50_000) for number in range(10, 110)]
    documents.append(Document("asked", "", "an answer", queries=("who is jane",)))
    with Ledger.open(sqlite_url) as ledger:
        ledger.receive(documents, "test")
        tracemalloc.start()
        ledger.erase_query("Who is Jane?")
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        assert ledger.latest(["asked"])["asked"].document.queries == ()
    # All texts together have more than ten million characters.
    assert peak_bytes < 5_000_000


@pytest.mark.parametrize("name", ["ledger_events_revert", "ledger_events_again", "work_open"])
def test_indexes_are_partial_on_postgresql(name):
    indexes = {}
    for table in schema.metadata.tables.values():
        for index in table.indexes:
            indexes[index.name] = index

    schema.declare_partial_indexes()

    statement = sa.schema.CreateIndex(indexes[name]).compile(dialect=postgresql.dialect())
    assert " WHERE " in str(statement)
