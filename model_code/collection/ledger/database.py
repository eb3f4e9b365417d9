"""The database of the ledger: its tables, how it is opened, and its transactions.

The ledger is append-only: events are added and never changed. There are two exceptions. Erasing a
document deletes the contents of its events, and forgetting a query deletes the query from them.
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

# Number of the table format. A ledger with another format is refused.
LEDGER_FORMAT = 5

# Time in seconds that a writer waits for another writer before it gives up.
BUSY_TIMEOUT_SECONDS = 60

# Largest number of values in one `IN (...)` clause. Old versions of SQLite accept at most 999.
MAX_IN_VALUES = 500

# Offset of the byte in the `-shm` file that SQLite locks for the connection that writes.
SQLITE_WRITER_BYTE = 120

# Key of the PostgreSQL advisory lock that a process holds while it creates the tables. The tables
# cannot be locked themselves, because they do not exist yet.
CREATE_TABLES_LOCK = 0x46726573

# Texts that occur in SQLite's error messages about a damaged file.
SQLITE_DAMAGE_MESSAGES = ("malformed", "not a database", "disk I/O error: short read")

metadata = MetaData()

# SQLite generates values of a primary key only if its type is INTEGER, which has 64 bits there.
EventId = BigInteger().with_variant(Integer, "sqlite")

# A table with one row: the identity of the ledger and the number of its format.
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
    # An event id is a position in the ledger. AUTOINCREMENT guarantees that no id is used twice.
    sqlite_autoincrement=True,
)
# These conditions define partial indexes. SQLite uses a partial index only for a query with the
# same condition, so the value 'revert' is a literal and no parameter.
IS_REVERT = events.c.kind == literal_column("'revert'")
IS_COPY = events.c.again.is_not(None)
Index("ledger_events_document", events.c.document_id, events.c.id)
Index("ledger_events_revert", events.c.id, sqlite_where=IS_REVERT)
Index("ledger_events_again", events.c.again, sqlite_where=IS_COPY)

# Names of received batches, such as the hash of an inbox file. A batch is recorded only once.
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
    # Hash of person, query and document; see `Feedback.key`.
    Column("hash", String, primary_key=True),
    Column("who", String, nullable=False),
    Column("query", Text, nullable=False),
    Column("document_id", String, nullable=False),
    Column("verdict", String, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("received", Float(53), nullable=False),
    Column("raised", Boolean, nullable=False),
)

# Hashes of the queries that a person asked to forget. They are known queries of no document.
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
    """The database of a ledger. Only one transaction writes at a time.

    So events are committed in the order of their ids. A reader that has seen an event has seen all
    events with smaller ids.
    """

    def __init__(self, url: str) -> None:
        """Connect to a database. Its tables may be missing or have another format.

        Args:
            url: SQLAlchemy URL, such as `sqlite:////srv/ledger.sqlite`.

        Raises:
            FreshetError: If the URL is malformed, or needs a driver that is not installed.
        """
        self._file = sqlite_file(url)
        self._engine = _make_engine(_readable_url(url, self._file))
        # The identity of the file when it was opened. `is_replaced` compares it later.
        self._opened_file = None
        if self._file is not None and self._file.exists():
            self._opened_file = self._file.stat()
        # Connections are closed by `close`, or at the latest when this object is garbage collected.
        self.close = weakref.finalize(self, self._engine.dispose)

        read_options: dict[str, Any] = {}
        if self._engine.dialect.name == "postgresql":
            # All statements of a transaction read the same state. SQLite does this by default.
            read_options["isolation_level"] = "REPEATABLE READ"
        self._reading_engine = self._engine.execution_options(**read_options)
        # `_begin_sqlite` takes the write lock for a transaction with this option.
        self._writing_engine = self._engine.execution_options(ledger_writes=True)

    def format(self) -> int | None:
        """Return the format number of the ledger's tables, or None if there are no tables.

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
        """Begin a reading transaction, in which all statements see the same state."""
        return self._reading_engine.begin()

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Begin a writing transaction. It excludes all other writers until it is committed."""
        with self._writing_engine.begin() as connection:
            # On SQLite, `BEGIN IMMEDIATE` already excludes other writers.
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql(f"LOCK TABLE {events.name} IN EXCLUSIVE MODE")
            yield connection

    def vacuum(self) -> None:
        """Rewrite the database files, so that deleted contents cannot be read from them any more.

        Raises:
            FreshetError: If another connection reads the SQLite file. Old pages then remain in its
                write-ahead log.
        """
        # VACUUM fails in a transaction, so `write`, which begins one, is not used here.
        if self._engine.dialect.name != "sqlite":
            autocommit = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            with autocommit as connection:
                for table in (events, feedback):
                    connection.exec_driver_sql(f"VACUUM FULL {table.name}")
            return

        with closing(self._engine.raw_connection()) as pooled:
            # The cursor of the driver is used because SQLAlchemy would begin a transaction.
            cursor = pooled.cursor()
            cursor.execute("VACUUM")
            # The write-ahead log still holds old pages. This moves it into the file and empties it.
            checkpoint = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        is_busy = checkpoint[0]
        if is_busy:
            raise FreshetError(
                "the ledger is being read, so that its former pages are still there: try again"
            )

    def damage(self) -> str | None:
        """Check the SQLite file, and return the first fault or None.

        SQLite reads every page for this. For a database server the result is always None.
        """
        if self._engine.dialect.name != "sqlite":
            return None
        with self.read() as connection:
            result = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar()
        return None if result == "ok" else str(result)

    def is_replaced(self) -> bool:
        """Return whether the SQLite file was deleted or replaced after it was opened.

        If so, this object still writes to the old file, and its changes are lost.
        """
        if self._file is None or self._opened_file is None:
            return False
        return not self._file.exists() or not os.path.samestat(self._file.stat(), self._opened_file)


def open_database(url: str) -> Database:
    """Open the database of a ledger, and create its tables if they are missing.

    The ledger is the log of changes, feedback and tasks.

    Args:
        url: SQLAlchemy URL of the database.

    Raises:
        FreshetError: If the database cannot be opened, or holds a ledger of another format.
    """
    database = open_database_if_exists(url)
    if database is not None:
        return database
    _create_tables(url)
    # Opening it again checks the format, because another process may have created the tables.
    return open_database(url)


def open_database_if_exists(url: str) -> Database | None:
    """Open the database of a ledger, or return None if its tables do not exist.

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


