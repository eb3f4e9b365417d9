"""Build generations of a DSI retriever whose added documents have vectors solved by IncDSI.

A DSI retriever has learned one vector per document. IncDSI (Kishore et al., 2023) finds a vector
for an added document without training. `fused_builder` does this for encoders and fusions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from model_code.collection.generations.generation import verify_checksums_on_error
from model_code.collection.generations.generation_builder import (
    NO_QUERIES,
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
from model_code.drift.statuses import Status
from model_code.incdsi.adder import Added, IncDsiAdder, NewDocument
from model_code.incdsi.settings import LearnedAdditionSettings
from model_code.incdsi.state import IncDsiState
from model_code.incdsi.store import load_state, new_documents, require_one_vector, single_rows
from model_code.retrieval.indexed import Refine
from model_code.text.documents import Change, Document
from model_code.text.passages import TextRules


class DsiIncDsiBuilder(GenerationBuilder):
    """A `GenerationBuilder` that replaces the encodings of added documents by IncDSI's vectors.

    With equal settings, equal changes in equal order give equal vectors. The grouping of the
    changes into calls does not matter, and compaction and reverts in between do not either. Only
    the last bits may differ, because an encoding depends on the other texts of its batch.

    Therefore each change is solved, also a change that a later one of the same call undoes; see
    `replay`. A document that is changed and changed back counts as updated.

    Documents without known queries keep their encodings.

    The solved vectors are stored in the segments, with the mean query vector of each document.
    Every document becomes searchable, also if no vector meets all constraints.
    `refinement_statuses` tells which documents meet them: the constraints keep new documents from
    winning the queries of older ones.
    """

    def __init__(
        self, live: Path, retriever: str, settings: LearnedAdditionSettings, folder: Path
    ) -> None:
        """Prepare to build generations of a retriever.

        Args:
            live: Folder of the live collections of all retrievers.
            retriever: Name of the retriever.
            settings: Settings of additions.
            folder: Folder that caches the mean query vectors of documents; see
                `store.representatives`.
        """
        super().__init__(live, retriever, self._refine_vectors)
        self.settings = settings
        self.folder = folder
        self._changes: list[Change] = []
        # Records of the documents in the segment that is being written.
        self._refined = RefinedDocuments()
        # The adder of the last call, with the number of the generation that its state equals. It is
        # used again if this generation is still current, because loading a state takes long.
        self._adder_of_generation: tuple[int, IncDsiAdder] | None = None
        # Adder whose state equals the generation that is being built. It is kept if this succeeds.
        self._new_adder: IncDsiAdder | None = None

    def apply(
        self,
        changes: Sequence[Change],
        cursor: LedgerCursor,
        provenance: Mapping[str, Any],
        guard: Guard | None = None,
        rewritten: Collection[str] = (),
        solve_for: Mapping[str, Collection[str]] = NO_QUERIES,
    ) -> ApplyResult:
        """Make changes searchable, and solve the vectors of added documents by IncDSI.

        See `GenerationBuilder.apply` for the arguments.

        Raises:
            SettingsError: If IncDSI cannot solve vectors of this retriever. Nothing is changed
                then.
        """
        require_one_vector(self.searcher.base)
        self._new_adder = None
        with verify_checksums_on_error(self.searcher.generation):
            self._changes = effective_changes(changes, self.searcher.views)
        # A document that is changed and changed back is written again: its new vector depends on
        # the documents that were solved in between.
        changed = {change.document_id for change in self._changes}
        all_rewritten = {*rewritten, *changed, *solve_for}
        result = super().apply(changes, cursor, provenance, guard, all_rewritten)
        if self._new_adder is not None:
            self._adder_of_generation = (result.generation.number, self._new_adder)
        return result

    def _refine_vectors(
        self, ids: Sequence[str], vectors: np.ndarray, queries: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Solve the vectors of the new documents that have known queries, by IncDSI.

        The solved vector of a document takes the place of its encoding. Documents without known
        queries keep their encodings. So do documents with several rows, because IncDSI solves one
        vector per document.

        Args:
            ids: Document id of each row, (n,).
            vectors: Encoding of each row, (n, H).
            queries: For each row, the vectors (m, H) of the known queries of its document.

        Returns:
            The vectors to index, (n, H) float32.
        """
        adder = self._load_adder()
        # The adder's state changes below, so the adder must not be used for this generation again.
        self._adder_of_generation = None
        lasting = single_rows(ids, vectors, queries)
        documents = new_documents(self.searcher, self.settings.spans, self._changes, lasting)
        added = replay(adder, self._changes, documents)

        statuses = dict.fromkeys(ids, Status.NOT_REFINED.name)
        for document_id, addition in added.items():
            statuses[document_id] = addition.status.name
        # Documents are recorded in the order of their last changes, as they follow in the state.
        positions = {change.document_id: number for number, change in enumerate(self._changes)}
        representatives: dict[str, np.ndarray] = {}
        state = adder.state
        for document_id in sorted(lasting, key=positions.__getitem__):
            representatives[document_id] = state.queries.view[state.row(document_id)].copy()
        self._refined = RefinedDocuments(statuses, representatives)
        self._new_adder = adder

        refined = np.array(vectors, np.float32)
        for row, document_id in enumerate(ids):
            if document_id in added:
                refined[row] = added[document_id].vector
        return refined

    def _write_segment(  # type: ignore[override]
        self,
        folder: Path,
        base: BaseSegment,
        puts: Sequence[Document],
        text: TextRules,
        refine: Refine | None,
    ) -> LoadedSegment:
        """Write a segment with the records of its refined documents."""
        segment = write_segment(folder, base, puts, text, refine)
        self._refined.save(folder)
        return segment

    def _load_adder(self) -> IncDsiAdder:
        """Return an adder whose state has the live documents of the current generation.

        The adder of the last call is used if its state is still up to date. Loading takes longer.
        """
        if self._adder_of_generation is not None:
            number, adder = self._adder_of_generation
            if number == self.searcher.generation.number:
                return adder
        state = load_state(self.searcher, self.settings.spans, self.folder)
        return IncDsiAdder(state, self.settings)


