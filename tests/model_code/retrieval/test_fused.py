"""Guards fusion: the score is the equation's, the same at every k and under every filter, and
shares sum to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model_code.corpus.tables import Judgements
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
from model_code.stages.fusion import ScoredQuery, choose_weights, learn_weights
from tests.model_code.collection.laws import (
    NEW,
    OLD,
    QUERIES,
    WORDS,
    make_encoder,
    open_build,
    reranked,
)

TABLE = np.random.default_rng(0)


class Table(Retriever[list[str]]):
    """A part whose scores are a table: query -> document -> score; documents without one do not
    match.
    """

    def __init__(self, scores: Mapping[str, Mapping[str, float]]) -> None:
        self.scores, self.fingerprint = scores, str(sorted(scores))

    def encode_queries(self, texts: Sequence[str]) -> list[str]:
        return list(texts)

    def search_encoded(
        self, queries: list[str], k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        return [
            sorted(
                ((d, s) for d, s in self.scores[query].items() if allowed is None or d in allowed),
                key=_order,
            )[:k]
            for query in queries
        ]

    def score_encoded(
        self, queries: list[str], candidates: Sequence[Sequence[str]]
    ) -> list[np.ndarray]:
        pairs = zip(queries, candidates, strict=True)
        return [
            np.array([self.scores[query].get(d, 0.0) for d in documents])
            for query, documents in pairs
        ]

    def best_passage_encoded(self, query: list[str], document_id: str) -> int:
        return 0


def _order(hit: tuple[str, float]) -> tuple[float, str]:
    return -hit[1], hit[0]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a generation of a dense and a lexical part, fused."""
    root = tmp_path_factory.mktemp("fused")
    make_encoder("fused", root / "encoder")
    open_build("fused", root, root / "encoder", {**OLD, **NEW})
    return root / "live" / "r" / "generations" / "000000"


@pytest.fixture(scope="module")
def fused(live: Path) -> FusedRetriever:
    """Its retriever."""
    return open_retriever(live / "encoder", live / "index")  # type: ignore[return-value]


def best(dense: DenseRetriever, vector: np.ndarray, document: str) -> np.ndarray:
    """Of the document's vectors that with the highest product."""
    rows = [i for i, name in enumerate(dense.index.document_ids) if name == document]
    return max(dense.index.vectors[rows].astype(np.float64), key=lambda own: own @ vector)


def max_sim(dense: DenseRetriever, query: str, document: str) -> float:
    """The equation of late interaction for the best passage, by rows of -1 and 1 in place of bits."""
    rows = [i for i, name in enumerate(dense.index.document_ids) if name == document]
    bits = [
        dense.encode_with_tokens([query])[1].bits,
        *(dense.index.tokens[row : row + 1].bits for row in rows),
    ]
    asked, *passages = (2.0 * np.unpackbits(one.view(np.uint8), axis=1) - 1 for one in bits)
    return max((asked @ one.T).max(axis=1).mean() / asked.shape[1] for one in passages)


def fed_back(fused: FusedRetriever, query: str, component: str = "dense") -> np.ndarray:
    """The query's vector, moved by .3 of the mean of the three best documents of a fusion without
    feedback.
    """
    once = FusedSearch(fused.components, replace(fused.fusion, feedback=0.0))
    dense = fused.components[component]
    vector = dense.encode_queries([query])[0].astype(np.float64)
    return vector + 0.3 * np.mean(
        [best(dense, vector, name) for name, _ in once.search([query], 3)[0]], axis=0
    )


def test_scores_are_those_of_the_equation(fused: FusedRetriever) -> None:
    dense, lexical = (fused.components[name] for name in ("dense", "lexical"))
    scale, everything = fused.fusion.normalizers["dense"], sorted({**OLD, **NEW})
    for query, ranking in zip(
        QUERIES, reranked(fused, QUERIES, [everything] * len(QUERIES)), strict=True
    ):
        vector = fed_back(fused, query)
        own = {name: best(dense, vector, name) @ vector for name in everything}
        words = dict(reranked(lexical, [query], [everything])[0])
        late = {name: max_sim(dense, query, name) for name in everything}
        headlines = fused.components["headline"]
        moved = fed_back(fused, query, "headline")
        short = {name: best(headlines, moved, name) @ moved for name in everything}
        short_deviation = np.sqrt(moved @ scale.covariance @ moved)
        deviation = np.sqrt(vector @ scale.covariance @ vector)
        word_shares = {name: 2.0 * words[name] / max(words.values()) for name in everything}
        other_shares = {
            name: (own[name] - scale.mean @ vector) / deviation
            + 0.5 * 10 * late[name]
            + 0.7 * (short[name] - scale.mean @ moved) / short_deviation
            for name in everything
        }
        factor = isolation_factor(
            np.array(list(word_shares.values())), np.array(list(other_shares.values())), 0.2 * 2.0
        )
        expected = {name: word_shares[name] + factor * other_shares[name] for name in everything}
        assert dict(ranking) == pytest.approx(expected, abs=1e-6), (
            "but for the rounding of an encoding by its batch"
        )
        assert [name for name, _ in ranking] == sorted(
            expected, key=lambda name: (-expected[name], name)
        )


def test_fused_score_ignores_k_and_filter(fused: FusedRetriever) -> None:
    whole = [dict(fused.search([query], 50)[0]) for query in QUERIES]
    few = [name for name in OLD if name.endswith(("1", "3"))]
    for i, query in enumerate(QUERIES):
        for ranking in (
            *(fused.search([query], k)[0] for k in (1, 2, 7)),
            fused.search([query], 5, few)[0],
        ):
            assert all(score == whole[i][name] for name, score in ranking)
        assert {name for name, _ in fused.search([query], 50, few)[0]} == set(few)


