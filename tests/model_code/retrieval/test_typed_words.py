"""Guards typos and unfinished words: they are looked up, and changes equal a rebuild."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_code.retrieval.bm25_index import Bm25Index
from model_code.retrieval.bm25_segment import Bm25Segment
from model_code.retrieval.fused import FusedSearch, Fusion
from model_code.retrieval.index_settings import Bm25Settings
from model_code.retrieval.protocol import Ranking, TypedQuery
from model_code.text.query_syntax import ConditionMatcher, parse_query

TEXTS = {
    "gate": "The embankments beside the sluice gate",
    "ship": "Steamships carry passengers",
    "law": "A regulation about navigation",
    "cat": "cat",
    "catalog": "The catalogue lists every catalogue",
    "csv": "pandas.read_csv reads a file",
    "street": "Die Überführung der Straße",
    "russian": "Библиотека открыта",
}


@pytest.fixture(scope="module")
def index() -> Bm25Index:
    """An index of `TEXTS`."""
    return Bm25Index.build(list(TEXTS.values()), list(TEXTS))


def search(index: Bm25Index, text: str, is_unfinished: bool = False) -> Ranking:
    """Search as the service does."""
    queries = index.encode_typed([TypedQuery(text, text, is_unfinished)])
    return index.search_encoded(queries, 10)[0]


@pytest.mark.parametrize(
    ("typed", "document"),
    [
        ("embankm", "gate"),
        ("embankments", "gate"),
        ("sluice emb", "gate"),
        ("steamshi", "ship"),
        ("regulatio", "law"),
        ("navig", "law"),
        ("read_c", "csv"),
        ("überf", "street"),
        ("uberfuhr", "street"),
        ("stras", "street"),
        ("библ", "russian"),
    ],
)
def test_unfinished_word_finds_words_that_begin_so(
    index: Bm25Index, typed: str, document: str
) -> None:
    assert search(index, typed, is_unfinished=True)[0][0] == document


def test_finished_text_is_not_completed(index: Bm25Index) -> None:
    assert index.encode_typed([TypedQuery("", "navig ", True)])[0].completions == ()
    assert index.encode_typed([TypedQuery("", "navig", False)])[0].completions == ()
    assert index.encode_typed([TypedQuery("", "n", True)])[0].completions == ()


def test_word_that_is_known_counts_more_than_longer_ones(index: Bm25Index) -> None:
    found = [document for document, _ in search(index, "cat", is_unfinished=True)]

    assert found == ["cat", "catalog"]


@pytest.mark.parametrize(
    "typed", ["embankmnet", "embnkment", "emmbankment", "emnankment", "EMBANKMNET"]
)
def test_one_typo_in_a_longer_word_is_tolerated(index: Bm25Index, typed: str) -> None:
    assert [document for document, _ in search(index, typed)] == ["gate"]


@pytest.mark.parametrize("typed", ["embnkmnt", "cot", "mbankment", "12345"])
def test_two_typos_and_short_words_are_not_corrected(index: Bm25Index, typed: str) -> None:
    assert search(index, typed) == []


def test_known_words_are_never_corrected(index: Bm25Index) -> None:
    plain = index.search(["navigation regulation"], 10)[0]

    assert search(index, "navigation regulation") == plain


def test_explanation_names_corrections_and_completions(index: Bm25Index) -> None:
    queries = index.encode_typed([TypedQuery("", "embankmnet slui", is_unfinished=True)])

    ((first, second),) = index.explain_all("", queries, ["gate"])

    assert {first.token, second.token} == {"embank", "sluic"}
    assert first.expanded
    assert second.expanded


def test_changed_index_answers_typed_queries_like_a_rebuild() -> None:
    settings = Bm25Settings()
    old = {"a": "river embankment", "b": "embankments", "c": "embassy of the river"}
    new = {"d": "emblem", "e": "riverside"}
    old_segment = Bm25Segment.build(list(old.values()), list(old), settings.language)
    new_segment = Bm25Segment.build(list(new.values()), list(new), settings.language)
    changed = Bm25Index([(old_segment, frozenset("ab")), (new_segment, frozenset())], settings)
    left = {"c": old["c"], **new}
    rebuilt = Bm25Index.build(list(left.values()), list(left))

    for typed in ("emb", "embankmnet", "emblme", "riv", "river emb"):
        assert search(changed, typed, is_unfinished=True) == search(
            rebuilt, typed, is_unfinished=True
        )
    assert list(changed.documents_with(["river"])) == ["c"]
    assert changed.document_frequency("embank") == 0


def test_fusion_passes_typed_queries_to_its_words(index: Bm25Index) -> None:
    fusion = FusedSearch({"bm25": index}, Fusion({"bm25": 1.0}))

    queries = fusion.encode_typed([TypedQuery("", "embankmnet", False)])

    assert fusion.search_encoded(queries, 5)[0] == [("gate", 1.0)]
    assert fusion.keyword_index is index


# Characters that the syntax, signs, identifiers and scripts are made of.
TYPED_CHARACTERS = st.sampled_from([*'aZé9_ß- "“”:+#.,€🐟\u200d\u00ad½⑴排ガﾞдह्שׁ\n', "title:", "-ab"])


@given(st.lists(TYPED_CHARACTERS, max_size=20).map("".join), st.booleans())
def test_any_text_can_be_typed(text: str, is_unfinished: bool) -> None:
    index = Bm25Index.build(list(TEXTS.values()), list(TEXTS))

    parsed = parse_query(text)
    queries = index.encode_typed([TypedQuery(parsed.text, parsed.text, is_unfinished)])
    ranking = index.search_encoded(queries, 5)[0]
    index.explain_all(parsed.text, queries, [document for document, _ in ranking])
    for condition in parsed.conditions:
        matcher = ConditionMatcher(condition, "auto")
        assert matcher.meets(condition.words, condition.words) is not condition.is_excluded
    assert not parsed.conditions or parsed.text
