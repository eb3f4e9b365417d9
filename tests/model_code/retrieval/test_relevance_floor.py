"""Guards the relevance floor: real queries lie above it, and foreign ones below."""

from __future__ import annotations

import random

import numpy as np
import pytest

from model_code.retrieval.bm25_index import Bm25Index
from model_code.retrieval.fused import FusedSearch, Fusion
from model_code.retrieval.relevance_floor import MIN_DOCUMENTS, RelevanceFloor, random_queries

SUBJECTS = [f"subject{number}" for number in range(12)]
FILLERS = [f"filler{number}" for number in range(40)]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Texts of thirty words, each about three of the subjects."""
    draw = random.Random(4)
    return [" ".join([*draw.sample(SUBJECTS, 3), *draw.choices(FILLERS, k=27)]) for _ in range(120)]


@pytest.fixture(scope="module")
def index(texts: list[str]) -> Bm25Index:
    """BM25 over the texts."""
    return Bm25Index.build(texts, [f"d{number}" for number in range(len(texts))])


def below(index: Bm25Index | FusedSearch, floor: RelevanceFloor, text: str) -> list[bool]:
    """Return which of the best hits of a query are below the floor."""
    queries = index.encode_queries([text])
    ranking = index.search_encoded(queries, 3)[0]
    ids = [document for document, _ in ranking]
    (fits,) = index.fits(queries, [ids])
    return floor.is_below(fits, len(ids))


def test_query_about_a_document_is_above_the_floor(index: Bm25Index, texts: list[str]) -> None:
    floor = RelevanceFloor.learn(index, texts)
    query = " ".join(texts[7].split()[:3])

    assert below(index, floor, query)[0] is False


def test_query_of_foreign_words_is_below_the_floor(index: Bm25Index, texts: list[str]) -> None:
    floor = RelevanceFloor.learn(index, texts)

    assert below(index, floor, "who won the filler3 cup in naples") == [True, True, True]


def test_fusion_is_below_only_where_all_components_are(index: Bm25Index, texts: list[str]) -> None:
    fusion = FusedSearch({"bm25": index}, Fusion({"bm25": 1.0}))
    floor = RelevanceFloor.learn(fusion, texts)

    assert set(floor.thresholds) == {"bm25"}
    assert below(fusion, floor, "who won the filler3 cup in naples") == [True, True, True]
    two = RelevanceFloor({"bm25": 0.5, "dense": 0.5})
    fits = {"bm25": np.array([0.9, 0.1, 0.1]), "dense": np.array([0.1, 0.9, 0.1])}
    assert two.is_below(fits, 3) == [False, False, True]


def test_floor_is_repeatable_and_small_collections_have_none(
    index: Bm25Index, texts: list[str]
) -> None:
    assert RelevanceFloor.learn(index, texts) == RelevanceFloor.learn(index, texts)
    few = RelevanceFloor.learn(index, texts[: MIN_DOCUMENTS - 1])
    assert few.thresholds == {}
    assert few.is_below({}, 2) == [False, False]


def test_random_queries_take_words_of_several_texts() -> None:
    queries = random_queries(["river bank", "tax law", ""], seed=3)

    assert all(3 <= len(query.split()) <= 10 for query in queries)
    assert any("tax" in query and "river" in query for query in queries)
    assert random_queries(["", "?"], seed=3) == []
