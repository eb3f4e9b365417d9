"""Add documents to a collection by IncDSI (Kishore et al., 2023), and delete them.

Documents can be added in batches, which is faster. A batch gives the same vectors as adding its
documents one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from model_code.drift.statuses import Status
from model_code.errors import FreshetError
from model_code.incdsi.scanned_rows import difference, sorted_union
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.solver import (
    MEMBERS_PER_ROUND,
    AdditionObjective,
    Rivals,
    Solution,
    Start,
    minimize_problem,
    solve,
    too_many_suspects,
)
from model_code.incdsi.state import IncDsiState
from model_code.settings import require

DEFAULTS = IncDsiSettings()

# Largest number of documents in a chunk. The documents of a chunk are scored together: the vectors
# and the queries of the older documents are read once for all of them.
MAX_BATCH_DOCUMENTS = 128

# Largest number of float32 scores that a pass computes for a chunk. They take 256 MiB.
MAX_BATCH_SCORES = 2**26


@dataclass(frozen=True)
class NewDocument:
    """A document to add.

    Attributes:
        id: Id of the document.
        queries: Vectors (m, H) of the texts that should find the document, at least one: its known
            queries, or parts of its text if it has none.
        encoding: Encoding (H,) of the document, to which its vector is pulled. None pulls it to 0,
            as in the paper.
        keeps_encoding: Whether the encoding is the document's vector, so that nothing is solved.
            The queries then only protect the document from later ones.
    """

    id: str
    queries: np.ndarray
    encoding: np.ndarray | None = None
    keeps_encoding: bool = False

    @property
    def prior(self) -> np.ndarray:
        """The vector v0 (H,) float64 to which the document's vector is pulled."""
        if self.encoding is None:
            return np.zeros(np.shape(self.queries)[1])
        return np.asarray(self.encoding, np.float64)


@dataclass(frozen=True)
class Added:
    """An added document.

    Attributes:
        id: Id of the document.
        vector: Vector (H,) float32 of the document, as stored.
        status: FITS if no constraint (see `broken`) is broken, else COMPROMISE.
        broken: Number of broken constraints. A constraint is broken if the new document does not
            win its own query, or wins the query of an older document. Margins do not count.
        solution: The solver's result, with the vector in float64 and the constraints that mattered.
    """

    id: str
    vector: np.ndarray
    status: Status
    broken: int
    solution: Solution


class Guess(NamedTuple):
    """An approximate vector of a new document, from one round of the solver.

    Each older document sets a constraint: the new document must not win its query. The guess
    considers only some of the constraints.

    Attributes:
        members: Rows of the older documents whose constraints were considered, sorted, shape (k,).
        vector: Vector near the solution, shape (H,), float64.
        needs_pass: Whether the vector may violate many of the constraints that were not considered.
            It is then worth the time to score the queries of all older documents with this vector.
    """

    members: np.ndarray
    vector: np.ndarray
    needs_pass: bool


def mean_query(queries: np.ndarray) -> np.ndarray:
    """Return the mean (H,) of query vectors (m, H), as float64 values that float32 can hold.

    The state stores the mean in float32. Because it is rounded before its first use, a computation
    from the stored mean gives the same results.

    >>> mean_query(np.array([[1.0, 0.0], [0.0, 1.0]])).tolist()
    [0.5, 0.5]
    """
    mean = np.asarray(queries, np.float64).mean(axis=0)
    return mean.astype(np.float32).astype(np.float64)


