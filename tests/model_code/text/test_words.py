"""Test words: texts with blanks are cut as by `str.split`, and texts without blanks have words."""

from __future__ import annotations

from model_code.queries.pseudo_queries import InverseCloze
from model_code.queries.settings import ClozeSettings
from model_code.text.passages import cut_passages
from model_code.text.phrases import normalize_phrase
from model_code.text.words import word_spans

CHINESE = "排序算法把列表中的元素按照从小到大的顺序排列。"


def test_words_between_blanks_are_those_of_split() -> None:
    text = " Sort\ta list, (naïve) Ελλάδα हिन्दी\n\nкнига! 한국어 텍스트 a1_b "

    words = [text[start:end] for start, end in word_spans(text)]

    assert words == text.split()


def test_text_without_blanks_is_cut_into_passages() -> None:
    passages = cut_passages(CHINESE, 5, 5)

    assert "".join(passages) == CHINESE
    assert len(passages) == 5


def test_text_without_blanks_has_cloze_queries() -> None:
    cloze = InverseCloze("short_cloze", ClozeSettings(per_document=3, min_words=3, max_words=6))

    spans = cloze.spans("d", CHINESE, seed=1)

    assert len(spans) == 3
    assert all(span in CHINESE for span in spans)
    assert f" {normalize_phrase(spans[0])} " in f" {normalize_phrase(CHINESE)} "
