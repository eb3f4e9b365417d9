"""Guards the part of a document that a hit shows."""

from __future__ import annotations

from model_code.text.snippets import MAX_SNIPPET_CHARACTERS, find_marks, make_snippet


def test_unbroken_word_gives_a_short_snippet() -> None:
    snippet = make_snippet("x" * 5000, "anything")

    assert snippet == "x" * MAX_SNIPPET_CHARACTERS + " ..."


def test_short_snippet_shows_a_match_behind_an_unbroken_word() -> None:
    text = f"{'x' * 5000} the sluice gate. {'y' * 5000}"

    snippet = make_snippet(text, "gate")

    assert "gate" in snippet
    assert len(snippet) <= MAX_SNIPPET_CHARACTERS + len("...  ...")


def test_long_words_of_code_are_cut_to_the_limit() -> None:
    text = " ".join(f"https://example.org/{'path/' * 20}{number}" for number in range(40))

    assert len(make_snippet(text, "30")) <= MAX_SNIPPET_CHARACTERS + len("...  ...")


def test_marks_show_folded_words_in_the_original_text() -> None:
    text = "Un café près de la Straße, 5 € 🦆"

    marked = [text[start:end] for start, end in find_marks(text, "CAFE strasse € 🦆")]

    assert marked == ["café", "Straße", "€", "🦆"]


def test_snippet_has_no_markup_and_marks_fit_it() -> None:
    text = "Parameters\n----------\n``a @ x = b`` is the `equation` 🦆 of **linear** algebra."

    snippet = make_snippet(text, "linear equation")
    marked = [snippet[start:end] for start, end in find_marks(snippet, "linear equation")]

    assert snippet == "Parameters a @ x = b is the equation 🦆 of linear algebra."
    assert marked == ["equation", "linear"]


def test_code_that_the_snippet_cuts_has_no_marks_of_code() -> None:
    text = "a b c d e f ``g h f(x)`` nine j k l m n o p"

    assert make_snippet(text, "nine", width=8) == "... f(x) nine j k l m n o ..."


def test_text_of_nothing_but_markup_is_shown() -> None:
    assert make_snippet("-----\n=====", "anything") == "----- ====="
