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
from pathlib import Path
from typing import Any

import numpy as np

from experiments.asked.arrivals import Arrival, Experiment, IncDsi, Way, arrivals_of
from experiments.asked.data import Dataset, Encoded, EncoderSource
from experiments.asked.memory import (
    Collection,
    Outcome,
    Trial,
    choose_fusion,
    run_trial,
    split_trials,
)
from experiments.asked.search import Words
from experiments.tables import write_tables

HERE = Path(__file__).parent
BOOTSTRAP_SAMPLES = 4000
RANDOMISATIONS = 10_000


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
    """Compare the ways to index new documents that arrive with queries."""
    arrivals = arrivals_of(collection, options, settings["seed"])
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
        rows[name] = compare_ways(experiment, incdsi, settings["seed"])
        rows[name] |= {"choices": choices | plain_values({"incdsi": incdsi}), "tried": tried}
    return rows


def choose_for_old(
    collection: Collection, arrival: Arrival, settings: Mapping[str, Any]
) -> tuple[Words, dict[str, Any], dict[str, Any]]:
    """Choose how known queries count as words, and the fusion's weights, on dev queries.

    Only queries for old documents are used, as if the new ones had not arrived yet.
    """
    dev = [query for query in arrival.old_queries if query in collection.dataset.qrels["dev"]]
    trial = Trial(arrival.old_known, dev, (), (), arrival.qrels)
    counts = collection.known_counts(arrival.old_known, arrival.qrels)
    grid = settings["grid"]
    variants = [Words(u, length) for u in grid["word_weights"] for length in grid["in_length"]]
    plain = choose_fusion(collection, trial, counts, [Words()], grid)
    words = choose_fusion(collection, trial, counts, variants, grid)
    weights = {"plain": plain["weights"], "words": words["weights"]}
    choices = plain_values({"plain": plain, "words": words})
    return words["words"], weights, choices


def choose_incdsi(
    collection: Collection,
    tuning: Arrival,
    words: Words,
    weights: Mapping[str, Any],
    grid: Mapping[str, Any],
) -> tuple[IncDsi, list[dict[str, Any]]]:
    """Choose the settings of IncDSI on the tuning division.

    Settings that harm old documents are left out: the mean of their queries falls by more than
    .001. Of the others, those with the best mean for new documents are chosen. If all settings
    harm, those with the smallest harm are chosen.
    """
    experiment = Experiment(collection, tuning, words, weights)
    old_plain, new_plain, _ = experiment.evaluate(Way("words of all", "all"))
    tried = []
    for gamma1 in grid["gamma1"]:
        for gamma2 in grid["gamma2"]:
            for lambda2 in grid["lambda2"]:
                settings = IncDsi(gamma1, gamma2, lambda2, grid["lambda1"])
                old, new, _ = experiment.evaluate(Way("both", "all", settings))
                row = asdict(settings) | {
                    "old": round(float((old - old_plain).mean()), 4),
                    "new": round(float((new - new_plain).mean()), 4),
                }
                tried.append(row)
                print("tried", row, flush=True)
    harmless = [row for row in tried if row["old"] >= -0.001]
    if harmless:
        best = max(harmless, key=lambda row: row["new"])
    else:
        best = max(tried, key=lambda row: row["old"])
    names = ("gamma1", "gamma2", "lambda2", "lambda1")
    return IncDsi(**{name: best[name] for name in names}), tried


