"""Guards what a query's row must be, and that answers are kept as they are named or refused with a reason."""

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


def test_a_cell_of_csv_holds_the_list_as_json():
    assert query(answers='["2008", "two"]').answers == ("2008", "two")


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ("2008", "wrong type"),
        ("in 2008", "wrong type"),
        ('{"text": ["2008"]}', "wrong type"),
        ({"text": ["2008"]}, "wrong type"),
        (2008, "wrong type"),
        ([2008], "wrong type"),
        ([None], "wrong type"),
        (["2008", " "], "empty text"),
        (["caf\udce9"], "invalid UTF-8"),
        (['["\udce9"]'], "invalid UTF-8"),
        (["x" * 51, "y" * 50], "huge text"),
        ("[" * 100_000, "wrong type"),
    ],
)
def test_malformed_answers_refuse_their_query_with_a_reason(answers, reason):
    assert refusal(Row("queries", "here:1", {"id": "1", "text": "when", "answers": answers})) == reason


def test_the_refusal_names_the_setting_that_reads_no_answers():
    with pytest.raises(Unfit, match=r"answers is dict, .*list of texts.*corpus.columns.answers: null"):
        query(answers={"text": ["2008"]})
