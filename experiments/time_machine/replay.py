"""Replay a stream of documents, and measure every policy at the end of each step."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.time_machine import live_project
from experiments.time_machine.encodings import EncodingCache
from experiments.time_machine.live_project import FUSION
from experiments.time_machine.policies import BuildCache, Policy, PolicySettings, StepWork
from experiments.time_machine.stream import Stream, StreamQuery, Text
from model_code.collection.generations.searcher import Searcher
from model_code.evaluation.metrics import evaluate_run

METRIC = "nDCG@10"
DEPTH = 10
MAX_EVENT_CHARACTERS = 300


@dataclass(frozen=True)
class Measurement:
    """Quality and cost of a policy at the end of a step.

    Attributes:
        step: Name of the step.
        date: ISO date of the end of the step.
        documents: Number of documents that exist.
        everything: Mean nDCG@10 over all tested queries.
        arrived: Mean nDCG@10 over the queries for documents that arrived since the first day.
        just_arrived: Mean nDCG@10 over the queries for documents that arrived in this step.
        changelog: Mean nDCG@10 over the queries that are changelog entries.
        queries: Number of queries of each of these means, by its name.
        stale_hits: Number of hits among the first ten of all queries that show a deleted or
            outdated document.
        missing: Number of documents whose present version is not searchable.
        seconds: Processor seconds of work in this step.
        lag_seconds: Mean processor seconds from the arrival of a document until it is searchable.
            None if documents that arrived are not searchable.
        events: Descriptions of events, such as a retrain.
    """

    step: str
    date: str
    documents: int
    everything: float
    arrived: float | None
    just_arrived: float | None
    changelog: float | None
    queries: Mapping[str, int]
    stale_hits: int
    missing: int
    seconds: float
    lag_seconds: float | None
    events: Sequence[str]


def _do_nothing(measured: Mapping[str, list[dict[str, Any]]]) -> None:
    pass


def replay(
    stream: Stream,
    policies: Sequence[PolicySettings],
    overrides: Sequence[str],
    seed: int,
    folder: Path,
    encodings: EncodingCache,
    max_steps: int | None = None,
    after_step: Callable[[Mapping[str, list[dict[str, Any]]]], None] = _do_nothing,
) -> dict[str, list[dict[str, Any]]]:
    """Replay a stream with one seed.

    Args:
        stream: The stream.
        policies: The policies.
        overrides: Assignments of settings for all projects.
        seed: Seed of all trainings.
        folder: Folder of projects and builds.
        encodings: Encodings that all policies share.
        max_steps: Number of steps to replay; None for all.
        after_step: Called at the end of each step with all measurements so far.

    Returns:
        The measurements of each policy, in the order of the steps.
    """
    builds = BuildCache(folder / "builds", [*overrides, f"seed={seed}"], encodings)
    projects = folder / "projects"
    shutil.rmtree(projects, ignore_errors=True)

    start_rows = live_project.document_rows(stream.start, stream.known(0))
    start = builds.get((), start_rows)
    states = list(stream.states())
    running: list[Policy] = []
    measured: dict[str, list[dict[str, Any]]] = {}
    for settings in policies:
        policy = Policy(settings, stream, start, projects / settings.name, encodings, builds)
        running.append(policy)
        measured[settings.name] = [asdict(measure(policy, 0, states, StepWork(start.seconds)))]

    for number in range(1, len(states)):
        if max_steps is not None and number > max_steps:
            break
        for policy in running:
            work = policy.advance(number, states[number])
            row = measure(policy, number, states, work)
            measured[policy.settings.name].append(asdict(row))
            print(f"seed {seed} {policy.settings.name} {describe(row)}", flush=True)
        after_step(measured)
    shutil.rmtree(projects)
    return measured


def describe(row: Measurement) -> str:
    """Return a measurement in one line."""
    events = "; ".join(row.events)[:MAX_EVENT_CHARACTERS]
    return (
        f"{row.step}: {METRIC} {row.everything:.4f}, arrived {row.arrived}, {row.seconds:.1f} s, "
        f"{row.stale_hits} stale hits {events}"
    )


def measure(
    policy: Policy, number: int, states: Sequence[Mapping[str, Text]], work: StepWork
) -> Measurement:
    """Measure a policy at the end of a step.

    Args:
        policy: The policy.
        number: Number of the step; 0 is the first day.
        states: Documents that exist at the end of each step.
        work: What the policy did in the step.
    """
    stream = policy.stream
    documents = states[number]
    queries = stream.tested(number, documents)
    searcher = Searcher.open(policy.project.live, FUSION)
    rankings = search(searcher, queries)
    scores = score(rankings, queries, documents)

    groups = group_queries(queries, stream.start, states, number)
    means = {group: mean_score(scores, members) for group, members in groups.items()}

    # Documents whose present version is searchable. Hits that show any other document are stale.
    live = live_project.live_texts(policy.project)
    current = {
        document_id for document_id, text in documents.items() if live.get(document_id) == text
    }
    stale_hits = 0
    for ranking in rankings.values():
        stale_hits += sum(document_id not in current for document_id, _ in ranking)

    lag_seconds = None
    everything_is_searchable = len(current) == len(documents)
    if work.documents and everything_is_searchable:
        lag_seconds = round(work.lag_seconds / work.documents, 2)
    if number == 0:
        name = "start"
        date = stream.start_date
    else:
        step = stream.steps[number - 1]
        name = step.name
        date = step.date
    return Measurement(
        step=name,
        date=date,
        documents=len(documents),
        everything=means["everything"] or 0.0,
        arrived=means["arrived"],
        just_arrived=means["just_arrived"],
        changelog=means["changelog"],
        queries={group: len(members) for group, members in groups.items()},
        stale_hits=stale_hits,
        missing=len(documents) - len(current),
        seconds=round(work.seconds, 2),
        lag_seconds=lag_seconds,
        events=work.events,
    )


def group_queries(
    queries: Sequence[StreamQuery],
    start: Mapping[str, Text],
    states: Sequence[Mapping[str, Text]],
    number: int,
) -> dict[str, list[StreamQuery]]:
    """Return the queries of each mean of a `Measurement`, by its name.

    Args:
        queries: Queries that are tested at the end of the step.
        start: Documents of the first day.
        states: Documents that exist at the end of each step.
        number: Number of the step; 0 is the first day.
    """
    documents = states[number]
    # No document has just arrived on the first day.
    before = states[number - 1] if number > 0 else documents
    arrived = documents.keys() - start.keys()
    just_arrived = documents.keys() - before.keys()
    return {
        "everything": list(queries),
        "arrived": [query for query in queries if query.answers & arrived],
        "just_arrived": [query for query in queries if query.answers & just_arrived],
        "changelog": [query for query in queries if query.kind == "changelog"],
    }


def search(
    searcher: Searcher, queries: Sequence[StreamQuery]
) -> dict[str, list[tuple[str, float]]]:
    """Return the ten best documents of each query."""
    encoded = searcher.retriever.encode_queries([query.text for query in queries])
    rankings = searcher.retriever.search_and_rerank(encoded, DEPTH)
    found: dict[str, list[tuple[str, float]]] = {}
    for query, ranking in zip(queries, rankings, strict=True):
        found[query.query_id] = list(ranking)
    return found


def score(
    rankings: Mapping[str, list[tuple[str, float]]],
    queries: Sequence[StreamQuery],
    documents: Mapping[str, Text],
) -> dict[str, float]:
    """Return nDCG@10 of each query. Only documents that exist count as relevant."""
    qrels: dict[str, dict[str, int]] = {}
    for query in queries:
        qrels[query.query_id] = dict.fromkeys(sorted(query.answers & documents.keys()), 1)
    return evaluate_run(dict(rankings), qrels, [METRIC])[METRIC]


def mean_score(scores: Mapping[str, float], queries: Sequence[StreamQuery]) -> float | None:
    """Return the mean score of the given queries; None if there are none."""
    if not queries:
        return None
    return round(float(np.mean([scores[query.query_id] for query in queries])), 5)
