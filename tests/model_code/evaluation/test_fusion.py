"""Test reciprocal-rank fusion: its equation by a double loop, ties by id, and ranks alone count."""

from __future__ import annotations

import random

import pytest

from model_code.evaluation.system_evaluation import reciprocal_rank_fusion

Ranking = list[tuple[str, float]]


def fuse_by_loops(rankings: list[Ranking], constant: int) -> dict[str, float]:
    """Return the fused score of every document, as the equation states it."""
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, (document, _) in enumerate(ranking, start=1):
            scores[document] = scores.get(document, 0.0) + 1.0 / (constant + rank)
    return scores


@pytest.fixture(params=range(5))
def rankings(request: pytest.FixtureRequest) -> list[Ranking]:
    """Return three rankings of up to 20 documents each."""
    rng = random.Random(request.param)
    names = [f"d{i:02}" for i in range(30)]
    rankings = []
    for _ in range(3):
        ranked_names = rng.sample(names, rng.randint(0, 20))
        rankings.append([(name, rng.random()) for name in ranked_names])
    return rankings


@pytest.mark.parametrize("constant", [0, 60])
def test_fusion_equals_a_double_loop(rankings: list[Ranking], constant: int):
    fused = reciprocal_rank_fusion(rankings, 100, constant)

    assert dict(fused) == pytest.approx(fuse_by_loops(rankings, constant))


@pytest.mark.parametrize("constant", [0, 60])
def test_fusion_is_ordered_by_score_and_id(rankings: list[Ranking], constant: int):
    fused = reciprocal_rank_fusion(rankings, 100, constant)

    keys = [(-score, document) for document, score in fused]
    assert keys == sorted(keys)


@pytest.mark.parametrize("constant", [0, 60])
def test_fusion_ignores_scores(rankings: list[Ranking], constant: int):
    equal_scores = [[(document, -1e6) for document, _ in ranking] for ranking in rankings]

    fused = reciprocal_rank_fusion(equal_scores, 5, constant)

    assert fused == reciprocal_rank_fusion(rankings, 100, constant)[:5]


def test_fusion_breaks_ties_by_id():
    fused = reciprocal_rank_fusion([[("b", 1.0)], [("a", 1.0)]], 2)

    assert [document for document, _ in fused] == ["a", "b"]


@pytest.mark.parametrize("rankings", [[], [[], []]])
def test_fusion_of_nothing_is_empty(rankings: list[Ranking]):
    assert reciprocal_rank_fusion(rankings, 3) == []
