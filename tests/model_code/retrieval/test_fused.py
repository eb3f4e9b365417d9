"""Tests of fusion.

The score follows the equation, and is the same for every k and under every filter. The shares of a
score sum to it. Weights are learned only from clear gains.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from model_code.corpus.tables import Judgements
from model_code.encoding.encoder import Encoder
from model_code.errors import FreshetError
from model_code.retrieval.dense import DenseRetriever
from model_code.retrieval.fused import (
    FusedRetriever,
    FusedSearch,
    Fusion,
    ScoreNormalizer,
    isolation_factor,
)
from model_code.retrieval.kinds import open_retriever
from model_code.retrieval.protocol import Ranking, Retriever
from model_code.retrieval.query_cache import QueryCache
from model_code.stages.fusion import LossLimit, ScoredQuery, choose_weights, learn_weights
from tests.model_code.collection.laws import (
    NEW,
    OLD,
    QUERIES,
    WORDS,
    make_encoder,
    open_build,
    reranked,
)

EVERY_DOCUMENT = sorted({**OLD, **NEW})


def sort_key(hit: tuple[str, float]) -> tuple[float, str]:
    """Sort by score, highest first, and equal scores by id."""
    document, score = hit
    return -score, document


class TableRetriever(Retriever[list[str]]):
    """A component whose scores are a table of queries and documents.

    A document without a score does not match.
    """

    def __init__(self, scores: Mapping[str, Mapping[str, float]], best_passage: int = 0) -> None:
        self.scores = scores
        self.best_passage = best_passage
        self.fingerprint = str(sorted(scores))

    def encode_queries(self, texts: Sequence[str]) -> list[str]:
        return list(texts)

    def search_encoded(
        self, queries: list[str], k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        rankings = []
        for query in queries:
            hits = []
            for document, score in self.scores[query].items():
                if allowed is None or document in allowed:
                    hits.append((document, score))
            rankings.append(sorted(hits, key=sort_key)[:k])
        return rankings

    def score_encoded(
        self, queries: list[str], candidates: Sequence[Sequence[str]]
    ) -> list[np.ndarray]:
        rows = []
        for query, documents in zip(queries, candidates, strict=True):
            rows.append(np.array([self.scores[query].get(name, 0.0) for name in documents]))
        return rows

    def best_passage_encoded(self, query: list[str], document_id: str) -> int:
        return self.best_passage


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a generation that fuses dense and lexical components."""
    root = tmp_path_factory.mktemp("fused")
    make_encoder("fused", root / "encoder")
    open_build("fused", root, root / "encoder", {**OLD, **NEW})
    return root / "live" / "r" / "generations" / "000000"


@pytest.fixture(scope="module")
def fused(live: Path) -> FusedRetriever:
    """The retriever of the generation."""
    return open_retriever(live / "encoder", live / "index")  # type: ignore[return-value]


def without_feedback(fused: FusedRetriever) -> FusedSearch:
    """Return the same fusion without feedback."""
    return FusedSearch(fused.components, replace(fused.fusion, feedback=0.0))


def rows_of(dense: DenseRetriever, document: str) -> list[int]:
    """Return the rows of a document's vectors."""
    rows = []
    for row, name in enumerate(dense.index.document_ids):
        if name == document:
            rows.append(row)
    return rows


def nearest_vector(dense: DenseRetriever, query: np.ndarray, document: str) -> np.ndarray:
    """Return the document's vector with the highest product."""
    vectors = dense.index.vectors[rows_of(dense, document)].astype(np.float64)
    return vectors[np.argmax(vectors @ query)]


def unpack_signs(bits: np.ndarray) -> np.ndarray:
    """Return rows of -1 and 1 in place of bits."""
    return 2.0 * np.unpackbits(bits.view(np.uint8), axis=1) - 1


def late_score(dense: DenseRetriever, query: str, document: str) -> float:
    """Return the score of late interaction for the best passage, by its equation."""
    query_signs = unpack_signs(dense.encode_queries_with_signs([query])[1].bits)
    passage_scores = []
    for row in rows_of(dense, document):
        passage_signs = unpack_signs(dense.index.token_signs[row : row + 1].bits)
        best_per_token = (query_signs @ passage_signs.T).max(axis=1)
        passage_scores.append(best_per_token.mean() / query_signs.shape[1])
    return max(passage_scores)


