"""Add, update and delete documents of a collection, one at a time or in batches with the same result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from model_code.errors import FreshetError
from model_code.incdsi.documents import Added, NewDocument, Status, mean_query
from model_code.incdsi.feasibility import Conflict, broken, examine
from model_code.incdsi.objective import Rivals, Task, prior_vector
from model_code.incdsi.rows import joined, minus
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.solver import GROWTH, Solution, Start, minimise, solve, too_many
from model_code.incdsi.state import IncDsiState

DEFAULTS = IncDsiSettings()
BATCH = 128  # documents that share passes
MOST_SCORES = 2**26  # of one pass, float32: 256 MiB
OUTCOMES = {  # whether constraints are broken: the status with all queries, and that after some were left out
    False: (Status.FITS, Status.FITS_WITHOUT_SOME_QUERIES),
    True: (Status.COMPROMISE, Status.COMPROMISE_WITHOUT_SOME_QUERIES),
}


@dataclass(frozen=True)
class Refined:
    """`vector`, `query` (H) float64 and how they came about; see `Added`.

    suspects: all rows that may have lost their query to the vector. rivals: the scores of `query`; None and no
    suspects where nobody looked.
    """

    vector: np.ndarray
    query: np.ndarray
    status: Status
    suspects: np.ndarray
    rivals: Rivals | None = None
    broken: int | None = None
    dropped: int = 0
    solution: Solution | None = None
    conflict: Conflict | None = None


class IncDsiAdder:
    """Keeps `state` current. Each document's vector depends on those before it, as in the paper, and never changes.

    Laws: equal calls in equal order give equal vectors; a batch gives the vectors of one-by-one addition; deleting the
    last document undoes its addition; an update gives the vector of deleting the document and adding it anew.

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
        """Add `documents` in order. All are checked first, so that a bad one leaves the collection as it was."""
        self._check_new(documents)
        added: list[Added] = []
        size = max(1, min(BATCH, MOST_SCORES // max(1, len(self.state))))
        for begin in range(0, len(documents), size):
            added += self._add_chunk(documents[begin : begin + size])
        return added

    def update(self, document: NewDocument) -> Added:
        """Find the document's vector anew, from new queries and encoding, against all others; it keeps its row."""
        row = self.state.row(document.id)
        self._check(document)
        query = mean_query(document.queries)
        if self.settings.refine:
            return self._store(document, self._refine(document, self._rivals(query, row)), row)
        return self._store(document, self._plain(document, query), row)

    def delete(self, ids: Iterable[str]) -> None:
        """Take documents out; raises FreshetError, before anything is deleted, if one of them is not there."""
        self.state.delete(np.unique([self.state.row(key) for key in ids]).astype(np.int64))

    def _add_chunk(self, documents: Sequence[NewDocument]) -> list[Added]:
        queries = np.stack([mean_query(document.queries) for document in documents])
        if not self.settings.refine:
            plain = [self._plain(*pair) for pair in zip(documents, queries, strict=True)]
            return [self._store(*pair) for pair in zip(documents, plain, strict=True)]
        rivals = [Rivals(self.state, seen) for seen in self.state.vectors.scan(queries)]
        starts = self._starts(documents, rivals) if len(documents) > 1 else [Start(rivals[0].seeds())]
        return [
            self._store(document, self._refine(document, scores, start))
            for document, scores, start in zip(documents, rivals, starts, strict=True)
        ]

    def _starts(self, documents: Sequence[NewDocument], rivals: Sequence[Rivals]) -> list[Start]:
        """A start for each document of a batch, given the scores of their mean queries.

        The first guesses know the best rivals' queries only. The second ones know what the first violate; where these
        moved so far that too many rows stay in doubt, Z is read a second time, for all such documents at once.
        """
        first = self._guess(documents, rivals, [Start(scores.seeds()) for scores in rivals])
        starts = self._with_passes([Start(members) for members, _, _ in first], [vector for _, vector, _ in first])
        second = self._guess(documents, rivals, starts)
        starts = [Start(members, start.seen) for (members, _, _), start in zip(second, starts, strict=True)]
        again = [number for number, (_, _, doubtful) in enumerate(second) if doubtful]
        renewed = self._with_passes([starts[number] for number in again], [second[number][1] for number in again])
        for number, start in zip(again, renewed, strict=True):
            starts[number] = start
        return starts

    def _with_passes(self, starts: Sequence[Start], vectors: Sequence[np.ndarray]) -> list[Start]:
        """The `starts` with passes over Z by `vectors`, all from one reading."""
        passes = self.state.queries.scan(np.stack(vectors)) if vectors else []
        return [Start(start.members, seen) for start, seen in zip(starts, passes, strict=True)]

    def _guess(
        self, documents: Sequence[NewDocument], rivals: Sequence[Rivals], starts: Sequence[Start]
    ) -> list[tuple[np.ndarray, np.ndarray, bool]]:
        """For each document its members, a vector, and whether too many other rows are in doubt.

        Each sees the guesses before it; the state is left as it was. Rows of documents in this batch are tested one by
        one anyway, and their guesses are gone afterwards, so they are no members.
        """
        guesses, count = [], len(self.state)
        try:
            for document, scores, start in zip(documents, rivals, starts, strict=True):
                members, vector, doubtful = guess(self._task(document, scores), start)
                guesses.append((members[members < count], vector, doubtful))
                self.state.append(document.id, vector, scores.seen.vector)
        finally:
            self.state.truncate(count)
        return guesses

    def _rivals(self, query: np.ndarray, replaced: int | None = None) -> Rivals:
        """The scores of `query` (H) with all documents: one pass over V."""
        return Rivals(self.state, self.state.vectors.scan(query[None])[0], replaced)

    def _task(self, document: NewDocument, rivals: Rivals) -> Task:
        """The document's objective; its query is that of `rivals`."""
        query = rivals.seen.vector
        prior = prior_vector(self.settings, query, document.encoding)
        unit = self.state.score_deviation
        return Task(self.state, query, rivals.best(), prior, self.settings, unit, rivals.replaced)

    def _plain(self, document: NewDocument, query: np.ndarray) -> Refined:
        """The prior as it is, for the mean query `query` (H)."""
        prior = prior_vector(self.settings, query, document.encoding)
        return Refined(prior, query, Status.NOT_REFINED, suspects=np.zeros(0, np.int64))

    def _refine(self, document: NewDocument, rivals: Rivals, start: Start | None = None) -> Refined:
        """The vector that the settings ask for; `rivals` are those of its mean query."""
        task = self._task(document, rivals)
        refined = self._judge(task, rivals, solve(task, start or Start(rivals.seeds())))
        if not refined.broken or self.settings.on_conflict == "keep":
            return refined
        verdict = examine(task, refined.solution.members)
        return self._remedy(document, refined, verdict) if isinstance(verdict, Conflict) else refined

    def _judge(self, task: Task, rivals: Rivals, solution: Solution, dropped: int = 0) -> Refined:
        count = broken(task, solution.suspects, solution.vector)
        whole, without_some = OUTCOMES[count > 0]
        return Refined(
            vector=solution.vector,
            query=task.query,
            rivals=rivals,
            suspects=solution.suspects,
            status=without_some if dropped else whole,
            broken=count,
            dropped=dropped,
            solution=solution,
        )

    def _remedy(self, document: NewDocument, refined: Refined, conflict: Conflict) -> Refined:
        """Leave out the query farthest from the mean, again and again, until a vector exists; else take the prior."""
        queries = np.asarray(document.queries, np.float64)
        for dropped in range(1, len(document.queries)):
            queries = np.delete(queries, _farthest(queries), axis=0)
            rivals = self._rivals(mean_query(queries), refined.rivals.replaced)
            task = self._task(document, rivals)
            if not isinstance(examine(task, rivals.seeds()), Conflict):
                return self._judge(task, rivals, solve(task, Start(rivals.seeds())), dropped)
        return self._give_up(document, refined, conflict)

    def _give_up(self, document: NewDocument, refined: Refined, conflict: Conflict) -> Refined:
        vector = refined.vector if document.encoding is None else np.asarray(document.encoding, np.float64)
        if self.settings.prior != "zero":
            vector = prior_vector(self.settings, refined.query, document.encoding)
        raw = self._task(document, refined.rivals).without_margins()
        suspects = raw.suspects(self.state.queries.scan(vector[None])[0], vector)
        return Refined(
            vector=vector,
            query=refined.query,
            rivals=refined.rivals,
            suspects=suspects,
            status=Status.INFEASIBLE,
            broken=broken(raw, suspects, vector),
            solution=refined.solution,
            conflict=conflict,
        )

    def _store(self, document: NewDocument, refined: Refined, row: int | None = None) -> Added:
        if row is None:
            row = len(self.state)
            self.state.append(document.id, refined.vector, refined.query)
        else:
            self.state.replace(row, refined.vector, refined.query)
        return Added(
            id=document.id,
            row=row,
            vector=self.state.vectors.view[row].copy(),
            query=self.state.queries.view[row].copy(),
            status=refined.status,
            broken=refined.broken,
            dropped=refined.dropped,
            solution=refined.solution,
            conflict=refined.conflict,
        )

    def _check_new(self, documents: Sequence[NewDocument]) -> None:
        coming: set[str] = set()
        for document in documents:
            self._check(document)
            if document.id in self.state or document.id in coming:
                raise FreshetError(
                    f"document {document.id!r} is in the collection already, or twice in this batch: update it instead"
                )
            coming.add(document.id)

    def _check(self, document: NewDocument) -> None:
        """Raise SettingsError unless the vectors have the right shape, and those are there that the prior needs."""
        document.check(self.state.width)
        prior_vector(self.settings, mean_query(document.queries), document.encoding)


def guess(task: Task, start: Start) -> tuple[np.ndarray, np.ndarray, bool]:
    """Members (sorted rows), a vector (H) near the solution, and whether too many other rows are in doubt.

    After a pass the rows that its vector violates are members, too; without a pass nothing is in doubt.
    """
    members, seen = task.protected(start.members), start.seen
    if seen is not None:
        others = minus(task.suspects(seen, seen.vector), members)
        violated = task.violated(others, seen.vector)
        if not len(violated):
            return members, seen.vector, False
        members = joined(members, violated[: max(GROWTH, len(members))])
    vector, _ = minimise(task.problem(members), None if seen is None else seen.vector)
    return members, vector, seen is not None and too_many(task.suspects(seen, vector), task)


def _farthest(queries: np.ndarray) -> int:
    away = queries - queries.mean(axis=0)
    return int(np.einsum("ij,ij->i", away, away).argmax())
