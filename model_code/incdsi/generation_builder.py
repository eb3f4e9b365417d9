"""The writer of a live collection whose added documents get IncDSI's vectors instead of their
encodings.
"""

from __future__ import annotations

from collections.abc import Collection as Ids
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from model_code.collection.generations.generation import verify_checksums_on_error
from model_code.collection.generations.generation_builder import (
    ApplyResult,
    GenerationBuilder,
    Guard,
)
from model_code.collection.generations.net_changes import effective_changes
from model_code.collection.ledger.events import LedgerCursor
from model_code.collection.segments.refined import RefinedDocuments
from model_code.collection.segments.segment import (
    BaseSegment,
    LoadedSegment,
    write_segment,
)
from model_code.incdsi.adder import Added, IncDsiAdder, NewDocument, Status
from model_code.incdsi.settings import AdditionSettings
from model_code.incdsi.state import IncDsiState
from model_code.incdsi.store import load_state, new_documents, require_one_vector, single_rows
from model_code.retrieval.indexed import Refine
from model_code.text.documents import Change, Document
from model_code.text.passages import TextRules


class IncDsiGenerationBuilder(GenerationBuilder):
    """A `GenerationBuilder` that refines: equal changes in equal order give equal vectors, however they
    are grouped.

    They do for equal settings, whatever was compacted or rolled back in between, and as far as the
    encoder gives equal vectors: the other texts of its batch move the last bits of an encoding. So
    what a call puts and changes again is encoded all the same, and a document that is changed and
    changed back is "updated" (see `replay`). What has to be remembered lies in the segments. Every
    document becomes searchable, also where no vector meets all constraints; what became of each is
    told by `store.statuses`.
    """

    def __init__(
        self, live: Path, retriever: str, settings: AdditionSettings, folder: Path
    ) -> None:
        """folder: below which Z is kept that is made from texts."""
        super().__init__(live, retriever, self._refined)
        self.settings, self.folder = settings, folder
        self._steps: list[Change] = []
        self._remembered = RefinedDocuments()  # of the segment in the making
        self._warm: tuple[int, IncDsiAdder] | None = None  # with the generation that it belongs to
        self._grown: IncDsiAdder | None = None  # belongs to the generation in the making

    def apply(
        self,
        changes: Sequence[Change],
        cursor: LedgerCursor,
        provenance: Mapping[str, Any],
        guard: Guard | None = None,
        rewritten: Ids[str] = (),
    ) -> ApplyResult:
        """See `GenerationBuilder.apply`; SettingsError too, and nothing is changed, if the collection
        cannot be refined.
        """
        require_one_vector(self.searcher.base)
        self._grown = None
        with verify_checksums_on_error(self.searcher.generation):
            self._steps = effective_changes(changes, self.searcher.views)
        # one that is put back as it was, too: others may not be
        changed = {step.document_id for step in self._steps}
        applied = super().apply(changes, cursor, provenance, guard, {*rewritten, *changed})
        if self._grown is not None:
            self._warm = (applied.generation.number, self._grown)
        return applied

    def _refined(
        self, ids: Sequence[str], vectors: np.ndarray, queries: Sequence[np.ndarray]
    ) -> np.ndarray:
        """The hook of `GenerationBuilder`: the vectors (n, H) of the rows of documents `ids`. Those of a
        document of several passages, which has no vector of its own, stay.
        """
        adder = self._adder()
        self._warm = None
        lasting = single_rows(ids, vectors, queries)
        added = replay(
            adder,
            self._steps,
            new_documents(self.searcher, self.settings.spans, self._steps, lasting),
        )
        statuses = dict.fromkeys(ids, Status.NOT_REFINED.name) | {
            key: row.status.name for key, row in added.items()
        }
        state = adder.state
        self._remembered = RefinedDocuments(
            statuses, {key: state.queries.view[state.row(key)].copy() for key in added}
        )
        self._grown = adder
        refined = np.array(vectors, np.float32)
        for row, key in enumerate(ids):
            if key in added:
                refined[row] = added[key].vector
        return refined

    def _write_segment(  # type: ignore[override]
        self,
        folder: Path,
        base: BaseSegment,
        puts: Sequence[Document],
        text: TextRules,
        refine: Refine | None,
    ) -> LoadedSegment:
        part = write_segment(folder, base, puts, text, refine)
        self._remembered.save(folder)
        return part

    def _adder(self) -> IncDsiAdder:
        number = self.searcher.generation.number
        if self._warm is not None and self._warm[0] == number:
            return self._warm[1]
        return IncDsiAdder(
            load_state(self.searcher, self.settings.spans, self.folder), self.settings
        )


def replay(
    adder: IncDsiAdder, steps: Sequence[Change], documents: Mapping[int, NewDocument]
) -> dict[str, Added]:
    """Make `steps` in their order; return what is left of them in the end, by id, what was put last
    coming last.

    A document's vector depends on the documents that are there when it comes. So each change is
    made at its place, also one that a later change of the same group undoes, which nobody ever
    searches: how changes are grouped into generations shows in no vector.

    documents: by the number of its step, each that has one vector; others are not in the state.
    Additions in a row are one batch, and deletions one pass.
    """
    additions: dict[str, Added] = {}
    for new, run in groupby(
        moves(steps, documents, adder.state), key=lambda move: isinstance(move, NewDocument)
    ):
        moved = list(run)
        if new:
            additions |= {addition.id: addition for addition in adder.add_batch(moved)}
        else:
            adder.delete(moved)
            additions = {key: addition for key, addition in additions.items() if key not in moved}
    return additions


def moves(
    steps: Sequence[Change], documents: Mapping[int, NewDocument], state: IncDsiState
) -> Iterator[NewDocument | str]:
    """What each step is to the state: a document to add, or the id of one to delete; an update is
    both.

    A document that gets several passages leaves the state, and one that has them always was not in
    it.
    """
    present: dict[str, bool] = {}
    for number, step in enumerate(steps):
        key, document = step.document_id, documents.get(number)
        if present.get(key, key in state):
            yield key
        present[key] = document is not None
        if document is not None:
            yield document