def move_query(fused: FusedRetriever, query: str, component: str = "dense") -> np.ndarray:
    """Move the query's vector by 0.3 of the mean of three documents.

    These are the best documents of the fusion without feedback.
    """
    dense = fused.components[component]
    vector = dense.encode_queries([query])[0].astype(np.float64)
    (ranking,) = without_feedback(fused).search([query], 3)
    nearest = [nearest_vector(dense, vector, document) for document, _ in ranking]
    return vector + 0.3 * np.mean(nearest, axis=0)


def standardized_scores(fused: FusedRetriever, query: str, component: str) -> dict[str, float]:
    """Return the score of every document by a dense component, in standard deviations."""
    normalizer = fused.fusion.normalizers["dense"]
    dense = fused.components[component]
    vector = move_query(fused, query, component)
    mean = normalizer.mean @ vector
    deviation = np.sqrt(vector @ normalizer.covariance @ vector)
    scores = {}
    for document in EVERY_DOCUMENT:
        product = nearest_vector(dense, vector, document) @ vector
        scores[document] = (product - mean) / deviation
    return scores


def fuse_by_equation(fused: FusedRetriever, query: str) -> dict[str, float]:
    """Return the fused score of every document, with the weights of the fixture."""
    dense = fused.components["dense"]
    lexical_scores = dict(reranked(fused.components["lexical"], [query], [EVERY_DOCUMENT])[0])
    highest_lexical = max(lexical_scores.values())
    dense_scores = standardized_scores(fused, query, "dense")
    headline_scores = standardized_scores(fused, query, "headline")

    lexical_shares = {}
    other_shares = {}
    for document in EVERY_DOCUMENT:
        late = late_score(dense, query, document)
        lexical_shares[document] = 2.0 * lexical_scores[document] / highest_lexical
        other_shares[document] = (
            dense_scores[document] + 0.5 * 10 * late + 0.7 * headline_scores[document]
        )

    factor = isolation_factor(
        np.array(list(lexical_shares.values())),
        np.array(list(other_shares.values())),
        0.2 * 2.0,
    )
    return {name: lexical_shares[name] + factor * other_shares[name] for name in EVERY_DOCUMENT}


@pytest.mark.parametrize("query", QUERIES)
def test_scores_follow_the_equation(fused: FusedRetriever, query: str) -> None:
    (ranking,) = reranked(fused, [query], [EVERY_DOCUMENT])

    expected = fuse_by_equation(fused, query)
    # An encoding is rounded differently in another batch.
    assert dict(ranking) == pytest.approx(expected, abs=1e-6)
    expected_order = [document for document, _ in sorted(expected.items(), key=sort_key)]
    assert [document for document, _ in ranking] == expected_order


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("k", [1, 2, 7])
def test_fused_score_does_not_depend_on_k(fused: FusedRetriever, query: str, k: int) -> None:
    whole = dict(fused.search([query], 50)[0])

    (ranking,) = fused.search([query], k)

    assert ranking
    for document, score in ranking:
        assert score == whole[document]


@pytest.mark.parametrize("query", QUERIES)
def test_fused_score_does_not_depend_on_the_filter(fused: FusedRetriever, query: str) -> None:
    allowed = [name for name in OLD if name.endswith(("1", "3"))]
    whole = dict(fused.search([query], 50)[0])

    (ranking,) = fused.search([query], 5, allowed)

    assert ranking
    for document, score in ranking:
        assert score == whole[document]


@pytest.mark.parametrize("query", QUERIES)
def test_filter_finds_every_allowed_document(fused: FusedRetriever, query: str) -> None:
    allowed = [name for name in OLD if name.endswith(("1", "3"))]

    (ranking,) = fused.search([query], 50, allowed)

    assert {document for document, _ in ranking} == set(allowed)


def record_calls(name: str, function: Callable, calls: list[str]) -> Callable:
    """Return a function that adds `name` to `calls` before it calls `function`."""

    def record_and_call(*arguments: object) -> object:
        calls.append(name)
        return function(*arguments)

    return record_and_call