def replay(
    adder: IncDsiAdder, changes: Sequence[Change], documents: Mapping[int, NewDocument]
) -> dict[str, Added]:
    """Apply changes to the state of an adder, one after the other.

    The vector of a document depends on the documents that exist when it is added. So no change may
    be skipped, even if a later change of the same call undoes it. The grouping of changes into
    generations therefore affects no vector. Consecutive documents to solve are one batch.

    Args:
        adder: Adder with the state before the changes.
        changes: Changes in their order, without those that change nothing.
        documents: Documents to add, by the position in `changes` of the change that puts them.
            Documents with several vectors are left out, because the state does not hold them.

    Returns:
        The solved documents that still exist after all changes, by id, in the order of their last
        put.
    """
    additions: dict[str, Added] = {}
    steps = state_steps(changes, documents, adder.state)
    for kind, consecutive_steps in groupby(steps, key=attrgetter("kind")):
        document_ids: list[str] = []
        new: list[NewDocument] = []
        for step in consecutive_steps:
            document_ids.append(step.document_id)
            if step.document is not None:
                new.append(step.document)

        if kind == StepKind.SOLVE:
            for addition in adder.add_batch(new):
                additions[addition.id] = addition
        elif kind == StepKind.KEEP_ENCODING:
            adder.append_encodings(new)
        else:
            adder.delete(document_ids)
            for document_id in document_ids:
                additions.pop(document_id, None)
    return additions


class StepKind(StrEnum):
    """How a step changes the state of an adder."""

    SOLVE = "solve"
    KEEP_ENCODING = "keep encoding"
    DELETE = "delete"


class StateStep(NamedTuple):
    """A step by which a change affects the state of an adder.

    Attributes:
        kind: How the step changes the state.
        document_id: Id of the document to add or delete.
        document: The document to add. None for a deletion.
    """

    kind: StepKind
    document_id: str
    document: NewDocument | None = None


def state_steps(
    changes: Sequence[Change], documents: Mapping[int, NewDocument], state: IncDsiState
) -> Iterator[StateStep]:
    """Yield the steps by which changes affect the state of an adder.

    An update is a deletion and an addition. The state holds only documents with one vector. So a
    document that now has several is deleted from it.

    Args:
        changes: Changes in their order.
        documents: Documents to add, by the position in `changes` of the change that puts them.
        state: State before the changes.
    """
    # Whether the state will hold a document after the changes that were read so far.
    is_present: dict[str, bool] = {}
    for number, change in enumerate(changes):
        document_id = change.document_id
        document = documents.get(number)
        was_present = is_present.get(document_id, document_id in state)
        if was_present:
            yield StateStep(StepKind.DELETE, document_id)
        if document is not None:
            kind = StepKind.KEEP_ENCODING if document.keeps_encoding else StepKind.SOLVE
            yield StateStep(kind, document_id, document)
        is_present[document_id] = document is not None
