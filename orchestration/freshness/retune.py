"""Retune: choose the weights of the live fusion again, on queries that were judged since its build.

The weights of a build were chosen on the dev queries of that day. Later more queries are judged,
and people may ask in other ways than before. A retune chooses the weights again, by the rule of the
build: a weight moves only if the queries gain clearly. It trains and encodes no document, so it
takes seconds. The gate then compares both choices on its own queries.

A retune learns on judged queries that the live encoder was not trained on. These are the split dev,
and queries of the split train that were judged after the training. Documents are indexed with words
of queries that they are known to answer. The queries of the retune are left out of these words
meanwhile. The weight of known queries is therefore not chosen again: hardly any known query would
be left to measure it with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from model_code.audit import AuditAction, AuditLog
from model_code.collection.generations.evaluation_segments import judging_segments
from model_code.collection.generations.live_queries import documents_with_known_queries
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.project_ledger import open_ledger
from model_code.collection.ledger.tasks import TaskKind, TaskState
from model_code.corpus.corpus_queries import TRAINING_SPLIT, query_hash
from model_code.corpus.settings import GATE
from model_code.corpus.tables import (
    Corpus,
    Judgements,
    find_queries_with_known,
    find_query_lines,
)
from model_code.errors import FreshetError
from model_code.evaluation.gate_power import (
    Deviations,
    GateQueries,
    deviation_details,
    gate_obstacle,
)
from model_code.evaluation.metrics import evaluate_run
from model_code.evaluation.promotion import Verdict, judge_promotion
from model_code.evaluation.scores import SystemScores
from model_code.evaluation.settings import PromotionSettings
from model_code.evaluation.system_evaluation import sample_queries
from model_code.project import Project, file_lock
from model_code.retrieval.fused import FusedQueries, FusedRetriever, FusedSearch
from model_code.retrieval.protocol import LATE_SUFFIX
from model_code.retrieval.query_cache import QueryCache
from model_code.stages.fusion import (
    MIN_LEARNING_QUERIES,
    WeightsChoice,
    choose_weights,
    find_loss_limit,
    group_sizes,
    measure_weights,
    metric_values,
    score_candidates,
)
from orchestration import parameters
from orchestration.freshness.judged_pairs import read_judged_pairs

if TYPE_CHECKING:
    from orchestration.parameters import Parameters

# Name of a lock file in the project's state folder. Only one retune of a project runs at a time.
LOCK = "retune.lock"
# Largest number of queries that weights are chosen on, and that the gate compares. Weights that are
# learned on 30 queries are nearly as good as on all, so more queries would only take time.
MAX_QUERIES = 300
DEV = "dev"


class RetuneNotPossible(FreshetError):
    """The weights cannot be chosen again; the message says why."""


@dataclass(frozen=True)
class RetuneQueries:
    """The judged queries of a retune.

    Attributes:
        learning: Queries that the weights are chosen on.
        gate: Queries on which the gate compares the new weights with the old ones.
        at_build: Number of the queries in `learning` that were dev queries of the build.
    """

    learning: Judgements
    gate: Judgements
    at_build: int

    @property
    def obstacle(self) -> str | None:
        """The reason why these queries do not suffice, or None if they do."""
        learning = len(self.learning.queries)
        if learning < MIN_LEARNING_QUERIES:
            return (
                f"{learning} judged queries that the encoder was not trained on are fewer than "
                f"{MIN_LEARNING_QUERIES}: judge more with `freshet judge`"
            )
        if not self.gate.queries:
            return "the gate has no judged queries: judge more with `freshet judge`"
        return None

    def gate_obstacle(
        self, settings: PromotionSettings, deviations: Deviations | None = None
    ) -> str | None:
        """Return the reason why the gate would probably refuse new weights, or None.

        Args:
            settings: Metrics, level and largest plausible gain of the gate.
            deviations: Deviations that the last verdict on a retune has measured; None without one.
        """
        queries = GateQueries(gain=min(len(self.gate.queries), MAX_QUERIES))
        return gate_obstacle(queries, settings, deviations or Deviations())


@dataclass(frozen=True)
class RetuneResult:
    """The outcome of a retune.

    Attributes:
        queries: Number of queries that the weights can be chosen on.
        before: Weights that were searched with.
        after: Weights that were chosen.
        verdict: The verdict of the gate. None if no weight moved, so that the gate was not asked.
        last_event: Id of the last ledger event that the searched generation contained.
        generation: Number of the generation with the new weights. None if it was not made.
        deviations: Deviations of the verdict, as the details of a task keep them.
        on_learning: The mean metric of the learning queries with both weights, for documents with
            and without known queries; see `WeightsChoice.report`.
    """

    queries: int
    before: Mapping[str, float]
    after: Mapping[str, float]
    verdict: Verdict | None
    last_event: int
    generation: int | None = None
    deviations: Mapping[str, float] = field(default_factory=dict)
    on_learning: Mapping[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether the gate accepts the new weights."""
        return self.verdict is not None and self.verdict.passed

    @property
    def summary(self) -> str:
        """Describe in one line how the weights moved, and what the gate decided."""
        if self.verdict is None:
            text = f"the weights stay: none gains clearly on {self.queries:,} judged queries"
            return "; ".join([text, *self.group_statements])
        moved = []
        for name in dict.fromkeys([*self.before, *self.after]):
            old = self.before.get(name, 0.0)
            new = self.after.get(name, 0.0)
            if old != new:
                moved.append(f"{name} {old:g} -> {new:g}")
        outcome = "new weights" if self.passed else "the gate refused new weights"
        statements = [*self.verdict.statements, *self.group_statements]
        return f"{outcome} ({', '.join(moved)}): {'; '.join(statements)}"

    @property
    def group_statements(self) -> tuple[str, ...]:
        """The mean metric of each group of learning queries, with the old and the new weights.

        The groups are the queries for documents with known queries, and all others. Empty if a
        group has no query.
        """
        sizes: Mapping[str, int] = self.on_learning.get("queries", {})
        if len(sizes) < 2:
            return ()
        before, after = self.on_learning["variants"][:2]
        texts: list[str] = []
        for group, size in sizes.items():
            kind = group.replace("_", " ")
            texts.append(
                f"choice on documents {kind} queries: {before[group]:.4f} -> {after[group]:.4f} "
                f"({size:,} queries)"
            )
        return tuple(texts)

    @property
    def details(self) -> dict[str, Any]:
        """Return the outcome as values that JSON can hold, for the ledger."""
        return {
            "queries": self.queries,
            "before": dict(self.before),
            "after": dict(self.after),
            "last_event": self.last_event,
            "generation": self.generation,
            "on_learning": dict(self.on_learning),
            **self.deviations,
        }


