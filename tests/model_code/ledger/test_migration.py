"""Guards the migration of projects that version 1 of the ledger made: `version_1.json` holds what its own code left of
random lives with two live retrievers, rollbacks of either, retrains, and applications that were cut short.

Run: python -m pytest tests/model_code/ledger/test_migration.py
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import sqlalchemy as sa

from model_code.documents import Document
from model_code.ledger import migration
from model_code.ledger.database import connect
from model_code.ledger.ledger import Ledger
from model_code.ledger.migration import LiveSnapshot, migrate
from model_code.ledger.tables import IS_REVERT, events
from tests.model_code.ledger.lives import fold

OLD = json.loads(Path(__file__).with_name("version_1.json").read_text(encoding="utf-8"))
LIVES = range(len(OLD["lives"]))
NUMBERS = itertools.count()


def old_project(url: str, life: dict) -> None:
    """The database as version 1 left it."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in OLD["schema"]:
            connection.exec_driver_sql(statement if engine.dialect.name == "sqlite" else for_postgresql(statement))
        for name, rows in life["tables"].items():
            table = sa.Table(name, sa.MetaData(), autoload_with=connection)
            if rows:
                named = [dict(zip(table.c.keys(), row, strict=True)) for row in rows]
                connection.execute(sa.insert(table), named)
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("SELECT setval('ledger_events_id_seq', (SELECT max(id) FROM ledger_events))")
        connection.exec_driver_sql("INSERT INTO ledger_version VALUES (1)")
    engine.dispose()


def for_postgresql(statement: str) -> str:
    statement = statement.replace("INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT", "BIGSERIAL PRIMARY KEY")
    return statement.replace("FLOAT", "DOUBLE PRECISION")


def documents_of(life: dict, retriever: str, number: str) -> dict[str, str]:
    told = life["live"][retriever]["generations"][number]["documents"]
    return {name: text for name, (text, _) in told.items()}


def found_in(life: dict) -> LiveSnapshot:
    live = life["live"]["hce"]
    files = live["generations"][str(live["current"])]["documents"]

    def held(names):
        return {name: (files[name][1], Document(name, name, files[name][0])) for name in names if name in files}

    generations = {name: [*map(int, each["generations"])] for name, each in life["live"].items()}
    return LiveSnapshot("hce", live["current"], False, generations, held)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.sqlite"
    return f"postgresql+psycopg://{request.getfixturevalue('postgresql')(f'migration_{next(NUMBERS)}')}"


def migrated(url: str, life: dict) -> Ledger:
    old_project(url, life)
    with pytest.raises(Exception, match="version 1"):
        Ledger.open(url)
    return migrate_at(url, life)


def migrate_at(url: str, life: dict) -> Ledger:
    database = connect(url)
    migrate(database, found_in(life))
    database.close()
    return Ledger.open(url)


@pytest.mark.parametrize("number", LIVES)
def test_every_generation_is_led_to_what_was_in_effect(tmp_path, number):
    life = OLD["lives"][number]
    ledger = migrated(f"sqlite:///{tmp_path}/ledger.sqlite", life)
    live = life["live"]["hce"]
    states = {row[1]: row[2] for row in life["tables"]["ledger_outcomes"] if row[0] == "hce"}
    old = [event for event in ledger.events(range(1, 1000)) if event.source != "migration"]
    truth = fold(documents_of(life, "hce", str(live["current"])), [event for event in old if event.id not in states])
    for retriever, each in life["live"].items():
        for generation in each["generations"]:
            standing = ledger.migrated(retriever, int(generation))
            path = ledger.seen_from(standing).pending()
            assert fold(documents_of(life, retriever, generation), path.events) == truth, (retriever, generation)
            assert ledger.unsound(standing.position) is None
    ledger.close()


@pytest.mark.parametrize("number", LIVES)
def test_the_counts_by_state_are_those_of_before(tmp_path, number):
    life = OLD["lives"][number]
    ledger = migrated(f"sqlite:///{tmp_path}/ledger.sqlite", life)
    live = life["live"]["hce"]
    counts = ledger.seen_from(ledger.migrated("hce", live["current"])).counts()
    before = {state: count for state, count in live["counts"].items() if state != "rejected"}
    assert {str(state): count for state, count in counts.items() if count} == before
    ledger.close()


def test_both_databases_tell_the_same(url):
    life = OLD["lives"][5]
    with migrated(url, life) as ledger:
        before = [(event.id, event.kind, event.document_id, event.mark) for event in ledger.events(range(1, 1000))]
        assert [event.content_hash for event in ledger.events(range(1, 1000)) if event.document] == [
            event.document.content_hash for event in ledger.events(range(1, 1000)) if event.document
        ]
        identity = ledger.id
    with migrate_at(url, life) as again:  # which does nothing
        assert again.id == identity
        assert [(e.id, e.kind, e.document_id, e.mark) for e in again.events(range(1, 1000))] == before
        receipt = again.receive([Document("new", "new", "text")], "test")
        assert receipt.events[0] > before[-1][0]


def test_the_database_is_copied_and_an_error_leaves_it_as_it_was(tmp_path, monkeypatch):
    life, url = OLD["lives"][1], f"sqlite:///{tmp_path}/ledger.sqlite"
    old_project(url, life)
    database = connect(url)

    def fail(connection):
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(migration, "migrate_decisions", fail)
        with pytest.raises(RuntimeError):
            migrate(database, found_in(life))
    with database.read() as connection:
        assert connection.scalar(sa.text("SELECT version FROM ledger_version")) == 1
        rows = connection.execute(sa.text("SELECT content_hash FROM ledger_events ORDER BY id")).scalars().all()
    assert rows == [row[3] for row in life["tables"]["ledger_events"]]
    assert (tmp_path / "ledger.sqlite.v1").is_file()
    migrate(database, found_in(life))
    database.close()
    with Ledger.open(url) as ledger:
        assert len(ledger.id) == 32


def test_a_document_that_is_sent_again_is_no_change(tmp_path):
    life = OLD["lives"][2]
    with migrated(f"sqlite:///{tmp_path}/ledger.sqlite", life) as ledger:
        last = ledger.latest({row[2] for row in life["tables"]["ledger_events"]})
        documents = [event.document for event in last.values() if event.document]
        assert documents
        assert not ledger.receive(documents, "again").events


def test_an_old_generation_can_be_gone_back_to(tmp_path):
    """Its files tell what it held, and the log then says the same of each document."""
    from model_code.ledger.ledger import Target

    for number in LIVES:
        life = OLD["lives"][number]
        folder = tmp_path / str(number)
        folder.mkdir()
        with migrated(f"sqlite:///{folder}/ledger.sqlite", life) as ledger:
            live = life["live"]["hce"]
            for generation, told in live["generations"].items():

                def held(names, files=told["documents"]):
                    return {
                        name: (files[name][1], Document(name, name, files[name][0])) for name in names if name in files
                    }

                standing = ledger.migrated("hce", int(generation))
                current = ledger.migrated("hce", live["current"])
                event = ledger.revert(Target("hce", int(generation), standing, live["current"], current, held))
                with ledger._database.read() as connection:
                    named = connection.scalars(sa.select(events.c.document_id).where(~IS_REVERT).distinct()).all()
                wanted = documents_of(life, "hce", generation)
                upto = [each for each in ledger.events(range(1, event)) if each.document_id in named]
                said = fold({}, upto)
                assert said == {name: text for name, text in wanted.items() if name in named}
