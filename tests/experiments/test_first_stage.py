"""Checks which documents the systems of the first-stage experiment score, and how they rank."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.asked.search import DEPTH, Normalizer, Weights
from experiments.late_interaction import first_stage
from experiments.late_interaction.first_stage import (
    ALL_DOCUMENTS,
    BLOCK_DOCUMENTS,
    FIRST_STAGE,
    RESCORING,
    QueryScores,
    SignSearch,
    rank,
)
from model_code.encoding.token_signs import TokenSigns, pack_signs
from model_code.files import read_json

DOCUMENTS = 3 * DEPTH


@pytest.fixture
def scores() -> QueryScores:
    """Scores of a query, for which only late interaction finds the last document."""
    dense = np.linspace(1.0, 0.0, DOCUMENTS)
    words = np.zeros(DOCUMENTS)
    words[150] = 2.0
    late = np.zeros(DOCUMENTS)
    late[-1] = 1.0
    return QueryScores(dense, words, late)


def test_sign_search_scores_all_documents() -> None:
    rng = np.random.default_rng(0)
    texts = [pack_signs(rng.normal(size=(3, 64))) for _ in range(BLOCK_DOCUMENTS + 5)]
    tokens = TokenSigns.of(texts)
    query = tokens[7:8]

    scores = SignSearch(tokens).scores(query)

    assert scores.tolist() == query.similarities(tokens).tolist()


def test_rescoring_takes_candidates_of_vectors_and_words(scores: QueryScores) -> None:
    rows = scores.candidates()[RESCORING]
    assert rows.tolist() == [*range(DEPTH), 150]


def test_first_stage_adds_candidates_of_late_interaction(scores: QueryScores) -> None:
    rows = scores.candidates()[FIRST_STAGE]
    assert DOCUMENTS - 1 in rows


def test_all_documents_are_scored(scores: QueryScores) -> None:
    assert len(scores.candidates()[ALL_DOCUMENTS]) == DOCUMENTS


def test_rank_weighs_late_interaction(scores: QueryScores) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(DOCUMENTS, 8))
    query = rng.normal(size=8)
    rows = scores.candidates()[ALL_DOCUMENTS]
    normalizer = Normalizer.fit(vectors)

    ranking = rank(scores, rows, query, vectors, normalizer, Weights(bm25=0.0, late=100.0))

    assert ranking[0] == DOCUMENTS - 1


def test_isolated_documents_stay_first(scores: QueryScores) -> None:
    vectors = np.random.default_rng(0).normal(size=(DOCUMENTS, 8))
    query = vectors[0]
    rows = scores.candidates()[ALL_DOCUMENTS]
    normalizer = Normalizer.fit(vectors)

    ranking = rank(scores, rows, query, vectors, normalizer, Weights(bm25=5.0, late=100.0))

    assert ranking[0] == 150


def test_first_stage_table_matches_saved_results() -> None:
    folder = first_stage.HERE
    table = first_stage.table(read_json(folder / "first_stage.json"))
    assert table in (folder / "README.md").read_text()
