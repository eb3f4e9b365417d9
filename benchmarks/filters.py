"""Measure what a filter costs: searches with filters against the same searches without.

The collection is synthetic. Its vectors lie around centres, and each document has a field `share`
whose values belong to 1 %, 10 % and 50 % of all documents. The encoder is real. Times are processor
seconds of one thread, and the searches alternate, so that other work on the machine counts little.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.encoding import BASE, mixed_texts
from benchmarks.live_service import RETRIEVER, make_project, random_tokens
from benchmarks.measurement import row_below
from benchmarks.search import clustered_vectors
from model_code.collection.generations.searcher import Searcher
from model_code.encoding.encoder import Encoder
from model_code.retrieval.index_settings import IndexSettings

# Hits per search.
K = 10
WORDS_PER_TEXT = 40
WORDS_PER_QUERY = 6
# Number of queries that are each searched first after a switch of generations.
FIRST_QUERIES = 5
# Goal: the largest ratio of the time of a search with a filter to one without.
MAX_RATIO = 1.5
# Shares of all documents that the filters match, in percent.
PERCENTAGES = (1, 10, 50)


def rows(
    passages: int = 100_000, queries: int = 20, base: str | Path = BASE, rounds: int = 3
) -> list[dict[str, Any]]:
    """Measure searches with filters that match 1 %, 10 % and 50 % of the documents.

    They are measured on an open searcher, and as the first search after a switch of generations.

    Args:
        passages: Number of documents.
        queries: Number of queries.
        base: Encoder of the queries.
        rounds: Runs of every query.
    """
    with tempfile.TemporaryDirectory() as folder:
        searcher, texts = open_collection(Path(folder), passages, base)
        query_texts = [" ".join(text.split()[:WORDS_PER_QUERY]) for text in texts[:queries]]
        times = measure_searches(searcher, query_texts, rounds)
        first_times = measure_first_searches(searcher, query_texts)

    results = []
    for percentage in PERCENTAGES:
        label = f"{passages:,} documents, filter of {percentage} %"
        results.append(row_below(f"{label}, ms", times[percentage], times[None], most=MAX_RATIO))
        results.append(
            row_below(
                f"{label}, first search after a switch, ms",
                first_times[percentage],
                first_times[None],
                most=MAX_RATIO,
            )
        )
    return results


def open_collection(root: Path, passages: int, base: str | Path) -> tuple[Searcher, list[str]]:
    """Return a searcher of a synthetic collection, and its texts.

    Args:
        root: Folder of the project.
        passages: Number of documents.
        base: Encoder of the queries.
    """
    texts = [" ".join(text.split()[:WORDS_PER_TEXT]) for text in mixed_texts(passages)]
    dimension = Encoder.load(base).dimension
    vectors, _ = clustered_vectors(passages, dimension, 1)
    tokens = random_tokens(texts, dimension)
    project = make_project(
        root,
        base,
        passages,
        texts,
        (vectors, tokens),
        feedback=0.3,
        fields=document_fields(passages),
        settings=IndexSettings(),
    )
    searcher = Searcher.open(project.live, RETRIEVER).ready()
    return searcher, texts


def document_fields(passages: int) -> list[dict[str, Any]]:
    """Return the fields of documents.

    The field `percent` lists which filters match the document: a filter of 10 % asks for 10.
    """
    draws = np.random.default_rng(0).random(passages)
    fields = []
    for number, draw in enumerate(draws.tolist()):
        percent = [percentage for percentage in PERCENTAGES if draw < percentage / 100]
        fields.append({"percent": percent, "number": number})
    return fields


def measure_searches(
    searcher: Searcher, queries: list[str], rounds: int
) -> dict[int | None, float]:
    """Return the median milliseconds of a search by the percentage of its filter.

    Searches without a filter have the key None.

    Args:
        searcher: Searcher of the collection.
        queries: Texts of the queries.
        rounds: Runs of every query.
    """
    samples: dict[int | None, list[float]] = {key: [] for key in (None, *PERCENTAGES)}
    # The first search of each kind loads caches and is not timed.
    for percentage in samples:
        time_search(searcher, queries[0], percentage)

    for _ in range(rounds):
        for query in queries:
            for percentage, values in samples.items():
                values.append(time_search(searcher, query, percentage))
    return {percentage: float(np.median(values)) for percentage, values in samples.items()}


def measure_first_searches(searcher: Searcher, queries: list[str]) -> Mapping[int | None, float]:
    """Return the median milliseconds of the first search after a switch of generations.

    A switch opens a new searcher, which uses the loaded segments of the old one.
    """
    samples: dict[int | None, list[float]] = {key: [] for key in (None, *PERCENTAGES)}
    for query in queries[:FIRST_QUERIES]:
        for percentage, values in samples.items():
            new_searcher = Searcher(searcher.live, searcher.generation, searcher.parts)
            values.append(time_search(new_searcher, query, percentage))
    return {percentage: float(np.median(values)) for percentage, values in samples.items()}


def time_search(searcher: Searcher, text: str, percentage: int | None) -> float:
    """Return the processor milliseconds of a search with or without a filter.

    Raises:
        AssertionError: If a hit does not match the filter.
    """
    filters = () if percentage is None else {"percent": percentage}
    start = time.process_time()
    hits = searcher.search(text, K, filters)
    milliseconds = 1000 * (time.process_time() - start)
    if percentage is not None:
        for hit in hits:
            if percentage not in hit.fields["percent"]:
                raise AssertionError(f"{hit.document_id} does not match the filter")
    return milliseconds
