"""Add and delete documents of a collection, one at a time or in batches with the same result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from model_code.errors import FreshetError
from model_code.incdsi.rows import joined, minus
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.solver import (
    GROWTH,
    DocumentProblem,
    Rivals,
    Solution,
    Start,
    minimise,
    solve,
    too_many,
)
from model_code.incdsi.state import IncDsiState
from model_code.settings import require

DEFAULTS = IncDsiSettings()
BATCH = 128  # documents that share passes
MOST_SCORES = 2**26  # of one pass, float32: 256 MiB


class Status(Enum):
    """How an added document stands to the constraints, in words for the user; it can be searched in
    every case.
    """

    FITS = "found first by its own queries, and no old document loses its own"
    COMPROMISE = "not every constraint is met: the settings weigh them against each other and against the encoding"
    NOT_REFINED = "searched by the vectors of its passages, of which there are several"


@dataclass(frozen=True)
class NewDocument:
    """A document to add or update.

    queries: (m, H) vectors of what it should be found by: generated queries, title, summary, spans;
    at least one. encoding: (H) the document's own vector from the encoder, to which its vector is
    pulled; None: pulled to 0, as published.
    """

    id: str
    queries: np.ndarray
    encoding: np.ndarray | None = None

    @property
    def prior(self) -> np.ndarray:
        """v0 (H), float64."""
        return (
            np.zeros(np.shape(self.queries)[1])
            if self.encoding is None
            else np.asarray(self.encoding, np.float64)
        )


@dataclass(frozen=True)
class Added:
    """What became of a document.

    vector: (H) float32, as stored. broken: constraints that the vector breaks: its own query lost,
    or old documents' queries lost to it. solution: of the optimisation.
    """

    id: str
    vector: np.ndarray
    status: Status
    broken: int
    solution: Solution


def mean_query(queries: np.ndarray) -> np.ndarray:
    """The mean (H) of `queries` (m, H), in float64 of what float32 stores, so that a replay from
    the state is equal.

    >>> mean_query(np.array([[1.0, 0.0], [0.0, 1.0]])).tolist()
    [0.5, 0.5]
    """
    return np.asarray(queries, np.float64).mean(axis=0).astype(np.float32).astype(np.float64)


class IncDsiAdder:
    """Additions to `state`. Each document's vector depends on those before it, as in the paper, and
    never changes.

    Laws: equal calls in equal order give equal vectors; a batch gives the vectors of one-by-one
    addition; deleting the last document undoes its addition.

    >>> state = IncDsiState(np.eye(3)[:2], np.eye(3)[:2], ["a", "b"])
    >>> adder = IncDsiAdder(state)
    >>> added = adder.add(NewDocument("c", queries=np.array([[.1, 0., 1.]])))
    >>> added.status.name, len(state)
    ('FITS', 3)
    """

    def __init__(self, state: IncDsiState, settings: IncDsiSettings = DEFAULTS) -> None:
        self.state, self.settings = state, settings

    def add(self, document: NewDocument) -> Added:
        """Add one document at the end; raises FreshetError if its id is in the collection."""
        return self.add_batch([document])[0]

    def add_batch(self, documents: Sequence[NewDocument]) -> list[Added]:
        """Add `documents` in order. All are checked first, so that a bad one leaves the collection
        as it was.
        """
        self._check_new(documents)
        added: list[Added] = []
        size = max(1, min(BATCH, MOST_SCORES // max(1, len(self.state))))
        for begin in range(0, len(documents), size):
            added += self._add_chunk(documents[begin : begin + size])
        return added

    def delete(self, ids: Iterable[str]) -> None:
        """Take documents out; raises FreshetError, before anything is deleted, if one of them is
        not there.
        """
        self.state.delete(np.unique([self.state.row(key) for key in ids]).astype(np.int64))

    def _add_chunk(self, documents: Sequence[NewDocument]) -> list[Added]:
        queries = np.stack([mean_query(document.queries) for document in documents])
        rivals = [Rivals(self.state, scan) for scan in self.state.vectors.scan(queries)]
        starts = (
            self._starts(documents, rivals) if len(documents) > 1 else [Start(rivals[0].seeds())]
        )
        return [self._add(*each) for each in zip(documents, rivals, starts, strict=True)]

    def _starts(self, documents: Sequence[NewDocument], rivals: Sequence[Rivals]) -> list[Start]:
        """A start for each document of a batch, given the scores of their mean queries.

        The first guesses know the best rivals' queries only. The second ones know what the first
        violate; where these moved so far that too many rows stay in doubt, Z is read a second time,
        for all such documents at once.
        """
        first = self._guess(documents, rivals, [Start(scores.seeds()) for scores in rivals])
        starts = self._with_passes(
            [Start(members) for members, _, _ in first], [vector for _, vector, _ in first]
        )
        second = self._guess(documents, rivals, starts)
        starts = [
            Start(members, start.scan)
            for (members, _, _), start in zip(second, starts, strict=True)
        ]
        again = [number for number, (_, _, doubtful) in enumerate(second) if doubtful]
        renewed = self._with_passes(
            [starts[number] for number in again], [second[number][1] for number in again]
        )
        for number, start in zip(again, renewed, strict=True):
            starts[number] = start
        return starts

    def _with_passes(self, starts: Sequence[Start], vectors: Sequence[np.ndarray]) -> list[Start]:
        """The `starts` with passes over Z by `vectors`, all from one reading."""
        passes = self.state.queries.scan(np.stack(vectors)) if vectors else []
        return [Start(start.members, scan) for start, scan in zip(starts, passes, strict=True)]

    def _guess(
        self, documents: Sequence[NewDocument], rivals: Sequence[Rivals], starts: Sequence[Start]
    ) -> list[tuple[np.ndarray, np.ndarray, bool]]:
        """For each document its members, a vector, and whether too many other rows are in doubt.

        Each sees the guesses before it; the state is left as it was. Rows of documents in this
        batch are tested one by one anyway, and their guesses are gone afterwards, so they are no
        members.
        """
        guesses, count = [], len(self.state)
        try:
            for document, scores, start in zip(documents, rivals, starts, strict=True):
                members, vector, doubtful = guess(self._task(document, scores), start)
                guesses.append((members[members < count], vector, doubtful))
                self.state.append(document.id, vector, scores.scan.vector)
        finally:
            self.state.truncate(count)
        return guesses

    def _task(self, document: NewDocument, rivals: Rivals) -> DocumentProblem:
        """The document's objective; its query is that of `rivals`."""
        unit = self.state.score_deviation
        return DocumentProblem(
            self.state, rivals.scan.vector, rivals.best(), document.prior, self.settings, unit
        )

    def _add(self, document: NewDocument, rivals: Rivals, start: Start) -> Added:
        """Find the document's vector and store it; `rivals` are those of its mean query."""
        task = self._task(document, rivals)
        solution = solve(task, start)
        broken = task.broken(solution.suspects, solution.vector)
        self.state.append(document.id, solution.vector, task.query)
        status = Status.COMPROMISE if broken else Status.FITS
        return Added(document.id, self.state.vectors.view[-1].copy(), status, broken, solution)

    def _check_new(self, documents: Sequence[NewDocument]) -> None:
        coming: set[str] = set()
        for document in documents:
            finite = np.isfinite(document.queries).all() and np.isfinite(document.prior).all()
            require(
                bool(finite),
                f"a vector of document {document.id!r} holds a number that is not finite",
            )
            if document.id in self.state or document.id in coming:
                raise FreshetError(
                    f"document {document.id!r} is in the collection already, or twice in this batch: delete it first"
                )
            coming.add(document.id)


def guess(task: DocumentProblem, start: Start) -> tuple[np.ndarray, np.ndarray, bool]:
    """Members (sorted rows), a vector (H) near the solution, and whether too many other rows are in
    doubt.

    After a pass the rows that its vector violates are members, too; without a pass nothing is in
    doubt.
    """
    members, scan = start.members, start.scan
    if scan is not None:
        others = minus(task.suspects(scan, scan.vector), members)
        violated = task.violated(others, scan.vector)
        if not len(violated):
            return members, scan.vector, False
        members = joined(members, violated[: max(GROWTH, len(members))])
    vector, _ = minimise(task.problem(members), None if scan is None else scan.vector)
    return members, vector, scan is not None and too_many(task.suspects(scan, vector), task)