def test_each_part_is_searched_once(fused: FusedRetriever, monkeypatch: pytest.MonkeyPatch) -> None:
    searches = []
    for name, component in fused.components.items():
        find = component.search_and_rerank
        monkeypatch.setattr(
            component,
            "search_and_rerank",
            lambda *given, name=name, find=find: searches.append(name) or find(*given),
        )
    fused.search([QUERIES[0]], 3)
    assert sorted(searches) == ["dense", "headline", "lexical"], (
        "feedback included, which the fixture has"
    )


def test_shares_sum_to_the_score(fused: FusedRetriever) -> None:
    ((name, score), *_) = fused.search([QUERIES[0]], 3)[0]
    shares = fused.explain(QUERIES[0], name)
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


def test_fixed_component_keeps_its_weight(fused: FusedRetriever) -> None:
    queries = dict(zip(WORDS, WORDS, strict=True))
    first = {word: {fused.search([word], 1)[0][0][0]: 1} for word in WORDS}
    judged = Judgements(queries, first, "qrels")

    learned = learn_weights(fused, judged, "nDCG@10", fixed=["headline"])

    assert learned.weights["headline"] == 0.7


def test_score_normalizer_uses_moments_of_all_products() -> None:
    vectors = TABLE.standard_normal((200, 8)).astype(np.float32)
    query = TABLE.standard_normal(8).astype(np.float32)
    products = vectors.astype(np.float64) @ query.astype(np.float64)
    found = ScoreNormalizer.fit(vectors).standardize(query, products)
    np.testing.assert_allclose(found, (products - products.mean()) / products.std(), atol=1e-9)
    vector = np.random.default_rng(0).standard_normal(384).astype(np.float32)
    vector /= np.linalg.norm(vector)
    (score,) = ScoreNormalizer.fit(vector[None]).standardize(
        vector, np.array([vector @ vector], np.float32)
    )
    assert abs(score) < 0.01


def test_folders_of_other_parts_are_refused(live: Path, tmp_path: Path) -> None:
    fusion = Fusion.load(live / "encoder")
    Fusion({"lexical": 1.0}, {}, fusion.depth).save(tmp_path)
    with pytest.raises(FreshetError, match="holds"):
        open_retriever(tmp_path, live / "index")


def test_learned_weights_are_the_best_of_the_grid() -> None:
    """Part `good` ranks every answer first and `bad` at random: nothing of `bad` should be left,
    and all of `good`.
    """
    queries = {f"q{i}": f"query {i}" for i in range(40)}
    names = [f"d{i}" for i in range(20)]
    good = {
        text: {name: float(name == f"d{i % 20}") for name in names}
        for i, text in enumerate(queries.values())
    }
    bad = {
        text: dict(zip(names, TABLE.random(20).tolist(), strict=True)) for text in queries.values()
    }
    dev = Judgements(
        queries, {query: {f"d{i % 20}": 1} for i, query in enumerate(queries)}, "qrels"
    )
    search = FusedSearch(
        {"bad": Table(bad), "good": Table(good)}, Fusion({"bad": 1.0, "good": 0.5})
    )
    assert learn_weights(search, dev, "nDCG@10").weights["good"] >= 1.0
    search = FusedSearch(
        {"good": Table(good), "bad": Table(bad)}, Fusion({"good": 1.0, "bad": 3.0})
    )
    weights = learn_weights(search, dev, "nDCG@10").weights
    assert weights["good"] == 1.0
    assert weights["bad"] <= 1.0, "the largest that does no harm, as it was 3"


def gain_on(gaining: int, component: str) -> Mapping[str, float]:
    """Choose weights by 40 queries, of which `gaining` are answered better by a component.

    The other queries have one candidate, so that no weight matters to them.
    """
    scored, qrels = [], {}
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


def test_late_interaction_keeps_its_weight_where_one_query_gains() -> None:
    assert gain_on(1, "dense.late")["dense.late"] == 1.0


def test_late_interaction_of_weight_zero_is_removed() -> None:
    scores = {"dense": np.ones(1), "dense.late": np.ones(1)}
    scored = [ScoredQuery("q", ["right"], scores)]
    judged = Judgements({"q": "q"}, {"q": {"right": 1}}, "qrels")

    fusion = choose_weights(Fusion({"dense": 1.0, "dense.late": 0.0}), scored, judged, "nDCG@10")

    assert fusion.weights == {"dense": 1.0}


@pytest.mark.parametrize("asked", ["late", "dense"])
def test_late_interaction_keeps_its_weight_where_it_clearly_gains(
    fused: FusedRetriever, asked: str
) -> None:
    """Queries ask for what vectors of words, or those of passages, put first."""
    fused = FusedSearch(fused.components, replace(fused.fusion, feedback=0.0))
    dense, everything, qrels = fused.components["dense"], sorted({**OLD, **NEW}), {}
    for word in WORDS:
        late = [max_sim(dense, word, name) for name in everything]
        first = (
            everything[int(np.argmax(late))]
            if asked == "late"
            else dense.search([word], 1)[0][0][0]
        )
        qrels[word] = {first: 1}
    learned = learn_weights(
        fused, Judgements(dict(zip(WORDS, WORDS, strict=True)), qrels, "qrels"), "nDCG@10"
    )
    late_weight = learned.weights.get("dense.late", 0.0)
    assert (late_weight >= 1.0) == (asked == "late")