def read_retune_queries(project: Project, searcher: Searcher) -> RetuneQueries:
    """Read the judged queries on which weights can be chosen again, and those of the gate.

    Queries that are the first paragraph of a document that answers them are left out, because they
    would find it by an exact copy.

    Args:
        project: The project.
        searcher: Searcher of the live generation, whose documents may answer.
    """
    settings = parameters.load(project.params_file)
    pairs = read_judged_pairs(project, searcher.generation)
    splits = pairs.final_splits(settings.corpus.splits)
    # The build has recorded the queries that the encoder was trained on, and the hashes of those
    # that were held out for the evaluation. Without such a record, no query counts as untrained.
    build = searcher.base.build_queries
    trained = build.trained_hashes

    # The relevant documents of each query, with their grades.
    qrels: dict[str, dict[str, int]] = {}
    for (query_id, document_id), grade in sorted(pairs.relevance.items()):
        if grade > 0:
            qrels.setdefault(query_id, {})[document_id] = grade
    texts = {query_id: pairs.texts[query_id] for query_id in sorted(qrels)}
    answered_by_copies = _answered_by_copies(searcher, texts, qrels)

    learning: list[str] = []
    gate: list[str] = []
    at_build = 0
    for query_id, text in texts.items():
        if query_id in answered_by_copies:
            continue
        split = splits.get(query_id)
        text_hash = query_hash(text)
        is_untrained = text_hash not in trained and bool(build.held_out)
        if split == GATE:
            gate.append(query_id)
        elif split == DEV or (split == TRAINING_SPLIT and is_untrained):
            learning.append(query_id)
            if text_hash in build.held_out:
                at_build += 1
    return RetuneQueries(_select(texts, qrels, learning), _select(texts, qrels, gate), at_build)


