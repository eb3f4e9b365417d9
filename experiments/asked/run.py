"""Measure the effect of known queries, and of IncDSI on the fused score, on retrieval quality.

`python -m experiments.asked.run DATA --cache FOLDER` reads the collections below DATA. It writes
`result.json` and the tables of the page. DATA/NAME is a collection in BEIR layout.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from experiments.asked.arrivals import Arrival, Experiment, IncDsi, IndexingMethod, make_arrivals
from experiments.asked.data import Dataset, Encoded, EncoderSource
from experiments.asked.memory import (
    Collection,
    Outcome,
    Trial,
    choose_fusion,
    run_trial,
    split_trials,
    word_settings,
)
from experiments.asked.search import WordSettings
from experiments.tables import write_tables

HERE = Path(__file__).parent
BOOTSTRAP_SAMPLES = 4000
RANDOMISATIONS = 10_000
# Largest loss of nDCG@10 for old documents that settings of IncDSI may cause.
MAX_OLD_LOSS = 0.001
# Method without IncDSI that a method with IncDSI is compared with, by the method's known queries.
WITHOUT_INCDSI = {"none": "plain", "arrivals": "words of arrivals", "all": "words of all"}


def main() -> None:
    """Run the parts that the arguments name, and write results and tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--cache", type=Path, required=True, help="folder for vectors")
    parser.add_argument("--only", nargs="*", help="collections to run; the others keep their rows")
    parser.add_argument("--part", choices=("memory", "arrivals"), help="one part alone")
    arguments = parser.parse_args()

    settings = tomllib.loads((HERE / "settings.toml").read_text(encoding="utf-8"))
    result_file = HERE / "result.json"
    result = json.loads(result_file.read_text()) if result_file.is_file() else {}

    for encoder_name, path in settings["encoders"].items():
        encoder = EncoderSource(encoder_name, path, settings["max_tokens"])
        for part, measure in (("memory", measure_memory), ("arrivals", measure_arrivals)):
            for name, options in settings[part].items():
                is_wanted = not arguments.only or name in arguments.only
                if not is_wanted or arguments.part not in (None, part):
                    continue
                folder = options.get("folder", name)
                collection = load(
                    arguments.data / folder, options, encoder, arguments.cache / folder
                )
                rows = measure(collection, options, settings)
                result.setdefault(part, {}).setdefault(encoder_name, {})[name] = rows
                result_file.write_text(json.dumps(result, indent=1) + "\n")
                print(part, name, encoder_name, json.dumps(rows), flush=True)
    write_tables(HERE, tables(result))


