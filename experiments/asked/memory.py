"""Measure the effect of known queries as words of documents, without new documents.

A known query is a query that a document is known to answer. Here its words count as words of the
document in BM25.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from experiments.asked.data import Dataset, Encoded, jaccard, split_words
from experiments.asked.search import (
    CUTOFF,
    MEAN_TOLERANCE,
    FusionSearch,
    Normalizer,
    Vocabulary,
    Weights,
    WordSettings,
    bm25_weights,
    choose_weights,
    evaluate,
    ndcg,
)


@dataclass(frozen=True)
class Trial:
    """A division of a collection's queries into known, dev and test queries.

    Attributes:
        dev_known: Ids of the known queries when settings are chosen on dev queries.
        dev: Ids of the dev queries.
        test_known: Ids of the known queries when test queries are evaluated.
        test: Ids of the test queries.
        qrels: Relevant document numbers of each query id.
    """

    dev_known: Sequence[str]
    dev: Sequence[str]
    test_known: Sequence[str]
    test: Sequence[str]
    qrels: Mapping[str, set[int]]


def split_trials(dataset: Dataset, options: Mapping[str, Any], seed: int) -> list[Trial]:
    """Divide the queries of a collection into known, dev and test ones.

    Args:
        dataset: The collection.
        options: Settings of the collection. With `folds`, there is a trial for each fold.
        seed: Seed of the draws.
    """
    random = np.random.default_rng(seed)
    if "folds" in options:
        return fold_trials(dataset, options, random)

    qrels: dict[str, set[int]] = {}
    for split_qrels in dataset.qrels.values():
        qrels.update(split_qrels)
    train = sorted(dataset.qrels["train"])
    if "asked_share" in options:
        train = queries_of_asked_documents(dataset, train, options["asked_share"], random)
    test = sample(sorted(dataset.qrels["test"]), options.get("test_queries"), random)
    if "dev" in dataset.qrels:
        dev = sample(sorted(dataset.qrels["dev"]), options.get("dev_queries"), random)
        return [Trial(train, dev, train, test, qrels)]

    shuffled = random.permutation(train).tolist()
    size = round(len(train) * options["dev_share"])
    return [Trial(shuffled[size:], shuffled[:size], train, test, qrels)]


def queries_of_asked_documents(
    dataset: Dataset, train: Sequence[str], share: float, random: np.random.Generator
) -> list[str]:
    """Return the train queries of a random share of the documents.

    Other documents have no known query then. This is as in a collection where people have asked for
    only a part of the documents. Dev and test queries of all documents remain.

    Args:
        dataset: The collection.
        train: Ids of the train queries.
        share: Share of the documents.
        random: Generator of the draw.
    """
    judged: set[int] = set()
    for query in train:
        judged.update(dataset.qrels["train"][query])
    shuffled = random.permutation(sorted(judged))
    asked = set(shuffled[: round(share * len(judged))].tolist())
    # A query is kept if all its relevant documents are among those that people asked for.
    return [query for query in train if dataset.qrels["train"][query] <= asked]


def fold_trials(
    dataset: Dataset, options: Mapping[str, Any], random: np.random.Generator
) -> list[Trial]:
    """Divide the queries into folds. Each trial has one fold as test queries.

    The queries of the other folds are known. For choosing settings, some of them are dev queries.
    """
    qrels = dataset.qrels["test"]
    folds = np.array_split(random.permutation(sorted(qrels)), options["folds"])
    trials = []
    for number, fold in enumerate(folds):
        others = np.concatenate([other for i, other in enumerate(folds) if i != number]).tolist()
        size = round(len(others) * options["dev_share"])
        trials.append(Trial(others[size:], others[:size], others, fold.tolist(), qrels))
    return trials


def sample(ids: Sequence[str], most: int | None, random: np.random.Generator) -> list[str]:
    """Return ids in a random order, at most `most` of them; None for all."""
    return random.permutation(ids)[:most].tolist()


class Collection:
    """A collection with its encodings and term counts.

    Args:
        dataset: Documents, queries and judgements.
        documents: Encodings of the documents.
        queries: Encodings of the queries.

    Attributes:
        query_rows: Row of each query by its id.
        normalizer: Distribution of the dense scores.
        text_counts: Term counts of the documents (n, terms).
        query_counts: Term counts of the queries (q, terms).
    """

    def __init__(self, dataset: Dataset, documents: Encoded, queries: Encoded) -> None:
        self.dataset = dataset
        self.documents = documents
        self.queries = queries
        self.query_rows = {query: row for row, query in enumerate(dataset.queries)}
        self.normalizer = Normalizer.fit(documents.vectors)
        self.vocabulary = Vocabulary()
        self.text_counts = self.vocabulary.count(dataset.texts, grow=True)
        self.query_counts = self.vocabulary.count(dataset.queries.values(), grow=True)
        # The queries may have added terms that no text has.
        self.text_counts.resize((len(dataset.texts), len(self.vocabulary.numbers)))

    def with_encodings(self, documents: Encoded, queries: Encoded) -> Collection:
        """Return the same collection with other encodings. Term counts are shared."""
        other = copy.copy(self)
        other.documents = documents
        other.queries = queries
        other.normalizer = Normalizer.fit(documents.vectors)
        return other

    def rows(self, query_ids: Sequence[str]) -> np.ndarray:
        """Return the row numbers (q,) of queries."""
        return np.array([self.query_rows[query] for query in query_ids], dtype=np.int64)

    def known_counts(self, known: Sequence[str], qrels: Mapping[str, set[int]]) -> Any:
        """Return the term counts (n, terms) of the known queries of each document."""
        from scipy import sparse

        documents = []
        queries = []
        for query in known:
            for document in qrels[query]:
                documents.append(document)
                queries.append(self.query_rows[query])
        shape = (len(self.dataset.texts), len(self.dataset.queries))
        answers = sparse.csr_matrix((np.ones(len(documents)), (documents, queries)), shape)
        return (answers @ self.query_counts).tocsr()

    def search(self, known_counts: Any, word_variant: WordSettings) -> FusionSearch:
        """Return a search in which known queries count as words of their documents.

        Args:
            known_counts: Term counts of the known queries of each document (n, terms).
            word_variant: How they count.
        """
        weights = bm25_weights(self.text_counts, known_counts, word_variant)
        return FusionSearch(self.documents.vectors, self.documents.tokens, weights, self.normalizer)


@dataclass
class Outcome:
    """Results of one trial.

    Attributes:
        queries: Ids of the test queries.
        similarity: Largest similarity of each test query to a known query; see
            `largest_similarity`.
        scores: nDCG@10 of each test query, by system.
        choices: Settings that the dev queries chose, by system.
    """

    queries: list[str]
    similarity: list[float]
    scores: dict[str, list[float]]
    choices: dict[str, Any]


def run_trial(collection: Collection, trial: Trial, grid: Mapping[str, Any]) -> Outcome:
    """Choose settings on dev queries, and evaluate them once on test queries.

    Search with known queries as words is compared with search without them.

    Args:
        collection: The collection.
        trial: Division of its queries.
        grid: Values that are tried. With `largest_loss`, settings that harm other documents more
            than this are left out; see `choose_harmless`.
    """
    variants = {"plain": [WordSettings()], "words": word_settings(grid)}

    scores: dict[str, list[float]] = {}
    choices: dict[str, Any] = {}
    dev_counts = collection.known_counts(trial.dev_known, trial.qrels)
    test_counts = collection.known_counts(trial.test_known, trial.qrels)
    for name, candidates in variants.items():
        fusion_choice = choose_fusion(collection, trial, dev_counts, candidates, grid)
        bm25_choice = choose_bm25(collection, trial, dev_counts, candidates)
        if name == "words" and "largest_loss" in grid:
            fusion_choice = choose_harmless(collection, trial, dev_counts, candidates, grid)
        choices[name] = {"fusion": fusion_choice, "bm25": bm25_choice}

        scores[f"fusion {name}"] = evaluate_fusion(collection, trial, test_counts, fusion_choice)
        scores[f"bm25 {name}"] = evaluate_bm25(collection, trial, test_counts, bm25_choice)

    similarity = largest_similarity(collection.dataset, trial)
    return Outcome(list(trial.test), similarity, scores, choices)


def word_settings(grid: Mapping[str, Any]) -> list[WordSettings]:
    """Return each combination of the grid's values."""
    combinations = product(grid["word_weights"], grid["in_length"])
    return [WordSettings(weight, in_length) for weight, in_length in combinations]


