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
    default_methods,
    indexing_methods,
)
from experiments.asked.data import Dataset, Encoded, EncoderSource, reduce_to_articles
from experiments.asked.memory import (
    DEFAULT_WEIGHTS,
    DEFAULT_WORDS,
    Collection,
    Outcome,
    run_trial,
    split_trials,
)
from experiments.asked.page import (
    MIN_UNASKED_QUERIES,
    READING,
    READING_END,
    READING_START,
    UNASKED,
    render,
    tables,
)
from experiments.asked.thumbs import measure_thumbs
from experiments.asked.trained import best_step, measure_trained, train_on_known
from experiments.tables import write_tables

HERE = Path(__file__).parent
PARTS = ("memory", "arrivals", "memory_trained", "trained", "thumbs")
# Systems that are evaluated with known queries as words and without.
FAMILIES = ("bm25", "fusion", "default bm25", "default fusion")


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
                if part in TRAINED_PARTS:
                    trainings = arguments.cache / f"{part}-{name}"
                    measure_trained_part = TRAINED_PARTS[part]
                    rows = measure_trained_part(
                        collection, encoder, options, part_settings, trainings
                    )
                else:
                    rows = MEASURES[part](collection, options, part_settings)
                result.setdefault(part, {}).setdefault(encoder_name, {})[name] = rows
                result["pooled"] = pool_unasked(result, settings["seed"])
                result_file.write_text(json.dumps(result, indent=1) + "\n")
                print(part, name, encoder_name, json.dumps(rows), flush=True)
    if (arguments.output / "README.md").is_file():
        write_tables(arguments.output, tables(result))
        template = (arguments.output / READING).read_text()
        text = render(template, result)
        write_tables(arguments.output, text, READING_START, READING_END)


def measure_memory(
    collection: Collection, options: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Measure known queries as words of documents, without new documents."""
    outcomes = []
    for trial in split_trials(collection, options, settings["seed"]):
        outcomes.append(run_trial(collection, trial, settings["grid"]))
    return summarize(outcomes, settings["groups"], settings["seed"])


def measure_trained_memory(
    collection: Collection,
    encoder: EncoderSource,
    options: Mapping[str, Any],
    settings: Mapping[str, Any],
    cache: Path,
) -> dict[str, Any]:
    """Measure known queries as words beside an encoder that is trained on the same queries.

    For each trial, `hce` is trained on the queries that are known when settings are chosen.

    Args:
        collection: The collection, encoded by the pretrained encoder.
        encoder: The pretrained encoder.
        options: Settings of the collection.
        settings: All settings of the experiment.
        cache: Folder of trained encoders and their vectors.
    """
    outcomes = []
    steps = []
    for number, trial in enumerate(split_trials(collection, options, settings["seed"])):
        folder = cache / str(number)
        trained = train_on_known(collection, trial, encoder, settings, folder)
        outcomes.append(run_trial(trained, trial, settings["grid"]))
        steps.append(best_step(folder / "train"))
    row = summarize(outcomes, settings["groups"], settings["seed"])
    row["best steps"] = steps
    return row


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

        by_default = Experiment(
            collection, tested, DEFAULT_WORDS, {"plain": DEFAULT_WEIGHTS, "words": DEFAULT_WEIGHTS}
        )
        rows[f"{name}, defaults"] = compare_methods(by_default, default_methods(), settings["seed"])
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


# Functions that measure a part. Parts with trainings have their own arguments.
MEASURES = {"memory": measure_memory, "arrivals": measure_arrivals, "thumbs": measure_thumbs}
TRAINED_PARTS = {"trained": measure_trained, "memory_trained": measure_trained_memory}


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
    masks = query_groups(similarity, borders)
    for group, in_group in masks.items():
        if not in_group.any():
            continue
        groups[group] = {"queries": int(in_group.sum())}
        for family in FAMILIES:
            plain = scores[f"{family} plain"][in_group]
            known = scores[f"{family} words"][in_group]
            groups[group][family] = {
                "plain": round(float(plain.mean()), 4),
                "words": round(float(known.mean()), 4),
                **compare(known - plain, seed),
            }
    row = {"groups": groups, "choices": [outcome.choices for outcome in outcomes]}

    # Few queries for documents without known queries are pooled with those of other collections.
    unasked = masks[UNASKED]
    if 0 < unasked.sum() < MIN_UNASKED_QUERIES:
        row["differences without known"] = {}
        for family in FAMILIES:
            differences = scores[f"{family} words"] - scores[f"{family} plain"]
            row["differences without known"][family] = differences[unasked].round(4).tolist()
    return row


def pool_unasked(result: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Pool the queries for documents without known queries of collections with few of them.

    Args:
        result: Results of the part "memory".
        seed: Seed of the tests.

    Returns:
        The names of the collections, the number of queries and the differences, by encoder.
    """
    pooled: dict[str, Any] = {}
    for encoder, collections in result.get("memory", {}).items():
        few = {
            name: rows["differences without known"]
            for name, rows in sorted(collections.items())
            if "differences without known" in rows
        }
        if not few:
            continue
        pooled[encoder] = {"collections": list(few)}
        for family in FAMILIES:
            differences = np.concatenate([values[family] for values in few.values()])
            pooled[encoder]["queries"] = len(differences)
            pooled[encoder][family] = compare(differences, seed)
    return pooled


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
        UNASKED: similarity < 0,
        f"below {low}": (similarity >= 0) & (similarity < low),
        f"{low} to {high}": (similarity >= low) & (similarity < high),
        f"{high} and above": similarity >= high,
        f"below {high}": (similarity >= 0) & (similarity < high),
    }


if __name__ == "__main__":
    main()
