"""Guards the choices: each is computed from the numbers, unknown costs never win, and ties go to the better system."""

from __future__ import annotations

from orchestration.pipeline.cost_report import choices
from tests.orchestration.pipeline.costs.example import comparison, costs


def chosen(*systems):
    return {choice.goal: choice.system for choice in choices(comparison(systems) if systems else comparison())}


def test_each_goal_has_the_system_that_the_numbers_name():
    assert chosen() == {
        "best nDCG@10 on test": "hce.rrf",
        "best nDCG@10 on dev": "hce.rrf",
        "fastest query": "bm25",
        "smallest index": "bm25",
        "soonest searchable": "bm25",
        "fastest query within the best one's interval": "hce",
        "smallest index within the best one's interval": "hce",
    }


def test_what_is_not_recorded_wins_nothing():
    unknown = costs("new", 0.9, dev=None, searchable_seconds=None)
    found = chosen(unknown, costs("old", 0.5))
    assert (found["soonest searchable"], found["best nDCG@10 on dev"]) == ("old", "old")
    assert "best nDCG@10 on dev" not in chosen(unknown)


def test_of_equals_the_more_effective_one():
    assert chosen(costs("worse", 0.59), costs("better", 0.6))["fastest query within the best one's interval"] == (
        "better"
    )


def test_the_value_is_in_words():
    found = {choice.goal: choice.value for choice in choices(comparison())}
    assert found["fastest query"] == "0.4 ms at the median"
    assert found["smallest index"] == "310 bytes per document"
    assert found["soonest searchable"] == "after 0.9 s of training and indexing"
