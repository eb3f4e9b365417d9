"""How long a query takes, asked one at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from model_code.retriever import Search

PERCENTILES = (50, 95)
Times = tuple[float, ...]  # milliseconds, one per percentile


def latencies(searches: Mapping[str, Search], texts: Sequence[str], k: int, rounds: int) -> dict[str, Times]:
    """p50 and p95 over queries, in milliseconds, of each query's median time over `rounds`.

    The searches take turns round by round, so that a busy minute of the machine hits all alike.
    """
    seconds = {name: np.empty((rounds, len(texts))) for name in searches}
    for search in searches.values():
        search(texts[:1], k)  # what the first search loads is no part of a query
    for round_ in range(rounds):
        for name, search in searches.items():
            for i, text in enumerate(texts):
                start = time.perf_counter()
                search([text], k)
                seconds[name][round_, i] = time.perf_counter() - start
    medians = {name: np.median(table, axis=0) for name, table in seconds.items()}
    return {name: tuple((1000 * np.percentile(table, PERCENTILES)).tolist()) for name, table in medians.items()}
