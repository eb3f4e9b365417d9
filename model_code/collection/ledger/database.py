"""The database of the ledger: its tables, how it is opened, and its transactions.

The ledger is append-only: events are added and never changed, except that erasing a document
removes the contents of its events.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
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
from sqlalchemy.dialects import sqlite

from model_code.errors import Damaged, FreshetError

LEDGER_FORMAT = 5

# Seconds that a writer waits for another writer before it gives up.
BUSY_TIMEOUT_SECONDS = 60

# Number of values in one `IN (...)` clause. Old versions of SQLite accept at most 999.
MAX_IN_VALUES = 500

# SQLite locks this byte of the `-shm` file for the connection that writes.
SQLITE_WRITER_BYTE = 120

# Key of the PostgreSQL advisory lock under which the tables are created. They cannot be locked
# themselves, since they do not exist yet.
CREATE_TABLES_LOCK = 0x46726573

# Parts of SQLite's error messages about a damaged file.
SQLITE_DAMAGE_MESSAGES = ("malformed", "not a database", "disk I/O error: short read")

metadata = MetaData()

# SQLite only increments a primary key by itself if its type is INTEGER, which has 64 bits there.
EventId = BigInteger().with_variant(Integer, "sqlite")

# The identity of the ledger and the format of its tables.
log = Table(
    "ledger_version",
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
    # An event id is a position in the ledger, so that no id may ever be used twice.
    sqlite_autoincrement=True,
)
# The value is written into the SQL text, because a partial index is only used for that exact text.
IS_REVERT = events.c.kind == literal_column("'revert'")
IS_REPEATED = events.c.again.is_not(None)
Index("ledger_events_document", events.c.document_id, events.c.id)
Index("ledger_events_revert", events.c.id, sqlite_where=IS_REVERT, postgresql_where=IS_REVERT)
Index("ledger_events_again", events.c.again, sqlite_where=IS_REPEATED, postgresql_where=IS_REPEATED)

# Names of received batches, such as the hash of an inbox file.
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
    # Hash of person, query and document, for which one verdict counts.
    Column("hash", String, primary_key=True),
    Column("who", String, nullable=False),
    Column("query", Text, nullable=False),
    Column("document_id", String, nullable=False),
    Column("verdict", String, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("received", Float(53), nullable=False),
    Column("raised", Boolean, nullable=False),
)

# Hashes of queries that must not be known, because a person asked for it.
forgotten_queries = Table(
    "ledger_forgotten_queries",
    metadata,
    Column("hash", String, primary_key=True),
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
    """A database in which writers take turns.

    Since only one transaction writes at a time, a smaller event id is never committed after a
    larger one.
    """

    def __init__(self, url: str) -> None:
        """Connect to the database at an SQLAlchemy URL, whatever tables it has.

        Args:
            url: SQLAlchemy URL, such as `sqlite:////srv/ledger.sqlite`.

        Raises:
            FreshetError: If the URL is malformed, or needs a driver that is not installed.
        """
        self._file = sqlite_file(url)
        self._engine = _make_engine(_readable_url(url, self._file))
        self._opened_file = None
        if self._file is not None and self._file.exists():
            self._opened_file = self._file.stat()
        # Connections are closed when the caller asks for it, or at the latest with this object.
        self.close = weakref.finalize(self, self._engine.dispose)

        read_options: dict[str, Any] = {}
        if self._engine.dialect.name == "postgresql":
            # Every statement of a transaction sees the same data. SQLite always works like that.
            read_options["isolation_level"] = "REPEATABLE READ"
        self._reading_engine = self._engine.execution_options(**read_options)
        self._writing_engine = self._engine.execution_options(ledger_writes=True)

    def format(self) -> int | None:
        """Return the format number of the ledger's tables, or None if there are none.

        Raises:
            FreshetError: If the database does not answer.
        """
        try:
            with self.read() as connection:
                if not sa.inspect(connection).has_table(log.name):
                    return None
                return connection.scalar(sa.select(log.c.version))
        except sa.exc.OperationalError as error:
            reason = str(error.orig).splitlines()[0]
            raise FreshetError(f"the ledger at {self} cannot be opened: {reason}") from None

    def __str__(self) -> str:
        """Return the URL without its password."""
        return self._engine.url.render_as_string(hide_password=True)

    def read(self) -> AbstractContextManager[sa.Connection]:
        """Begin a transaction that reads one consistent state."""
        return self._reading_engine.begin()

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Begin a transaction that excludes all other writers and is committed as a whole."""
        with self._writing_engine.begin() as connection:
            # On SQLite, `BEGIN IMMEDIATE` already excludes other writers.
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql(f"LOCK TABLE {events.name} IN EXCLUSIVE MODE")
            yield connection

    def vacuum(self) -> None:
        """Rewrite the database, so that no old content of changed rows is left in its files.

        Raises:
            FreshetError: If others read the SQLite file, so that old pages remain in its log.
        """
        if self._engine.dialect.name != "sqlite":
            autocommit = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            with autocommit as connection:
                connection.exec_driver_sql(f"VACUUM FULL {events.name}")
            return

        with closing(self._engine.raw_connection()) as pooled:
            # The driver's own cursor begins no transaction, in which VACUUM would fail.
            cursor = pooled.cursor()
            cursor.execute("VACUUM")
            is_busy = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        if is_busy:
            raise FreshetError(
                "the ledger is being read, so that its former pages are still there: try again"
            )

    def damage(self) -> str | None:
        """Return the first fault that SQLite finds in its file, or None.

        Every page is read. For a database server the result is always None.
        """
        if self._engine.dialect.name != "sqlite":
            return None
        with self.read() as connection:
            result = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar()
        return None if result == "ok" else str(result)

    def is_replaced(self) -> bool:
        """Return whether the SQLite file was deleted or replaced after it was opened.

        Whatever is written through this object would then be lost.
        """
        if self._file is None or self._opened_file is None:
            return False
        return not self._file.exists() or not os.path.samestat(self._file.stat(), self._opened_file)


