"""One person gives 1,000 thumbs to one page: the limits bound the harm, and the gate sees the rest.

The page is shown for queries of all other pages. Each page has one judged query. docs/security.md
states the numbers.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from model_code.collection.generations.generation_builder import GenerationBuilder
from model_code.collection.generations.searcher import Searcher
from model_code.collection.ledger.events import Feedback, Opinion
from model_code.collection.segments.known_overrides import LaterEvidence, evidence_of_feedback
from model_code.evaluation.promotion import judge_promotion
from model_code.evaluation.scores import SystemScores
from model_code.evaluation.settings import PromotionSettings
from model_code.retrieval.bm25_known import KnownWords
from model_code.stages.known_words import DEFAULT_IN_LENGTH, DEFAULT_WEIGHT
from model_code.text.known_queries import KnownQueryLimits
from tests.model_code.collection.known_collection import (
    RETRIEVER,
    found,
    open_known_collection,
    page,
)
from tests.model_code.collection.laws import up_to

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")

SUBJECTS = [f"{chr(97 + i % 20)}{chr(97 + i // 20)}zork" for i in range(40)]
PAGES = {name: f"All that is known on {name} and more of it." for name in SUBJECTS}
SPAM = "spam"
UNLIMITED = KnownQueryLimits(max_queries=10_000, max_words=10**6)
GATE = PromotionSettings(metric="hit@1", protected=("hit@1",))


def thumbs_of_the_attacker(subjects: list[str]) -> list[Feedback]:
    """1,000 different queries that one person rates, spread over subjects."""
    opinions: list[Feedback] = []
    for number in range(1000):
        subject = subjects[number % len(subjects)]
        text = f"{subject} offer{number}"
        opinions.append(Feedback(text, SPAM, Opinion.UP, who="attacker", received=float(number)))
    return opinions


# The words of known queries count fully, and not towards the length: the worst case.
WORST = KnownWords(1.0, in_length=False)
SHIPPED = KnownWords(DEFAULT_WEIGHT, DEFAULT_IN_LENGTH)


def attacked_searcher(root: Path, words: KnownWords) -> Searcher:
    """The collection after the attack, if words of known queries count in this way."""
    pages = {**PAGES, SPAM: "Buy it."}
    live = open_known_collection(root, pages, words=words)
    builder = GenerationBuilder(live, RETRIEVER)
    evidence = evidence_of_feedback(thumbs_of_the_attacker(SUBJECTS))

    def later_evidence() -> LaterEvidence:
        return LaterEvidence(evidence)

    builder.later_evidence = later_evidence
    builder.apply([page("next", "The change that thumbs wait for.")], up_to(1), {})
    return builder.searcher


def first_hits(searcher: Searcher) -> SystemScores:
    """Score the judged query of each page: 1 if the page is found first."""
    values = [float(found(searcher, name)[0] == name) for name in SUBJECTS]
    return SystemScores("system", "gate", pd.DataFrame({"hit@1": values}, index=SUBJECTS))


@pytest.fixture
def honest(tmp_path: Path) -> SystemScores:
    """Scores without the attack."""
    live = open_known_collection(tmp_path / "honest", {**PAGES, SPAM: "Buy it."})
    scores = first_hits(Searcher.open(live, RETRIEVER))
    assert scores.values["hit@1"].sum() == len(SUBJECTS)
    return scores


def test_attack_without_limits_takes_every_query_and_fails_the_gate(
    tmp_path: Path, honest: SystemScores
) -> None:
    scores = first_hits(attacked_searcher(tmp_path, replace(WORST, limits=UNLIMITED)))

    assert scores.values["hit@1"].sum() == 0
    verdict = judge_promotion(scores, honest, GATE)
    assert not verdict.passed
    assert any("worse" in reason for reason in verdict.reasons)


def test_limits_bound_the_queries_that_are_lost(tmp_path: Path) -> None:
    scores = first_hits(attacked_searcher(tmp_path, WORST))

    assert len(SUBJECTS) - scores.values["hit@1"].sum() == WORST.limits.max_queries


def test_attack_takes_no_query_at_the_default_weight(tmp_path: Path) -> None:
    scores = first_hits(attacked_searcher(tmp_path, SHIPPED))

    assert scores.values["hit@1"].sum() == len(SUBJECTS)


def test_rest_of_the_attack_fails_the_gate(tmp_path: Path, honest: SystemScores) -> None:
    scores = first_hits(attacked_searcher(tmp_path, WORST))

    verdict = judge_promotion(scores, honest, GATE)

    assert not verdict.passed


def test_thousand_thumbs_on_one_query_count_once() -> None:
    opinions = [
        Feedback(f"Aazork {'!' * number}", SPAM, Opinion.UP, who="attacker")
        for number in range(1000)
    ]

    (query,) = evidence_of_feedback(opinions)

    assert query.weight == 1
