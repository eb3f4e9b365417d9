"""Guards the migration of projects that version 1 of the ledger made: `version_1.json` holds what
its own code left of random lives with two live retrievers, rollbacks of either, retrains, and
applications that were cut short.

Run: python -m pytest tests/model_code/collection/ledger/test_migration.py
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sqlalchemy as sa

from model_code.collection.ledger import migration
from model_code.collection.ledger.database import Database
from model_code.collection.ledger.events import LedgerCursor
from model_code.collection.ledger.ledger import Ledger, RevertTarget
from model_code.collection.ledger.migration import migrate
from model_code.errors import FreshetError
from model_code.text.documents import Document
from tests.model_code.collection.ledger.lives import events_of, fold

OLD = json.loads(Path(__file__).with_name("version_1.json").read_text(encoding="utf-8"))
LIVES = range(len(OLD["lives"]))


def old_project(url: str, life: dict) -> None:
    """The database as version 1 left it."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in OLD["schema"]:
            connection.exec_driver_sql(
                statement if engine.dialect.name == "sqlite" else for_postgresql(statement)
            )
        for name, rows in life["tables"].items():
            table = sa.Table(name, sa.MetaData(), autoload_with=connection)
            if rows:
                named = [dict(zip(table.c.keys(), row, strict=True)) for row in rows]
                connection.execute(sa.insert(table), named)
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql(
                "SELECT setval('ledger_events_id_seq', (SELECT max(id) FROM ledger_events))"
            )
        connection.exec_driver_sql("INSERT INTO ledger_version VALUES (1)")
    engine.dispose()


def for_postgresql(statement: str) -> str:
    statement = statement.replace(
        "INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT", "BIGSERIAL PRIMARY KEY"
    )
    return statement.replace("FLOAT", "DOUBLE PRECISION")


def documents_of(life: dict, retriever: str, number: str) -> dict[str, str]:
    told = life["live"][retriever]["generations"][number]["documents"]
    return {name: text for name, (text, _) in told.items()}


def held(files: dict):
    return lambda names: {
        n: (files[n][1], Document(n, n, files[n][0])) for n in names if n in files
    }


def migrated(url: str, life: dict) -> Ledger:
    old_project(url, life)
    with pytest.raises(Exception, match="version 1"):
        Ledger.open(url)
    return migrate_at(url, life)


def migrate_at(url: str, life: dict, current: int | None = None) -> Ledger:
    live, database = life["live"]["hce"], Database(url)
    files = live["generations"][str(live["current"])]["documents"]
    try:
        migrate(database, "hce", live["current"] if current is None else current, held(files))
    finally:
        database.close()
    return Ledger.open(url)


@pytest.mark.parametrize("number", LIVES)
def test_every_generation_is_led_to_what_was_in_effect_and_can_be_gone_back_to(sqlite_url, number):
    life = OLD["lives"][number]
    with migrated(sqlite_url, life) as ledger:
        live, cursor = life["live"]["hce"], LedgerCursor(ledger.position(0), replay=True)
        undone = {
            row[1]
            for row in life["tables"]["ledger_outcomes"]
            if row[0] == "hce" and row[2] == "rolled_back"
        }
        every = ledger.view_at(cursor).pending()
        left = [event for event in every.events if event.source != "migration"]
        assert {event.id for event in left} == {
            row[0] for row in life["tables"]["ledger_events"]
        } - undone
        truth = fold(documents_of(life, "hce", str(live["current"])), left)
        for retriever, each in life["live"].items():
            for generation in each["generations"]:
                assert fold(documents_of(life, retriever, generation), every.events) == truth, (
                    retriever,
                    generation,
                )
        current = LedgerCursor(every.position)
        for generation, told in live["generations"].items():
            ledger.revert(
                RevertTarget(
                    "hce",
                    int(generation),
                    cursor,
                    live["current"],
                    current,
                    held(told["documents"]),
                )
            )
            wanted, last = (
                documents_of(life, "hce", generation),
                ledger.latest({e.document_id for e in every.events}),
            )
            said = {name: event.document.text for name, event in last.items() if event.document}
            assert said == {name: text for name, text in wanted.items() if name in last}


def test_both_databases_tell_the_same_and_a_second_time_nothing_happens(url):
    life = OLD["lives"][5]
    with migrated(url, life) as ledger:
        before = [
            (event.id, event.kind, event.document_id, event.content_hash)
            for event in events_of(ledger)
        ]
        last = ledger.latest({event[2] for event in before})
        documents = [event.document for event in last.values() if event.document]
        assert documents
        assert not ledger.receive(documents, "again").events, "hashes are today's"
        identity = ledger.id
    with migrate_at(url, life) as again:
        assert again.id == identity
        assert [(e.id, e.kind, e.document_id, e.content_hash) for e in events_of(again)] == before
        assert again.receive([Document("new", "new", "text")], "test").events[0] > before[-1][0]


def test_the_database_is_copied_and_an_error_leaves_it_as_it_was(tmp_path, sqlite_url, monkeypatch):
    life, url = OLD["lives"][1], sqlite_url
    old_project(url, life)
    with pytest.raises(FreshetError, match="to generation -1 was cut off"):
        migrate_at(url, life, current=-1)
    with monkeypatch.context() as patch:
        patch.setattr(migration, "insert_events", lambda *_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            migrate_at(url, life)
    with Database(url).read() as connection:
        assert connection.scalar(sa.text("SELECT version FROM ledger_version")) == 1
        rows = (
            connection.execute(sa.text("SELECT content_hash FROM ledger_events ORDER BY id"))
            .scalars()
            .all()
        )
    assert rows == [row[3] for row in life["tables"]["ledger_events"]]
    assert (tmp_path / "ledger.sqlite.v1").is_file()
    with migrate_at(url, life) as ledger:
        assert len(ledger.id) == 32