def open_database(url: str) -> Database:
    """Open the database of a ledger, and create its tables if they are missing.

    Args:
        url: SQLAlchemy URL of the database.

    Raises:
        FreshetError: If the database cannot be opened, or holds a ledger of another format.
    """
    database = open_database_if_exists(url)
    if database is not None:
        return database
    _create_tables(url)
    return open_database(url)


def open_database_if_exists(url: str) -> Database | None:
    """Open the database of a ledger; return None if its tables do not exist.

    Args:
        url: SQLAlchemy URL of the database.

    Raises:
        FreshetError: If the database cannot be opened, or holds a ledger of another format.
    """
    file = sqlite_file(url)
    if file is not None and not file.exists():
        return None
    database = Database(url)
    ledger_format = database.format()
    if ledger_format == LEDGER_FORMAT:
        return database

    database.close()
    if ledger_format is None:
        return None
    raise FreshetError(
        f"the ledger {database} has format {ledger_format}, but this version of Freshet reads "
        f"format {LEDGER_FORMAT}; write all documents to a file with the version of Freshet that "
        "made it: freshet export --all, and read that file into a new project: freshet import"
    )


def _create_tables(url: str) -> None:
    """Create the tables, and the folder of a SQLite file, unless another process did so first."""
    file = sqlite_file(url)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
    database = Database(url)
    # This raises a clear error if the database does not answer.
    database.format()
    with database._writing_engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(CREATE_TABLES_LOCK)))
        metadata.create_all(connection)
        if connection.scalar(sa.select(log.c.version)) is None:
            connection.execute(sa.insert(log).values(version=LEDGER_FORMAT, log=uuid4().hex))
    database.close()


