"""Add `bm25_known` to results of builds that are older than this baseline.

`bm25_known` is BM25 that counts the words of known queries as words of their documents. A known
query is a query that a document is known to answer. Present builds evaluate it themselves.

`python -m experiments.composed.add_known_words ROOT --cache FOLDER` measures both kinds of BM25 on
the corpora of scifact.yaml, squad.yaml and tldr.yaml. Nothing is encoded. ROOT is a folder that has
the data sets under `data/`. The command extends `result.json` and the tables of `README.md`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.composed.run import HERE, METRIC, tables
from experiments.known_words import measure, open_from_settings
from experiments.tables import write_tables
from model_code.corpus.tables import Corpus, load_corpus
from model_code.errors import FreshetError
from model_code.files import read_json, write_json
from model_code.retriever_settings import BM25, BM25_KNOWN

RESULT = HERE / "result.json"
CORPORA = ("scifact", "squad", "tldr")
# Largest difference between the stored mean of `bm25` and the one that is measured again.
TOLERANCE = 0.002
# All test queries.
ALL = "all"
# Groups of test queries in older results. A query is seen if a training query asks for one of its
# documents. Dev queries count as well, because they were drawn from the training queries.
SEEN = "seen"
UNSEEN = "unseen"
# Largest difference between the sizes of a stored and a measured group. The corpora were built by
# earlier code, and two of the 6,202 queries of tldr are in the other group today.
MAX_MOVED_QUERIES = 2


def add_known_words(build: dict[str, Any], measured: Mapping[str, Any]) -> None:
    """Add `bm25_known` to the result of a build.

    Args:
        build: The result, which is changed.
        measured: Both kinds of BM25 on the same test queries; see `measure`.

    Raises:
        FreshetError: If the number of queries or the mean of `bm25` is another one, so that the
            corpora differ.
    """
    stored_mean = build["systems"][BM25][METRIC]["value"]
    check_same_queries(ALL, build["queries"], stored_mean, measured)
    build["systems"][BM25_KNOWN] = measured["systems"][BM25_KNOWN]
    build["seeds"][BM25_KNOWN] = 1
    build["known_words"] = measured["words"]
    row = {"metric": METRIC, "system": BM25_KNOWN, "reference": BM25, **measured["difference"]}
    others = [other for other in build["differences"] if other["system"] != BM25_KNOWN]
    build["differences"] = [*others, row]

    for name, group in build["groups"].items():
        if name in (SEEN, UNSEEN):
            measured_group = measured["groups"][name]
            stored_mean = group["systems"][BM25]
            check_same_queries(name, group["queries"], stored_mean, measured_group)
            known_mean = measured_group["systems"][BM25_KNOWN][METRIC]["value"]
            group["systems"][BM25_KNOWN] = known_mean
            group[f"{BM25_KNOWN} less {BM25}"] = measured_group["difference"]


def check_same_queries(
    group: str, queries: int, stored_mean: float, measured: Mapping[str, Any]
) -> None:
    """Refuse a measurement of other queries than those of the stored result."""
    mean = measured["systems"][BM25][METRIC]["value"]
    moved = abs(measured["queries"] - queries)
    allowed = 0 if group == ALL else MAX_MOVED_QUERIES
    if moved > allowed or abs(mean - stored_mean) > TOLERANCE:
        raise FreshetError(
            f"bm25 has {mean:.4f} on {measured['queries']} queries ({group}), but "
            f"{stored_mean:.4f} on {queries} in {RESULT.name}; "
            "use the data and settings of the stored result"
        )


def seen_groups(corpus: Corpus) -> dict[str, np.ndarray]:
    """Return whether each test query (q,) is in the group "seen", and in the group "unseen"."""
    documents: set[str] = set()
    for split in ("train", "dev"):
        for grades in corpus.judgements(split).qrels.values():
            documents.update(grades)
    test = corpus.judgements("test").qrels
    seen = np.array([not documents.isdisjoint(grades) for grades in test.values()])
    return {SEEN: seen, UNSEEN: ~seen}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the corpora, and write results and tables."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("root", type=Path, help="folder that has the data sets under data/")
    parser.add_argument("--cache", type=Path, required=True, help="folder of corpora and indexes")
    parser.add_argument("--only", nargs="+", choices=CORPORA, help="corpora; all if left out")
    options = parser.parse_args(arguments)

    for corpus in options.only or CORPORA:
        settings = HERE / f"{corpus}.yaml"
        cache = options.cache.resolve() / corpus
        searches = open_from_settings(settings, options.root.resolve(), cache)
        measured = measure(searches, seen_groups(load_corpus(cache / "corpus")))
        # The file is read again, so that an interrupted run keeps the finished corpora.
        result = read_json(RESULT)
        add_known_words(result[corpus], measured)
        write_json(RESULT, result)
    write_tables(HERE, tables(read_json(RESULT)))


if __name__ == "__main__":
    main()