class IncDsiAdder:
    """Adds documents to an `IncDsiState`, which has the vectors of a collection, and deletes them.

    The vector of a document depends on the documents that were added before it, as in the paper. It
    never changes afterwards. The vectors are reproducible:

    - Equal calls in equal order give equal vectors.
    - A batch gives the vectors of one-by-one addition.
    - Deleting the last document undoes its addition.

    >>> state = IncDsiState(np.eye(3)[:2], np.eye(3)[:2], ["a", "b"])
    >>> adder = IncDsiAdder(state)
    >>> added = adder.add(NewDocument("c", queries=np.array([[.1, 0., 1.]])))
    >>> added.status.name, len(state)
    ('FITS', 3)
    """

    def __init__(self, state: IncDsiState, settings: IncDsiSettings = DEFAULTS) -> None:
        self.state = state
        self.settings = settings

    def add(self, document: NewDocument) -> Added:
        """Add one document at the end of the state.

        Raises:
            FreshetError: If the collection has a document with this id.
        """
        return self.add_batch([document])[0]

    def add_batch(self, documents: Sequence[NewDocument]) -> list[Added]:
        """Add documents in order.

        All documents are checked first. If one is refused, the collection does not change.

        Args:
            documents: Documents with different ids.

        Raises:
            FreshetError: If the collection has a document with one of the ids, or an id occurs
                twice in the batch.
            SettingsError: If a vector holds a number that is not finite.
        """
        self._check_new(documents)
        # Each document of a chunk gets a score with each document of the collection. The number of
        # scores bounds the size of a chunk.
        max_documents = MAX_BATCH_SCORES // max(1, len(self.state))
        chunk_size = max(1, min(MAX_BATCH_DOCUMENTS, max_documents))
        added: list[Added] = []
        for start in range(0, len(documents), chunk_size):
            added.extend(self._add_chunk(documents[start : start + chunk_size]))
        return added

    def append_encodings(self, documents: Sequence[NewDocument]) -> None:
        """Add documents in order, with their encodings as vectors.

        Raises:
            FreshetError: If the collection has a document with one of the ids, or an id occurs
                twice.
            SettingsError: If a vector holds a number that is not finite.
        """
        self._check_new(documents)
        for document in documents:
            self.state.append(document.id, document.prior, mean_query(document.queries))

    def delete(self, ids: Iterable[str]) -> None:
        """Delete documents.

        Raises:
            FreshetError: If a document is not in the collection. Nothing is deleted then.
        """
        rows = [self.state.row(document_id) for document_id in ids]
        self.state.delete(np.unique(rows).astype(np.int64))

    def _add_chunk(self, documents: Sequence[NewDocument]) -> list[Added]:
        """Add documents whose scores are computed together, which is faster than one by one.

        The vectors of all older documents are scored with the query of each new document. Their
        queries are scored with a guess of each new vector. Both matrices are large. So each is read
        once for all documents of the chunk.
        """
        queries = np.stack([mean_query(document.queries) for document in documents])
        rivals = [Rivals(self.state, scan) for scan in self.state.vectors.scan(queries)]
        if len(documents) > 1:
            starts = self._shared_starts(documents, rivals)
        else:
            starts = [Start(rivals[0].seeds())]

        added: list[Added] = []
        for document, scores, start in zip(documents, rivals, starts, strict=True):
            added.append(self._add(document, scores, start))
        return added

    def _shared_starts(
        self, documents: Sequence[NewDocument], rivals: Sequence[Rivals]
    ) -> list[Start]:
        """Prepare what `solve` starts from, for each document of a batch.

        A start has two parts. Its members are the older documents whose constraints the solver
        considers first. Its scan holds the scores of all older queries with a guess of the new
        vector. The guess of a document is made in two rounds:

        1. The first guess considers the constraints of only those older documents that score best
           for the new query. All older queries are scored with this guess.
        2. The second guess also considers constraints that the first guess violates. All older
           queries are scored with the second guess only if it may violate too many others.

        So the matrix of all older queries is read at most twice for the batch.
        """
        seeds = [Start(scores.seeds()) for scores in rivals]
        first_guesses = self._guess_all(documents, rivals, seeds)
        starts = self._with_passes(
            [Start(guess.members) for guess in first_guesses],
            [guess.vector for guess in first_guesses],
        )

        second_guesses = self._guess_all(documents, rivals, starts)
        starts = [
            Start(guess.members, start.scan)
            for guess, start in zip(second_guesses, starts, strict=True)
        ]

        numbers = [number for number, guess in enumerate(second_guesses) if guess.needs_pass]
        new_starts = self._with_passes(
            [starts[number] for number in numbers],
            [second_guesses[number].vector for number in numbers],
        )
        for number, start in zip(numbers, new_starts, strict=True):
            starts[number] = start
        return starts

    def _with_passes(self, starts: Sequence[Start], vectors: Sequence[np.ndarray]) -> list[Start]:
        """Score all older queries with a vector for each start, and return starts with the scores.

        The matrix of the older documents' queries is large, so it is read once for all vectors.

        Args:
            starts: Starts of the solver, one per new document.
            vectors: For each start, a vector (H,) near the solution.

        Returns:
            Starts with the same members. The scan of each one has the scores with its vector.
        """
        if not vectors:
            return []
        passes = self.state.queries.scan(np.stack(vectors))
        return [Start(start.members, scan) for start, scan in zip(starts, passes, strict=True)]

    def _guess_all(
        self, documents: Sequence[NewDocument], rivals: Sequence[Rivals], starts: Sequence[Start]
    ) -> list[Guess]:
        """Approximate the vector of each document of a batch, one after the other.

        The members of a guess are older documents whose queries the new document might win. The
        solver considers these documents first, which saves time; see `guess_solution`.

        A document must also respect the documents before it in the batch, whose vectors are not
        known yet. So the guesses of these documents stand in for their vectors: each guess is
        appended to the state, and all guesses are removed at the end.

        The members of the returned guesses were in the collection before the batch. The solver
        needs no hint about documents of the batch: it always tests documents without a score.

        Args:
            documents: The documents of the batch.
            rivals: For each document, the existing documents and their scores for its query.
            starts: For each document, what its guess starts from; see `guess_solution`.
        """
        count = len(self.state)
        guesses: list[Guess] = []
        try:
            for document, scores, start in zip(documents, rivals, starts, strict=True):
                guess = guess_solution(self._objective(document, scores), start)
                members_before_batch = guess.members[guess.members < count]
                guesses.append(guess._replace(members=members_before_batch))
                self.state.append(document.id, guess.vector, scores.scan.vector)
        finally:
            self.state.truncate(count)
        return guesses

    def _objective(self, document: NewDocument, rivals: Rivals) -> AdditionObjective:
        """Return the objective of a document.

        Args:
            document: The document.
            rivals: Scores of the existing documents for the mean query of this document.
        """
        return AdditionObjective(
            state=self.state,
            query=rivals.scan.vector,
            best_rival=rivals.best(),
            prior=document.prior,
            settings=self.settings,
            unit=self.state.score_deviation,
        )

    def _add(self, document: NewDocument, rivals: Rivals, start: Start) -> Added:
        """Solve for the vector of a document, and add the document to the state.

        Args:
            document: The document.
            rivals: Scores of the existing documents for the mean query of this document.
            start: The older documents that the solver considers first, and the scores of all older
                queries with a guess of the vector, if they were computed.
        """
        objective = self._objective(document, rivals)
        solution = solve(objective, start)
        broken = objective.broken(solution.suspects, solution.vector)
        self.state.append(document.id, solution.vector, objective.query)
        status = Status.COMPROMISE if broken else Status.FITS
        stored = self.state.vectors.view[-1].copy()
        return Added(document.id, stored, status, broken, solution)

    def _check_new(self, documents: Sequence[NewDocument]) -> None:
        """Raise an error if an id is taken or a vector is not finite; see `add_batch`."""
        batch_ids: set[str] = set()
        for document in documents:
            is_finite = np.isfinite(document.queries).all() and np.isfinite(document.prior).all()
            require(
                bool(is_finite),
                f"a vector of document {document.id!r} holds a number that is not finite",
            )
            if document.id in self.state or document.id in batch_ids:
                raise FreshetError(
                    f"document {document.id!r} is in the collection already, or twice in this "
                    "batch: delete it first"
                )
            batch_ids.add(document.id)