def _readable_url(url: str, file: Path | None) -> str:
    """Return the URL by which this process may read a SQLite file that it may not write.

    A reader of a write-ahead log normally writes into files beside it. Without a log, the file is
    complete and is opened as unchangeable. With a log, its own files are read.
    """
    if file is None or not file.exists():
        return url
    follows_effective_user = os.access in os.supports_effective_ids
    if os.access(file.parent, os.W_OK, effective_ids=follows_effective_user):
        return url
    write_ahead_log = file.with_name(f"{file.name}-wal")
    has_log = write_ahead_log.exists() and write_ahead_log.stat().st_size > 0
    mode = "mode=ro" if has_log else "mode=ro&immutable=1"
    return f"sqlite:///file:{quote(str(file))}?{mode}&uri=true"


def _make_engine(url: str) -> sa.Engine:
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
        sa.event.listen(engine, "handle_error", _explain_sqlite_error)
    return engine


def _explain_sqlite_error(context: sa.engine.ExceptionContext) -> None:
    """Replace SQLite's message about a damaged or locked file by one that says what to do."""
    reason = str(context.original_exception)
    file = str(context.engine.url.database) if context.engine else "the ledger"
    if any(message in reason for message in SQLITE_DAMAGE_MESSAGES):
        raise Damaged(f"{file} is damaged ({reason})", "mend it: freshet repair") from None
    if "readonly database" in reason:
        raise FreshetError(
            f"{file} cannot be written by this user; run the command as the owner of the project"
        ) from None
    if "database is locked" in reason:
        writer = _describe_writer(file)
        raise FreshetError(
            f"{writer} has written to {file} for {BUSY_TIMEOUT_SECONDS} s without an end: wait for "
            "it or end it, then try again"
        ) from None


def _describe_writer(file: str) -> str:
    """Describe the process that writes to a SQLite file, by the list of locks that Linux keeps."""
    # Other systems have no such list, and the process may have ended in the meantime.
    with suppress(OSError):
        inode = Path(f"{file}-shm").stat().st_ino
        lock_ending = f":{inode} {SQLITE_WRITER_BYTE} {SQLITE_WRITER_BYTE}"
        pid = "of no name"
        for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines():
            # An arrow marks a process that waits for the lock.
            if line.endswith(lock_ending) and "->" not in line:
                pid = line.split()[-4]
                break
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        command = " ".join(arguments).strip()
        return f"process {pid} ({command[:100]})"
    return "another process"


def _prepare_sqlite(connection: Any, _: Any) -> None:
    """Set up a new connection.

    With a write-ahead log, readers and the writer do not wait for each other. `synchronous = FULL`
    forces every commit to the disk.
    """
    # The driver would begin a transaction too late and without a lock; see `_begin_sqlite`.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_SECONDS * 1000}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("ledger_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def sqlite_file(url: str | sa.URL) -> Path | None:
    """Return the file of a SQLite URL; None for a database in memory or on a server."""
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        return None
    if parsed.get_backend_name() != "sqlite" or parsed.database in (None, "", ":memory:"):
        return None
    return Path(parsed.database)


def chunks(values: list[Any]) -> Iterator[list[Any]]:
    """Split values into lists that fit into one `IN (...)` clause.

    >>> [len(chunk) for chunk in chunks(list(range(1100)))]
    [500, 500, 100]
    """
    for start in range(0, len(values), MAX_IN_VALUES):
        yield values[start : start + MAX_IN_VALUES]


def upsert(
    connection: sa.Connection,
    table: sa.Table,
    rows: Sequence[Mapping[str, Any]],
    *key: str,
    where: sa.ColumnElement[bool] | None = None,
) -> None:
    """Insert rows, or overwrite the rows that have the same key.

    Args:
        connection: Connection of a writing transaction.
        table: Table to write into.
        rows: Rows with equal columns.
        *key: Names of the columns that identify a row.
        where: Condition under which an existing row is overwritten; None means always.
    """
    if connection.dialect.name == "postgresql":
        # Imported here because it takes a tenth of a second, which a ledger in a file saves.
        from sqlalchemy.dialects import postgresql

        insert = postgresql.insert(table)
    else:
        insert = sqlite.insert(table)
    overwritten = {name: insert.excluded[name] for name in rows[0].keys() - set(key)}
    statement = insert.on_conflict_do_update(index_elements=key, set_=overwritten, where=where)
    connection.execute(statement, rows)