def compare_ways(experiment: Experiment, incdsi: IncDsi, seed: int) -> dict[str, Any]:
    """Evaluate all ways once on test queries."""
    ways = [
        Way("plain"),
        Way("words of arrivals", "arrivals"),
        Way("words of all", "all"),
        Way("IncDSI", "none", incdsi),
        Way("IncDSI and words of arrivals", "arrivals", incdsi),
        Way("IncDSI and words of all", "all", incdsi),
    ]
    measured = {way.name: experiment.evaluate(way) for way in ways}
    rows: dict[str, Any] = {
        "old documents": experiment.old_count,
        "new documents": len(experiment.arrival.new),
        "bring queries": len(experiment.arrival.row_queries),
        "old queries": len(experiment.arrival.old_queries),
        "new queries": len(experiment.arrival.new_queries),
    }
    ways_rows: dict[str, Any] = {}
    for way in ways:
        old, new, facts = measured[way.name]
        row: dict[str, Any] = {
            "old": round(float(old.mean()), 4),
            "new": round(float(new.mean()), 4),
            "old less plain": compare(old - measured["plain"][0], seed),
            "new less plain": compare(new - measured["plain"][1], seed),
            **facts,
        }
        if way.incdsi is not None:
            without = {"none": "plain", "arrivals": "words of arrivals", "all": "words of all"}
            base = measured[without[way.words]]
            row["old less without IncDSI"] = compare(old - base[0], seed)
            row["new less without IncDSI"] = compare(new - base[1], seed)
        ways_rows[way.name] = row
    rows["ways"] = ways_rows
    return rows


def load(
    folder: Path, options: Mapping[str, Any], encoder: EncoderSource, cache: Path
) -> Collection:
    """Read and encode one collection."""
    dataset = Dataset.read(folder, options.get("qrels", "qrels"))
    own_cache = cache / encoder.name
    documents = Encoded.load_or_encode(dataset.texts, encoder, own_cache / "documents", True)
    queries = Encoded.load_or_encode(
        list(dataset.queries.values()), encoder, own_cache / "queries", False
    )
    return Collection(dataset, documents, queries)


def summarize(outcomes: Sequence[Outcome], borders: Sequence[float], seed: int) -> dict[str, Any]:
    """Pool the trials, and compare known queries with plain search in each group of queries."""
    similarity = np.concatenate([outcome.similarity for outcome in outcomes])
    scores = {
        system: np.concatenate([outcome.scores[system] for outcome in outcomes])
        for system in outcomes[0].scores
    }
    groups: dict[str, Any] = {}
    for group, chosen in query_groups(similarity, borders).items():
        if not chosen.any():
            continue
        groups[group] = {"queries": int(chosen.sum())}
        for family in ("bm25", "fusion"):
            plain = scores[f"{family} plain"][chosen]
            known = scores[f"{family} words"][chosen]
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
    """Return the mean difference, its 95 % interval over queries, and a randomisation p-value."""
    random = np.random.default_rng(seed)
    size = len(differences)
    means = np.array(
        [differences[random.integers(0, size, size)].mean() for _ in range(BOOTSTRAP_SAMPLES)]
    )
    observed = abs(differences.mean())
    extreme = 0
    for _ in range(RANDOMISATIONS):
        signs = random.integers(0, 2, size) * 2 - 1
        extreme += abs((signs * differences).mean()) >= observed - 1e-12
    low, high = np.quantile(means, [0.025, 0.975])
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
                cells += [f"{values['plain']:.3f}", difference(values), f"{values['p']:.4f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def arrivals_table(encoder: str, name: str, label: str, rows: Mapping[str, Any]) -> str:
    """Return the table that compares the ways to index new documents."""
    lines = [
        f"**Arrivals, {name} ({label}), {encoder} encoder**: {rows['new documents']:,} documents "
        f"arrive, {rows['bring queries']:,} with queries, beside {rows['old documents']:,}; "
        f"{rows['new queries']:,} test queries for new documents, {rows['old queries']:,} for old",
        "",
        "| way | old | less plain | new | less plain | IncDSI's share, old | IncDSI's share, new |",
        "|---|---|---|---|---|---|---|",
    ]
    for way, row in rows["ways"].items():
        cells = [way]
        for part in ("old", "new"):
            values = row[f"{part} less plain"]
            cells += [f"{row[part]:.3f}", "" if way == "plain" else difference(values)]
        for part in ("old", "new"):
            share = row.get(f"{part} less without IncDSI")
            cells.append("" if share is None else f"{difference(share)}, p {share['p']:.4f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def difference(values: Mapping[str, Any]) -> str:
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