def declare_partial_indexes() -> None:
    """Give the indexes of all tables the same conditions in PostgreSQL as in SQLite.

    The tables declare the conditions for SQLite only. A condition for PostgreSQL imports
    SQLAlchemy's code for PostgreSQL, which most projects do not use.
    """
    for table in metadata.tables.values():
        for index in table.indexes:
            condition = index.dialect_options["sqlite"]["where"]
            index.dialect_options["postgresql"]["where"] = condition


def _create_tables(url: str) -> None:
    """Create the tables, unless another process does so first.

    The folder of a SQLite file is created if it is missing.
    """
    file = sqlite_file(url)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
    database = Database(url)
    # `format` is called because it raises a clear error if the database does not answer.
    database.format()
    with database._writing_engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(CREATE_TABLES_LOCK)))
            declare_partial_indexes()
        metadata.create_all(connection)
        if connection.scalar(sa.select(log.c.version)) is None:
            connection.execute(sa.insert(log).values(version=LEDGER_FORMAT, log=uuid4().hex))
    database.close()


def _readable_url(url: str, file: Path | None) -> str:
    """Return a URL by which this process can open a SQLite file, also without write permission.

    A reader of a SQLite file with a write-ahead log normally writes to files beside it. If this
    process may not write them, the URL asks for read-only mode. If there is no log, the database
    file is complete, and the URL also tells SQLite that the file does not change. Then SQLite does
    not look for files beside it.

    Args:
        url: URL of the database.
        file: SQLite file of the URL, or None.
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
    """Create SQLAlchemy's engine for a database, without connecting to it.

    On SQLite, functions of this module prepare each connection, begin transactions and explain
    errors.

    Raises:
        FreshetError: If the URL is malformed, or needs a driver that is not installed.
    """
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
    """Raise an error that tells the user what to do about a damaged or locked SQLite file.

    Args:
        context: SQLAlchemy's description of an error of SQLite. Other errors are raised unchanged.
    """
    reason = str(context.original_exception)
    file = str(context.engine.url.database) if context.engine else "the ledger"
    if any(message in reason for message in SQLITE_DAMAGE_MESSAGES):
        raise Damaged(f"{file} is damaged ({reason})", "run freshet repair") from None
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
    """Return the id and command of the process that writes to a SQLite file, for a message.

    Linux lists all file locks with their processes in `/proc/locks`.
    """
    # An `OSError` means that the system has no such list, or that the process has ended.
    with suppress(OSError):
        inode = Path(f"{file}-shm").stat().st_ino
        lock_ending = f":{inode} {SQLITE_WRITER_BYTE} {SQLITE_WRITER_BYTE}"
        for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines():
            is_waiting = "->" in line
            if is_waiting or not line.endswith(lock_ending):
                continue
            # The last four words are the process id, the file, and the first and last locked byte.
            pid = line.split()[-4]
            command_line = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
            command = command_line.replace("\0", " ").strip()
            return f"process {pid} ({command[:100]})"
    return "another process"


def _prepare_sqlite(connection: Any, _: Any) -> None:
    """Set the options of a new SQLite connection.

    The write-ahead log (`WAL`) allows readers to work while another connection writes. `synchronous
    = FULL` forces every commit to the disk, so that a power failure loses none.
    """
    # The driver must not begin transactions by itself: it would begin them at the first write, and
    # without a lock. `_begin_sqlite` begins them.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_SECONDS * 1000}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")


def _begin_sqlite(connection: sa.Connection) -> None:
    """Begin a transaction. A writing transaction gets SQLite's write lock at once."""
    writes = connection.get_execution_options().get("ledger_writes", False)
    statement = "BEGIN IMMEDIATE" if writes else "BEGIN"
    connection.exec_driver_sql(statement)


def sqlite_file(url: str | sa.URL) -> Path | None:
    """Return the file of a SQLite URL, or None for a database in memory or on a server."""
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
    """Insert rows. If the table has a row with the same key, overwrite it.

    Args:
        connection: Connection of a writing transaction.
        table: Table to write into.
        rows: Rows with equal columns.
        *key: Names of the columns that identify a row.
        where: Condition on an existing row. Rows that do not meet it are kept. None overwrites
            all.
    """
    if connection.dialect.name == "postgresql":
        # This import takes a tenth of a second, which users of a SQLite ledger do not need.
        from sqlalchemy.dialects import postgresql

        insert = postgresql.insert(table)
    else:
        insert = sqlite.insert(table)
    # `excluded` is SQL's name for the row that could not be inserted.
    overwritten = {name: insert.excluded[name] for name in rows[0].keys() - set(key)}
    statement = insert.on_conflict_do_update(index_elements=key, set_=overwritten, where=where)
    connection.execute(statement, rows)
