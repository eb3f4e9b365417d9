"""Choose settings on dev queries, and compare methods of indexing new documents on test queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from itertools import product
from typing import Any

import numpy as np

from experiments.asked.arrivals import Arrival, Experiment, IncDsi, IndexingMethod
from experiments.asked.memory import Collection, Trial, choose_fusion, word_settings
from experiments.asked.search import WordSettings

BOOTSTRAP_SAMPLES = 4000
RANDOMISATIONS = 10_000
# Largest loss of nDCG@10 for old documents that settings of IncDSI may cause.
MAX_OLD_LOSS = 0.001


def choose_for_old(
    collection: Collection, arrival: Arrival, settings: Mapping[str, Any]
) -> tuple[WordSettings, dict[str, Any], dict[str, Any]]:
    """Choose how known queries count as words, and the fusion's weights, on dev queries.

    Only queries for old documents are used, as if the new ones had not arrived yet.

    Returns:
        How known queries count as words. The weights with known queries as words ("words") and
        without ("plain"). Both choices as plain values, for the result.
    """
    dev = [query for query in arrival.old_queries if query in collection.dataset.qrels["dev"]]
    trial = Trial(arrival.old_known, dev, (), (), arrival.qrels)
    counts = collection.known_counts(arrival.old_known, arrival.qrels)
    grid = settings["grid"]
    plain = choose_fusion(collection, trial, counts, [WordSettings()], grid)
    words = choose_fusion(collection, trial, counts, word_settings(grid), grid)
    weights = {"plain": plain["weights"], "words": words["weights"]}
    choices = plain_values({"plain": plain, "words": words})
    return words["words"], weights, choices


def choose_incdsi(
    collection: Collection,
    tuning: Arrival,
    words: WordSettings,
    weights: Mapping[str, Any],
    grid: Mapping[str, Any],
) -> tuple[IncDsi, list[dict[str, Any]]]:
    """Choose the settings of IncDSI on the tuning division.

    Settings that harm old documents are left out: the mean of their queries falls by more than
    `MAX_OLD_LOSS`. Of the others, those with the best mean for new documents are chosen. If all
    settings harm, those with the smallest harm are chosen.

    Returns:
        The chosen settings, and a row for each of the tried ones: the settings, and the changes of
        nDCG@10 for old and for new documents.
    """
    experiment = Experiment(collection, tuning, words, weights)
    old_plain, new_plain, _ = experiment.evaluate(IndexingMethod("words of all", "all"))
    tried = []
    for gamma1, gamma2, lambda2 in product(grid["gamma1"], grid["gamma2"], grid["lambda2"]):
        settings = IncDsi(gamma1, gamma2, lambda2, grid["lambda1"])
        old, new, _ = experiment.evaluate(IndexingMethod("both", "all", settings))
        row = asdict(settings)
        row["old"] = round(float((old - old_plain).mean()), 4)
        row["new"] = round(float((new - new_plain).mean()), 4)
        tried.append(row)
        print("tried", row, flush=True)

    harmless = [row for row in tried if row["old"] >= -MAX_OLD_LOSS]
    if harmless:
        best = max(harmless, key=lambda row: row["new"])
    else:
        best = max(tried, key=lambda row: row["old"])
    names = ("gamma1", "gamma2", "lambda2", "lambda1")
    return IncDsi(**{name: best[name] for name in names}), tried


def indexing_methods(
    incdsi: IncDsi, source: str = "arrivals", others_have_queries: bool = True
) -> list[IndexingMethod]:
    """Return the methods of indexing that are compared.

    Args:
        incdsi: Settings of IncDSI.
        source: What brings the queries: "arrivals" or "thumbs". It is part of the names.
        others_have_queries: Whether other documents have known queries as well.
    """
    words = f"words of {source}"
    methods = [
        IndexingMethod("plain"),
        IndexingMethod(words, "arrivals"),
        IndexingMethod("IncDSI", "none", incdsi),
        IndexingMethod(f"IncDSI and {words}", "arrivals", incdsi),
    ]
    if others_have_queries:
        methods.insert(2, IndexingMethod("words of all", "all"))
        methods.append(IndexingMethod("IncDSI and words of all", "all", incdsi))
    return methods


def compare_methods(
    experiment: Experiment, methods: Sequence[IndexingMethod], seed: int
) -> dict[str, Any]:
    """Evaluate methods of indexing once on test queries.

    Args:
        experiment: The collection with new documents.
        methods: The methods. The first one is plain search, with which the others are compared.
            A method with IncDSI is also compared with the same method without IncDSI.
        seed: Seed of the tests.

    Returns:
        Numbers of documents and queries, and the row of each method under `ways`.
    """
    measured = {method.name: experiment.evaluate(method) for method in methods}
    old_plain, new_plain, _ = measured[methods[0].name]
    method_rows: dict[str, Any] = {}
    for method in methods:
        old, new, facts = measured[method.name]
        row = difference_row(old, new, old_plain, new_plain, seed)
        row.update(facts)
        if method.incdsi is not None:
            without = next(m for m in methods if m.incdsi is None and m.words == method.words)
            old_without, new_without, _ = measured[without.name]
            row["old less without IncDSI"] = compare(old - old_without, seed)
            row["new less without IncDSI"] = compare(new - new_without, seed)
        method_rows[method.name] = row
    return {
        "old documents": experiment.old_count,
        "new documents": len(experiment.arrival.new),
        "bring queries": len(experiment.arrival.row_queries),
        "old queries": len(experiment.arrival.old_queries),
        "new queries": len(experiment.arrival.new_queries),
        "ways": method_rows,
    }


def difference_row(
    old: np.ndarray, new: np.ndarray, old_plain: np.ndarray, new_plain: np.ndarray, seed: int
) -> dict[str, Any]:
    """Return the means of a method, and its differences to plain search.

    Args:
        old: nDCG@10 of each query for old documents (q,).
        new: nDCG@10 of each query for new documents.
        old_plain: The same by plain search.
        new_plain: The same by plain search.
        seed: Seed of the tests.
    """
    return {
        "old": round(float(old.mean()), 4),
        "new": round(float(new.mean()), 4),
        "old less plain": compare(old - old_plain, seed),
        "new less plain": compare(new - new_plain, seed),
    }


def compare(differences: np.ndarray, seed: int) -> dict[str, Any]:
    """Return the mean difference, its 95 % interval over queries, and a randomisation p-value.

    Args:
        differences: Paired difference of each query (q,).
        seed: Seed of the bootstrap and of the randomisation.
    """
    random = np.random.default_rng(seed)
    size = len(differences)
    sampled_means = []
    for _ in range(BOOTSTRAP_SAMPLES):
        sample = random.integers(0, size, size)
        sampled_means.append(differences[sample].mean())
    low, high = np.quantile(sampled_means, [0.025, 0.975])

    # Under the null hypothesis, the sign of each difference is random.
    observed = abs(differences.mean())
    extreme = 0
    for _ in range(RANDOMISATIONS):
        signs = random.integers(0, 2, size) * 2 - 1
        if abs((signs * differences).mean()) >= observed - 1e-12:
            extreme += 1
    return {
        "difference": round(float(differences.mean()), 4),
        "interval": [round(float(low), 4), round(float(high), 4)],
        "p": round((extreme + 1) / (RANDOMISATIONS + 1), 4),
    }


def plain_values(value: Any) -> Any:
    """Return dataclasses as mappings, so that the result is plain JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return {key: plain_values(inner) for key, inner in value.items()}
    return value
