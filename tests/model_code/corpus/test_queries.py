"""Guards what a query's row must be, and that its answers never decide whether it is kept."""

from __future__ import annotations

import pytest

from model_code.corpus.queries import Query, query_of
from model_code.corpus.rows import Row, Unfit


def query(**values) -> Query:
    return query_of(Row("queries", "here:1", {"id": "1", "text": "when", **values}), 100)


def refusal(row: Row) -> str:
    with pytest.raises(Unfit) as refused:
        query_of(row, 100)
    return refused.value.reason


@pytest.mark.parametrize(
    ("values", "reason"), [({"id": "1", "text": "\n"}, "empty text"), ({"id": "1"}, "missing column")]
)
def test_malformed_queries_are_refused_with_their_reason(values, reason):
    assert refusal(Row("queries", "here:1", values)) == reason


@pytest.mark.parametrize("given", [{}, {"answers": None}, {"answers": []}, {"answers": " "}, {"answers": "null"}])
def test_a_query_need_not_name_answers(given):
    assert query(**given) == Query("1", "when", ())


def test_answers_are_cleaned_and_each_is_kept_once_in_the_order_given():
    assert query(answers=["in  2008", "2008", "in 2008", "cafe\u0301"]).answers == ("in 2008", "2008", "café")


@pytest.mark.parametrize(
    ("given", "answers"),
    [
        ('["2008", "two"]', ("2008", "two")),
        ("in  2008", ("in 2008",)),
        ("2008", ("2008",)),
        ('{"text": ["2008"]}', ('{"text": ["2008"]}',)),
        ({"text": ["2008", "two"], "answer_start": [3, 9]}, ("2008", "two")),
        ({"text": [], "answer_start": []}, ()),
        ([2008, 2.5, "two"], ("2008", "2.5", "two")),
        (2008, ("2008",)),
        (["2008", " ", ""], ("2008",)),
        ([""], ()),
    ],
)
def test_answers_are_read_from_each_shape_that_data_sets_give_them(given, answers):
    assert query(answers=given) == Query("1", "when", answers)


@pytest.mark.parametrize(
    "given",
    [
        {"aliases": ["2008"]},
        {"text": {"a": 1}},
        [None],
        [["2008"]],
        True,
        [float("nan")],
        ["caf\udce9"],
        "caf\udce9",
        ["x" * 51, "y" * 50],
        "[" * 100_000,
    ],
)
def test_a_query_stays_without_answers_that_cannot_be_read(given):
    assert query(answers=given) == Query("1", "when", (), unread=True)