def guess_solution(objective: AdditionObjective, start: Start) -> Guess:
    """Approximate the vector of a new document by one round of the solver.

    The guess should not win the queries of the older documents in `start.members`. If `start` has
    no scan, the guess minimises the objective with the constraints of these documents alone.

    A scan holds the scores of all older queries with an earlier guess, `start.scan.vector`. It
    tells which other older documents would lose their query to the earlier guess. If there are any,
    the worst of them are considered as well, and a better guess is computed. Otherwise the earlier
    guess is returned.

    Scoring all older queries takes most of the solver's time, so this function never does it.

    Args:
        objective: Objective of the document.
        start: Members, and optionally a scan with an earlier guess.

    Returns:
        The guess. Without a scan in `start`, its `needs_pass` is False.
    """
    members = start.members
    scan = start.scan
    if scan is None:
        vector, _ = minimize_problem(objective.problem(members))
        return Guess(members, vector, needs_pass=False)

    # Find other older documents whose query the new document would win with the earlier guess.
    earlier_guess = scan.vector
    others = difference(objective.suspects(scan, earlier_guess), members)
    violated = objective.violated(others, earlier_guess)
    if not len(violated):
        return Guess(members, earlier_guess, needs_pass=False)

    # Add the worst of these constraints to the problem, and minimise again.
    worst = violated[: max(MEMBERS_PER_ROUND, len(members))]
    members = sorted_union(members, worst)
    vector, _ = minimize_problem(objective.problem(members), earlier_guess)
    needs_pass = too_many_suspects(objective.suspects(scan, vector), objective)
    return Guess(members, vector, needs_pass)
