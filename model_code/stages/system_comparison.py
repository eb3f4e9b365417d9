"""Compare all systems on the same queries, overall and by groups, with example queries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_code.context import StageContext, left_out_reason
from model_code.corpus.tables import Corpus, load_corpus
from model_code.evaluation.comparison import (
    compare_systems,
    is_variant,
    most_changed_queries,
    query_groups,
)
from model_code.evaluation.metrics import Run
from model_code.evaluation.outside_runs import score_outside_run
from model_code.evaluation.runs import read_run
from model_code.evaluation.scores import (
    SystemScores,
    average_over_seeds,
    evaluation_folders,
    load_scores,
    strip_seed,
)
from model_code.evaluation.system_evaluation import own_document_queries

# Number of documents of each ranking that an example query shows.
EXAMPLE_RANKS = 3
EMPTY_COMPARISON: dict[str, Any] = {
    "split": "test",
    "queries": 0,
    "systems": {},
    "differences": [],
    "groups": {},
    "examples": {},
}


def compare(
    context: StageContext, outside_runs: Mapping[str, Path] | None = None
) -> dict[str, Any]:
    """Return the content of `comparison.json`.

    The content is the result of `compare_systems` on the test queries, or on the dev queries if no
    test query is judged. The key `groups` holds the same result for each group of queries. The key
    `examples` holds the queries that the best system won and lost by the largest difference.

    Args:
        context: Context of the stage `comparison`.
        outside_runs: TREC runs of other systems by name. They are scored on the same queries and
            compared like the systems of the build.

    Raises:
        FreshetError: If an outside run cannot be read, or shares no query with the build.
    """
    settings = context.settings["evaluation"]
    seed = context.settings["seed"]
    corpus = load_corpus(context.inputs["corpus"])
    systems = _load_systems(context)
    runs: dict[str, Run] = {}
    if systems and outside_runs:
        for name, path in outside_runs.items():
            runs[name], scores = score_outside_run(name, path, corpus, systems[0], settings.depth)
            systems.append(scores)

    comparison = {
        "left_out": _left_out_systems(context),
        "main_metric": settings.main_metric,
        "documents": len(corpus.documents),
        "confidence": settings.confidence,
        "seeds": {system.system: len(system.seeds) for system in systems if system.seeds},
    }
    if not systems:
        comparison.update(EMPTY_COMPARISON)
        return comparison

    comparison.update(compare_systems(systems, settings, seed))
    own_documents = _count_own_documents(corpus, systems[0])
    if own_documents:
        comparison["own_documents"] = own_documents
    groups = query_groups(systems[0])
    comparison["groups"] = {}
    for name, queries in groups.items():
        systems_on_group = [system.restrict_to(queries) for system in systems]
        comparison["groups"][name] = compare_systems(systems_on_group, settings, seed)
    comparison["examples"] = _examples(context, systems, corpus, settings.main_metric, runs)
    return comparison


def select_headline(comparison: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the main metric of each system, and all metrics of the best one.

    Variants are left out, because they are never registered.
    """
    main_metric = comparison["main_metric"]
    systems = {
        name: metrics for name, metrics in comparison["systems"].items() if not is_variant(name)
    }
    best = max(systems, key=lambda name: systems[name][main_metric]["value"], default=None)

    headline: dict[str, dict[str, float]] = {}
    for name, metrics in systems.items():
        shown = metrics if name == best else [main_metric]
        headline[name] = {metric: metrics[metric]["value"] for metric in shown}
    return headline


def summarize(comparison: dict[str, Any]) -> dict[str, Any]:
    """Return the report of the stage: the best system, and the main metric of each."""
    main_metric = comparison["main_metric"]
    values = {
        name: metrics[main_metric]["value"] for name, metrics in comparison["systems"].items()
    }
    return {
        "split": comparison["split"],
        "queries": comparison["queries"],
        "main_metric": main_metric,
        "best": max(values, key=lambda name: values[name], default=None),
        "values": values,
    }


def _count_own_documents(corpus: Corpus, scores: SystemScores) -> int:
    """Return how many compared queries are themselves documents of the corpus.

    Such a query would find itself, so its document is left out of its ranking.
    """
    judged = corpus.judgements(scores.split)
    documents = set(corpus.documents["document_id"])
    return len(own_document_queries(judged, documents) & set(scores.values.index))


def _left_out_systems(context: StageContext) -> dict[str, str]:
    """Return the reason for each retriever and fusion that was left out, by its name."""
    reasons = {}
    for name in (*context.settings["retrievers"], *context.settings["fusions"]):
        reason = left_out_reason(context.inputs["evaluations"] / name)
        if reason:
            reasons[name] = reason
    return reasons


def _load_systems(context: StageContext) -> list[SystemScores]:
    """Load the scores of each system, averaged over its seeds.

    The split is test if it has judged queries, else dev. Without any judged query the list is
    empty.
    """
    for split in ("test", "dev"):
        systems = [load_scores(folder, split) for folder in evaluation_folders(context)]
        if systems[0].queries:
            return average_over_seeds(systems)
    return []


def _examples(
    context: StageContext,
    systems: list[SystemScores],
    corpus: Corpus,
    metric: str,
    outside_runs: Mapping[str, Run],
) -> dict[str, Any]:
    """Return the queries that the best system won and lost by most against the second best.

    Each query has the first documents of both rankings, and says which of them are relevant by the
    qrels. With a single system there are no examples. A query that a user of the search typed is
    shown by its id.
    """
    plain = [scores for scores in systems if not is_variant(scores.system)]
    ranked = sorted(plain, key=lambda scores: (-scores.values[metric].mean(), scores.system))
    if len(ranked) < 2:
        return {}
    best, second = ranked[:2]

    runs: dict[str, Run] = {}
    for scores in (best, second):
        if scores.system in outside_runs:
            runs[scores.system] = outside_runs[scores.system]
            continue
        folder = _evaluation_folder(context, scores.system)
        runs[scores.system] = read_run(folder / f"run.{scores.split}.trec")
    texts = dict(zip(corpus.queries["query_id"], corpus.queries["text"], strict=True))
    relevant = set(zip(corpus.qrels["query_id"], corpus.qrels["document_id"], strict=True))

    examples: dict[str, Any] = {"system": best.system, "reference": second.system}
    for outcome, queries in most_changed_queries(best, second, metric).items():
        examples[outcome] = []
        for query, difference in queries:
            first_documents = {
                name: _first_documents(run, query, relevant) for name, run in runs.items()
            }
            shown_query = texts.get(query, query)
            if query in corpus.typed_queries:
                # A user typed this query. Its id is shown in place of its text.
                shown_query = query
            example = {
                "query": shown_query,
                "difference": difference,
                "first": first_documents,
            }
            examples[outcome].append(example)
    return examples


def _first_documents(run: Run, query: str, relevant: set[tuple[str, str]]) -> list[list[Any]]:
    """Return the first documents of a ranking, each with whether it is relevant."""
    return [
        [document, (query, document) in relevant]
        for document, _ in run.get(query, [])[:EXAMPLE_RANKS]
    ]


def _evaluation_folder(context: StageContext, system: str) -> Path:
    """Return the evaluation folder of a retriever, a fusion or a baseline.

    For a system that was trained with several seeds, it is the folder of the first training.
    """
    for name in (*context.settings["retrievers"], *context.settings["fusions"]):
        folder = context.inputs["evaluations"] / name
        if strip_seed(name) == system and not left_out_reason(folder):
            return folder
    return context.inputs["baselines"] / system
