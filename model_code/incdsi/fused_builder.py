"""Build generations of a fusion whose added documents have vectors solved by IncDSI.

A generation is an immutable snapshot of the index. IncDSI solves the vector of a document so that
the queries of the document find it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from model_code.collection.generations.generation import Removed
from model_code.collection.generations.generation_builder import (
    NO_QUERIES,
    ApplyResult,
    GenerationBuilder,
    Guard,
)
from model_code.collection.generations.searcher import Searcher
from model_code.collection.ledger.events import LedgerCursor
from model_code.collection.segments.documents import INDEX
from model_code.collection.segments.known_overrides import LaterEvidence
from model_code.collection.segments.placements import Placements
from model_code.collection.segments.segment import (
    BaseSegment,
    LoadedSegment,
    SegmentView,
    open_segment,
    write_segment,
)
from model_code.collection.segments.solved import SolvedDocuments
from model_code.corpus.corpus_queries import drop_held_out, queries_of_row
from model_code.encoding.token_signs import TokenSigns
from model_code.incdsi.constraints import (
    PreparedConstraints,
    SegmentConstraints,
    build_constraints,
    read_segment_constraints,
)
from model_code.incdsi.earned_queries import (
    SolvedQueries,
    find_documents_to_solve,
    has_one_vector,
    select_by_hash,
)
from model_code.incdsi.fused_scores import FusedScore
from model_code.incdsi.fused_solver import Arrival, FusedSolver
from model_code.incdsi.settings import AdditionSettings
from model_code.retrieval.dense_index import EXACT_SETTINGS, DenseIndex
from model_code.retrieval.fused import FusedRetriever
from model_code.retrieval.indexed import Refine
from model_code.text.documents import Change, Document
from model_code.text.known_queries import KnownQuery, KnownQueryLimits, by_document
from model_code.text.passages import TextRules


class FusedIncDsiBuilder(GenerationBuilder):
    """A `GenerationBuilder` that solves the vectors of documents with queries.

    The queries of a document come from the row that added it, or from thumbs up on hits, which are
    called earned queries. Documents without queries, and documents with several vectors, are
    searched by their encodings. So are all documents if vectors do not affect the scores.

    Equal settings and equal changes in equal order give equal vectors. The grouping of the changes
    into calls does not matter, with two exceptions:

    - A document is left out if a later change of the same call overwrites or deletes it.
    - The last bits of an encoding depend on the other texts of its batch.
    """

    solves_vectors = True

    def __init__(
        self, live: Path, retriever: str, settings: AdditionSettings, folder: Path
    ) -> None:
        """Prepare to build generations of a retriever.

        Args:
            live: Folder of the live collections of all retrievers.
            retriever: Name of the retriever.
            settings: Settings of additions.
            folder: Folder of the cached constraints; see `build_constraints`.
        """
        super().__init__(live, retriever)
        self.settings = settings
        self.folder = folder
        # Position of each document's last change, by document id: the order in which to solve them.
        self._order: dict[str, int] = {}
        # Hashes of the queries that documents are solved for, by document id. The texts of earned
        # queries are in the feedback.
        self._solve_for = NO_QUERIES
        self._feedback: Mapping[str, Sequence[KnownQuery]] = {}
        # Hashes of the queries that a person asked to forget.
        self._forgotten: frozenset[str] = frozenset()
        # Segments of the older documents. They are only kept while a generation is being built.
        self._existing: list[SegmentView] = []
        # The score that is solved for. It depends on the build only, so it is kept.
        self._score: FusedScore | None = None
        # Constraints and solved queries of each segment, computed once. The references to segments
        # are weak, because a segment in memory locks its folder.
        self._prepared: WeakKeyDictionary[LoadedSegment, PreparedConstraints]
        self._prepared = WeakKeyDictionary()
        self._solved: WeakKeyDictionary[LoadedSegment, SolvedQueries]
        self._solved = WeakKeyDictionary()

    def prepare(self) -> None:
        """Load the segments and compute the constraints, so that the first addition is fast."""
        base = self.searcher.base
        if can_solve_vectors(base):
            self._load_build(base)

    def apply(
        self,
        changes: Sequence[Change],
        cursor: LedgerCursor,
        provenance: Mapping[str, Any],
        guard: Guard | None = None,
        rewritten: Collection[str] = (),
        solve_for: Mapping[str, Collection[str]] = NO_QUERIES,
    ) -> ApplyResult:
        """Make changes searchable, and solve the vectors of documents with queries.

        See `GenerationBuilder.apply` for the arguments.
        """
        self._order = {change.document_id: position for position, change in enumerate(changes)}
        self._solve_for = solve_for
        later = self.later_evidence()
        self._forgotten = later.forgotten
        self._feedback = {}
        if solve_for:
            self._feedback = _known_feedback(self.searcher.base, later)
        return super().apply(changes, cursor, provenance, guard, rewritten, solve_for)

    def find_documents_to_solve(self, pending: Mapping[str, Change]) -> dict[str, frozenset[str]]:
        """Find the documents whose vectors must be solved again because of feedback.

        See `GenerationBuilder.find_documents_to_solve`.
        """
        searcher = self.searcher
        base = searcher.base
        if not can_solve_vectors(base):
            return {}
        later = self.later_evidence()
        return find_documents_to_solve(
            searcher,
            _known_feedback(base, later),
            self._limits(base),
            pending,
            self._solved_queries,
            later.forgotten,
        )

    def _limits(self, base: BaseSegment) -> KnownQueryLimits:
        """Return the limits of the number and length of queries that a document may earn.

        They are the limits of the build's BM25 component, which indexes known queries as words.
        """
        score = FusedScore(base)
        if score.bm25_name is None:
            return KnownQueryLimits()
        words = score.bm25_of(base).words
        if words is None:
            return KnownQueryLimits()
        return words.limits

    def _solved_queries(self, segment: LoadedSegment) -> SolvedQueries:
        """Return the queries that the documents of a segment are solved for, read once."""
        if segment not in self._solved:
            self._solved[segment] = SolvedQueries.read(segment)
        return self._solved[segment]

    def _build(
        self,
        searcher: Searcher,
        removed: Removed,
        puts: Sequence[Document] | None,
        cursor: LedgerCursor,
        provenance: Mapping[str, Any],
        weights: Mapping[str, float] | None = None,
        shares_files: bool = True,
    ) -> Searcher:
        """Build a generation, and keep its older segments at hand while its new one is written.

        `_write_segment` is called meanwhile. It needs the older documents, so that a solved
        document does not win their queries.
        """
        for view in searcher.views:
            gone = removed.get(view.segment.number, frozenset())
            self._existing.append(replace(view, removed=gone))
        try:
            return super()._build(
                searcher, removed, puts, cursor, provenance, weights, shares_files
            )
        finally:
            # Forget the older segments: a view locks the folder of its segment against deletion.
            self._existing = []

    def _write_segment(  # type: ignore[override]
        self,
        folder: Path,
        base: BaseSegment,
        puts: Sequence[Document],
        text: TextRules,
        refine: Refine | None,
    ) -> LoadedSegment:
        """Write a segment with encodings, and replace the encodings of documents with queries."""
        segment = write_segment(folder, base, puts, text, refine)
        if not can_solve_vectors(base):
            return segment
        arrivals = self._arrivals(base, segment, puts)
        if not any(arrival.queries for arrival in arrivals):
            return segment

        score = self._load_build(base)
        existing = [view for view in self._existing if view.documents]
        constraints = self._load_constraints(score)
        solver = FusedSolver(score, self.settings, existing, constraints, segment, arrivals)
        solved = solver.solve()

        replace_vectors(score, segment, solver)
        SolvedDocuments({document.document_id: document for document in solved}).save(folder)
        refined = open_segment(base, folder)
        document_ids = refined.rows.document_ids
        vectors = refined.retriever.passage_vectors(document_ids)
        Placements.find(base.tree, vectors).save(folder)
        return refined

    def _arrivals(
        self, base: BaseSegment, segment: LoadedSegment, puts: Sequence[Document]
    ) -> list[Arrival]:
        """Return the new documents in the order of changes, with the queries to solve them for."""
        arrivals: list[Arrival] = []
        for document in sorted(puts, key=lambda put: self._order[put.document_id]):
            queries: list[str] = []
            if has_one_vector(segment, document.document_id):
                queries = self._queries_to_solve_for(base, document)
            arrivals.append(Arrival(document.document_id, tuple(dict.fromkeys(queries))))
        return arrivals

    def _queries_to_solve_for(self, base: BaseSegment, document: Document) -> list[str]:
        """Return the texts of the queries that the vector of a document is solved for.

        Usually these are the queries of the row that added it. If `apply` was given other queries
        for the document, because of feedback, it is solved for those.
        """
        document_id = document.document_id
        # Queries of the evaluation splits are left out, also if a row contains them. A vector that
        # is solved for them would make the evaluation too good. Forgotten queries may still be
        # among the judgements of the build.
        unknown = base.build_queries.held_out | self._forgotten
        texts = [query.text for query in drop_held_out(queries_of_row(document), unknown)]
        if document_id not in self._solve_for:
            return texts

        judged = drop_held_out(base.judged_queries(document_id), unknown)
        texts.extend(query.text for query in judged)
        texts.extend(query.text for query in self._feedback.get(document_id, ()))
        return select_by_hash(texts, self._solve_for[document_id])

    def _load_build(self, base: BaseSegment) -> FusedScore:
        """Return the fused score of a build, after preparing the constraints of the build.

        Both are kept, because they stay the same until another build is live.
        """
        if self._score is None or self._score.base is not base:
            self._score = FusedScore(base)
            constraints = build_constraints(self._score, self.folder, self._find_forgotten)
            self._prepared.clear()
            self._prepared[base] = PreparedConstraints.prepare(self._score, constraints)
        return self._score

    def _find_forgotten(self) -> frozenset[str]:
        """Return the hashes of the queries that a person asked to forget, as recorded now."""
        return self.later_evidence().forgotten

    def _load_constraints(self, score: FusedScore) -> list[SegmentConstraints]:
        """Return the constraints of each older segment."""
        segment_constraints: list[SegmentConstraints] = []
        for view in self._existing:
            segment = view.segment
            if segment not in self._prepared:
                constraints = read_segment_constraints(score, segment)
                self._prepared[segment] = PreparedConstraints.prepare(score, constraints)
            prepared = self._prepared[segment]
            applies = prepared.find_live(view)
            segment_constraints.append(SegmentConstraints(prepared, applies))
        return segment_constraints


def _known_feedback(base: BaseSegment, later: LaterEvidence) -> dict[str, list[KnownQuery]]:
    """Return the queries that got thumbs, by document id.

    Queries that users asked to forget, and queries of the evaluation splits, are left out.
    """
    unknown = base.build_queries.held_out | later.forgotten
    return by_document(drop_held_out(later.feedback, unknown))


def can_solve_vectors(base: BaseSegment) -> bool:
    """Return whether vectors affect the scores of a retriever, so that they can be solved.

    A fusion may have no dense component, or have learned the weight 0 for it.
    """
    return base.retriever.dense is not None and FusedScore(base).dense_weight > 0


def replace_vectors(score: FusedScore, segment: LoadedSegment, solver: FusedSolver) -> None:
    """Write solved vectors to the dense index of a new segment, in place of its encodings.

    Args:
        score: Fused score, which has the name of the dense component.
        segment: The new segment, which is not part of a generation yet.
        solver: Solver that holds the vectors of all rows of the segment.
    """
    index: Any = score.dense_of(segment).index
    folder = segment.folder / INDEX
    component = folder if score.dense_name is None else folder / score.dense_name

    # The token signs may be mapped from the file that is written below. So they are copied first.
    token_signs = index.token_signs
    if token_signs is not None:
        token_signs = TokenSigns(np.array(token_signs.bits), token_signs.starts)
    solved = DenseIndex.build(
        solver.vectors,
        index.document_ids,
        index.fingerprint,
        EXACT_SETTINGS,
        index.vectors_per_passage,
        token_signs,
    )
    solved.save(component)
    retriever: Any = segment.retriever
    if isinstance(retriever, FusedRetriever):
        # The files of the dense component changed, so their checksums in the manifest do as well.
        retriever.write_index_manifest(folder, segment.rows.documents)
