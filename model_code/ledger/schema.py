"""The ledger's tables. Events are facts and never change; what became of them is told per retriever.

events       what arrived, in order; the id is the watermark
outcomes     state of each settled event in one retriever's live collection; an event without a row is pending
generations  the live generations by number: parent, base and watermark
applied      which generation added which events: what a generation contains is the sum over its ancestors
positions    the generation that each retriever is at
"""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Float, Index, Integer, MetaData, String, Table, Text

VERSION = 1
metadata = MetaData()
Number = BigInteger().with_variant(Integer, "sqlite")  # of an event; SQLite's integers are of 64 bits anyway

versions = Table("ledger_version", metadata, Column("version", Integer, primary_key=True))

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
    sqlite_autoincrement=True,  # an id is a watermark: it must never be given out twice
)
Index("ledger_events_document", events.c.document_id, events.c.id)

outcomes = Table(
    "ledger_outcomes",
    metadata,
    Column("retriever", String, primary_key=True),
    Column("event_id", Number, primary_key=True, autoincrement=False),
    Column("state", String, nullable=False),
    Column("reason", Text),
    Column("generation", Integer, nullable=False),
)
Index("ledger_outcomes_state", outcomes.c.retriever, outcomes.c.state)

generations = Table(
    "ledger_generations",
    metadata,
    Column("retriever", String, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("parent", Integer),
    Column("base", Integer, nullable=False),
    Column("watermark", Number, nullable=False),
)

applied = Table(
    "ledger_applied",
    metadata,
    Column("retriever", String, primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("event_id", Number, primary_key=True, autoincrement=False),
)

positions = Table(
    "ledger_positions",
    metadata,
    Column("retriever", String, primary_key=True),
    Column("generation", Integer, nullable=False),
    Column("base", Integer, nullable=False),
    Column("watermark", Number, nullable=False),
    Column("horizon", Number, nullable=False),
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

batches = Table(
    "ledger_batches",
    metadata,
    Column("batch", String, primary_key=True),
    Column("source", String, nullable=False),
    Column("received", Float(53), nullable=False),
)

training_runs = Table(
    "ledger_training_runs",
    metadata,
    Column("retriever", String, primary_key=True),
    Column("run", String, primary_key=True),
    Column("watermark", Number, nullable=False),
    Column("recorded", Float(53), nullable=False),
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
