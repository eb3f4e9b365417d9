"""The ledger of one project, seen from one retriever: an append-only record of every document's life."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from model_code.documents import Document
from model_code.ledger import intake, notes, outcomes, reading, schema, work
from model_code.ledger.database import Database, open_database
from model_code.ledger.records import LIVE, Event, Made, Position, Receipt, Rejection


class Ledger:
    """What arrived (for all retrievers) and what became of it in the live collection of `retriever`.

    Every method is one transaction; writers take turns, in any number of threads and processes. Times are seconds since
    1970. A watermark is the id of an event and means: this one and all before it.
    """

    def __init__(self, database: Database, retriever: str) -> None:
        self._database, self.retriever = database, retriever
        self.work = work.WorkTable(database)

    @classmethod
    def open(cls, url: str, retriever: str) -> Ledger:
        """Open or make the ledger at an SQLAlchemy URL such as `sqlite:////srv/ledger.sqlite` (three or four slashes)
        or `postgresql+psycopg://...`; FreshetError if it cannot be opened or is of another version.
        """
        database = open_database(url)
        work.prepare(database)
        return cls(database, retriever)

    def close(self) -> None:
        """Give back the connections."""
        self._database.close()

    # What arrives

    def receive(
        self,
        documents: Iterable[Document],
        source: str,
        rejected: Sequence[Rejection] = (),
        batch: str | None = None,
        now: float | None = None,
    ) -> Receipt:
        """Append an event for each document that is new or has another content than its latest event.

        rejected: rows of the same batch that were refused, kept with their reason; batch: a name, such as a file's
        hash, that is received once only: a second time only rows that were refused then, or rolled back since, are.
        """
        return self._append(intake.put_rows(documents), source, rejected, batch, now)

    def remove(
        self,
        document_ids: Iterable[str],
        source: str,
        rejected: Sequence[Rejection] = (),
        now: float | None = None,
    ) -> Receipt:
        """Append a removal for each document whose latest event is none; it may belong to the initial collection."""
        return self._append(intake.remove_rows(document_ids), source, rejected, None, now)

    def _append(
        self,
        rows: Sequence[dict[str, Any]],
        source: str,
        rejected: Sequence[Rejection],
        batch: str | None,
        now: float | None,
    ) -> Receipt:
        received, read = _now(now), len(rows) + len(rejected)
        with self._database.write() as connection:
            wanted = rows
            if batch is not None:
                wanted = intake.not_received(connection, self.retriever, batch, rows)
                intake.note_batch(connection, batch, source, received)
            added = intake.append(connection, self.retriever, wanted, source, received)
            intake.refuse(connection, rejected, source, received)
        return Receipt(read, len(rows) - len(added), tuple(rejected), added)

    # What becomes of it

    def settle(self, watermark: int, generation: int, statuses: Mapping[str, str]) -> None:
        """Generation `generation`, made on top of the current one, contains every event up to `watermark`.

        statuses: a remark on documents by id, kept as the reason. The first generation that a ledger sees is taken as
        a whole build.
        """
        with self._database.write() as connection:
            position = reading.position_of(connection, self.retriever)
            parent = position.generation if position else None
            base = position.base if position else generation
            outcomes.settle(connection, self.retriever, Made(generation, parent, base, watermark), statuses)

    def register(self, made: Sequence[Made], searched: str | None = None) -> None:
        """Make generations known that were made without this ledger, oldest first; known ones stay as they are.

        searched: see `reopen`.
        """
        with self._database.write() as connection:
            for one in made:
                outcomes.register(connection, self.retriever, one, searched)

    def roll_back(self, generation: int) -> None:
        """An earlier (or later) generation is current: events that it lacks are rolled back, those it holds restored.

        Pending events stay pending. FreshetError if the ledger does not know the generation.
        """
        with self._database.write() as connection:
            outcomes.restate(connection, self.retriever, generation, undo=True)

    def reopen(self, generation: int, searched: str | None = None) -> None:
        """Another build is current: events that it lacks are pending again, to be applied to it.

        searched: another retriever, in whose place this one is searched; what was rolled back there is so here, too.
        """
        with self._database.write() as connection:
            outcomes.restate(connection, self.retriever, generation, undo=False, searched=searched)

    def absorb(self, run: str, watermark: int) -> None:
        """The training run `run` had every document up to `watermark` in its corpus: live events are absorbed."""
        with self._database.write() as connection:
            notes.record_run(connection, self.retriever, run, watermark, time.time())
            outcomes.absorb(connection, self.retriever, watermark)

    def record_drift(self, report: Mapping[str, Any], batch: tuple[int, int]) -> int:
        """Keep a drift report (values JSON can hold) on the events from batch[0] to batch[1]; return its id."""
        with self._database.write() as connection:
            return notes.record_drift(connection, self.retriever, report, batch, time.time())

    # Questions

    def lacking(self, generation: int, made: Sequence[Made] = (), searched: str | None = None) -> list[Event]:
        """The events that would be pending after `register(made, searched)` and `reopen(generation, searched)`."""
        with self._database.rehearse() as connection:
            for one in made:
                outcomes.register(connection, self.retriever, one, searched)
            outcomes.restate(connection, self.retriever, generation, undo=False, searched=searched)
            return reading.pending(connection, self.retriever, None)

    def undone_in(self, generation: int, searched: str | None = None) -> int:
        """How many documents a generation has in a state that was rolled back since, here or for `searched`."""
        with self._database.read() as connection:
            return outcomes.undone_in(connection, self.retriever, generation, searched)

    def pending(self, limit: int | None = None) -> list[Event]:
        """The oldest events that are in no generation yet."""
        with self._database.read() as connection:
            return reading.pending(connection, self.retriever, limit)

    def position(self) -> Position | None:
        """The generation that the ledger takes for the current one; None before it saw any."""
        with self._database.read() as connection:
            return reading.position_of(connection, self.retriever)

    def knows(self, generation: int) -> bool:
        """Whether the ledger has seen this generation."""
        with self._database.read() as connection:
            return outcomes.known(connection, self.retriever, generation) is not None

    def newest_generation(self) -> int | None:
        """The largest number of a generation that the ledger ever saw, None before the first."""
        with self._database.read() as connection:
            return outcomes.newest_known(connection, self.retriever)

    def watermark(self) -> int:
        """The id of the last event that arrived, 0 without one."""
        with self._database.read() as connection:
            return reading.newest(connection)

    def latest(self, document_ids: Iterable[str]) -> dict[str, str]:
        """Of those documents that the ledger knows: whether their latest event "put" or "remove"d them."""
        with self._database.read() as connection:
            return {one: kind for one, (kind, _) in intake.latest(connection, self.retriever, document_ids).items()}

    def counts(self) -> dict[str, int]:
        """How many events are in each of `STATES`; each document has one live, deleted or absorbed event at most."""
        with self._database.read() as connection:
            return reading.counts(connection, self.retriever)

    def lag(self) -> dict[str, Any]:
        """`pending` events, and `seconds`: the age of the oldest, None without one."""
        with self._database.read() as connection:
            return reading.lag(connection, self.retriever, time.time())

    def history(self, document_id: str) -> list[Event]:
        """A document's life, oldest event first."""
        with self._database.read() as connection:
            return reading.history(connection, self.retriever, document_id)

    def between(self, first: int, last: int) -> list[Event]:
        """The events from the id `first` to `last`, oldest first, with what became of them."""
        with self._database.read() as connection:
            return reading.events_between(connection, self.retriever, first, last)

    def events(self, ids: Sequence[int]) -> list[Event]:
        """The events of a receipt, with what became of them."""
        with self._database.read() as connection:
            return reading.events_of(connection, self.retriever, ids)

    def newest(self, document_ids: Iterable[str]) -> dict[str, Event]:
        """The latest event of each of those documents that the ledger knows, with what became of it, by id."""
        with self._database.read() as connection:
            ids = intake.latest_ids(connection, self.retriever, document_ids)
            found = reading.events_of(connection, self.retriever, list(ids.values()))
        return {one.document_id: one for one in found}

    def arrivals(self, first: int, last: int) -> list[Event]:
        """The events from the id `first` to `last` whose document is live as it arrived then, oldest first."""
        return [event for event in self.between(first, last) if event.state == LIVE]

    def snapshot(self, watermark: int) -> Iterator[Document]:
        """The latest content of each document that was put up to `watermark` and not removed, by id."""
        with self._database.read() as connection:
            yield from reading.snapshot(connection, self.retriever, watermark)

    def removed(self, watermark: int) -> list[str]:
        """The documents, of the initial collection too, that are removed as of `watermark`, by id."""
        with self._database.read() as connection:
            return reading.removed(connection, self.retriever, watermark)

    def last_rejections(self, number: int) -> list[dict[str, Any]]:
        """The last refused rows, newest first, with row, document_id, reason, source and time received."""
        with self._database.read() as connection:
            return reading.refused(connection, number)

    def last_drift(self, number: int) -> list[dict[str, Any]]:
        """The last drift reports, newest first, with first_event, last_event, report and time recorded."""
        with self._database.read() as connection:
            return notes.last(connection, schema.drift_reports, self.retriever, number)

    def training_runs(self, number: int) -> list[dict[str, Any]]:
        """The last training runs that absorbed documents, newest first, with run, watermark and time recorded."""
        with self._database.read() as connection:
            return notes.last(connection, schema.training_runs, self.retriever, number)


def _now(now: float | None) -> float:
    return time.time() if now is None else now
