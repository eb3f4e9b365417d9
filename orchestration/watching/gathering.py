"""What one batch brought, as drift measures it: vectors of documents and of logged queries, scores, statuses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from model_code.additions.settings import AdditionSettings
from model_code.drift.measures import refined
from model_code.drift.reference import Question
from model_code.drift.report import NOT_REFINED, Arrivals
from model_code.live.documents import read_documents
from model_code.live.searcher import Searcher
from model_code.live.trained import trained_documents
from orchestration.live.additions import resolved, statuses_of
from orchestration.parameters import Parameters
from orchestration.project import Project
from orchestration.service import query_log
from orchestration.watching.batches import Batch
from orchestration.watching.quality import answers, asked_scores, made_questions
from orchestration.watching.queries import NO_LOG, has_vectors, query_vectors, some
from orchestration.watching.vectors import document_vectors

if TYPE_CHECKING:
    from model_code.ledger.ledger import Ledger
    from model_code.ledger.records import Event

UNCHANGED = "unchanged"  # the status of a document that came as it is live: one of the corpus, sent again
KEPT = "additions.on_conflict is keep, which does not ask whether constraints conflict; drop_queries does"


@dataclass(frozen=True)
class Gatherer:
    """Reads batches of a live collection. asked_since: no batch is older, so the query log is read from there."""

    project: Project
    searcher: Searcher
    settings: Parameters
    ledger: Ledger | None
    asked_since: float = 0.0

    def arrivals(self, batch: Batch) -> Arrivals:
        """The documents of a batch that were new or other than before, and are still live as they arrived then, each in
        the order of its event, and the queries that were logged meanwhile."""
        events = self.ledger.arrivals(batch.first, batch.last) if self.ledger else []
        trained = trained_documents(self.searcher.generation)  # "unchanged" is said of the build that was live then
        found = [one for one in events if not (one.reason == UNCHANGED and one.document_id in trained)]
        put = [one.document_id for one in found]
        vectors, texts = self._vectors_and_texts(put)
        queries, why = self._queries(batch)
        return Arrivals(
            vectors,
            self.searcher.generation.fingerprint,
            quality=self._scores(texts),
            asked=self._asked_scores(found),
            statuses=() if self._kept else tuple(self._statuses[one] for one in put if one in self._statuses),
            queries=queries,
            no_queries=why,
            no_statuses=KEPT if self._kept else NOT_REFINED,
        )

    @cached_property
    def _statuses(self) -> dict[str, str]:
        return statuses_of(self.project, self.searcher.generation)

    @cached_property
    def _additions(self) -> AdditionSettings:
        return resolved(self.project, self.settings.additions, self.searcher.generation.retriever)

    @property
    def _kept(self) -> bool:
        """Whether additions are refined without asking whether their constraints conflict."""
        return self._additions.refine and self._additions.on_conflict == "keep"

    def _placed(self, document_id: str) -> bool:
        """Whether a document's vector was made with the queries that it arrived with."""
        status = self._statuses.get(document_id)
        return status is not None and (bool(refined([status])) or self._additions.prior == "mixed")

    @cached_property
    def _logged(self) -> list[query_log.Logged]:
        return query_log.logged_since(self.project.state, self.asked_since)

    def _queries(self, batch: Batch) -> tuple[np.ndarray | None, str]:
        """The vectors of at most `drift.largest_batch` different queries, or None and why."""
        base, chosen = self.searcher.base, self.settings.drift
        if not query_log.is_kept(self.project.state):
            return None, NO_LOG
        if not has_vectors(base):
            return None, f"a {base.kind} retriever makes no vectors of queries"
        asked, again = self._asked(batch.after, batch.until), self._asked(batch.until, inf)
        texts = some(asked - again, chosen.largest_batch, chosen.seed)  # of the last batch that it was asked in
        return query_vectors(base, texts), ""

    def _asked(self, after: float, until: float) -> set[str]:
        """The different texts that were searched for in a span of time."""
        return {one.text.strip() for one in self._logged if after < one.time <= until} - {""}

    def _scores(self, texts: dict[str, str]) -> np.ndarray | None:
        folder, settings = self.project.state / "drift" / "queries", self.settings
        measured = {one: texts[one] for one in self._measured(texts)}
        if not measured:
            return None
        questions = made_questions(measured, settings.pseudo_queries, settings.drift.seed, folder)
        scores = asked_scores(self.searcher, questions)
        return np.array(list(scores.values()), np.float32) if scores else None

    def _asked_scores(self, events: Sequence[Event]) -> np.ndarray | None:
        """By the queries that documents arrived with, each answered by all that came with it, as judged queries are;
        none of those that these very queries placed."""
        given = {
            event.document_id: (event.payload or {}).get("queries", ())
            for event in events
            if not self._placed(event.document_id)
        }
        measured = self._measured(one for one, queries in given.items() if queries)
        questions = [Question(one, query, self.answers[query]) for one in measured for query in given[one]]
        scores = asked_scores(self.searcher, questions)
        return np.array(list(scores.values()), np.float32) if scores else None

    @cached_property
    def answers(self) -> dict[str, frozenset[str]]:
        """The live documents, by a query that they came with."""
        contents = self.ledger.snapshot(self.searcher.generation.watermark) if self.ledger else ()
        return answers(contents)

    def _measured(self, document_ids: Iterable[str]) -> list[str]:
        """As many of the documents as a report looks at: to search for the others would be for nothing."""
        return some(document_ids, self.settings.drift.largest_batch, self.settings.drift.seed)

    def _vectors_and_texts(self, document_ids: Sequence[str]) -> tuple[np.ndarray, dict[str, str]]:
        found: list[np.ndarray] = []
        texts: dict[str, Any] = {}
        for view in self.searcher.views:
            own = [one for one in document_ids if one in view]
            if own:
                found.append(document_vectors(view.part, own))
                texts |= {one: row["text"] for one, row in read_documents(view.part.documents, own).items()}
        width = document_vectors(self.searcher.base, self.searcher.base.rows.document_ids[:1]).shape[1]
        return (np.concatenate(found) if found else np.zeros((0, width), np.float32)), dict(sorted(texts.items()))
