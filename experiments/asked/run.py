"""Measure the effect of known queries, and of IncDSI on the fused score, on retrieval quality.

`python -m experiments.asked.run DATA --cache FOLDER` reads the collections below DATA. It writes
`result.json` and the tables of the page. DATA/NAME is a collection in BEIR layout.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from experiments.asked.arrivals import Experiment, make_arrivals
from experiments.asked.choices import (
    choose_for_old,
    choose_incdsi,
    compare,
    compare_methods,
    indexing_methods,
    plain_values,
)
from experiments.asked.data import Dataset, Encoded, EncoderSource, reduce_to_articles
from experiments.asked.memory import Collection, Outcome, run_trial, split_trials
from experiments.asked.thumbs import measure_thumbs
from experiments.asked.trained import measure_trained
from experiments.tables import write_tables

HERE = Path(__file__).parent
PARTS = ("memory", "arrivals", "trained", "thumbs")


def main() -> None:
    """Run the parts that the arguments name, and write results and tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--cache", type=Path, required=True, help="folder for vectors")
    parser.add_argument("--only", nargs="*", help="collections to run; the others keep their rows")
    parser.add_argument("--part", choices=PARTS, help="one part alone")
    parser.add_argument("--settings", type=Path, default=HERE / "settings.toml")
    parser.add_argument("--output", type=Path, default=HERE, help="folder of result and page")
    arguments = parser.parse_args()

    settings = tomllib.loads(arguments.settings.read_text(encoding="utf-8"))
    result_file = arguments.output / "result.json"
    result = json.loads(result_file.read_text()) if result_file.is_file() else {}

    for encoder_name, path in settings["encoders"].items():
        encoder = EncoderSource(encoder_name, path, settings["max_tokens"])
        for part in PARTS:
            for name, options in settings[part].items():
                is_wanted = not arguments.only or name in arguments.only
                if not is_wanted or arguments.part not in (None, part):
                    continue
                folder = options.get("folder", name)
                cache = arguments.cache / folder
                collection = load(arguments.data / folder, options, encoder, cache)
                part_settings = dict(settings)
                if "documents" in options:
                    part_settings.update(settings["reduced"])
                if "training" in options:
                    part_settings["training"] = dict(settings["training"])
                    part_settings["training"].update(options["training"])
                if part == "trained":
                    trainings = arguments.cache / f"trained-{name}"
                    rows = measure_trained(collection, encoder, options, part_settings, trainings)
                else:
                    rows = MEASURES[part](collection, options, part_settings)
                result.setdefault(part, {}).setdefault(encoder_name, {})[name] = rows
                result_file.write_text(json.dumps(result, indent=1) + "\n")
                print(part, name, encoder_name, json.dumps(rows), flush=True)
    if (arguments.output / "README.md").is_file():
        write_tables(arguments.output, tables(result))


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
        methods = indexing_methods(incdsi)
        row = compare_methods(experiment, methods, settings["seed"])
        row["choices"] = {**choices, "incdsi": asdict(incdsi)}
        row["tried"] = tried
        rows[name] = row
    return rows


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
    if "documents" in options:
        dataset, documents, queries = reduce_to_articles(
            dataset, documents, queries, options["documents"]
        )
    return Collection(dataset, documents, queries)


# Functions that measure a part. The part "trained" has its own arguments.
MEASURES = {"memory": measure_memory, "arrivals": measure_arrivals, "thumbs": measure_thumbs}


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


def tables(result: Mapping[str, Any]) -> str:
    """Return the page's tables of a result."""
    parts = []
    for encoder, collections in result.get("memory", {}).items():
        parts.append(memory_table(encoder, collections))
    for encoder, collections in result.get("arrivals", {}).items():
        for name, arrivals in collections.items():
            for label, rows in arrivals.items():
                parts.append(arrivals_table("Arrivals", f"{name} ({label})", encoder, rows))
    for collections in result.get("trained", {}).values():
        for name, encoders in collections.items():
            for encoder, rows in encoders.items():
                title = "Beside trainings, reduced collection"
                parts.append(arrivals_table(title, name, encoder, rows))
    for encoder, collections in result.get("thumbs", {}).items():
        for name, thumbs in collections.items():
            for rows in thumbs.values():
                parts.append(arrivals_table("Thumbs, reduced collection", name, encoder, rows))
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


def arrivals_table(title: str, name: str, encoder: str, rows: Mapping[str, Any]) -> str:
    """Return the table that compares the methods of indexing documents that get queries.

    Args:
        title: Title of the table.
        name: Name of the collection and, if there are several, of its division.
        encoder: Name of the encoder.
        rows: Result of `compare_methods`.
    """
    documents = (
        f"{rows['new documents']:,} documents arrive, {rows['bring queries']:,} with queries"
    )
    if "thumbs" in rows:
        documents = (
            f"{rows['bring queries']:,} of {rows['new documents']:,} documents, called new here, "
            f"get {rows['thumbs']:,} thumbs up"
        )
    lines = [
        f"**{title}, {name}, {encoder} encoder**: {documents}, beside "
        f"{rows['old documents']:,}; {rows['new queries']:,} test queries for new documents, "
        f"{rows['old queries']:,} for old",
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


if __name__ == "__main__":
    main()