def retune(project: Project) -> RetuneResult:
    """Choose the weights of the live fusion again, ask the gate, and search with them if it passes.

    Documents that arrive meanwhile are not affected.

    Raises:
        RetuneNotPossible: If the default retriever is not a fusion, or too few queries are judged.
    """
    with file_lock(project.state / LOCK):
        searcher = Searcher.open(project.live)
        result = choose_live_weights(project, searcher)
        if not result.passed:
            return result
        index = LiveIndex(project, searcher.generation.retriever)
        provenance = {"retuned_on": result.queries}
        generation = index.tune(result.after, provenance)
        detail = f"generation {generation.number}"
        AuditLog(project.audit).append(AuditAction.RETUNE, 1, detail=detail)
        return replace(result, generation=generation.number)


def run_manual_retune(project: Project) -> RetuneResult:
    """Choose the weights of the live fusion again for a person, and record the outcome.

    The outcome is recorded in the ledger. Raises the errors of `retune`.
    """
    result = retune(project)
    retriever = LiveIndex(project).retriever
    with open_ledger(project, retriever) as ledger:
        ledger.tasks.record_outcome(
            TaskKind.RETUNE, retriever, _state_of(result), result.summary, result.details
        )
    return result


def run_requested_retune(project: Project, run_key: str, run_id: str | None = None) -> str:
    """Run the retune that a drift check requested, and record its outcome.

    A retune chooses the weights of the live fusion again. Nothing is done if the task is not open
    any more.

    Args:
        project: The project.
        run_key: The run key of the task.
        run_id: The id of the Dagster run, which is recorded with the task.

    Returns:
        The outcome in words.
    """
    with open_ledger(project) as ledger:
        task = ledger.tasks.find_by_run_key(run_key)
        if task is None:
            return "the retune is not requested any more"
        try:
            result = retune(project)
        except RetuneNotPossible as error:
            outcome = f"no retune: {error}"
            ledger.tasks.end(task, TaskState.REFUSED, outcome, run_id)
            return outcome
        ledger.tasks.end(task, _state_of(result), result.summary, run_id, result.details)
        return result.summary


def choose_live_weights(project: Project, searcher: Searcher) -> RetuneResult:
    """Choose the weights of a live fusion again, and ask the gate; change nothing.

    Args:
        project: The project.
        searcher: Searcher of the live generation.

    Raises:
        RetuneNotPossible: If the retriever is not a fusion, or too few queries are judged.
    """
    base: Any = searcher.base.retriever
    if not isinstance(base, FusedRetriever):
        name = searcher.generation.retriever
        raise RetuneNotPossible(f"{name} is no fusion, so it has no weights")
    queries = read_retune_queries(project, searcher)
    if queries.obstacle is not None:
        raise RetuneNotPossible(queries.obstacle)

    settings = parameters.load(project.params_file)
    learning = sample_queries(queries.learning, MAX_QUERIES)
    gate = sample_queries(queries.gate, MAX_QUERIES)

    # Documents may have one of these queries as a known query, which would find them trivially. So
    # the index is opened without these queries.
    texts = [*learning.queries.values(), *gate.queries.values()]
    held_out = frozenset(query_hash(text) for text in texts)
    known_documents = documents_with_known_queries(searcher.generation, held_out)
    learning_with_known = find_queries_with_known(learning.qrels, known_documents)
    learning = replace(learning, with_known=learning_with_known)
    cache = QueryCache(project.state / "drift" / "retune_queries")
    with TemporaryDirectory() as folder:
        segments = judging_segments(searcher, held_out, Path(folder))
        joined = cache.cached(type(base).join_segments(segments))
        assert isinstance(joined, FusedSearch)
        before = joined.fusion

        # Late interaction, which scores candidates again token by token, may have been switched off
        # by the build. A weight of 0 lets the search switch it on.
        weights = dict(before.weights)
        for name in _late_names(base):
            weights.setdefault(name, 0.0)
        search = FusedSearch(joined.components, replace(before, weights=weights))
        scored = score_candidates(search, learning)
        metric = settings.evaluation.main_metric
        limit = find_loss_limit(search, learning, metric)
        after = choose_weights(search.fusion, scored, learning, metric, (), limit)
        choice = WeightsChoice(
            after,
            learning.source,
            [
                {"choice": "before", **measure_weights(scored, before.weights, learning, metric)},
                {"choice": "after", **measure_weights(scored, after.weights, learning, metric)},
            ],
            group_sizes(learning),
            limit.describe(metric_values(scored, after.weights, learning, metric)),
        )

        # The gate compares the new weights with the old ones on its own queries.
        verdict = None
        if dict(after.weights) != dict(before.weights):
            texts = list(gate.queries.values())
            encoded = search.encode_queries(texts)
            with_known = find_queries_with_known(gate.qrels, known_documents)
            retuned = FusedSearch(joined.components, after)
            challenger = _gate_scores(retuned, encoded, gate, settings)
            champion = _gate_scores(joined, encoded, gate, settings)
            verdict = judge_promotion(
                replace(challenger, with_known=with_known),
                replace(champion, with_known=with_known),
                settings.promotion,
                settings.seed,
            )
    cache.save()
    return RetuneResult(
        len(queries.learning.queries),
        dict(before.weights),
        dict(after.weights),
        verdict,
        searcher.generation.watermark,
        deviations=deviation_details(verdict, settings.promotion),
        on_learning=choice.report,
    )


