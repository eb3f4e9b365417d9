"""Measure what late interaction gains as a first stage, compared with re-scoring candidates.

The product re-scores by late interaction the candidates that vectors and BM25 find. As a first
stage, late interaction would propose candidates itself, for example with an inverted list of token
signs. This script computes the largest possible gain of such a list: all documents are scored.

`python -m experiments.late_interaction.first_stage DATA --cache FOLDER` reads the collections of
`first_stage.toml` below DATA. It writes `first_stage.json` and the fourth table of `README.md`. It
uses dev queries, and the untrained fusion with default weights and feedback.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from experiments.asked.data import EncoderSource
from experiments.asked.run import load
from experiments.asked.search import (
    CUTOFF,
    DEPTH,
    FEEDBACK,
    FEEDBACK_DOCUMENTS,
    LATE_SCALE,
    Normalizer,
    Weights,
    WordSettings,
    bm25_weights,
    ndcg,
)
from experiments.comparison import compare_systems, comparison_cells
from experiments.late_interaction.run import HERE
from experiments.tables import write_tables
from model_code.encoding.token_signs import TokenSigns
from model_code.files import read_json, write_json
from model_code.retrieval.fused import MIN_ISOLATION_GAP, isolation_factor

# Number of documents whose token signs are compared at once. They fit into the processor's cache.
BLOCK_DOCUMENTS = 64
# Names of the systems. They differ in the documents that the fusion scores.
RESCORING = "best 100 by vectors and by BM25"
FIRST_STAGE = "these, and best 100 by late interaction"
ALL_DOCUMENTS = "all documents"
SYSTEMS = (RESCORING, FIRST_STAGE, ALL_DOCUMENTS)
START = "<!-- first stage -->\n"
END = "<!-- end of first stage -->\n"


class SignSearch:
    """Late interaction of a query with all documents.

    Args:
        tokens: Token signs of the documents.
    """

    def __init__(self, tokens: TokenSigns) -> None:
        self._blocks = [
            tokens[start : start + BLOCK_DOCUMENTS]
            for start in range(0, len(tokens), BLOCK_DOCUMENTS)
        ]

    def scores(self, query: TokenSigns) -> np.ndarray:
        """Return the score (n,) of each document for the token signs of one query."""
        return np.concatenate([query.similarities(block) for block in self._blocks])


@dataclass
class QueryScores:
    """Scores (n,) of all documents for one query, by each component."""

    dense: np.ndarray
    bm25: np.ndarray
    late: np.ndarray

    def candidates(self) -> dict[str, np.ndarray]:
        """Return the numbers of the documents that each system scores, ascending."""
        by_dense = best_documents(self.dense)
        by_bm25 = best_documents(self.bm25)
        # Documents without any term of the query are no candidates of BM25.
        by_bm25 = by_bm25[self.bm25[by_bm25] > 0]
        rescored = np.union1d(by_dense, by_bm25)
        return {
            RESCORING: rescored,
            FIRST_STAGE: np.union1d(rescored, best_documents(self.late)),
            ALL_DOCUMENTS: np.arange(len(self.dense)),
        }


def best_documents(scores: np.ndarray) -> np.ndarray:
    """Return the numbers of the `DEPTH` documents with the highest scores (n,), in any order."""
    depth = min(DEPTH, len(scores))
    return np.argpartition(-scores, depth - 1)[:depth]


def rank(
    scores: QueryScores,
    rows: np.ndarray,
    query: np.ndarray,
    vectors: np.ndarray,
    normalizer: Normalizer,
    weights: Weights,
) -> np.ndarray:
    """Rank documents as `model_code.retrieval.fused` does, with feedback and isolated documents.

    Args:
        scores: Scores of all documents.
        rows: Numbers of the documents that are ranked, (c,).
        query: Vector of the query, (H,).
        vectors: Vectors of all documents, (n, H).
        normalizer: Distribution of the dense scores.
        weights: Weights of the components.

    Returns:
        Numbers of the ten best documents, best first.
    """
    # Without a matching term all scores are 0, and any divisor will do.
    highest = scores.bm25.max(initial=0.0) or 1.0
    words = weights.bm25 * scores.bm25[rows] / highest
    late = weights.late * LATE_SCALE * scores.late[rows]
    dense = scores.dense[rows]

    first_pass = _fuse(words, late, dense, query, normalizer, weights)
    best = np.argsort(-first_pass, kind="stable")[:FEEDBACK_DOCUMENTS]

    # Pseudo-relevance feedback: the query is moved towards its best documents.
    shift = FEEDBACK * vectors[rows[best]].mean(axis=0)
    moved_dense = dense + vectors[rows] @ shift
    second_pass = _fuse(words, late, moved_dense, query + shift, normalizer, weights)
    order = np.argsort(-second_pass, kind="stable")[:CUTOFF]
    return rows[order]


def _fuse(
    words: np.ndarray,
    late: np.ndarray,
    dense: np.ndarray,
    query: np.ndarray,
    normalizer: Normalizer,
    weights: Weights,
) -> np.ndarray:
    """Return the fused scores (c,) of documents."""
    mean, deviation = normalizer.moments(query[None])
    other_shares = (dense - mean) / deviation + late
    factor = isolation_factor(words, other_shares, MIN_ISOLATION_GAP * weights.bm25)
    return words + factor * other_shares


def measure(
    data: Path, cache: Path, options: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Measure a collection: nDCG@10 of each system, and its gain over re-scoring.

    Args:
        data: Folder of the collection.
        cache: Folder in which encodings are kept.
        options: Settings of the collection.
        settings: All settings.
    """
    encoder = EncoderSource("pretrained", settings["encoder"], settings["max_tokens"])
    collection = load(data, options, encoder, cache)
    dataset = collection.dataset
    dev = dataset.qrels["dev"]
    drawn = np.random.default_rng(settings["seed"]).permutation(sorted(dev))
    queries = [str(query) for query in drawn[: options["queries"]]]

    # No document has known queries.
    no_counts = sparse.csr_matrix(collection.text_counts.shape)
    words = bm25_weights(collection.text_counts, no_counts, WordSettings()).T.tocsr()
    vectors = collection.documents.vectors
    sign_search = SignSearch(collection.documents.tokens)

    values: dict[float, dict[str, list[float]]] = {
        weight: {system: [] for system in SYSTEMS} for weight in settings["late_weights"]
    }
    # For each query, the share of its relevant documents that each system scores.
    recalls: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    for done, query in enumerate(queries):
        row = collection.query_rows[query]
        query_vector = collection.queries.vectors[row]
        scores = QueryScores(
            vectors @ query_vector,
            (collection.query_counts[row] @ words).toarray().ravel(),
            sign_search.scores(collection.queries.tokens[row : row + 1]),
        )
        relevant = dev[query]
        candidates = scores.candidates()
        for system, recall in recalls.items():
            recall.append(len(relevant.intersection(candidates[system].tolist())) / len(relevant))
        for weight, systems in values.items():
            weights = Weights(late=weight)
            for system, rows in candidates.items():
                ranking = rank(scores, rows, query_vector, vectors, collection.normalizer, weights)
                systems[system].append(ndcg(ranking.tolist(), relevant))
        if done % 100 == 0:
            print(f"{data.name}: {done:,}/{len(queries):,}", flush=True)

    return {
        "queries": len(queries),
        "documents": len(dataset.ids),
        "recall": {system: round(float(np.mean(recall)), 4) for system, recall in recalls.items()},
        "late weights": {str(weight): summarize(systems) for weight, systems in values.items()},
    }


