"""From one document's queries to its vector: objective, raw constraints, and the remedy where they conflict."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from model_code.incdsi.documents import NewDocument, Status, mean_query
from model_code.incdsi.feasibility import Conflict, broken, examine
from model_code.incdsi.passes import Pass
from model_code.incdsi.priors import prior_vector
from model_code.incdsi.rivals import Rivals
from model_code.incdsi.scan_choice import scan
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.solution import Solution
from model_code.incdsi.state import IncDsiState
from model_code.incdsi.task import Task
from model_code.incdsi.working_set import solve

OUTCOMES = {  # whether constraints are broken: the status with all queries, and that after some were left out
    False: (Status.FITS, Status.FITS_WITHOUT_SOME_QUERIES),
    True: (Status.COMPROMISE, Status.COMPROMISE_WITHOUT_SOME_QUERIES),
}


@dataclass(frozen=True)
class Start:
    """What is known before a document's turn: `members` (sorted rows) to begin with, and a pass over Z near its end.

    charged: those rows that its vector is likely to violate.
    """

    members: np.ndarray | None = None
    seen: Pass | None = None
    charged: np.ndarray | None = None


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


class Refiner:
    """Solves for one document at a time over a state; changes nothing."""

    def __init__(self, state: IncDsiState, settings: IncDsiSettings) -> None:
        self.state, self.settings = state, settings
        self.vectors = scan(state.vectors, settings.device, settings.precision)
        self.queries = scan(state.queries, settings.device, settings.precision)

    def rivals(self, query: np.ndarray, own: int | None = None) -> Rivals:
        """The scores of `query` (H) with all documents: one pass over V."""
        return Rivals(self.state, self.vectors.passes(query[None])[0], own)

    def task(self, document: NewDocument, rivals: Rivals) -> Task:
        """The document's objective; its query is that of `rivals`."""
        query = rivals.seen.vector
        prior = prior_vector(self.settings, query, document.encoding)
        return Task.of(self.state, query, rivals.best(), prior, self.settings, rivals.own)

    def plain(self, document: NewDocument, query: np.ndarray) -> Refined:
        """The prior as it is, for the mean query `query` (H)."""
        prior = prior_vector(self.settings, query, document.encoding)
        return Refined(prior, query, Status.NOT_REFINED, suspects=np.zeros(0, np.int64))

    def refine(self, document: NewDocument, rivals: Rivals, start: Start | None = None) -> Refined:
        """The vector that the settings ask for; `rivals` are those of its mean query."""
        start = start or Start()
        task = self.task(document, rivals)
        members = rivals.seeds() if start.members is None else start.members
        solution = solve(task, self.queries, members, start.seen, start.charged)
        found = self._judge(task, rivals, solution)
        if not found.broken or self.settings.on_conflict == "keep":
            return found
        verdict = examine(task, self.queries, solution.members)
        return found if verdict.feasible is not False else self._remedy(document, found, verdict.conflict)

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

    def _remedy(self, document: NewDocument, found: Refined, conflict: Conflict | None) -> Refined:
        """Leave out the query farthest from the mean, again and again, until a vector exists; else take the prior."""
        queries = np.asarray(document.queries, np.float64)
        for dropped in range(1, len(document.queries)):
            queries = np.delete(queries, _farthest(queries), axis=0)
            rivals = self.rivals(mean_query(queries), found.rivals.own)
            task = self.task(document, rivals)
            if examine(task, self.queries, rivals.seeds()).feasible:
                solution = solve(task, self.queries, rivals.seeds())
                return self._judge(task, rivals, solution, dropped)
        return self._give_up(document, found, conflict)

    def _give_up(self, document: NewDocument, found: Refined, conflict: Conflict | None) -> Refined:
        vector = found.vector if document.encoding is None else np.asarray(document.encoding, np.float64)
        if self.settings.prior != "zero":
            vector = prior_vector(self.settings, found.query, document.encoding)
        raw = self.task(document, found.rivals).without_margins()
        suspects = raw.suspects(self.queries.passes(vector[None])[0], vector)
        return Refined(
            vector=vector,
            query=found.query,
            rivals=found.rivals,
            suspects=suspects,
            status=Status.INFEASIBLE,
            broken=broken(raw, suspects, vector),
            solution=found.solution,
            conflict=conflict,
        )


def _farthest(queries: np.ndarray) -> int:
    away = queries - queries.mean(axis=0)
    return int(np.einsum("ij,ij->i", away, away).argmax())
