"""The ledger's database: its tables, opening it, and one transaction for each method.

Events are facts: a row is added, and never changed.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    literal_column,
)
from sqlalchemy.dialects import postgresql, sqlite

from model_code.errors import Damaged, FreshetError

BUSY_SECONDS = 60  # how long a writer waits for another one
WRITER_BYTE = 120  # of the file beside a write-ahead log: SQLite locks it for whoever writes
# number of PostgreSQL's lock for whoever makes the tables, which are not there to be locked
FIRST = 0x46726573
# in what SQLite says of a torn file
DAMAGE = ("malformed", "not a database", "disk I/O error: short read")
CHUNK = 500  # values in one IN (...): SQLite once took no more than 999
VERSION = 3
metadata = MetaData()
# of an event; SQLite's integers are of 64 bits anyway
EventId = BigInteger().with_variant(Integer, "sqlite")

log = Table(  # its identity, and the version of its tables
    "ledger_version",  # where an older Freshet looks, which then says that it cannot read this one
    metadata,
    Column("version", Integer, primary_key=True),
    Column("log", String),
)

events = Table(
    "ledger_events",
    metadata,
    Column("id", EventId, primary_key=True),
    Column("kind", String, nullable=False),
    Column("document_id", String, nullable=False),
    Column("content_hash", String, nullable=False),
    Column("payload", JSON(none_as_null=True)),
    Column("source", String, nullable=False),
    Column("received", Float(53), nullable=False),
    Column("again", EventId),
    sqlite_autoincrement=True,  # an id is a position: it must never be given out twice
)
# literally, as the partial index is only used for this text
IS_REVERT = events.c.kind == literal_column("'revert'")
IS_AGAIN = events.c.again.is_not(None)
Index("ledger_events_document", events.c.document_id, events.c.id)
Index("ledger_events_revert", events.c.id, sqlite_where=IS_REVERT, postgresql_where=IS_REVERT)
Index("ledger_events_again", events.c.again, sqlite_where=IS_AGAIN, postgresql_where=IS_AGAIN)

batches = Table(  # files that were received, by name
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
    # of person, query and document, of which one verdict counts
    Column("hash", String, primary_key=True),
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
    Column("first_event", EventId, nullable=False),
    Column("last_event", EventId, nullable=False),
    Column("recorded", Float(53), nullable=False),
    Column("report", JSON, nullable=False),
)


class Database:
    """A SQLAlchemy engine whose writers take turns, so that a smaller event id is never committed
    after a larger.
    """

    def __init__(self, url: str) -> None:
        """Whatever tables are there. FreshetError if it is no URL, or needs a driver."""
        engine = self._engine = _engine(url)
        self._file = sqlite_file(engine.url)
        self._opened = self._file.stat() if self._file is not None and self._file.exists() else None
        self.close = weakref.finalize(self, engine.dispose)  # at the latest with this object
        views = {"isolation_level": "REPEATABLE READ"}  # SQLite's always are
        self._reading = engine.execution_options(
            **views if engine.dialect.name == "postgresql" else {}
        )
        self._writing = engine.execution_options(ledger_writes=True)

    def version(self) -> int | None:
        """The version of the ledger's tables; None if there are none. FreshetError if the database
        does not answer.
        """
        try:
            with self.read() as connection:
                ready = sa.inspect(connection).has_table(log.name)
                return connection.scalar(sa.select(log.c.version)) if ready else None
        except sa.exc.OperationalError as error:
            reason = str(error.orig).splitlines()[0]
            raise FreshetError(f"the ledger at {self} cannot be opened: {reason}") from None

    def __str__(self) -> str:
        """The URL, without a password."""
        return self._engine.url.render_as_string(hide_password=True)

    def read(self) -> AbstractContextManager[sa.Connection]:
        """One consistent view."""
        return self._reading.begin()

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """One transaction that has the ledger to itself: all of it happens, or nothing."""
        with self._writing.begin() as connection:
            # SQLite's `BEGIN IMMEDIATE` does so by itself
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql(f"LOCK TABLE {events.name} IN EXCLUSIVE MODE")
            yield connection

    def forget(self) -> None:
        """Write the database anew, without what rows held before they changed; FreshetError while
        others read it.
        """
        if self._engine.dialect.name != "sqlite":
            with self._engine.connect().execution_options(
                isolation_level="AUTOCOMMIT"
            ) as connection:
                connection.exec_driver_sql(f"VACUUM FULL {events.name}")
            return
        with closing(self._engine.raw_connection()) as pooled:
            cursor = pooled.cursor()  # of the driver, which begins no transaction here
            cursor.execute("VACUUM")
            if cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                raise FreshetError(
                    "the ledger is being read, so that its former pages are still there: try again"
                )

    def damage(self) -> str | None:
        """What SQLite finds wrong with its file; None if nothing. Every page is read. Of a server
        nothing is asked.
        """
        if self._engine.dialect.name != "sqlite":
            return None
        with self.read() as connection:
            result = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar()
        return None if result == "ok" else str(result)

    def is_replaced(self) -> bool:
        """Whether SQLite's file is another one by now, or gone: what is written here would be lost."""
        if self._file is None or self._opened is None:
            return False
        return not self._file.exists() or not os.path.samestat(self._file.stat(), self._opened)