def measure_memory(
    collection: Collection, options: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Measure known queries as words of documents, without new documents."""
    outcomes = []
    for trial in split_trials(collection.dataset, options, settings["seed"]):
        outcomes.append(run_trial(collection, trial, settings["grid"]))
    return summarize(outcomes, settings["groups"], settings["seed"])


def measure_arrivals(
    collection: Collection, options: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Compare the methods of indexing new documents that arrive with queries."""
    arrivals = make_arrivals(collection, options, settings["seed"])
    if "tuning" in arrivals:
        pairs = {"all": (arrivals["tuning"], arrivals["test"])}
    else:
        cutoffs = [name.removeprefix("test ") for name in arrivals if name.startswith("test ")]
        pairs = {day: (arrivals[f"dev {day}"], arrivals[f"test {day}"]) for day in cutoffs}

    rows: dict[str, Any] = {}
    for name, (tuning, tested) in pairs.items():
        words, weights, choices = choose_for_old(collection, tuning, settings)
        incdsi, tried = choose_incdsi(collection, tuning, words, weights, settings["incdsi"])
        experiment = Experiment(collection, tested, words, weights)
        row = compare_methods(experiment, incdsi, settings["seed"])
        row["choices"] = {**choices, "incdsi": asdict(incdsi)}
        row["tried"] = tried
        rows[name] = row
    return rows


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


def compare_methods(experiment: Experiment, incdsi: IncDsi, seed: int) -> dict[str, Any]:
    """Evaluate all methods of indexing once on test queries.

    Args:
        experiment: The collection with new documents.
        incdsi: Settings of IncDSI.
        seed: Seed of the tests.

    Returns:
        Numbers of documents and queries, and the row of each method under `ways`.
    """
    methods = [
        IndexingMethod("plain"),
        IndexingMethod("words of arrivals", "arrivals"),
        IndexingMethod("words of all", "all"),
        IndexingMethod("IncDSI", "none", incdsi),
        IndexingMethod("IncDSI and words of arrivals", "arrivals", incdsi),
        IndexingMethod("IncDSI and words of all", "all", incdsi),
    ]
    measured = {method.name: experiment.evaluate(method) for method in methods}
    old_plain, new_plain, _ = measured["plain"]
    method_rows: dict[str, Any] = {}
    for method in methods:
        old, new, facts = measured[method.name]
        row: dict[str, Any] = {
            "old": round(float(old.mean()), 4),
            "new": round(float(new.mean()), 4),
            "old less plain": compare(old - old_plain, seed),
            "new less plain": compare(new - new_plain, seed),
            **facts,
        }
        if method.incdsi is not None:
            old_without, new_without, _ = measured[WITHOUT_INCDSI[method.words]]
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


def load(
    folder: Path, options: Mapping[str, Any], encoder: EncoderSource, cache: Path
) -> Collection:
    """Read and encode one collection. Encodings are kept in the folder `cache`."""
    dataset = Dataset.read(folder, options.get("qrels", "qrels"))
    encoder_cache = cache / encoder.name
    documents = Encoded.load_or_encode(
        dataset.texts, encoder, encoder_cache / "documents", passages=True
    )
    queries = Encoded.load_or_encode(
        list(dataset.queries.values()), encoder, encoder_cache / "queries", passages=False
    )
    return Collection(dataset, documents, queries)


def summarize(outcomes: Sequence[Outcome], borders: Sequence[float], seed: int) -> dict[str, Any]:
    """Compare known queries as words with plain search in each group of queries.

    Args:
        outcomes: Results of the trials, which are pooled.
        borders: Two similarities that separate the groups; see `query_groups`.
        seed: Seed of the tests.
    """
    similarity = np.concatenate([outcome.similarity for outcome in outcomes])
    scores = {
        system: np.concatenate([outcome.scores[system] for outcome in outcomes])
        for system in outcomes[0].scores
    }
    groups: dict[str, Any] = {}
    for group, in_group in query_groups(similarity, borders).items():
        if not in_group.any():
            continue
        groups[group] = {"queries": int(in_group.sum())}
        for family in ("bm25", "fusion"):
            plain = scores[f"{family} plain"][in_group]
            known = scores[f"{family} words"][in_group]
            groups[group][family] = {
                "plain": round(float(plain.mean()), 4),
                "words": round(float(known.mean()), 4),
                **compare(known - plain, seed),
            }
    return {"groups": groups, "choices": [plain_values(outcome.choices) for outcome in outcomes]}


def query_groups(similarity: np.ndarray, borders: Sequence[float]) -> dict[str, np.ndarray]:
    """Group the test queries by their largest similarity to a known query.

    Args:
        similarity: Similarity of each query (q,); -1 if its documents have no known query.
        borders: Two similarities that separate the groups.

    Returns:
        A mask (q,) of each group.
    """
    low, high = borders
    return {
        "all": np.ones(len(similarity), bool),
        "relevant documents have no known query": similarity < 0,
        f"below {low}": (similarity >= 0) & (similarity < low),
        f"{low} to {high}": (similarity >= low) & (similarity < high),
        f"{high} and above": similarity >= high,
        f"below {high}": (similarity >= 0) & (similarity < high),
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


def tables(result: Mapping[str, Any]) -> str:
    """Return the page's tables of a result."""
    parts = []
    for encoder, collections in result.get("memory", {}).items():
        parts.append(memory_table(encoder, collections))
    for encoder, collections in result.get("arrivals", {}).items():
        for name, arrivals in collections.items():
            for label, rows in arrivals.items():
                parts.append(arrivals_table(encoder, name, label, rows))
    return "\n".join(parts)


def memory_table(encoder: str, collections: Mapping[str, Any]) -> str:
    """Return the table of known queries as words, by collection and group of test queries."""
    lines = [
        f"**Known queries as words, {encoder} encoder**",
        "",
        "| collection, largest Jaccard | queries | bm25 | bm25_known less bm25 | p "
        "| fusion | with known queries less without | p |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, rows in sorted(collections.items()):
        for group, row in rows["groups"].items():
            cells = [f"{name}, {group}", f"{row['queries']:,}"]
            for family in ("bm25", "fusion"):
                values = row[family]
                cells.append(f"{values['plain']:.3f}")
                cells.append(format_difference(values))
                cells.append(f"{values['p']:.4f}")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def arrivals_table(encoder: str, name: str, label: str, rows: Mapping[str, Any]) -> str:
    """Return the table that compares the methods of indexing new documents.

    Args:
        encoder: Name of the encoder.
        name: Name of the collection.
        label: Name of the division, such as its cut-off date.
        rows: Result of `compare_methods`.
    """
    lines = [
        f"**Arrivals, {name} ({label}), {encoder} encoder**: {rows['new documents']:,} documents "
        f"arrive, {rows['bring queries']:,} with queries, beside {rows['old documents']:,}; "
        f"{rows['new queries']:,} test queries for new documents, {rows['old queries']:,} for old",
        "",
        "| way | old | less plain | new | less plain | IncDSI's share, old | IncDSI's share, new |",
        "|---|---|---|---|---|---|---|",
    ]
    for method, row in rows["ways"].items():
        cells = [method]
        for part in ("old", "new"):
            less_plain = ""
            if method != "plain":
                less_plain = format_difference(row[f"{part} less plain"])
            cells.append(f"{row[part]:.3f}")
            cells.append(less_plain)
        for part in ("old", "new"):
            incdsi_share = ""
            values = row.get(f"{part} less without IncDSI")
            if values is not None:
                incdsi_share = f"{format_difference(values)}, p {values['p']:.4f}"
            cells.append(incdsi_share)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def format_difference(values: Mapping[str, Any]) -> str:
    """Return a difference with its interval."""
    low, high = values["interval"]
    return f"{values['difference']:+.3f} [{low:+.3f}, {high:+.3f}]"


def plain_values(value: Any) -> Any:
    """Return dataclasses as mappings, so that the result is plain JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return {key: plain_values(inner) for key, inner in value.items()}
    return value


if __name__ == "__main__":
    main()