def summarize(values: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return the mean nDCG@10 of each system, and the gains over re-scoring."""
    scores = {system: np.array(system_values) for system, system_values in values.items()}
    differences = {
        system: scores[system] - scores[RESCORING] for system in (FIRST_STAGE, ALL_DOCUMENTS)
    }
    return {
        "nDCG@10": {system: round(float(array.mean()), 4) for system, array in scores.items()},
        "gain": compare_systems(differences),
    }


def table(result: Mapping[str, Any]) -> str:
    """Return the page's fourth table."""
    lines = [
        "| corpus, dev queries | weight of late interaction | scored documents | recall | nDCG@10 "
        "| gain | p (Holm) |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in sorted(result.items()):
        for weight, summary in row["late weights"].items():
            for system in SYSTEMS:
                recall = row["recall"][system]
                mean = summary["nDCG@10"][system]
                cells = comparison_cells(summary["gain"].get(system))
                lines.append(
                    f"| {name}, {row['queries']:,} | {float(weight):g} | {system} | {recall:.3f} "
                    f"| {mean:.4f} {cells}"
                )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure all collections, or those that the arguments name, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--cache", type=Path, required=True, help="folder for vectors")
    parser.add_argument("--only", nargs="*", help="collections to run; the others keep their rows")
    arguments = parser.parse_args()

    settings = tomllib.loads((HERE / "first_stage.toml").read_text(encoding="utf-8"))
    path = HERE / "first_stage.json"
    result = read_json(path) if path.is_file() else {}
    for name, options in settings["collections"].items():
        if arguments.only and name not in arguments.only:
            continue
        result[name] = measure(arguments.data / name, arguments.cache / name, options, settings)
        write_json(path, result)
    write_tables(HERE, table(read_json(path)), START, END)


if __name__ == "__main__":
    main()
