"""Measure the effect of thumbs up on hits: as words of their documents, and by IncDSI.

The documents are in the collection from the start. People ask some of the questions of a document,
and give a thumb up if the document is among the first ten hits. Other questions are evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from experiments.asked.arrivals import Arrival, Experiment, random_arrivals
from experiments.asked.choices import (
    choose_for_old,
    choose_incdsi,
    compare_methods,
    indexing_methods,
)
from experiments.asked.memory import Collection
from experiments.asked.search import FusionSearch, Weights, WordSettings


def measure_thumbs(
    collection: Collection, options: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Compare the ways to use thumbs up.

    Args:
        collection: The collection.
        options: Settings of the collection; see `random_arrivals`. `others_have_queries` says
            whether the other documents have judged queries.
        settings: All settings of the experiment.

    Returns:
        The result of `compare_methods`, with the choices on dev, under the name "all".
    """
    arrivals = random_arrivals(collection, options, settings["seed"])
    for name, arrival in arrivals.items():
        arrivals[name] = replace(arrival, in_place=True)
        if not options["others_have_queries"]:
            arrivals[name] = replace(arrivals[name], old_known=[])

    words, weights, choices = choose_for_old(collection, arrivals["tuning"], settings)
    for name, arrival in arrivals.items():
        arrivals[name] = keep_thumbs_on_hits(collection, arrival, weights["plain"])

    incdsi, tried = choose_incdsi(
        collection, arrivals["tuning"], words, weights, settings["incdsi"]
    )
    experiment = Experiment(collection, arrivals["test"], words, weights)
    methods = indexing_methods(incdsi, "thumbs", options["others_have_queries"])
    row = compare_methods(experiment, methods, settings["seed"])
    row["thumbs"] = sum(len(queries) for queries in arrivals["test"].row_queries.values())
    row["choices"] = {**choices, "incdsi": asdict(incdsi)}
    row["tried"] = tried
    return {"all": row}


def keep_thumbs_on_hits(collection: Collection, arrival: Arrival, weights: Weights) -> Arrival:
    """Leave out questions that do not find their document, because nobody sees it then.

    Args:
        collection: The collection.
        arrival: Documents, and the questions that people ask, as `row_queries`.
        weights: Weights of the fusion without known queries.
    """
    experiment = Experiment(collection, arrival, WordSettings(), {"plain": weights})
    search = FusionSearch(
        experiment.vectors, experiment.tokens, experiment.bm25("none"), experiment.normalizer
    )
    thumbs: dict[int, list[str]] = {}
    for document, queries in arrival.row_queries.items():
        rows = np.array(experiment.query_rows(queries))
        vectors = collection.queries.vectors[rows]
        tokens = collection.queries.tokens[rows]
        candidates = search.candidates(vectors, tokens, collection.query_counts[rows])
        for query, vector, found in zip(queries, vectors, candidates, strict=True):
            hits = search.rank(found, vector, weights)
            if experiment.position[document] in hits:
                thumbs.setdefault(document, []).append(query)
    return replace(arrival, row_queries=thumbs)
