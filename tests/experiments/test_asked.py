"""Checks the experiment on known queries: its IncDSI program against scipy, and what it leaves out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from experiments.asked.arrivals import Arrival, Experiment, FusedSolver, IncDsi, IndexingMethod
from experiments.asked.choices import indexing_methods
from experiments.asked.data import Dataset, Encoded, reduce_to_articles
from experiments.asked.known import QueryTexts
from experiments.asked.memory import DEFAULT_WORDS, Choice, Collection, choose, split_trials
from experiments.asked.page import READING, UNASKED, incdsi_table, render, thumbs_table
from experiments.asked.run import HERE, pool_unasked
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
from model_code.files import read_json
from model_code.incdsi.settings import AdditionSettings
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


def test_query_that_does_not_count_takes_no_words_away(experiment: Experiment) -> None:
    texts = dict(experiment.collection.dataset.queries)
    # Both queries have the same words, so only the first one counts.
    texts["new0"] = "term1 term2 term3"
    texts["new1"] = "term3 term2 term1"
    dataset = replace(experiment.collection.dataset, queries=texts)
    collection = Collection(dataset, experiment.collection.documents, experiment.collection.queries)
    other = Experiment(collection, experiment.arrival, experiment.words, experiment.weights)
    method = IndexingMethod("both", "all", SETTINGS)
    solver = FusedSolver(other, method, other.bm25("all"), other.weights["words"])
    counted, left_out = other.query_rows(["new0", "new1"])

    score = solver.score_without_query(OLD_DOCUMENTS, left_out)

    plain = (solver.query_counts[left_out] @ solver.bm25[OLD_DOCUMENTS].T).toarray()[0, 0]
    assert (OLD_DOCUMENTS, counted) in other.selected_queries("all")
    assert (OLD_DOCUMENTS, left_out) not in other.selected_queries("all")
    assert score == pytest.approx(plain)
    assert solver.score_without_query(OLD_DOCUMENTS, counted) < plain


def test_guard_allows_the_score_of_the_encoding(experiment: Experiment) -> None:
    method = IndexingMethod("both", "all", replace(SETTINGS, guard=True, gamma1=0.0, gamma2=5.0))
    solver = FusedSolver(experiment, method, experiment.bm25("all"), experiment.weights["words"])
    solver.add_old_queries()
    prior = solver.vectors[OLD_DOCUMENTS]
    known = solver.constraints

    limits = solver._known_limits(OLD_DOCUMENTS, np.array(experiment.query_rows(["new0"])))

    assert (limits >= known.vectors @ prior / known.deviations).all()


def test_query_that_both_documents_answer_is_no_constraint(experiment: Experiment) -> None:
    method = IndexingMethod("both", "all", SETTINGS)
    solver = FusedSolver(experiment, method, experiment.bm25("all"), experiment.weights["words"])
    solver.add_old_queries()

    limits = solver._known_limits(OLD_DOCUMENTS, solver.constraints.rows[:1])

    assert np.isinf(limits).tolist() == [True] + [False] * (len(limits) - 1)


def test_shipped_settings_are_those_of_the_product() -> None:
    shipped = AdditionSettings()

    assert IncDsi.shipped() == IncDsi(shipped.gamma1, shipped.gamma2, shipped.lambda2, 0.5)


def test_known_queries_are_limited_as_in_the_product() -> None:
    queries = {str(i): f"word{i} other{i}" for i in range(20)} | {"same": "Word0, other0!"}
    dataset = Dataset(["a"], ["a text"], [""], queries, {"train": {}})
    texts = QueryTexts(dataset)

    selected = texts.select([(0, row) for row in range(21)])

    assert len(selected) == 16
    assert texts.numbers[0] == texts.numbers[20]


def test_query_that_judges_is_not_known_under_another_id() -> None:
    queries = {"train": "How to sort?", "other": "bees", "test": "how to SORT"}
    qrels = {"train": {"train": {0}, "other": {0}}, "dev": {}, "test": {"test": {0}}}
    dataset = Dataset(["a"], ["a text"], [""], queries, qrels)
    random = np.random.default_rng(0)
    collection = Collection(dataset, random_encoding(random, 1), random_encoding(random, 3))

    [trial] = split_trials(collection, {}, seed=0)

    assert list(trial.test_known) == ["other"]
    assert list(trial.test) == ["test"]


def dev_choice(words: WordSettings, values: list[float], unasked: list[bool]) -> Choice:
    """A choice of which half of 80 dev queries have the first value, and half the second."""
    first, second = values
    return Choice(words, Weights(), np.array([first] * 40 + [second] * 40), np.repeat(unasked, 40))


@pytest.mark.parametrize(
    ("unasked_value", "weight"),
    [
        pytest.param(0.5, 1.0, id="clear gain"),
        pytest.param(0.48, 0.25, id="other documents lose by the best weight"),
    ],
)
def test_words_are_chosen_without_harm(unasked_value: float, weight: float) -> None:
    unasked = [False, True]
    candidates = [
        dev_choice(WordSettings(), [0.5, 0.5], unasked),
        dev_choice(DEFAULT_WORDS, [0.6, 0.5], unasked),
        dev_choice(WordSettings(1.0, True), [0.8, unasked_value], unasked),
    ]

    chosen = choose(candidates, largest_loss=0.01, has_unasked_documents=True)
    assert chosen.words.weight == weight


@pytest.mark.parametrize(("has_unasked_documents", "weight"), [(True, 0.25), (False, 1.0)])
def test_words_count_more_only_if_dev_can_show_harm(
    has_unasked_documents: bool, weight: float
) -> None:
    asked_only = [False, False]
    candidates = [
        dev_choice(WordSettings(), [0.5, 0.5], asked_only),
        dev_choice(DEFAULT_WORDS, [0.6, 0.6], asked_only),
        dev_choice(WordSettings(1.0, True), [0.8, 0.8], asked_only),
    ]

    assert choose(candidates, 0.01, has_unasked_documents).words.weight == weight


def test_few_queries_without_known_ones_are_pooled() -> None:
    few = dict.fromkeys(("bm25", "fusion", "default bm25", "default fusion"), [0.1, -0.3])
    result = {"memory": {"pretrained": {"a": {"differences without known": few}, "b": {}}}}

    pooled = pool_unasked(result, seed=0)["pretrained"]

    assert pooled["collections"] == ["a"]
    assert pooled["queries"] == 2
    assert pooled["fusion"]["difference"] == -0.1


def test_page_has_the_numbers_of_the_result() -> None:
    template = (HERE / READING).read_text()
    # Every number is a placeholder, but for numbers of the settings.
    assert not re.search(r"[+-]?\.\d{3}", template)
    assert render(template, read_json(HERE / "result.json")) in (HERE / "README.md").read_text()


@pytest.mark.parametrize("table", [incdsi_table, thumbs_table])
def test_docs_have_the_tables_of_the_result(table: Callable[[Mapping[str, Any]], str]) -> None:
    page = HERE.parents[1] / "docs" / "incdsi.md"

    assert table(read_json(HERE / "result.json")) in page.read_text()


# Short names of paths in the result, for the sentences below.
PATHS = {
    "squad": "memory/pretrained/squad/groups/below 0.7",
    "cranfield": "memory/pretrained/cranfield/groups/below 0.7",
    "scifact": "memory/pretrained/scifact/groups/below 0.7",
    "unasked tldr": f"memory/pretrained/tldr/groups/{UNASKED}",
    "unasked half tldr": f"memory/pretrained/tldr-half-asked/groups/{UNASKED}",
    "unasked half squad": f"memory/pretrained/squad-half-asked/groups/{UNASKED}",
    "IncDSI squad": "arrivals/pretrained/squad/all/ways",
    "IncDSI 2022": "arrivals/pretrained/tldr/2022-07-01/ways",
    "IncDSI 2023": "arrivals/pretrained/tldr/2023-10-01/ways",
    "default squad": "arrivals/pretrained/squad/all, defaults/ways",
    "default 2022": "arrivals/pretrained/tldr/2022-07-01, defaults/ways",
}
ALONE = "IncDSI as shipped/new less without IncDSI"
BESIDE_WORDS = "IncDSI as shipped and words of all/new less without IncDSI"


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        (
            "docs/results.md",
            "gain {{squad/fusion|size}} on squad, {{cranfield/fusion|size}} on cranfield and "
            "{{scifact/fusion|size}} on SciFact",
        ),
        (
            "docs/results.md",
            "gain {{squad/default fusion|size}}, {{cranfield/default fusion|size}} and "
            "{{scifact/default fusion|size}}",
        ),
        (
            "docs/results.md",
            "lose {{unasked half squad/fusion|size}} on squad and "
            "{{unasked half tldr/fusion|size}} on tldr. On all of tldr they lose "
            "{{unasked tldr/fusion|size}}",
        ),
        (
            "docs/results.md",
            "new ones gain {{IncDSI squad/BESIDE_WORDS}} on squad, and "
            "{{IncDSI 2022/BESIDE_WORDS}} and {{IncDSI 2023/BESIDE_WORDS}} on tldr",
        ),
        (
            "docs/incdsi.md",
            "{{default squad/BESIDE_WORDS|size}} to {{default 2022/BESIDE_WORDS|size}} beside the "
            "words of all. Old documents of squad then lose "
            "{{default squad/IncDSI as shipped/old less without IncDSI|size}} by IncDSI alone",
        ),
        (
            "docs/retrievers.md",
            "gain {{squad/fusion|size}} nDCG@10 on squad, {{cranfield/fusion|size}} on cranfield "
            "and {{scifact/fusion|size}} on SciFact",
        ),
        (
            "docs/retrievers.md",
            "the other documents of tldr lose {{unasked tldr/fusion|size}}",
        ),
        (
            "experiments/README.md",
            "{{squad/fusion|short}} on squad, {{cranfield/fusion|short}} on cranfield and "
            "{{scifact/fusion|short}} on SciFact",
        ),
        (
            "experiments/README.md",
            "{{IncDSI squad/ALONE|short}} on squad, {{IncDSI 2022/ALONE|short}} and "
            "{{IncDSI 2023/ALONE|short}} on tldr",
        ),
    ],
)
def test_other_pages_have_the_numbers_of_the_result(page: str, sentence: str) -> None:
    for name, path in PATHS.items():
        sentence = sentence.replace("{{" + name + "/", "{{" + path + "/")
    sentence = sentence.replace("ALONE", ALONE).replace("BESIDE_WORDS", BESIDE_WORDS)
    expected = render(sentence, read_json(HERE / "result.json"))
    text = (HERE.parents[1] / page).read_text()

    # A sentence that says "gain" has no plus.
    assert expected.replace("+.", ".") in text.replace("+.", ".")


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
        assert methods[0] == IndexingMethod("plain")
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
