"""Tests of the lexical retriever from corpus to search.

Every kind of search is compared with dense products. Explanations sum to the scores. Equal inputs
give equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from model_code.context import StageContext
from model_code.corpus.corpus_queries import KNOWN_QUERIES, CorpusQueries
from model_code.errors import FingerprintMismatch, FreshetError
from model_code.files import hash_path, read_json, write_json, write_manifest
from model_code.lexical.encoder import Sparse
from model_code.lexical.index import NAMES, PRECISION, PassagesOnTheFly
from model_code.lexical.layout import load_encoder, save_encoder, start_encoder
from model_code.lexical.retriever import LexicalRetriever
from model_code.lexical.settings import LexicalSettings
from model_code.retrieval.bm25 import KNOWN_WORDS
from model_code.retrieval.bm25_known import KnownWords
from model_code.retrieval.kinds import open_retriever
from model_code.retrieval.protocol import Ranking
from model_code.stages import index
from model_code.text.known_queries import KnownQuery, QuerySource
from tests.model_code.collection.laws import reranked
from tests.model_code.lexical.corpus import make_context
from tests.model_code.lexical.example import SETTINGS

QUERIES = ["word3 word7", "word12 word1 word5 word39", "word20"]
LEXICAL = SETTINGS.replace(rerank_depth=5, search="full")


class Build(NamedTuple):
    """The folders of an untrained encoder and of its index, and the report of the stage."""

    encoder: Path
    index: Path
    report: dict[str, Any]

    def open(self) -> LexicalRetriever:
        """Open the retriever."""
        return open_retriever(self.encoder, self.index)  # type: ignore[return-value]

    def read_passages(self) -> pd.DataFrame:
        """Read the passages that were indexed."""
        return pd.read_parquet(self.encoder.parents[2] / "corpus" / "passages.parquet")


def make_build(
    tmp_path: Path, lexical: LexicalSettings = LEXICAL, use_known_queries: bool = False
) -> Build:
    """Build the index of an untrained encoder.

    The known query "word39 word38" of d00 counts if known queries are used.
    """
    context = make_context(tmp_path, lexical)
    context.settings["known_queries.use"] = use_known_queries
    known_query = KnownQuery("d00", "word39 word38", QuerySource.QRELS)
    CorpusQueries((known_query,)).save(context.inputs["corpus"] / KNOWN_QUERIES)
    (tmp_path / "bm25_known").mkdir(exist_ok=True)
    known_words = KnownWords(1.0, in_length=True)
    write_json(tmp_path / "bm25_known" / KNOWN_WORDS, asdict(known_words))

    passages = pd.read_parquet(context.inputs["corpus"] / "passages.parquet")
    encoder = start_encoder(context.settings["encoder"], lexical, passages["text"].tolist(), 0)
    save_encoder(encoder, context.output / "encoder")

    inputs = {
        **context.inputs,
        "trained": context.output,
        "bm25_known": tmp_path / "bm25_known",
    }
    output = context.output.parent / "indexed"
    output.mkdir()
    stage = StageContext(tmp_path, inputs, output, context.settings, context.checkpoints, "svdr")
    report = index.run(stage)
    return Build(context.output / "encoder", output / "index", report)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """One build that no test changes."""
    return make_build(tmp_path_factory.mktemp("lexical"))


class DenseViews(NamedTuple):
    """Weights and tokens of the queries and the passages, as dense rows."""

    query_weights: np.ndarray
    query_own_weights: np.ndarray
    query_tokens: np.ndarray
    passage_weights: np.ndarray
    passage_tokens: np.ndarray
    # Document of each passage.
    documents: list[str]


def to_dense(sparse: Sequence[Sparse], size: int) -> np.ndarray:
    """Return sparse vectors as rows of a matrix."""
    matrix = np.zeros((len(sparse), size))
    for row, (ids, weights) in zip(matrix, sparse, strict=True):
        row[ids] = weights
    return matrix


@pytest.fixture(scope="module")
def views(build: Build) -> DenseViews:
    """The dense rows of the build."""
    encoder = load_encoder(build.encoder, precision="float32", device="cpu")
    size = encoder.vocabulary_size
    passages = build.read_passages()
    texts = passages["text"].tolist()

    def token_rows(texts: list[str]) -> np.ndarray:
        return to_dense([(bag, np.ones(len(bag))) for bag in encoder.bags(texts)], size)

    stored = [(ids, weights.astype(PRECISION)) for ids, weights in encoder.encode(texts)]
    return DenseViews(
        query_weights=to_dense(encoder.encode_queries(QUERIES), size),
        query_own_weights=to_dense(encoder.encode_own(QUERIES), size),
        query_tokens=token_rows(QUERIES),
        passage_weights=to_dense(stored, size),
        passage_tokens=token_rows(texts),
        documents=passages["document_id"].tolist(),
    )


def rank_documents(scores: np.ndarray, documents: list[str], k: int) -> Ranking:
    """Rank documents by their best passage; those that do not match are left out."""
    best: dict[str, float] = {}
    for document, score in zip(documents, scores.astype(np.float32).tolist(), strict=True):
        if score > 0:
            best[document] = max(score, best.get(document, 0.0))

    def sort_key(hit: tuple[str, float]) -> tuple[float, str]:
        document, score = hit
        return -score, document

    return sorted(best.items(), key=sort_key)[:k]


def assert_same_ranking(found: Ranking, expected: Ranking) -> None:
    """Check that scores are nearly equal, and documents where the scores are clearly apart."""
    scores = [score for _, score in found]
    expected_scores = [score for _, score in expected]
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-5)
    clear_score = expected_scores[-1] * 1.0001
    clear = {document for document, score in found if score > clear_score}
    assert clear == {document for document, score in expected if score > clear_score}


def test_index_stage_reports_its_sizes(build: Build) -> None:
    assert build.report["passages"] == 32
    assert build.report["documents"] == 24
    assert build.report["kind"] == "lexical"


def test_index_stage_counts_known_queries(tmp_path: Path) -> None:
    beta = LEXICAL.replace(search="beta_own")

    known = make_build(tmp_path, beta, use_known_queries=True).open()

    (ranking,) = known.search(["word39 word38"], 1)
    best_document, _ = ranking[0]
    assert best_document == "d00"


def test_unused_known_queries_are_not_indexed(tmp_path: Path) -> None:
    plain = make_build(tmp_path, LEXICAL.replace(search="beta_own")).open()

    assert plain.known is None


def test_stored_embeddings_allow_every_search(build: Build) -> None:
    retriever = build.open()

    assert {*retriever.variants(), retriever.main} == set(NAMES)


@pytest.mark.parametrize(
    ("name", "query_view", "passage_view"),
    [
        ("full", "query_weights", "passage_weights"),
        ("alpha", "query_tokens", "passage_weights"),
        ("beta", "query_weights", "passage_tokens"),
        ("beta_own", "query_own_weights", "passage_tokens"),
    ],
)
def test_search_equals_its_dense_product(
    build: Build, views: DenseViews, name: str, query_view: str, passage_view: str
) -> None:
    retriever = build.open()
    searches = {**retriever.variants(), retriever.main: retriever.search}

    rankings = searches[name](QUERIES, 7)

    products = getattr(views, query_view) @ getattr(views, passage_view).T
    for scores, ranking in zip(products, rankings, strict=True):
        assert_same_ranking(ranking, rank_documents(scores, views.documents, 7))


def test_beta_rerank_scores_the_best_of_beta(build: Build, views: DenseViews) -> None:
    beta_products = views.query_weights @ views.passage_tokens.T
    full_products = views.query_weights @ views.passage_weights.T

    rankings = build.open().variants()["beta_rerank"](QUERIES, 3)

    for beta, full, ranking in zip(beta_products, full_products, rankings, strict=True):
        candidates = {document for document, _ in rank_documents(beta, views.documents, 5)}
        is_candidate = np.array([document in candidates for document in views.documents])
        expected = rank_documents(np.where(is_candidate, full, 0), views.documents, 3)
        assert_same_ranking(ranking, expected)


def test_best_passage_has_the_highest_product(build: Build, views: DenseViews) -> None:
    retriever = build.open()
    products = np.float32(views.query_weights @ views.passage_weights.T)
    rows = [row for row, document in enumerate(views.documents) if document == "d03"]

    for query, scores in zip(QUERIES, products, strict=True):
        best_passage = retriever.best_passage_encoded(retriever.encode_queries([query]), "d03")
        assert best_passage == int(np.argmax(scores[rows]))


def record_encoded_queries(
    retriever: LexicalRetriever, monkeypatch: pytest.MonkeyPatch
) -> list[list[str]]:
    """Return a list that receives the texts of each call of the encoder."""
    encode_queries = retriever.encoder.encode_queries
    encoded: list[list[str]] = []

    def record_and_encode(texts: list[str]) -> list[Sparse]:
        encoded.append(list(texts))
        return encode_queries(texts)

    monkeypatch.setattr(retriever.encoder, "encode_queries", record_and_encode)
    return encoded


def test_queries_are_encoded_once_for_all_variants(build: Build, monkeypatch) -> None:
    retriever = build.open()
    encoded = record_encoded_queries(retriever, monkeypatch)

    for search in retriever.variants().values():
        search(QUERIES, 7)

    assert encoded == [QUERIES]


def test_query_is_encoded_once_for_all_explanations(build: Build, monkeypatch) -> None:
    retriever = build.open()
    (ranking,) = retriever.search(QUERIES[:1], 5)
    assert len(ranking) > 1
    encoded = record_encoded_queries(retriever, monkeypatch)

    for document, _ in ranking:
        retriever.explain(QUERIES[0], document)

    assert encoded == [QUERIES[:1]]


@pytest.fixture(scope="module", params=NAMES)
def main_retriever(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> LexicalRetriever:
    """A retriever whose main search is each of the kinds in turn. Tests do not change it."""
    folder = tmp_path_factory.mktemp("main")
    return make_build(folder, LEXICAL.replace(search=request.param, rerank_depth=30)).open()


def test_main_search_is_no_variant(main_retriever: LexicalRetriever) -> None:
    assert main_retriever.main not in main_retriever.variants()


def test_main_search_reranks_and_filters_alike(main_retriever: LexicalRetriever) -> None:
    for query in QUERIES:
        (ranking,) = main_retriever.search([query], 30)
        expected = ranking[1:6:2]
        allowed = [document for document, _ in expected]
        assert reranked(main_retriever, [query], [allowed]) == [expected]
        assert main_retriever.search([query], 30, allowed=allowed) == [expected]


def test_explanation_sums_to_the_score(main_retriever: LexicalRetriever) -> None:
    for query in QUERIES:
        (ranking,) = main_retriever.search([query], 4)
        for document, score in ranking:
            weights = [match.weight for match in main_retriever.explain(query, document)]
            assert sum(weights) == pytest.approx(score, rel=1e-6)
            assert weights == sorted(weights, reverse=True)


def test_explanation_marks_expansions(main_retriever: LexicalRetriever) -> None:
    for query in QUERIES:
        (ranking,) = main_retriever.search([query], 4)
        for document, _ in ranking:
            for match in main_retriever.explain(query, document):
                assert match.expanded == (match.token not in query.split())


@pytest.mark.parametrize("name", ["alpha", "beta_own"])
def test_searches_by_query_tokens_expand_nothing(tmp_path: Path, name: str) -> None:
    retriever = make_build(tmp_path, LEXICAL.replace(search=name, rerank_depth=30)).open()

    for query in QUERIES:
        (ranking,) = retriever.search([query], 1)
        best_document, _ = ranking[0]
        matches = retriever.explain(query, best_document)
        assert not any(match.expanded for match in matches)


@pytest.fixture
def token_build(tmp_path: Path) -> Build:
    """A build that stores tokens only, and reranks with embeddings made during the search."""
    return make_build(tmp_path, LEXICAL.replace(search="beta_rerank"))


def test_beta_rerank_stores_no_embeddings(token_build: Build) -> None:
    assert not (token_build.index / "embeddings").exists()
    assert set(token_build.open().variants()) == {"beta", "beta_own"}


def test_embeddings_on_the_fly_equal_stored_ones(build: Build, token_build: Build) -> None:
    rankings = token_build.open().search(QUERIES, 5)

    expected = build.open().variants()["beta_rerank"](QUERIES, 5)
    for ranking, expected_ranking in zip(rankings, expected, strict=True):
        assert_same_ranking(ranking, expected_ranking)


def test_embeddings_on_the_fly_explain_alike(build: Build, token_build: Build) -> None:
    retriever = token_build.open()
    (ranking,) = retriever.search(QUERIES[:1], 1)
    document, _ = ranking[0]

    tokens = [match.token for match in retriever.explain(QUERIES[0], document)]

    expected = build.open().explain(QUERIES[0], document)
    assert tokens == [match.token for match in expected]


def test_search_that_needs_embeddings_is_refused(token_build: Build) -> None:
    with pytest.raises(FreshetError, match="build the index for it"):
        token_build.open().with_main_search("full").search(QUERIES, 1)


def test_embeddings_are_made_once(token_build: Build, monkeypatch) -> None:
    passages = token_build.open().passages
    assert isinstance(passages, PassagesOnTheFly)
    first, _, third = passages._embeddings([1, 2, 3])

    def refuse_texts(texts: list[str]) -> list[Sparse]:
        # Nothing is encoded again.
        assert not texts
        return []

    monkeypatch.setattr(passages.encoder, "encode", refuse_texts)
    third_again, first_again = passages._embeddings([3, 1])

    assert first_again[1] is first[1]
    assert third_again[1] is third[1]


def test_cached_embeddings_are_limited(token_build: Build, monkeypatch) -> None:
    passages = token_build.open().passages
    passages._embeddings([1, 2, 3])

    monkeypatch.setattr("model_code.lexical.index.MAX_CACHED_EMBEDDINGS", 2)
    passages._embeddings([4])

    assert list(passages._cache) == [4]


def test_token_search_stores_tokens_only(tmp_path: Path) -> None:
    build = make_build(tmp_path, SETTINGS)

    retriever = build.open()

    assert sorted(path.name for path in build.index.iterdir()) == ["manifest.json", "tokens"]
    assert retriever.main == "beta_own"
    assert set(retriever.variants()) == {"beta"}


def test_token_search_cannot_rerank(tmp_path: Path) -> None:
    retriever = make_build(tmp_path, SETTINGS).open()

    with pytest.raises(FreshetError, match="build the index for it"):
        retriever.with_main_search("beta_rerank").search(QUERIES, 1)


def test_token_search_of_empty_query_finds_nothing(tmp_path: Path) -> None:
    retriever = make_build(tmp_path, SETTINGS).open()

    assert retriever.search([""], 3) == [[]]


def test_equal_inputs_give_equal_bytes(tmp_path: Path, build: Build) -> None:
    again = make_build(tmp_path)

    assert hash_path(again.index) == hash_path(build.index)


def test_index_stores_embeddings_and_tokens(build: Build) -> None:
    assert sorted(path.name for path in build.index.iterdir()) == [
        "embeddings",
        "manifest.json",
        "tokens",
    ]

    manifest = read_json(build.index / "manifest.json")
    assert manifest["kind"] == "lexical"
    assert manifest["documents"] == 24


def test_index_of_another_encoder_is_refused(tmp_path: Path, build: Build) -> None:
    other = make_build(tmp_path, LEXICAL.replace(index_top_k=7))

    with pytest.raises(FingerprintMismatch, match="build the index again"):
        open_retriever(other.encoder, build.index)


def test_index_with_an_added_file_is_refused(tmp_path: Path) -> None:
    build = make_build(tmp_path)
    (build.index / "tokens" / "more").write_text("x")

    with pytest.raises(FreshetError, match="was added"):
        build.open()


def test_index_of_another_kind_is_refused(tmp_path: Path) -> None:
    build = make_build(tmp_path)
    write_manifest(build.index, 1, {"kind": "dense"})

    with pytest.raises(FreshetError, match="holds no lexical index but one of kind dense"):
        LexicalRetriever.open(build.index, load_encoder(build.encoder))