def _late_names(fusion: FusedRetriever) -> list[str]:
    """Return the names of the late interactions that a fusion can have.

    Late interaction scores candidates again by the best match of each query token. A component can
    do this if its index has token signs, one bit per dimension of each token's vector.
    """
    names: list[str] = []
    for name, component in fusion.components.items():
        dense = component.dense
        if dense is not None and dense.index.token_signs is not None:
            names.append(name + LATE_SUFFIX)
    return names


def _gate_scores(
    search: FusedSearch, encoded: FusedQueries, gate: Judgements, settings: Parameters
) -> SystemScores:
    """Search for the gate's queries, and return the score of each query by each metric of the gate.

    Args:
        search: The fusion with the weights to judge.
        encoded: The queries, as a fusion of the same components has encoded them.
        gate: The judged queries of the split gate.
        settings: All settings of the project.
    """
    import pandas as pd

    promotion = settings.promotion
    # The metric to improve may also be protected. Each metric is evaluated once.
    metrics = list(dict.fromkeys([promotion.metric, *promotion.protected]))
    if search.fusion.feedback:
        encoded = search.encode_queries(list(gate.queries.values()))
    else:
        encoded = search.weigh_again(encoded)
    rankings = search.search_and_rerank(encoded, settings.evaluation.depth)
    run = dict(zip(gate.queries, rankings, strict=True))
    values = pd.DataFrame(evaluate_run(run, gate.qrels, metrics)).sort_index()
    return SystemScores("fusion", GATE, values[metrics])


def _answered_by_copies(
    searcher: Searcher, texts: Mapping[str, str], qrels: Mapping[str, Mapping[str, int]]
) -> set[str]:
    """Return the ids of the queries that are the first paragraph of a document that answers them.

    Args:
        searcher: Searcher of the live generation.
        texts: Text by query id.
        qrels: Grades by query id and document id.
    """
    import pandas as pd

    pairs: list[tuple[str, str]] = []
    for query_id, grades in qrels.items():
        for document_id in grades:
            pairs.append((query_id, document_id))
    documents = searcher.documents({document_id for _, document_id in pairs})
    rows = [(name, document.title, document.text) for name, document in documents.items()]

    # `find_query_lines` expects a table of passages, but does not read it. The documents stand in
    # for it.
    document_table = pd.DataFrame(rows, columns=["document_id", "title", "text"])
    corpus = Corpus(
        documents=document_table,
        passages=document_table,
        queries=pd.DataFrame(list(texts.items()), columns=["query_id", "text"]),
        qrels=pd.DataFrame(pairs, columns=["query_id", "document_id"]),
    )
    copying_documents = find_query_lines(corpus).keys()
    return {query_id for query_id, grades in qrels.items() if grades.keys() & copying_documents}


def _select(
    texts: Mapping[str, str],
    qrels: Mapping[str, dict[str, int]],
    query_ids: Sequence[str],
) -> Judgements:
    """Return the texts and the relevant documents of the given queries."""
    return Judgements(
        queries={query_id: texts[query_id] for query_id in query_ids},
        qrels={query_id: qrels[query_id] for query_id in query_ids},
        source="qrels",
    )


def _state_of(result: RetuneResult) -> TaskState:
    return TaskState.DONE if result.passed else TaskState.REFUSED