def choose_fusion(
    collection: Collection,
    trial: Trial,
    known_counts: Any,
    candidates: Sequence[WordSettings],
    grid: Mapping[str, Any],
) -> dict[str, Any]:
    """Choose how known queries count as words, and the fusion's weights, by nDCG@10 on dev.

    Args:
        collection: The collection.
        trial: Division of its queries.
        known_counts: Term counts of the known queries of each document (n, terms).
        candidates: Ways to count known queries as words.
        grid: Weights that are tried; see `choose_weights`.

    Returns:
        The best mean on dev (`dev`), how known queries count (`words`), and the `weights`.
    """
    rows = collection.rows(trial.dev)
    vectors = collection.queries.vectors[rows]
    relevant = [trial.qrels[query] for query in trial.dev]
    best: dict[str, Any] = {"dev": -1.0}
    for variant in candidates:
        search = collection.search(known_counts, variant)
        found = search.candidates(
            vectors, collection.queries.tokens[rows], collection.query_counts[rows]
        )
        weights, mean = choose_weights(search, found, vectors, relevant, grid)
        if mean > best["dev"] + MEAN_TOLERANCE:
            best = {"dev": mean, "words": variant, "weights": weights}
    return best


def choose_harmless(
    collection: Collection,
    trial: Trial,
    known_counts: Any,
    candidates: Sequence[WordSettings],
    grid: Mapping[str, Any],
) -> dict[str, Any]:
    """Choose how known queries count as words, without harm to documents that have none.

    A candidate is left out if dev queries for documents without known queries lose more than
    `largest_loss` with it. If all candidates are left out, known queries do not count as words.
    Arguments and result are those of `choose_fusion`.
    """
    known_documents: set[int] = set()
    for query in trial.dev_known:
        known_documents.update(trial.qrels[query])
    # Whether each dev query (q,) asks only for documents without known queries.
    is_unasked = np.array([trial.qrels[query].isdisjoint(known_documents) for query in trial.dev])

    plain = choose_fusion(collection, trial, known_counts, [WordSettings()], grid)
    plain_values = np.array(evaluate_on_dev(collection, trial, known_counts, plain))
    best = plain
    for variant in candidates:
        choice = choose_fusion(collection, trial, known_counts, [variant], grid)
        values = np.array(evaluate_on_dev(collection, trial, known_counts, choice))
        loss = 0.0
        if is_unasked.any():
            loss = (plain_values - values)[is_unasked].mean()
        is_harmless = loss <= grid["largest_loss"]
        if is_harmless and choice["dev"] > best["dev"] + MEAN_TOLERANCE:
            best = choice
    return best


