"""Tests of the texts that a document should be found by.

They are never empty, never repeated, and spread over the whole text.
"""

from __future__ import annotations

import pytest

from model_code.incdsi.store import SPAN, constraint_texts


def test_constraint_spans_cover_the_text_evenly() -> None:
    words = [f"w{i}" for i in range(100)]

    title, first, *spans = constraint_texts("t", "First one. " + " ".join(words), spans=4)

    assert title == "t"
    assert first == "First one."
    assert [span.split()[0] for span in spans] == ["w0", "w29", "w59", "w88"]
    assert {len(span.split()) for span in spans} == {SPAN}
    assert spans[-1].endswith("w99")


@pytest.mark.parametrize(
    ("title", "text", "spans", "expected"),
    [
        ("", "no sentence at all", 4, ["no sentence at all"]),
        ("title", "", 4, ["title"]),
        ("same", "same", 4, ["same"]),
        ("t", "One line\nand a second one", 1, ["t", "One line", "and a second one"]),
        ("t", "One. Two three.", 0, ["t", "One."]),
    ],
)
def test_short_text_is_not_repeated(title: str, text: str, spans: int, expected: list[str]) -> None:
    assert constraint_texts(title, text, spans) == expected


def test_texts_without_blanks_have_sentences_and_spans() -> None:
    sentence = "快速排序很快。"
    rest = "归并排序是稳定的，它把列表分成两半，分别排序，然后合并起来。"

    first, *spans = constraint_texts("", sentence + rest, spans=2)

    assert first == sentence
    assert len(spans) == 2
    assert rest.startswith(spans[0])
    assert rest.endswith(spans[1])
