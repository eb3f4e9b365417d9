"""Checks the experiment on known queries: its IncDSI program against scipy, and what it leaves out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize

from experiments.asked.arrivals import Arrival, Experiment, FusedSolver, IncDsi, IndexingMethod
from experiments.asked.choices import indexing_methods
from experiments.asked.data import Dataset, Encoded, reduce_to_articles
from experiments.asked.memory import Collection
from experiments.asked.search import Weights, WordSettings, bm25_weights, ndcg
from experiments.asked.thumbs import keep_thumbs_on_hits
from experiments.asked.trained import (
    Training,
    is_improved,
    load_document_vectors,
    train_retriever,
    write_corpus,
)
from model_code.corpus.tables import load_corpus
from model_code.encoding.token_signs import TokenSigns, pack_signs
from tests.tiny_encoder import make_tiny_encoder

DIMENSION = 16
OLD_DOCUMENTS = 30
TERMS = [f"term{number}" for number in range(40)]
SETTINGS = IncDsi(gamma1=1.0, gamma2=0.1, lambda2=2.0)


def random_text(random: np.random.Generator, length: int) -> str:
    return " ".join(random.choice(TERMS, length))


def random_encoding(random: np.random.Generator, number: int) -> Encoded:
    vectors = random.normal(size=(number, DIMENSION)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    signs = [pack_signs(random.normal(size=(2, 64))) for _ in range(number)]
    return Encoded(vectors, TokenSigns.of(signs))


@pytest.fixture
def experiment() -> Experiment:
    """Thirty old documents with a known query each, and one that arrives with two queries."""
    random = np.random.default_rng(0)
    texts = [random_text(random, 12) for _ in range(OLD_DOCUMENTS + 1)]
    queries = {f"old{i}": random_text(random, 3) for i in range(OLD_DOCUMENTS)}
    queries |= {"new0": random_text(random, 3), "new1": random_text(random, 3)}
    qrels = {f"old{i}": {i} for i in range(OLD_DOCUMENTS)}
    qrels |= {"new0": {OLD_DOCUMENTS}, "new1": {OLD_DOCUMENTS}}
    ids = [str(i) for i in range(len(texts))]
    dataset = Dataset(ids, texts, [""] * len(texts), queries, {"train": qrels})
    collection = Collection(
        dataset, random_encoding(random, len(texts)), random_encoding(random, len(queries))
    )
    arrival = Arrival(
        old=np.arange(OLD_DOCUMENTS),
        new=np.array([OLD_DOCUMENTS]),
        old_known=[f"old{i}" for i in range(OLD_DOCUMENTS)],
        row_queries={OLD_DOCUMENTS: ["new0", "new1"]},
        old_queries=[],
        new_queries=[],
        qrels=qrels,
    )
    weights = {"plain": Weights(2.0, 0.0), "words": Weights(2.0, 0.0)}
    return Experiment(collection, arrival, WordSettings(0.5, True), weights)


@pytest.fixture
def solver(experiment: Experiment) -> FusedSolver:
    method = IndexingMethod("both", "all", SETTINGS)
    solver = FusedSolver(experiment, method, experiment.bm25("all"), experiment.weights["words"])
    solver.add_old_queries()
    return solver


def objective(
    solver: FusedSolver, queries: list[int], vector: np.ndarray, constraints: int
) -> float:
    """Compute L(v) from its definition, over so many constraints, with explicit loops."""
    position = OLD_DOCUMENTS
    others = np.arange(OLD_DOCUMENTS)
    normalizer = solver.experiment.normalizer
    total = SETTINGS.lambda2 * float(np.sum((vector - solver.experiment.vectors[position]) ** 2))
    for query in queries:
        dense, bm25 = solver.scores(np.array([query]))
        own = solver.score_without_query(position, query)
        highest = max(bm25[0, others].max(), own, 1e-9)
        best = (dense[0, others] + solver.weight * bm25[0, others] / highest).max()
        mean, deviation = normalizer.moments(solver.query_vectors[query : query + 1])
        product = float(solver.query_vectors[query].astype(np.float64) @ vector)
        score = (product - mean[0]) / deviation[0] + solver.weight * own / highest
        share = SETTINGS.lambda1 / len(queries)
        total += share * max(0.0, best + SETTINGS.gamma1 - score) ** 2

    known = solver.constraints
    for i in range(constraints):
        row = known.rows[i]
        match = float((solver.query_counts[row] @ solver.bm25[position].T).toarray()[0, 0])
        bm25_share = solver.weight * match / max(known.highest[i], match)
        product = float(known.vectors[i].astype(np.float64) @ vector)
        score = (product - known.means[i]) / known.deviations[i] + bm25_share
        excess = max(0.0, score - known.scores[i] + SETTINGS.gamma2)
        total += (1 - SETTINGS.lambda1) * excess**2
    return total


def test_fused_program_matches_scipy(solver: FusedSolver) -> None:
    queries = solver.experiment.query_rows(["new0", "new1"])
    prior = solver.experiment.vectors[OLD_DOCUMENTS].astype(np.float64)
    constraints = len(solver.constraints)
    reference = minimize(lambda v: objective(solver, queries, v, constraints), prior)

    solver.solve(OLD_DOCUMENTS, queries)
    solution = solver.vectors[OLD_DOCUMENTS].astype(np.float64)
    solver.vectors[OLD_DOCUMENTS] = prior
    value = objective(solver, queries, solution, constraints)

    assert value == pytest.approx(reference.fun, rel=1e-4)


def test_fused_program_improves_on_the_encoding(solver: FusedSolver) -> None:
    queries = solver.experiment.query_rows(["new0", "new1"])
    prior = solver.experiment.vectors[OLD_DOCUMENTS].astype(np.float64)
    constraints = len(solver.constraints)
    before = objective(solver, queries, prior, constraints)

    solver.solve(OLD_DOCUMENTS, queries)
    solution = solver.vectors[OLD_DOCUMENTS].astype(np.float64)

    assert objective(solver, queries, solution, constraints) < before


def test_query_is_no_word_of_its_own_document(solver: FusedSolver) -> None:
    experiment = solver.experiment
    position = 0
    query = experiment.query_rows(["old0"])[0]
    counts = experiment.text_counts[position].toarray().ravel()
    known = solver.known[position].toarray().ravel()
    own = solver.query_counts[query].toarray().ravel()
    weights = solver.bm25[position].toarray().ravel()

    expected = 0.0
    for term in np.flatnonzero(own):
        if weights[term] == 0:
            continue
        count = counts[term] + 0.5 * known[term]
        norm = count * (solver.idf[term] / weights[term] - 1)
        without = counts[term] + 0.5 * (known[term] - own[term])
        if without > 0:
            expected += own[term] * solver.idf[term] * without / (without + norm)

    assert solver.score_without_query(position, query) == pytest.approx(expected)


def test_weight_zero_is_plain_bm25(experiment: Experiment) -> None:
    known = experiment.collection.known_counts(
        experiment.arrival.old_known, experiment.arrival.qrels
    )
    text_counts = experiment.collection.text_counts

    plain = bm25_weights(text_counts, known, WordSettings(0.0))
    without = bm25_weights(text_counts, 0 * known, WordSettings(1.0))

    assert np.allclose(plain.toarray(), without.toarray())


def test_ndcg_counts_the_rank() -> None:
    assert ndcg([3, 5, 7], {5}) == pytest.approx(1 / np.log2(3))


def test_reduced_collection_has_whole_articles() -> None:
    random = np.random.default_rng(0)
    texts = ["Bees\na hive", "Oaks\na tree", "Bees\na queen", "Owls\na nest"]
    qrels = {"train": {"bees": {0, 2}, "oaks": {1}, "both": {0, 1}}}
    queries = {"bees": "hives", "oaks": "trees", "both": "nature"}
    dataset = Dataset(list("abcd"), texts, [""] * 4, queries, qrels)
    documents = random_encoding(random, 4)

    # Articles are drawn until there is a document. The seed of the draw is fixed.
    reduced, encoded, encoded_queries = reduce_to_articles(
        dataset, documents, random_encoding(random, 3), size=1
    )

    titles = {text.partition("\n")[0] for text in reduced.texts}
    assert len(titles) == 1
    assert reduced.ids == [i for i, text in zip("abcd", texts, strict=True) if text[:4] in titles]
    assert len(encoded.vectors) == len(reduced.ids)
    assert len(encoded_queries.vectors) == len(reduced.queries)
    assert "both" not in reduced.queries


@pytest.fixture
def thumbs(experiment: Experiment) -> Experiment:
    """The last document is in the collection from the start, and its two queries are thumbs."""
    arrival = replace(experiment.arrival, in_place=True)
    return Experiment(experiment.collection, arrival, experiment.words, experiment.weights)


def test_document_with_thumbs_is_a_rival_before_it_is_solved(thumbs: Experiment) -> None:
    method = IndexingMethod("both", "all", SETTINGS)
    solver = FusedSolver(thumbs, method, thumbs.bm25("all"), thumbs.weights["words"])

    assert solver.present.all()


def test_thumb_needs_a_hit(thumbs: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = thumbs.weights["plain"]
    found = keep_thumbs_on_hits(thumbs.collection, thumbs.arrival, weights)
    assert set(found.row_queries.get(OLD_DOCUMENTS, [])) <= {"new0", "new1"}

    # With one hit per search, a thumb remains only if its document is first.
    monkeypatch.setattr("experiments.asked.search.CUTOFF", 0)
    assert keep_thumbs_on_hits(thumbs.collection, thumbs.arrival, weights).row_queries == {}


def test_nearest_query_finds_its_document(experiment: Experiment) -> None:
    arrival = replace(experiment.arrival, new_queries=["new0"], old_queries=["old0"])
    with_queries = Experiment(
        experiment.collection,
        arrival,
        experiment.words,
        {"plain": Weights(0.0, 0.0), "words": Weights(0.0, 0.0)},
    )

    _, new, _ = with_queries.evaluate(IndexingMethod("nearest query", nearest=0.0))

    # The test query is a known query here, so its own vector is the nearest.
    assert new.tolist() == [1.0]


def test_methods_with_incdsi_have_one_without() -> None:
    for others_have_queries in (True, False):
        methods = indexing_methods(SETTINGS, "thumbs", others_have_queries)
        without = {method.words for method in methods if method.incdsi is None}
        assert {method.words for method in methods} == without


def test_training_sees_only_known_queries_of_its_documents(
    experiment: Experiment, tmp_path: Path
) -> None:
    dataset = experiment.collection.dataset
    dataset.qrels["dev"] = {"new0": {OLD_DOCUMENTS}, "old1": {1}}
    training = Training("hce", documents=[0, 1, 2], known=["old0", "new1"], base="")

    write_corpus(dataset, training, tmp_path)
    corpus = load_corpus(tmp_path)

    assert set(corpus.judgements("train").queries) == {"old0"}
    assert set(corpus.judgements("dev").queries) == {"old1"}
    assert corpus.passages["document_id"].tolist() == ["0", "1", "2"]


def test_document_vectors_are_learned_from_known_queries(
    experiment: Experiment, tmp_path: Path
) -> None:
    base = make_tiny_encoder(tmp_path / "base", TERMS, hidden=DIMENSION)
    dataset = experiment.collection.dataset
    dataset.qrels["dev"] = {}
    known = [f"old{number}" for number in range(OLD_DOCUMENTS)]
    training = Training("dsi", range(len(dataset.ids)), known, str(base))
    settings = {
        "max_tokens": 32,
        "seed": 0,
        "training": {"supervision": "supervised"},
        "retrievers": {"dsi": {"kind": "dsi", "hierarchy_weight": 0.0}},
    }

    trained = train_retriever(experiment.collection, training, settings, tmp_path / "dsi")
    vectors = load_document_vectors(trained, dataset.ids)

    # Each vector begins at the encoding of its document, and stays nearer to it than to others.
    products = vectors @ experiment.collection.documents.vectors.T
    assert products.argmax(axis=1).tolist() == list(range(len(dataset.ids)))
    assert not np.allclose(vectors, experiment.collection.documents.vectors)
    assert isinstance(is_improved(trained), bool)
    # A finished training is read, also if its settings would not do any more.
    assert train_retriever(experiment.collection, training, {}, tmp_path / "dsi") == trained
