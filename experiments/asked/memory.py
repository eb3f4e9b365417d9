"""Measure the effect of known queries as words of documents, without new documents.

A known query is a query that a document is known to answer. Here its words count as words of the
document in BM25.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from experiments.asked.data import Dataset, Encoded, jaccard, split_words
from experiments.asked.known import QueryTexts
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
from model_code.stages.fusion import (
    DEFAULT_TOTAL_WEIGHT,
    MIN_LEARNING_QUERIES,
    is_clear_gain,
)
from model_code.stages.known_words import DEFAULT_IN_LENGTH, DEFAULT_WEIGHT

# The settings of a project without judged queries.
DEFAULT_WORDS = WordSettings(DEFAULT_WEIGHT, DEFAULT_IN_LENGTH)
DEFAULT_WEIGHTS = Weights(DEFAULT_TOTAL_WEIGHT["words"], DEFAULT_TOTAL_WEIGHT["late"])


@dataclass(frozen=True)
class Trial:
    """A division of a collection's queries into known, dev and test queries.

    No known query has the text of a query that judges at the same time.

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


def split_trials(collection: Collection, options: Mapping[str, Any], seed: int) -> list[Trial]:
    """Divide the queries of a collection into known, dev and test ones.

    Args:
        collection: The collection.
        options: Settings of the collection. With `folds`, there is a trial for each fold.
        seed: Seed of the draws.
    """
    random = np.random.default_rng(seed)
    if "folds" in options:
        return fold_trials(collection, options, random)

    dataset = collection.dataset
    texts = collection.texts
    qrels: dict[str, set[int]] = {}
    for split_qrels in dataset.qrels.values():
        qrels.update(split_qrels)
    train = sorted(dataset.qrels["train"])
    if "asked_share" in options:
        train = queries_of_asked_documents(dataset, train, options["asked_share"], random)
    test = sample(sorted(dataset.qrels["test"]), options.get("test_queries"), random)
    if "dev" in dataset.qrels:
        dev = sample(sorted(dataset.qrels["dev"]), options.get("dev_queries"), random)
        known = texts.drop_held_out(train, [*dataset.qrels["dev"], *dataset.qrels["test"]])
        return [Trial(known, dev, known, test, qrels)]

    shuffled = random.permutation(train).tolist()
    size = round(len(train) * options["dev_share"])
    dev = shuffled[:size]
    dev_known = texts.drop_held_out(shuffled[size:], [*dev, *test])
    return [Trial(dev_known, dev, texts.drop_held_out(train, test), test, qrels)]


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
    collection: Collection, options: Mapping[str, Any], random: np.random.Generator
) -> list[Trial]:
    """Divide the queries into folds. Each trial has one fold as test queries.

    The queries of the other folds are known. For choosing settings, some of them are dev queries.
    """
    texts = collection.texts
    qrels = collection.dataset.qrels["test"]
    folds = np.array_split(random.permutation(sorted(qrels)), options["folds"])
    trials = []
    for number, fold in enumerate(folds):
        test = fold.tolist()
        others = np.concatenate([other for i, other in enumerate(folds) if i != number]).tolist()
        size = round(len(others) * options["dev_share"])
        dev = others[:size]
        dev_known = texts.drop_held_out(others[size:], [*dev, *test])
        trials.append(Trial(dev_known, dev, texts.drop_held_out(others, test), test, qrels))
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
        texts: The queries by their texts.
        query_rows: Row of each query by its id.
        normalizer: Distribution of the dense scores.
        text_counts: Term counts of the documents (n, terms).
        query_counts: Term counts of the queries (q, terms).
    """

    def __init__(self, dataset: Dataset, documents: Encoded, queries: Encoded) -> None:
        self.dataset = dataset
        self.documents = documents
        self.queries = queries
        self.texts = QueryTexts(dataset)
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

    def with_qrels(self, qrels: dict[str, dict[str, set[int]]]) -> Collection:
        """Return the same collection with other judgements, by split."""
        other = copy.copy(self)
        other.dataset = replace(self.dataset, qrels=qrels)
        return other

    def rows(self, query_ids: Sequence[str]) -> np.ndarray:
        """Return the row numbers (q,) of queries."""
        return np.array([self.query_rows[query] for query in query_ids], dtype=np.int64)

    def known_counts(self, known: Sequence[str], qrels: Mapping[str, set[int]]) -> Any:
        """Return the term counts (n, terms) of the known queries of each document.

        Only queries within the limits of the product count; see `QueryTexts.select`.
        """
        pairs = []
        for query in known:
            for document in sorted(qrels[query]):
                pairs.append((document, self.query_rows[query]))
        return self.count_pairs(self.texts.select(pairs), len(self.dataset.texts))

    def count_pairs(self, pairs: Sequence[tuple[int, int]], documents: int) -> Any:
        """Return the term counts (documents, terms) of queries that belong to documents.

        Args:
            pairs: Row of a document in the result, and row of a query.
            documents: Number of documents.
        """
        from scipy import sparse

        document_rows = [document for document, _ in pairs]
        query_rows = [query for _, query in pairs]
        shape = (documents, len(self.dataset.queries))
        answers = sparse.csr_matrix((np.ones(len(pairs)), (document_rows, query_rows)), shape)
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


@dataclass(eq=False)
class Choice:
    """Settings of a search, with the result of dev queries.

    Attributes:
        words: How known queries count as words.
        weights: Weights of the fusion.
        values: nDCG@10 of each dev query, (q,).
        unasked: Whether each dev query asks for documents without known queries only, (q,).
        unasked_loss: Loss of the mean nDCG@10 of these queries, compared with the best search in
            which known queries do not count.
    """

    words: WordSettings
    weights: Weights
    values: np.ndarray
    unasked: np.ndarray
    unasked_loss: float = 0.0

    @property
    def mean(self) -> float:
        """Mean nDCG@10 of the dev queries."""
        return float(self.values.mean())

    @property
    def report(self) -> dict[str, Any]:
        """The choice as plain values."""
        return {
            "dev": round(self.mean, 4),
            "words": asdict(self.words),
            "weights": asdict(self.weights),
            "dev queries": len(self.values),
            "dev queries without known": int(self.unasked.sum()),
            "dev loss without known": round(self.unasked_loss, 4),
        }


def run_trial(collection: Collection, trial: Trial, grid: Mapping[str, Any]) -> Outcome:
    """Choose settings on dev queries, and evaluate them once on test queries.

    Search with known queries as words is compared with search without them. Both are also
    evaluated with the default settings, which are those of a project without judged queries.

    Args:
        collection: The collection.
        trial: Division of its queries.
        grid: Values that are tried; see `choose`.
    """
    dev_counts = collection.known_counts(trial.dev_known, trial.qrels)
    test_counts = collection.known_counts(trial.test_known, trial.qrels)
    fusion_plain, fusion_words = choose_fusion(collection, trial, dev_counts, grid)
    bm25_plain, bm25_words = choose_bm25(collection, trial, dev_counts, grid)

    scores: dict[str, list[float]] = {}
    no_words = WordSettings()
    for name, words, weights in (
        ("fusion plain", no_words, fusion_plain.weights),
        ("fusion words", fusion_words.words, fusion_words.weights),
        ("default fusion plain", no_words, DEFAULT_WEIGHTS),
        ("default fusion words", DEFAULT_WORDS, DEFAULT_WEIGHTS),
    ):
        search = collection.search(test_counts, words)
        scores[name] = evaluate_fusion(collection, trial, search, weights)
    for name, words in (
        ("bm25 plain", no_words),
        ("bm25 words", bm25_words.words),
        ("default bm25 plain", no_words),
        ("default bm25 words", DEFAULT_WORDS),
    ):
        search = collection.search(test_counts, words)
        scores[name] = bm25_ndcg(collection, search, trial.test, trial.qrels)

    choices = {
        "plain": {"fusion": fusion_plain.report, "bm25": bm25_plain.report},
        "words": {"fusion": fusion_words.report, "bm25": bm25_words.report},
    }
    return Outcome(list(trial.test), largest_similarity(collection, trial), scores, choices)


def word_settings(grid: Mapping[str, Any]) -> list[WordSettings]:
    """Return each combination of the grid's values, the smallest weights first.

    The first one has weight 0, with which known queries do not count.
    """
    combinations = product(grid["word_weights"], grid["in_length"])
    return [WordSettings(), *(WordSettings(weight, length) for weight, length in combinations)]


def choose_fusion(
    collection: Collection, trial: Trial, known_counts: Any, grid: Mapping[str, Any]
) -> tuple[Choice, Choice]:
    """Choose how known queries count as words, and the fusion's weights, by nDCG@10 on dev.

    Args:
        collection: The collection.
        trial: Division of its queries.
        known_counts: Term counts of the known queries of each document (n, terms).
        grid: Values that are tried; see `choose` and `choose_weights`.

    Returns:
        The choice without known queries as words, and the choice with them.
    """
    rows = collection.rows(trial.dev)
    vectors = collection.queries.vectors[rows]
    relevant = [trial.qrels[query] for query in trial.dev]
    unasked = unasked_queries(trial)
    candidates = []
    for words in word_settings(grid):
        search = collection.search(known_counts, words)
        found = search.candidates(
            vectors, collection.queries.tokens[rows], collection.query_counts[rows]
        )
        tried = dict(grid)
        is_blind = unasked.sum() < MIN_LEARNING_QUERIES
        if candidates and is_blind:
            # Dev cannot show the harm of words, so they must not make BM25 more important.
            largest_weight = candidates[0].weights.bm25
            tried["bm25"] = [weight for weight in grid["bm25"] if weight <= largest_weight]
        weights, values = choose_weights(search, found, vectors, relevant, tried)
        candidates.append(Choice(words, weights, values, unasked))
    has_unasked_documents = len(known_documents(trial)) < len(collection.dataset.ids)
    return candidates[0], choose(candidates, grid["largest_loss"], has_unasked_documents)


def choose_bm25(
    collection: Collection, trial: Trial, known_counts: Any, grid: Mapping[str, Any]
) -> tuple[Choice, Choice]:
    """Choose how known queries count as words in BM25 alone; see `choose_fusion`."""
    unasked = unasked_queries(trial)
    candidates = []
    for words in word_settings(grid):
        search = collection.search(known_counts, words)
        values = np.array(bm25_ndcg(collection, search, trial.dev, trial.qrels))
        candidates.append(Choice(words, Weights(), values, unasked))
    has_unasked_documents = len(known_documents(trial)) < len(collection.dataset.ids)
    return candidates[0], choose(candidates, grid["largest_loss"], has_unasked_documents)


def unasked_queries(trial: Trial) -> np.ndarray:
    """Return whether each dev query (q,) asks for documents without known queries only."""
    known = known_documents(trial)
    return np.array([trial.qrels[query].isdisjoint(known) for query in trial.dev])


def known_documents(trial: Trial) -> set[int]:
    """Return the numbers of the documents with a query that is known while dev judges."""
    known: set[int] = set()
    for query in trial.dev_known:
        known.update(trial.qrels[query])
    return known


def choose(
    candidates: Sequence[Choice], largest_loss: float, has_unasked_documents: bool
) -> Choice:
    """Choose how known queries count as words, by the rule of the product.

    A candidate is left out if dev queries for documents without known queries lose more than
    `largest_loss` by it. The default is left out only if this loss is clear. If there are few such
    queries, but such documents, no harm can be shown. Then all candidates are left out in which
    known queries count more than by default. Of the others, the one with the best mean on dev is
    chosen, but it replaces the default only if its gain is clear. See
    `model_code.stages.known_words` and `model_code.stages.fusion`.

    Args:
        candidates: The candidates. In the first one, known queries do not count. One of the others
            is the default.
        largest_loss: Largest loss of nDCG@10.
        has_unasked_documents: Whether a document of the collection has no known query.
    """
    plain = candidates[0]
    default = next(candidate for candidate in candidates if candidate.words == DEFAULT_WORDS)
    allowed = []
    for candidate in candidates:
        losses = (plain.values - candidate.values)[candidate.unasked]
        if losses.size:
            candidate.unasked_loss = float(losses.mean())
        is_harmful = candidate.unasked_loss > largest_loss
        if losses.size < MIN_LEARNING_QUERIES:
            counts_more = candidate.words.weight >= DEFAULT_WORDS.weight
            is_harmful = has_unasked_documents and counts_more and candidate is not default
        elif candidate is default and is_harmful:
            is_harmful = is_clear_gain(losses)
        if not is_harmful:
            allowed.append(candidate)

    best = allowed[0]
    for candidate in allowed[1:]:
        if candidate.mean > best.mean + MEAN_TOLERANCE:
            best = candidate
    if default not in allowed:
        return best

    # Dev cannot show a gain with few queries for documents that have known queries.
    queries_that_can_gain = int((~default.unasked).sum())
    is_measurable = queries_that_can_gain >= MIN_LEARNING_QUERIES
    if is_measurable and is_clear_gain(best.values - default.values):
        return best
    return default


def evaluate_fusion(
    collection: Collection, trial: Trial, search: FusionSearch, weights: Weights
) -> list[float]:
    """Return nDCG@10 of each test query by a fusion."""
    rows = collection.rows(trial.test)
    vectors = collection.queries.vectors[rows]
    relevant = [trial.qrels[query] for query in trial.test]
    found = search.candidates(
        vectors, collection.queries.tokens[rows], collection.query_counts[rows]
    )
    return evaluate(search, found, vectors, relevant, weights).tolist()


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


def largest_similarity(collection: Collection, trial: Trial) -> list[float]:
    """Return how similar each test query is to the known queries of its relevant documents.

    The value is the largest Jaccard index of words; -1 if there is no such known query.
    """
    dataset = collection.dataset
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
