"""The tables of a project's log. Events are facts: a row is added, and never changed.

log            the identity of this log, and the version of its tables
events         what arrived, in order; and what a revert appended
batches        files that were received, by name
rejections     rows that were refused
feedback       what people said of documents that a search found, their latest word
"""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Float, Index, Integer, MetaData, String, Table, Text, literal_column

VERSION = 3
metadata = MetaData()
Number = BigInteger().with_variant(Integer, "sqlite")  # of an event; SQLite's integers are of 64 bits anyway

log = Table(
    "ledger_version",  # where an older Freshet looks, which then says that it cannot read this one
    metadata,
    Column("version", Integer, primary_key=True),
    Column("log", String),
)

events = Table(
    "ledger_events",
    metadata,
    Column("id", Number, primary_key=True),
    Column("kind", String, nullable=False),
    Column("document_id", String, nullable=False),
    Column("content_hash", String, nullable=False),
    Column("payload", JSON(none_as_null=True)),
    Column("source", String, nullable=False),
    Column("received", Float(53), nullable=False),
    Column("again", Number),
    sqlite_autoincrement=True,  # an id is a position: it must never be given out twice
)
IS_REVERT = events.c.kind == literal_column("'revert'")  # literally, as the partial index is only used for this text
IS_AGAIN = events.c.again.is_not(None)
Index("ledger_events_document", events.c.document_id, events.c.id)
Index("ledger_events_revert", events.c.id, sqlite_where=IS_REVERT, postgresql_where=IS_REVERT)
Index("ledger_events_again", events.c.again, sqlite_where=IS_AGAIN, postgresql_where=IS_AGAIN)

batches = Table(
    "ledger_batches",
    metadata,
    Column("batch", String, primary_key=True),
    Column("source", String, nullable=False),
    Column("received", Float(53), nullable=False),
)

rejections = Table(
    "ledger_rejections",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("hash", String, nullable=False, unique=True),
    Column("document_id", String),
    Column("row", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("source", String, nullable=False),
    Column("received", Float(53), nullable=False),
)

feedback = Table(
    "ledger_feedback",
    metadata,
    Column("hash", String, primary_key=True),  # of person, query and document, of which one verdict counts
    Column("who", String, nullable=False),
    Column("query", Text, nullable=False),
    Column("document_id", String, nullable=False),
    Column("verdict", String, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("received", Float(53), nullable=False),
)

drift_reports = Table(
    "ledger_drift_reports",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("retriever", String, nullable=False),
    Column("first_event", Number, nullable=False),
    Column("last_event", Number, nullable=False),
    Column("recorded", Float(53), nullable=False),
    Column("report", JSON, nullable=False),
)
