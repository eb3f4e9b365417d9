"""Guards what a document should be found by: never empty, never twice, spread over the whole text."""

from __future__ import annotations

from model_code.incdsi.store import SPAN, constraint_texts


def test_constraint_spans_cover_the_text_evenly() -> None:
    words = [f"w{i}" for i in range(100)]
    title, first, *spans = constraint_texts("t", "First one. " + " ".join(words), spans=4)
    assert title == "t"
    assert first == "First one."
    assert [span.split()[0] for span in spans] == ["w0", "w29", "w59", "w88"]
    assert {len(span.split()) for span in spans} == {SPAN}
    assert spans[-1].endswith("w99")


def test_a_short_text_is_not_repeated() -> None:
    assert constraint_texts("", "no sentence at all", 4) == ["no sentence at all"]
    assert constraint_texts("title", "", 4) == ["title"]
    assert constraint_texts("same", "same", 4) == ["same"]
    assert constraint_texts("t", "One line\nand a second one", 1) == [
        "t",
        "One line",
        "and a second one",
    ]
    assert constraint_texts("t", "One. Two three.", 0) == ["t", "One."]


def test_texts_without_blanks_have_sentences_and_spans_too() -> None:
    rest = "归并排序是稳定的，它把列表分成两半，分别排序，然后合并起来。"
    first, *spans = constraint_texts("", "快速排序很快。" + rest, spans=2)
    assert first == "快速排序很快。"
    assert len(spans) == 2
    assert rest.startswith(spans[0])
    assert rest.endswith(spans[1])