def open_database(url: str, migrate: Callable[[Database], None] | None = None) -> Database:
    """The database at `url`, its tables made if they are missing; FreshetError for one of another
    version.

    migrate: what brings one of an earlier version to that of today.
    """
    database = open_database_if_exists(url, migrate)
    if database is None:
        _create(url)
    return database or open_database(url)


def open_database_if_exists(
    url: str, migrate: Callable[[Database], None] | None = None
) -> Database | None:
    """The same, or None if there are no tables."""
    file = sqlite_file(url)
    if file is not None and not file.exists():
        return None
    database = Database(url)
    version = database.version()
    if migrate is not None and version is not None and version < VERSION:
        migrate(database)
        version = database.version()
    if version == VERSION:
        return database
    database.close()
    if version is not None:
        raise FreshetError(
            f"{database} is a ledger of version {version}, but this Freshet reads {VERSION}; update it"
        )
    return None


def _create(url: str) -> None:
    """Make the tables, and the folder of a file, unless another process did so meanwhile."""
    if (file := sqlite_file(url)) is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
    database = Database(url)
    database.version()  # FreshetError if it does not answer
    with database._writing.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(FIRST)))
        metadata.create_all(connection)
        if connection.scalar(sa.select(log.c.version)) is None:
            connection.execute(sa.insert(log).values(version=VERSION, log=uuid4().hex))
    database.close()


def _engine(url: str) -> sa.Engine:
    try:
        engine = sa.create_engine(url)
    except ModuleNotFoundError as error:
        raise FreshetError(
            f"the ledger's URL needs a driver: {error}; pip install -e '.[postgres]'"
        ) from None
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError) as error:
        raise FreshetError(
            f"the ledger's URL cannot be opened: {error}; write it as sqlite:///live/x.sqlite"
        ) from None
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        sa.event.listen(engine, "handle_error", _tell)
    return engine


def _tell(context: sa.engine.ExceptionContext) -> None:
    """One line in place of what SQLite says of a file that is none of its own, torn, or that
    another one keeps.
    """
    reason = str(context.original_exception)
    file = str(context.engine.url.database) if context.engine else "the ledger"
    if any(sign in reason for sign in DAMAGE):
        raise Damaged(f"{file} is damaged ({reason})", "mend it: freshet repair") from None
    if "database is locked" in reason:
        cause = f"{_holder(file)} has written to {file} for {BUSY_SECONDS} s without an end"
        raise FreshetError(f"{cause}: wait for it or end it, then try again") from None


def _holder(file: str) -> str:
    """Who writes to SQLite's file now, by the lock that Linux lists."""
    with suppress(OSError):  # there is no such list elsewhere, or it has ended meanwhile
        shared = f":{Path(f'{file}-shm').stat().st_ino} {WRITER_BYTE} {WRITER_BYTE}"
        lines = Path("/proc/locks").read_text(encoding="utf-8").splitlines()
        pid = next(
            (line.split()[-4] for line in lines if line.endswith(shared) and "->" not in line),
            "of no name",
        )
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        return f"process {pid} ({' '.join(command).strip()[:100]})"
    return "another process"


def _prepare_sqlite(connection: Any, _: Any) -> None:
    """Write-ahead log, so that readers and the writer do not wait for each other; commits reach the
    disk.
    """
    connection.isolation_level = None  # the driver's own BEGIN comes too late and takes no lock
    for pragma in (
        f"busy_timeout = {BUSY_SECONDS * 1000}",
        "journal_mode = WAL",
        "synchronous = FULL",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("ledger_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def sqlite_file(url: str | sa.URL) -> Path | None:
    """The file of a ledger in SQLite; None for others."""
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        return None
    named = parsed.get_backend_name() == "sqlite" and parsed.database not in (None, "", ":memory:")
    return Path(parsed.database) if named else None


def chunks(values: list[Any]) -> Iterator[list[Any]]:
    """The values in pieces that fit into one IN (...).

    >>> [len(piece) for piece in chunks(list(range(1100)))]
    [500, 500, 100]
    """
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK]


def upsert(
    connection: sa.Connection,
    table: sa.Table,
    rows: Sequence[Mapping[str, Any]],
    *key: str,
    where: sa.ColumnElement[bool] | None = None,
) -> None:
    """Insert rows, or put them in the place of those that have their key; where: only those of
    which this holds.
    """
    insert = {"sqlite": sqlite, "postgresql": postgresql}[connection.dialect.name].insert(table)
    values = {name: insert.excluded[name] for name in rows[0].keys() - set(key)}
    connection.execute(
        insert.on_conflict_do_update(index_elements=key, set_=values, where=where), rows
    )
