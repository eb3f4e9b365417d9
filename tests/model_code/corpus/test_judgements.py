"""Guards qrels: what dangles is refused, merged documents are followed, and no query is in two splits."""

from __future__ import annotations

import pytest

from model_code.corpus.judgements import Known, take_qrels
from model_code.corpus.quarantine import Quarantine
from model_code.corpus.rows import Row
from model_code.corpus.settings import QuerySplitSettings

KNOWN = Known({"q1", "q2", "q3"}, {"d1", "d2"}, {"d1-copy": "d1"})


def take(*rows, known=KNOWN):
    names = ("query_id", "document_id", "relevance", "split")
    values = [dict(zip(names, row, strict=False)) for row in rows]
    quarantine = Quarantine()
    source = (Row("qrels", f"qrels:{i}", value) for i, value in enumerate(values, start=1))
    return take_qrels(source, known, QuerySplitSettings(dev_share=0), quarantine), quarantine


def test_judgements_follow_a_merged_document_and_count_once_at_their_highest():
    qrels, _ = take(("q1", "d1", 1, "test"), ("q1", "d1-copy", 3, "test"), ("q1", "d2", 0, "test"))
    assert qrels.pairs == {("q1", "d1"): 3}
    assert (qrels.repeated, qrels.not_relevant) == (1, 1)


def test_numbers_may_be_written_as_text_and_relevance_may_be_absent():
    qrels, _ = take(("q1", "d1", "2.0", "test"), ("q2", "d2"))
    assert qrels.pairs == {("q1", "d1"): 2, ("q2", "d2"): 1}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (("q9", "d1", 1, "test"), "dangling qrel"),
        (("q1", "d9", 1, "test"), "dangling qrel"),
        ((None, "d1", 1, "test"), "missing id"),
        (("q1", "d1", "high", "test"), "bad relevance"),
        (("q1", "d1", 0.5, "test"), "bad relevance"),
        (("q1", "d1", None, "test"), "bad relevance"),
        (("q1", "d1", "1e30", "test"), "bad relevance"),  # more than the tables' 64 bits hold
        (("q1", "d1", 10**400, "test"), "bad relevance"),
        (("q1", "d1", 1, "holdout"), "bad split"),
    ],
)
def test_malformed_judgements_are_refused(row, reason):
    qrels, quarantine = take(row, ("q2", "d2", 1, "test"))
    assert qrels.pairs == {("q2", "d2"): 1}
    assert quarantine.reasons() == {f"qrels: {reason}": 1}


def test_a_limited_source_leaves_judgements_behind_without_blame():
    limited = Known(KNOWN.queries, KNOWN.documents, {}, limited=True)
    qrels, quarantine = take(("q1", "d9", 1, "test"), ("q1", "d1", 1, "test"), known=limited)
    assert (qrels.outside_limit, quarantine.refused) == (1, [])


def test_a_query_in_two_splits_is_tested_and_not_trained_on():
    qrels, quarantine = take(
        ("q1", "d1", 1, "train"), ("q1", "d2", 1, "test"), ("q2", "d1", 1, "train"), ("q2", "d2", 1, "dev")
    )
    assert qrels.splits == {"q1": "test", "q2": "dev"}
    assert qrels.pairs == {("q1", "d2"): 1, ("q2", "d2"): 1}
    assert quarantine.reasons() == {"qrels: conflicting split": 2}
    assert quarantine.refused[0].location == "qrels:1"
