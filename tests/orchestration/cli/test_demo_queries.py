"""Tests of the queries that `freshet demo` searches."""

from __future__ import annotations

from orchestration.cli.demo import example_titles


def test_examples_are_titles_of_different_documents() -> None:
    titles = ["Oak", "oak-trees/how_to_plant", "Setup guide", "Setup guide", "Bees in May"]

    queries = example_titles(titles, ["text"] * len(titles))

    assert queries == ("oak trees how to plant", "Setup guide", "Bees in May")


def test_short_titles_are_used_if_there_are_no_others() -> None:
    assert example_titles(["Fern", "Moss"], ["It grows.", "It is wet."]) == ("Fern", "Moss")


def test_document_without_title_is_asked_by_its_first_sentence() -> None:
    queries = example_titles(["", ""], ["## The **old** wood", "It rains. Often."])

    assert queries == ("The old wood", "It rains.")


def test_documents_without_words_give_no_queries() -> None:
    assert example_titles(["", "---"], ["", "***"]) == ()
