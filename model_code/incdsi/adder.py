"""Add, update and delete documents of a collection, one at a time or in batches with the same result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from model_code.errors import FreshetError
from model_code.incdsi.batch import starts
from model_code.incdsi.documents import Added, NewDocument, mean_query
from model_code.incdsi.priors import prior_vector
from model_code.incdsi.refine import Refined, Refiner, Start
from model_code.incdsi.rivals import Rivals
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.state import IncDsiState
from model_code.incdsi.wins import arrived, regained, track_wins, wins

DEFAULTS = IncDsiSettings()
MOST_SCORES = 2**26  # of one pass, float32: 256 MiB


class IncDsiAdder:
    """Keeps `state` current. Each document's vector depends on those before it, as in the paper, and never changes.

    Laws: equal calls in equal order give equal vectors; a batch gives the vectors of one-by-one addition; deleting the
    last document undoes its addition; an update gives the vector of deleting the document and adding it anew.

    >>> state = IncDsiState(np.eye(3)[:2], np.eye(3)[:2], ["a", "b"])
    >>> adder = IncDsiAdder(state, IncDsiSettings(gamma1=.5, margins_in="scores"))
    >>> added = adder.add(NewDocument("c", queries=np.array([[.1, 0., 1.]])))
    >>> added.status.name, len(state)
    ('FITS', 3)
    """

    def __init__(self, state: IncDsiState, settings: IncDsiSettings = DEFAULTS) -> None:
        self.state, self.settings = state, settings
        self.refiner = Refiner(state, settings)
        if settings.tracks_wins:
            track_wins(state)

    def add(self, document: NewDocument) -> Added:
        """Add one document at the end; raises FreshetError if its id is in the collection."""
        return self.add_batch([document])[0]

    def add_batch(self, documents: Sequence[NewDocument]) -> list[Added]:
        """Add `documents` in order. All are checked first, so that a bad one leaves the collection as it was."""
        self._check_new(documents)
        found: list[Added] = []
        at_once = max(1, min(self.settings.batch_size, MOST_SCORES // max(1, len(self.state))))
        for begin in range(0, len(documents), at_once):
            found += self._add_chunk(documents[begin : begin + at_once])
        return found

    def update(self, document: NewDocument) -> Added:
        """Find the document's vector anew, from new queries and encoding, against all others; it keeps its row."""
        row = self.state.row(document.id)
        self._check(document)
        back = regained(self.state, np.array([row]))
        if self.state.won is not None:
            self.state.won.view[back] = wins(self.state, back, without=row)
        query = mean_query(document.queries)
        if self.settings.refine:
            return self._store(document, self.refiner.refine(document, self.refiner.rivals(query, own=row)), row)
        return self._store(document, self.refiner.plain(document, query), row)

    def delete(self, ids: Iterable[str]) -> None:
        """Take documents out; raises FreshetError, before anything is deleted, if one of them is not there."""
        rows = np.unique([self.state.row(key) for key in ids]).astype(np.int64)
        back = regained(self.state, rows)
        self.state.delete(rows)
        if self.state.won is not None:
            moved = back - np.searchsorted(rows, back)
            self.state.won.view[moved] = wins(self.state, moved)

    def _add_chunk(self, documents: Sequence[NewDocument]) -> list[Added]:
        queries = np.stack([mean_query(document.queries) for document in documents])
        if not self.settings.refine:
            plain = [self.refiner.plain(*pair) for pair in zip(documents, queries, strict=True)]
            return [self._store(*pair) for pair in zip(documents, plain, strict=True)]
        rivals = [Rivals(self.state, seen) for seen in self.refiner.vectors.passes(queries)]
        begin = starts(self.refiner, documents, rivals) if len(documents) > 1 else [Start()]
        found = []
        for document, scores, start in zip(documents, rivals, begin, strict=True):
            found.append(self._store(document, self.refiner.refine(document, scores, start)))
        return found

    def _store(self, document: NewDocument, found: Refined, row: int | None = None) -> Added:
        if row is None:
            row = len(self.state)
            self.state.append(document.id, found.vector, found.query)
        else:
            self.state.replace(row, found.vector, found.query)
        if found.rivals is None:
            self.state.won = None  # nobody looked who loses to it
        elif self.state.won is not None:
            arrived(self.state, row, found.suspects, found.rivals.above(float(self.state.own_scores.view[row])))
        return Added(
            id=document.id,
            row=row,
            vector=self.state.vectors.view[row].copy(),
            query=self.state.queries.view[row].copy(),
            status=found.status,
            broken=found.broken,
            dropped=found.dropped,
            solution=found.solution,
            conflict=found.conflict,
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
