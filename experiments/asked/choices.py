"""Choose settings on dev queries, and compare methods of indexing new documents on test queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from itertools import product
from typing import Any

import numpy as np

from experiments.asked.arrivals import Arrival, Experiment, IncDsi, IndexingMethod
from experiments.asked.memory import Collection, Trial, choose_fusion
from experiments.asked.search import WordSettings

BOOTSTRAP_SAMPLES = 4000
RANDOMISATIONS = 10_000
# Number of randomisations at once, which limits the memory.
RANDOMISATION_CHUNK = 500
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
    plain, words = choose_fusion(collection, trial, counts, settings["grid"])
    weights = {"plain": plain.weights, "words": words.weights}
    return words.words, weights, {"plain": plain.report, "words": words.report}


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
    settings harm, those with the smallest harm are chosen. The guard form is only tried, because
    the product does not have it.

    Returns:
        The chosen settings, and a row for each of the tried ones: the settings, and the changes of
        nDCG@10 for old and for new documents.
    """
    experiment = Experiment(collection, tuning, words, weights)
    old_plain, new_plain, _ = experiment.evaluate(IndexingMethod("words of all", "all"))
    plain_forms = product([False], grid["gamma1"], grid["gamma2"], grid["lambda2"])
    guard_forms = product([True], grid["guard_gamma1"], grid["gamma2"], grid["lambda2"])
    best = None
    best_row: dict[str, Any] = {}
    tried = []
    for guard, gamma1, gamma2, lambda2 in (*plain_forms, *guard_forms):
        settings = IncDsi(gamma1, gamma2, lambda2, grid["lambda1"], guard)
        old, new, _ = experiment.evaluate(IndexingMethod("both", "all", settings))
        row = asdict(settings)
        row["old"] = round(float((old - old_plain).mean()), 4)
        row["new"] = round(float((new - new_plain).mean()), 4)
        tried.append(row)
        print("tried", row, flush=True)
        if not guard and (best is None or _is_better(row, best_row)):
            best = settings
            best_row = row
    assert best is not None
    return best, tried


def _is_better(row: Mapping[str, Any], best: Mapping[str, Any]) -> bool:
    """Return whether settings are better than the best ones so far; see `choose_incdsi`."""
    is_harmless = row["old"] >= -MAX_OLD_LOSS
    best_is_harmless = best["old"] >= -MAX_OLD_LOSS
    if is_harmless != best_is_harmless:
        return is_harmless
    if is_harmless:
        return bool(row["new"] > best["new"])
    return bool(row["old"] > best["old"])


def indexing_methods(
    incdsi: IncDsi, source: str = "arrivals", others_have_queries: bool = True
) -> list[IndexingMethod]:
    """Return the methods of indexing that are compared.

    Args:
        incdsi: Settings of IncDSI that dev chose. Methods with the settings of the product follow.
        source: What brings the queries: "arrivals" or "thumbs". It is part of the names.
        others_have_queries: Whether other documents have known queries as well.
    """
    known_words = {"none": "", "arrivals": f"words of {source}"}
    if others_have_queries:
        known_words["all"] = "words of all"

    methods = []
    for words, name in known_words.items():
        methods.append(IndexingMethod(name or "plain", words))
    for label, settings in (("IncDSI", incdsi), ("IncDSI as shipped", IncDsi.shipped())):
        for words, name in known_words.items():
            full_name = label
            if name:
                full_name = f"{label} and {name}"
            methods.append(IndexingMethod(full_name, words, settings))
    return methods


def default_methods() -> list[IndexingMethod]:
    """Return the methods that are compared with the default settings of all parts."""
    shipped = IncDsi.shipped()
    return [
        IndexingMethod("plain"),
        IndexingMethod("words of all", "all"),
        IndexingMethod("IncDSI as shipped", "none", shipped),
        IndexingMethod("IncDSI as shipped and words of all", "all", shipped),
    ]


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
        Numbers of documents and queries, and the row of each method under `ways`. Its `groups` are
        the differences to plain search on queries for documents with known queries, and without.
    """
    arrival = experiment.arrival
    measured = {method.name: experiment.evaluate(method) for method in methods}
    old_plain, new_plain, _ = measured[methods[0].name]
    old_known = experiment.queries_with_known(arrival.old_queries)
    new_known = experiment.queries_with_known(arrival.new_queries)
    method_rows: dict[str, Any] = {}
    for method in methods:
        old, new, facts = measured[method.name]
        row = difference_row(old, new, old_plain, new_plain, seed)
        row.update(facts)
        if method is methods[0]:
            method_rows[method.name] = row
            continue
        row["groups"] = {}
        for age, differences, known in (
            ("old", old - old_plain, old_known),
            ("new", new - new_plain, new_known),
        ):
            for group, members in ((f"{age}, known", known), (f"{age}, not known", ~known)):
                if members.any():
                    row["groups"][group] = compare(differences[members], seed)
        if method.incdsi is not None:
            without = next(m for m in methods if m.incdsi is None and m.words == method.words)
            old_without, new_without, _ = measured[without.name]
            row["old less without IncDSI"] = compare(old - old_without, seed)
            row["new less without IncDSI"] = compare(new - new_without, seed)
        method_rows[method.name] = row
    return {
        "old documents": experiment.old_count,
        "new documents": len(arrival.new),
        "bring queries": len(arrival.row_queries),
        "old queries": len(arrival.old_queries),
        "new queries": len(arrival.new_queries),
        "groups": {
            "old, known": int(old_known.sum()),
            "old, not known": int((~old_known).sum()),
            "new, known": int(new_known.sum()),
            "new, not known": int((~new_known).sum()),
        },
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
    for _ in range(RANDOMISATIONS // RANDOMISATION_CHUNK):
        signs = random.integers(0, 2, (RANDOMISATION_CHUNK, size), np.int8) * 2 - 1
        means = np.abs(signs @ differences) / size
        extreme += int((means >= observed - 1e-12).sum())
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
