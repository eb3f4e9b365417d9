"""How the weights of a fusion are chosen on dev queries, and what they may cost."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from model_code.corpus.tables import Judgements
from model_code.retriever_settings import FusionSettings
from model_code.stages import fusion
from model_code.stages.fusion import (
    MIN_LEARNING_QUERIES,
    FusionBuilder,
    LossLimit,
    WeightsChoice,
)
from tests.model_code.retrieval.test_fused import TableRetriever

ASKED = 90
# nDCG@10 of a query whose answer is second.
SECOND = 0.6309


class KnownTable(TableRetriever):
    """A table of scores, with another one for the search without words of known queries."""

    def __init__(
        self,
        scores: Mapping[str, Mapping[str, float]],
        plain_scores: Mapping[str, Mapping[str, float]],
    ) -> None:
        super().__init__(scores)
        self.plain = TableRetriever(plain_scores)

    def without_known_words(self) -> TableRetriever:
        return self.plain


def choose(plain_queries: int, known: bool = True) -> WeightsChoice:
    """Choose the weights of a fusion whose second component helps documents with known queries.

    A larger weight of this component answers the queries for these documents. By the words of known
    queries it also puts a wrong document before those without known queries.
    """
    zero_shot: dict[str, dict[str, float]] = {}
    with_words: dict[str, dict[str, float]] = {}
    without_words: dict[str, dict[str, float]] = {}
    qrels: dict[str, dict[str, int]] = {}
    for number in range(ASKED + plain_queries):
        query = f"q{number:03}"
        qrels[query] = {"right": 1}
        if number < ASKED:
            zero_shot[query] = {"right": 0.0, "wrong": 1.0}
            with_words[query] = {"right": 1.0, "wrong": 0.1}
            without_words[query] = {"right": 1.0, "wrong": 0.1}
        else:
            zero_shot[query] = {"right": 1.0, "wrong": 0.0}
            with_words[query] = {"right": 0.1, "wrong": 1.0}
            without_words[query] = {"right": 1.0, "wrong": 0.0}

    with_known = frozenset(f"q{number:03}" for number in range(ASKED))
    queries = {query: query for query in qrels}
    dev = Judgements(queries, qrels, "qrels", with_known=with_known)
    evaluation_set: Any = SimpleNamespace(
        judgements={"dev": dev},
        settings=SimpleNamespace(main_metric="nDCG@10"),
        without_query_lines=lambda judged: judged,
    )
    bm25 = KnownTable(with_words, without_words) if known else TableRetriever(with_words)
    searches = {"svdr": TableRetriever(zero_shot), "bm25_known": bm25}
    settings = FusionSettings(of=tuple(searches))
    return FusionBuilder(evaluation_set, {}, settings, searches).fuse(tuple(searches))


def test_weight_that_harms_documents_without_known_queries_is_excluded() -> None:
    choice = choose(MIN_LEARNING_QUERIES)

    assert choice.fusion.weights == {"svdr": 2.5, "bm25_known": 2.5}
    assert choice.limit.startswith("weights are excluded by which 30 dev queries")


def test_words_get_no_larger_weight_if_harm_cannot_be_measured() -> None:
    choice = choose(MIN_LEARNING_QUERIES - 1)

    # Without words of known queries, the weight 3.0 is best.
    assert choice.fusion.weights == {"svdr": 2.5, "bm25_known": 3.0}
    assert (
        "the weight of bm25_known is at most that without known queries, because 29" in choice.limit
    )


@pytest.mark.parametrize(("largest", "weight"), [(2.5, 2.5), (3.0, 3.0), (8.0, 3.0)])
def test_weight_does_not_exceed_the_largest_one(
    monkeypatch: pytest.MonkeyPatch, largest: float, weight: float
) -> None:
    def limit(*_: Any) -> LossLimit:
        words = frozenset({"bm25_known"})
        return LossLimit(None, np.zeros(60, bool), "capped", words, {"bm25_known": largest})

    monkeypatch.setattr(fusion, "find_loss_limit", limit)

    assert choose(MIN_LEARNING_QUERIES - 1).fusion.weights["bm25_known"] == weight


def test_no_weight_is_excluded_without_words_of_known_queries() -> None:
    choice = choose(MIN_LEARNING_QUERIES, known=False)

    assert choice.fusion.weights == {"svdr": 2.5, "bm25_known": 3.0}
    assert "because no component searches words of known queries" in choice.limit


def test_weights_are_reported_for_both_groups() -> None:
    report = choose(MIN_LEARNING_QUERIES - 1).report

    assert report["queries"] == {"with_known": ASKED, "without_known": 29}
    default, chosen = report["variants"]
    assert default["weights"] == {"svdr": 2.5, "bm25_known": 2.5}
    assert default["with_known"] == SECOND
    assert default["without_known"] == 1.0
    assert chosen["weights"] == {"svdr": 2.5, "bm25_known": 3.0}
    assert chosen["with_known"] == 1.0
    assert chosen["without_known"] == SECOND
    assert default["dev"] < chosen["dev"]


def test_fusion_without_known_queries_is_reported() -> None:
    report = choose(MIN_LEARNING_QUERIES).report

    *_, plain = report["variants"]
    # Without these words, a larger weight answers all queries.
    assert plain == {
        "choice": "without known queries",
        "dev": 1.0,
        "with_known": 1.0,
        "without_known": 1.0,
    }


def test_nothing_is_reported_without_a_choice() -> None:
    assert WeightsChoice(choose(30).fusion).report == {"queries": {}, "limit": "", "variants": []}