def evaluate_on_dev(
    collection: Collection, trial: Trial, known_counts: Any, choice: Mapping[str, Any]
) -> list[float]:
    """Return nDCG@10 of each dev query by a fusion."""
    on_dev = Trial((), (), trial.dev_known, trial.dev, trial.qrels)
    return evaluate_fusion(collection, on_dev, known_counts, choice)


def choose_bm25(
    collection: Collection, trial: Trial, known_counts: Any, candidates: Sequence[WordSettings]
) -> dict[str, Any]:
    """Choose how known queries count as words in BM25 alone, by nDCG@10 on dev."""
    best: dict[str, Any] = {"dev": -1.0}
    for variant in candidates:
        search = collection.search(known_counts, variant)
        mean = float(np.mean(bm25_ndcg(collection, search, trial.dev, trial.qrels)))
        if mean > best["dev"] + MEAN_TOLERANCE:
            best = {"dev": mean, "words": variant}
    return best


def evaluate_fusion(
    collection: Collection, trial: Trial, known_counts: Any, choice: Mapping[str, Any]
) -> list[float]:
    """Return nDCG@10 of each test query, by the fusion that was chosen on dev queries."""
    rows = collection.rows(trial.test)
    relevant = [trial.qrels[query] for query in trial.test]
    search = collection.search(known_counts, choice["words"])
    found = search.candidates(
        collection.queries.vectors[rows],
        collection.queries.tokens[rows],
        collection.query_counts[rows],
    )
    weights: Weights = choice["weights"]
    return evaluate(search, found, collection.queries.vectors[rows], relevant, weights).tolist()


def evaluate_bm25(
    collection: Collection, trial: Trial, known_counts: Any, choice: Mapping[str, Any]
) -> list[float]:
    """Return nDCG@10 of each test query by BM25 alone."""
    search = collection.search(known_counts, choice["words"])
    return bm25_ndcg(collection, search, trial.test, trial.qrels)


def bm25_ndcg(
    collection: Collection,
    search: FusionSearch,
    query_ids: Sequence[str],
    qrels: Mapping[str, set[int]],
    chunk: int = 256,
) -> list[float]:
    """Return nDCG@10 of each query by BM25 alone.

    Args:
        collection: The collection.
        search: Search with the BM25 weights.
        query_ids: Ids of the queries.
        qrels: Relevant document numbers of each query id.
        chunk: Number of queries that are scored at once, which limits the memory.
    """
    rows = collection.rows(query_ids)
    values = []
    for start in range(0, len(rows), chunk):
        scores = search.bm25_scores(collection.query_counts[rows[start : start + chunk]])
        for i, query_scores in enumerate(scores):
            best = np.argpartition(-query_scores, CUTOFF)[:CUTOFF]
            best = best[np.argsort(-query_scores[best], kind="stable")]
            ranking = [int(document) for document in best if query_scores[document] > 0]
            values.append(ndcg(ranking, qrels[query_ids[start + i]]))
    return values


def largest_similarity(dataset: Dataset, trial: Trial) -> list[float]:
    """Return how similar each test query is to the known queries of its relevant documents.

    The value is the largest Jaccard index of words; -1 if there is no such known query.
    """
    known_of: dict[int, list[frozenset[str]]] = defaultdict(list)
    for query in trial.test_known:
        for document in trial.qrels[query]:
            known_of[document].append(split_words(dataset.queries[query]))
    similarity = []
    for query in trial.test:
        query_words = split_words(dataset.queries[query])
        largest = -1.0
        for document in trial.qrels[query]:
            for known_words in known_of[document]:
                largest = max(largest, jaccard(query_words, known_words))
        similarity.append(largest)
    return similarity
