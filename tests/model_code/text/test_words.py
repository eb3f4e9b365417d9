"""Guards that texts with blanks are cut as by `str.split`, and that a text without blanks has words
at all.
"""

from __future__ import annotations

from model_code.queries.pseudo_queries import InverseCloze
from model_code.queries.settings import ClozeSettings
from model_code.text.passages import cut_passages
from model_code.text.phrases import normalize_phrase
from model_code.text.words import word_spans

CHINESE = "排序算法把列表中的元素按照从小到大的顺序排列。"


def test_with_blanks_words_are_as_split_has_them() -> None:
    text = " Sort\ta list, (naïve) Ελλάδα हिन्दी\n\nкнига! 한국어 텍스트 a1_b "
    assert [text[start:end] for start, end in word_spans(text)] == text.split()


def test_text_without_blanks_is_split_into_words() -> None:
    assert "".join(cut_passages(CHINESE, 5, 5)) == CHINESE
    assert len(cut_passages(CHINESE, 5, 5)) == 5
    cloze = InverseCloze("short_cloze", ClozeSettings(per_document=3, min_words=3, max_words=6))
    found = cloze.spans("d", CHINESE, seed=1)
    assert len(found) == 3
    assert all(span in CHINESE for span in found)
    assert f" {normalize_phrase(found[0])} " in f" {normalize_phrase(CHINESE)} "
