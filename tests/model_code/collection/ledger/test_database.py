"""Guards how a ledger is opened: nothing by looking, versions, URLs, write-ahead log, and the
tables on PostgreSQL.
"""

from __future__ import annotations

import gc
import os
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from model_code.collection.ledger import database as schema
from model_code.collection.ledger.database import open_database, open_database_if_exists
from model_code.collection.ledger.events import Feedback, LedgerCursor
from model_code.collection.ledger.ledger import Ledger
from model_code.collection.ledger.migration import migrate
from model_code.collection.ledger.states import REVERTS, _last
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
    with pytest.raises(FreshetError, match=r"is a ledger of version 99, but this Freshet reads 3"):
        open_database(sqlite_url)


@pytest.mark.parametrize("url", ["nonsense", "sqlite", "nosuchbase://x/y"])
def test_a_wrong_url_is_explained(url):
    with pytest.raises(FreshetError, match="the ledger's URL cannot be opened"):
        open_database(url)


def test_commits_go_to_a_write_ahead_log_and_to_the_disk(sqlite_url):
    database = open_database(sqlite_url)
    with database.read() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_a_file_that_got_the_name_since_is_noticed(tmp_path, sqlite_url):
    database = open_database(sqlite_url)
    assert not database.is_replaced()
    (tmp_path / "ledger.sqlite").rename(tmp_path / "moved.sqlite")
    assert database.is_replaced()
    open_database(sqlite_url).close()
    assert database.is_replaced()


def test_forty_looks_leave_no_file_open(sqlite_url):
    Ledger.open(sqlite_url).close()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(40):
        if number % 2:
            with Ledger.open(sqlite_url) as ledger:
                assert ledger.position().event == 0
        else:
            assert Ledger.open(sqlite_url).position().event == 0
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_reader_is_not_held_up_by_a_writer(sqlite_url):
    database = open_database(sqlite_url)
    row = {"kind": "put", "document_id": "a", "content_hash": "", "source": "", "received": 0.0}
    with database.write() as writing:
        writing.execute(sa.insert(schema.events).values(row))
        with database.read() as reading:
            assert reading.scalar(sa.select(sa.func.count()).select_from(schema.events)) == 0


def test_who_keeps_the_ledger_for_too_long_is_named(tmp_path, sqlite_url, monkeypatch):
    monkeypatch.setattr("model_code.collection.ledger.database.BUSY_SECONDS", 0)
    ledger = Ledger.open(sqlite_url)
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(
            FreshetError, match=rf"process {os.getpid()} \(.*ledger.sqlite for 0 s.*wait for it"
        ):
            ledger.remove(["a"], "test")
    assert ledger.remove(["a"], "test").events


def test_the_tables_and_the_longest_question_are_valid_postgresql():
    for table in schema.metadata.sorted_tables:
        assert "CREATE TABLE" in str(
            sa.schema.CreateTable(table).compile(dialect=postgresql.dialect())
        )
    for query in (_last([(0, 2), (5, 9)]).select(), REVERTS):
        assert "FROM ledger_events" in str(query.compile(dialect=postgresql.dialect()))


def test_a_ledger_of_version_2_gets_a_place_for_feedback_and_keeps_the_rest(tmp_path, sqlite_url):
    with Ledger.open(sqlite_url) as ledger:
        ledger.receive([Document("a", "A", "text")], "test")
        identity = ledger.id
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as connection, connection:
        connection.execute("DROP TABLE ledger_feedback")
        connection.execute("UPDATE ledger_version SET version = 2")
    with Ledger.open(
        sqlite_url, migrate=lambda database: migrate(database, None, 0, lambda ids: {})
    ) as ledger:
        assert (ledger.id, ledger.position().event, ledger.feedback()) == (identity, 1, [])
        verdicts = (
            ("ada", "click", 2),
            ("ada", "up", 1),
            ("ada", "click", 3),
            ("bob", "click", 1),
            ("ada", "down", 4),
            ("bob", "click", 2),
        )
        said = [Feedback("q", "a", verdict, rank, who) for who, verdict, rank in verdicts]
        assert [ledger.record_feedback(each, now=i) for i, each in enumerate(said)] == [
            "click",
            "up",
            "up",
            "click",
            "down",
            "click",
        ]
        assert ledger.feedback() == [replace(said[4], received=4), replace(said[5], received=5)]


def test_what_an_earlier_upgrade_appended_counts_as_events_do(sqlite_url):
    """It named no retriever; `undone` was what had been taken back, which its compensations say
    again.
    """
    with Ledger.open(sqlite_url) as ledger:
        ledger.receive([Document("a", "A", "undone")], "test")
        ledger.remove(["a"], "migration")
        facts = {"to": 1, "files": False, "first": 2, "undone": [[0, 1]]}
        row = {
            "kind": "revert",
            "document_id": "",
            "content_hash": "",
            "source": "migration",
            "received": 0.0,
        }
        with ledger._database.write() as connection:
            connection.execute(sa.insert(schema.events).values(row | {"payload": facts}))
        ledger.receive([Document("b", "B", "text")], "test")
        seen = ledger.view_at(LedgerCursor(ledger.position()))
        assert ([each.document_id for each in seen.snapshot()], ledger.last_revert()) == (
            ["b"],
            None,
        )
