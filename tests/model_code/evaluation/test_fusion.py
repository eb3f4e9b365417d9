"""Guards reciprocal-rank fusion: equation 1 by a double loop, ties by id, and that scores do not
matter.
"""

from __future__ import annotations

import random

import pytest

from model_code.evaluation.system_evaluation import reciprocal_rank_fusion


def by_double_loop(rankings, constant):
    """RRF(d) for every document, straight from the equation."""
    scores = {document: 0.0 for ranking in rankings for document, _ in ranking}
    for document in scores:
        for ranking in rankings:
            for place, (other, _) in enumerate(ranking):
                if other == document:
                    scores[document] += 1.0 / (constant + place + 1)
    return scores


def random_rankings(seed, count):
    draw = random.Random(seed)
    names = [f"d{i:02}" for i in range(30)]
    return [
        [(name, draw.random()) for name in draw.sample(names, draw.randint(0, 20))]
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("constant", [0, 60])
def test_fusion_equals_a_double_loop(seed, constant):
    rankings = random_rankings(seed, count=3)
    fused = reciprocal_rank_fusion(rankings, 100, constant)
    assert dict(fused) == pytest.approx(by_double_loop(rankings, constant))
    assert fused == sorted(fused, key=lambda hit: (-hit[1], hit[0]))
    other_scores = [[(document, -1e6) for document, _ in ranking] for ranking in rankings]
    assert reciprocal_rank_fusion(other_scores, 5, constant) == fused[:5]


def test_fusion_breaks_ties_by_id():
    assert [name for name, _ in reciprocal_rank_fusion([[("b", 1.0)], [("a", 1.0)]], 2)] == [
        "a",
        "b",
    ]
    assert reciprocal_rank_fusion([], 3) == reciprocal_rank_fusion([[], []], 3) == []
