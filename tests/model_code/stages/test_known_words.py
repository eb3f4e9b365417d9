"""How the weight of known queries is chosen on dev queries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from model_code.corpus.tables import Judgements
from model_code.stages.fusion import MIN_LEARNING_QUERIES
from model_code.stages.known_words import (
    choose_known_words,
    known_word_variants,
    queries_without_known,
)
from model_code.text.known_queries import KnownQueryLimits

LIMITS = KnownQueryLimits(16, 64)
ASKED = MIN_LEARNING_QUERIES
UNASKED = MIN_LEARNING_QUERIES


class FakeBm25:
    """BM25 that ranks the relevant document of a query first with a probability by weight.

    Attributes:
        answered: Number of answered queries of each kind, asked and unasked, by weight.
    """

    def __init__(
        self,
        answered: dict[float, tuple[int, int]],
        weight: float = 0.0,
        plain_documents: int = UNASKED,
    ) -> None:
        self.answered = answered
        self.weight = weight
        asked_documents = [f"asked {i}" for i in range(ASKED)]
        unasked_documents = [f"unasked {i}" for i in range(plain_documents)]
        ids = SimpleNamespace(document_ids=asked_documents)
        self.known_segment = SimpleNamespace(queries=SimpleNamespace(ids=ids))
        all_ids = SimpleNamespace(document_ids=asked_documents + unasked_documents)
        self.segment = SimpleNamespace(ids=all_ids)

    def with_words(self, words: Any) -> FakeBm25:
        return FakeBm25(self.answered, words.weight)

    def search(self, texts: list[str], k: int) -> list[list[tuple[str, float]]]:
        asked, unasked = self.answered[self.weight]
        rankings = []
        for text in texts:
            kind, number = text.split()
            answered_queries = asked if kind == "asked" else unasked
            document = text if int(number) < answered_queries else "wrong"
            rankings.append([(document, 1.0)])
        return rankings


def make_evaluation_set(source: str = "qrels", asked: int = ASKED, unasked: int = UNASKED) -> Any:
    texts = [f"asked {i}" for i in range(asked)] + [f"unasked {i}" for i in range(unasked)]
    dev = Judgements(
        queries={text: text for text in texts},
        qrels={text: {text: 1} for text in texts},
        source=source,
    )
    return SimpleNamespace(
        judgements={"dev": dev},
        settings=SimpleNamespace(main_metric="nDCG@10", depth=10),
        strip_query_lines=lambda retriever: retriever,
    )


def test_groups_of_queries_are_reported() -> None:
    variants = known_word_variants(None, True, LIMITS)
    retriever: Any = FakeBm25({0.0: (0, 30), 0.25: (15, 15), 0.5: (30, 15), 1.0: (30, 0)})

    report = choose_known_words(make_evaluation_set(), variants, retriever).report

    assert report["queries"] == {"with_known": ASKED, "without_known": UNASKED}
    means = {row["weight"]: (row["with_known"], row["without_known"]) for row in report["variants"]}
    assert means[0.0] == (0.0, 30 / UNASKED)
    assert means[1.0] == (30 / ASKED, 0.0)


def choose(
    answered: dict[float, tuple[int, int]],
    source: str = "qrels",
    asked: int = ASKED,
    unasked: int = UNASKED,
    plain_documents: int = UNASKED,
) -> float:
    variants = known_word_variants(None, True, LIMITS)
    retriever: Any = FakeBm25(answered, plain_documents=plain_documents)
    evaluation_set = make_evaluation_set(source, asked, unasked)
    choice = choose_known_words(evaluation_set, variants, retriever)
    return choice.words.weight


def test_best_weight_is_chosen() -> None:
    assert choose({0.0: (10, 20), 0.25: (20, 20), 0.5: (29, 20), 1.0: (25, 20)}) == 0.5


@pytest.mark.parametrize(
    ("unasked", "plain_documents", "weight"),
    [(MIN_LEARNING_QUERIES - 1, 1, 0.25), (MIN_LEARNING_QUERIES, 1, 1.0), (0, 0, 1.0)],
)
def test_larger_weight_needs_queries_that_can_show_harm(
    unasked: int, plain_documents: int, weight: float
) -> None:
    values = {0.0: (10, 20), 0.25: (15, 20), 0.5: (20, 20), 1.0: (29, 20)}

    chosen = choose(values, unasked=unasked, plain_documents=plain_documents)

    assert chosen == weight


def test_few_queries_cannot_exclude_the_default() -> None:
    """The standard error of a single query is 0, so that its loss looks clear."""
    values = {0.0: (20, 1), 0.25: (20, 0), 0.5: (20, 0), 1.0: (20, 0)}

    assert choose(values, unasked=1) == 0.25


def test_smaller_weight_needs_no_queries_that_can_show_harm() -> None:
    values = {0.0: (29, 0), 0.25: (10, 0), 0.5: (30, 0), 1.0: (30, 0)}

    assert choose(values, unasked=0) == 0.0


def test_weight_that_harms_unasked_documents_is_left_out() -> None:
    assert choose({0.0: (10, 20), 0.25: (15, 20), 0.5: (29, 19), 1.0: (30, 10)}) == 0.25


def test_words_are_switched_off_if_every_weight_harms() -> None:
    assert choose({0.0: (10, 20), 0.25: (29, 12), 0.5: (29, 11), 1.0: (30, 10)}) == 0.0


@pytest.mark.parametrize(("answered", "weight"), [(20, 0.25), (21, 0.25), (23, 0.25), (27, 0.5)])
def test_default_yields_to_a_clear_gain_only(answered: int, weight: float) -> None:
    values = {0.0: (20, 20), 0.25: (20, 20), 0.5: (answered, 20), 1.0: (20, 20)}

    assert choose(values) == weight


def test_default_is_kept_if_its_loss_may_be_chance() -> None:
    values = {0.0: (20, 20), 0.25: (20, 19), 0.5: (20, 10), 1.0: (20, 10)}

    assert choose(values) == 0.25


def test_default_is_used_without_judgements() -> None:
    values = {0.0: (10, 20), 0.25: (0, 0), 0.5: (29, 20), 1.0: (25, 20)}

    assert choose(values, source="titles") == 0.25


def test_default_is_used_if_dev_cannot_show_a_gain() -> None:
    values = {0.0: (0, 20), 0.25: (0, 20), 0.5: (0, 20), 1.0: (0, 20)}

    assert choose(values, asked=MIN_LEARNING_QUERIES - 1) == 0.25
    assert choose(values) == 0.25


def test_default_that_harms_is_not_used_either() -> None:
    values = {0.0: (0, 20), 0.25: (0, 12), 0.5: (0, 18), 1.0: (0, 10)}

    assert choose(values, asked=0) == 0.0


def test_queries_are_grouped_by_their_documents() -> None:
    dev = make_evaluation_set().judgements["dev"]
    retriever: Any = FakeBm25({})

    unasked = queries_without_known(dev, retriever)

    assert len(unasked) == UNASKED
    assert all(query_id.startswith("unasked") for query_id in unasked)


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_weight_of_the_settings_is_kept(weight: float) -> None:
    variants = known_word_variants(weight, True, LIMITS)
    retriever: Any = FakeBm25({weight: (0, 0)})

    choice = choose_known_words(make_evaluation_set(), variants, retriever)

    assert choice.words.weight == weight