def test_components_are_searched_once(
    fused: FusedRetriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The feedback of the fixture causes no second search."""
    searches: list[str] = []
    for name, component in fused.components.items():
        recording = record_calls(name, component.search_and_rerank, searches)
        monkeypatch.setattr(component, "search_and_rerank", recording)

    fused.search([QUERIES[0]], 3)

    assert sorted(searches) == ["dense", "headline", "lexical"]


def test_shares_sum_to_the_score(fused: FusedRetriever) -> None:
    (ranking,) = fused.search([QUERIES[0]], 3)
    document, score = ranking[0]

    shares = fused.explain(QUERIES[0], document)

    assert {share.token for share in shares} == {"dense", "lexical", "headline", "dense.late"}
    assert sum(share.weight for share in shares) == pytest.approx(score, abs=1e-12)


def test_headline_takes_query_vectors_of_the_same_encoder(
    fused: FusedRetriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    headlines = fused.components["headline"]
    expected = headlines.encode_queries(QUERIES)
    monkeypatch.setattr(headlines, "encoder", fused.components["dense"].encoder)
    monkeypatch.setattr(headlines, "encode_queries", None)

    shared = fused.encode_queries(QUERIES).encoded["headline"]

    np.testing.assert_allclose(shared, expected, atol=1e-6)


def test_headlines_have_one_vector_per_document(fused: FusedRetriever) -> None:
    rows = fused.components["headline"].index.document_ids

    assert sorted(rows) == sorted({**OLD, **NEW})
    assert fused.dense is fused.components["dense"]
    assert len(fused.passage_vectors([])) > len(rows)


def first_document(retriever: Retriever, query: str) -> str:
    """Return the best document for a query."""
    (ranking,) = retriever.search([query], 1)
    document, _ = ranking[0]
    return document


def judge(answers: Mapping[str, str]) -> Judgements:
    """Make judgements with one relevant document per query; a query is its own id."""
    queries = {query: query for query in answers}
    qrels = {query: {document: 1} for query, document in answers.items()}
    return Judgements(queries, qrels, "qrels")


def test_fixed_component_keeps_its_weight(fused: FusedRetriever) -> None:
    judged = judge({word: first_document(fused, word) for word in WORDS})

    learned = learn_weights(fused, judged, "nDCG@10", fixed=["headline"])

    assert learned.weights["headline"] == 0.7


def test_score_normalizer_uses_moments_of_all_products() -> None:
    random = np.random.default_rng(0)
    vectors = random.standard_normal((200, 8)).astype(np.float32)
    query = random.standard_normal(8).astype(np.float32)
    products = vectors.astype(np.float64) @ query.astype(np.float64)

    scores = ScoreNormalizer.fit(vectors).standardize(query, products)

    expected = (products - products.mean()) / products.std()
    np.testing.assert_allclose(scores, expected, atol=1e-9)


@pytest.mark.parametrize("limit", [1, 7, 40])
def test_normalizer_may_read_vectors_in_blocks(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(0).standard_normal((40, 8)).astype(np.float32)
    expected = ScoreNormalizer.fit(vectors)

    monkeypatch.setattr("model_code.retrieval.fused.MAX_WIDE_VECTORS", limit)
    normalizer = ScoreNormalizer.fit(vectors)

    np.testing.assert_allclose(normalizer.mean, expected.mean, rtol=1e-12)
    np.testing.assert_allclose(normalizer.covariance, expected.covariance, atol=1e-12)


def test_score_of_a_single_vector_is_zero() -> None:
    vector = np.random.default_rng(0).standard_normal(384).astype(np.float32)
    vector /= np.linalg.norm(vector)
    products = np.array([vector @ vector], np.float32)

    (score,) = ScoreNormalizer.fit(vector[None]).standardize(vector, products)

    assert abs(score) < 0.01


def test_folders_of_other_components_are_refused(live: Path, tmp_path: Path) -> None:
    fusion = Fusion.load(live / "encoder")
    Fusion({"lexical": 1.0}, {}, fusion.depth).save(tmp_path)

    with pytest.raises(FreshetError, match="holds"):
        open_retriever(tmp_path, live / "index")


class GoodAndBad(NamedTuple):
    """A component that ranks every answer first, one that ranks at random, and judgements."""

    good: TableRetriever
    bad: TableRetriever
    judged: Judgements


@pytest.fixture
def good_and_bad() -> GoodAndBad:
    """Two components of 20 documents, and 40 judged queries."""
    random = np.random.default_rng(0)
    documents = [f"d{number}" for number in range(20)]
    answers = {f"query {number}": f"d{number % 20}" for number in range(40)}
    good_scores = {}
    bad_scores = {}
    for query, answer in answers.items():
        good_scores[query] = {document: float(document == answer) for document in documents}
        bad_scores[query] = dict(zip(documents, random.random(20).tolist(), strict=True))
    return GoodAndBad(TableRetriever(good_scores), TableRetriever(bad_scores), judge(answers))


def test_weight_of_a_good_component_grows(good_and_bad: GoodAndBad) -> None:
    good, bad, judged = good_and_bad
    search = FusedSearch({"bad": bad, "good": good}, Fusion({"bad": 1.0, "good": 0.5}))

    weights = learn_weights(search, judged, "nDCG@10").weights

    assert weights["good"] >= 1.0


def test_weight_of_a_bad_component_shrinks(good_and_bad: GoodAndBad) -> None:
    good, bad, judged = good_and_bad
    search = FusedSearch({"good": good, "bad": bad}, Fusion({"good": 1.0, "bad": 3.0}))

    weights = learn_weights(search, judged, "nDCG@10").weights

    assert weights["good"] == 1.0
    # This is the largest weight of the grid below 3 that does no harm.
    assert weights["bad"] <= 1.0


def gain_on(gaining: int, component: str) -> Mapping[str, float]:
    """Choose weights by 40 queries, of which `gaining` are answered better by a component.

    The other queries have one candidate, so that no weight matters to them.
    """
    scored = []
    qrels = {}
    for i in range(40):
        query = f"q{i}"
        qrels[query] = {"right": 1}
        if i < gaining:
            scores = {"dense": np.array([1.0, 0.0]), component: np.array([0.0, 0.9])}
            scored.append(ScoredQuery(query, ["wrong", "right"], scores))
        else:
            scores = {"dense": np.ones(1), component: np.ones(1)}
            scored.append(ScoredQuery(query, ["right"], scores))
    judged = Judgements({query: query for query in qrels}, qrels, "qrels")
    fusion = Fusion({"dense": 1.0, component: 1.0}, {})
    return choose_weights(fusion, scored, judged, "nDCG@10").weights


def test_weight_stays_where_one_query_gains() -> None:
    assert gain_on(1, "bm25")["bm25"] == 1.0


def test_weight_moves_where_many_queries_gain() -> None:
    assert gain_on(8, "bm25")["bm25"] == 1.5


def choose_within_limit(reference: float) -> float:
    """Choose a weight if every larger one than 0.5 loses 40 queries, all without known queries.

    Args:
        reference: The metric of each query by the fusion without words of known queries.
    """
    scored = []
    qrels = {}
    for i in range(40):
        query = f"q{i}"
        qrels[query] = {"right": 1}
        scores = {"dense": np.array([0.55, 0.0]), "bm25_known": np.array([0.0, 1.0])}
        scored.append(ScoredQuery(query, ["right", "wrong"], scores))
    judged = Judgements({query: query for query in qrels}, qrels, "qrels")
    fusion = Fusion({"dense": 1.0, "bm25_known": 1.0}, {})
    words = frozenset({"bm25_known"})
    limit = LossLimit(np.full(40, reference), np.ones(40, bool), "as stated", words)
    chosen = choose_weights(fusion, scored, judged, "nDCG@10", ["bm25_known"], limit)
    assert chosen.weights == fusion.weights
    return choose_weights(fusion, scored, judged, "nDCG@10", (), limit).weights["bm25_known"]


def test_excluded_weight_is_replaced() -> None:
    assert choose_within_limit(reference=1.0) == 0.5


def test_weight_stays_if_all_are_excluded() -> None:
    assert choose_within_limit(reference=1.5) == 1.0


def test_limit_raises_no_weight_of_another_component() -> None:
    """A larger weight of `title` would hide the harm that `bm25_known` does to plain queries.

    It gains as many plain queries as it loses others, so it is no clear gain.
    """
    plain_scores = {
        "dense": np.array([0.55, 0.0]),
        "title": np.array([0.3, 0.0]),
        "bm25_known": np.array([0.0, 1.0]),
    }
    asked_scores = {
        "dense": np.zeros(2),
        "title": np.array([0.0, 0.8]),
        "bm25_known": np.array([1.0, 0.0]),
    }
    scored = []
    for i in range(80):
        scores = plain_scores if i < 40 else asked_scores
        scored.append(ScoredQuery(f"q{i}", ["right", "wrong"], scores))
    queries = {query.query_id: query.query_id for query in scored}
    judged = Judgements(queries, {query: {"right": 1} for query in queries}, "qrels")
    fusion = Fusion({"dense": 1.0, "title": 1.0, "bm25_known": 1.0}, {})
    is_plain = np.arange(80) < 40
    limit = LossLimit(np.ones(80), is_plain, "as stated", frozenset({"bm25_known"}))

    weights = choose_weights(fusion, scored, judged, "nDCG@10", (), limit).weights

    assert weights["title"] <= 1.0
    assert weights["bm25_known"] == 0.5


def test_limit_that_is_not_kept_is_reported() -> None:
    limit = LossLimit(np.ones(40), np.ones(40, bool), "as stated", frozenset({"bm25_known"}))

    assert limit.describe(np.zeros(40)).startswith("as stated; the chosen weights exceed")
    assert limit.describe(np.ones(40)) == "as stated"


def test_late_interaction_keeps_its_weight_where_one_query_gains() -> None:
    assert gain_on(1, "dense.late")["dense.late"] == 1.0


def test_late_interaction_of_weight_zero_is_removed() -> None:
    scores = {"dense": np.ones(1), "dense.late": np.ones(1)}
    scored = [ScoredQuery("q", ["right"], scores)]
    judged = Judgements({"q": "q"}, {"q": {"right": 1}}, "qrels")

    fusion = choose_weights(Fusion({"dense": 1.0, "dense.late": 0.0}), scored, judged, "nDCG@10")

    assert fusion.weights == {"dense": 1.0}


def learn_from_answers(fused: FusedRetriever, answers: Mapping[str, str]) -> Fusion:
    """Learn the weights of the fusion without feedback."""
    return learn_weights(without_feedback(fused), judge(answers), "nDCG@10")


def test_late_interaction_keeps_its_weight_where_it_clearly_gains(fused: FusedRetriever) -> None:
    dense = fused.components["dense"]
    answers = {}
    for word in WORDS:
        late_scores = [late_score(dense, word, name) for name in EVERY_DOCUMENT]
        answers[word] = EVERY_DOCUMENT[int(np.argmax(late_scores))]

    learned = learn_from_answers(fused, answers)

    assert learned.weights["dense.late"] >= 1.0


def test_weight_of_late_interaction_shrinks_without_a_gain(fused: FusedRetriever) -> None:
    dense = fused.components["dense"]
    answers = {word: first_document(dense, word) for word in WORDS}

    learned = learn_from_answers(fused, answers)

    assert learned.weights.get("dense.late", 0.0) < 1.0


def test_queries_are_weighed_again_as_if_encoded_anew(fused: FusedRetriever) -> None:
    joined = without_feedback(fused)
    names = list(joined.fusion.weights)
    other_weights = {name: 1.0 + number for number, name in enumerate(names)}
    other = FusedSearch(joined.components, replace(joined.fusion, weights=other_weights))

    weighed = other.weigh_again(joined.encode_queries(QUERIES))

    assert other.search_encoded(weighed, 5) == other.search(QUERIES, 5)


def test_feedback_cannot_be_weighed_again(fused: FusedRetriever) -> None:
    search = FusedSearch(fused.components, replace(fused.fusion, feedback=0.3))

    with pytest.raises(FreshetError, match="encode the queries again"):
        search.weigh_again(search.encode_queries(QUERIES))


def test_queries_encoded_at_once_are_not_encoded_again(
    fused: FusedRetriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = without_feedback(fused)
    expected = search.search(QUERIES, 5)
    cache = QueryCache()
    cache.encode(search, QUERIES)

    def encode(_: Encoder, texts: Sequence[str]) -> np.ndarray:
        pytest.fail(f"{texts} are encoded again")

    monkeypatch.setattr(Encoder, "encode_queries", encode)
    monkeypatch.setattr(Encoder, "encode_queries_with_signs", encode)

    assert cache.cached(search).search(QUERIES, 5) == expected


def test_best_passage_is_that_of_a_component_that_matches() -> None:
    """BM25 scores all passages of a document without a word of the query 0."""
    heaviest = TableRetriever({"words": {"a": 2.0}, "meaning": {}}, best_passage=1)
    other = TableRetriever({"words": {"a": 1.0}, "meaning": {"a": 1.0}}, best_passage=2)
    fused = FusedSearch({"bm25": heaviest, "other": other}, Fusion({"bm25": 5.0, "other": 1.0}))

    passages = {}
    for text in ("words", "meaning"):
        passages[text] = fused.best_passage_encoded(fused.encode_queries([text]), "a")

    assert passages == {"words": 1, "meaning": 2}
