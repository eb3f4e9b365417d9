"""Guards the terms of BM25: forms that people type alike are equal, and signs can be found."""

from __future__ import annotations

import pytest

from model_code.retrieval.bm25_index import Bm25Index
from model_code.text.folding import fold_characters
from model_code.text.terms import TermAnalyzer


@pytest.mark.parametrize(
    ("typed", "written"),
    [
        ("jalapeno", "jalapeño"),
        ("jalapeno", "jalapen\u0303o"),
        ("Grosse", "Größe"),
        ("GRUSSE", "Grüße"),
        ("smorrebrod", "smørrebrød"),
        ("Wroclaw", "Wrocław"),
        ("Diyarbakir", "Diyarbakır"),
        ("izmir", "İzmir"),
        ("Aesir", "Æsir"),
        ("AESIR", "ÆSIR"),
        ("pho", "phở"),
        ("athina", "athína"),
        ("XYZ789", "ＸＹＺ７８９"),
        ("waffle", "wa\ufb04e"),
        ("photosynthesis", "photo\u00adsyn\u00adthesis"),
        ("database", "data\u200bbase"),
        ("database", "\ufeffdata\u2060base"),
        ("m2", "m²"),
        ("елка", "ёлка"),
        ("замок", "за\u0301мок"),
        ("שלום", "שָׁלוֹם"),
        ("كتاب", "كِتَاب"),
        ("كتاب", "كتـــاب"),
        ("کتابخانه", "کتاب\u200cخانه"),
        ("ガラス", "ｶﾞﾗｽ"),
    ],
)
@pytest.mark.parametrize("language", ["auto", None, "german"])
def test_forms_typed_alike_have_equal_terms(typed: str, written: str, language: str | None) -> None:
    analyzer = TermAnalyzer(language)

    assert analyzer.analyze(typed) == analyzer.analyze(written)


@pytest.mark.parametrize("word", ["чай", "їжак", "ўс", "हिन्दी", "คน", "ガ"])
def test_folding_keeps_letters_with_own_marks(word: str) -> None:
    assert fold_characters(word) == word


def test_name_with_sign_differs_from_name_without() -> None:
    texts = {
        "c": "the C language",
        "cpp": "the C++ language",
        "csharp": "the C# language",
        "net": "a fishing net in the language",
        "dotnet": "the .NET runtime language",
    }
    index = Bm25Index.build(list(texts.values()), list(texts))

    for query, document in [
        ("c", "c"),
        ("c++", "cpp"),
        ("Ｃ＋＋", "cpp"),
        ("C#", "csharp"),
        (".net", "dotnet"),
        ("fishing net", "net"),
    ]:
        assert index.search([query], 1)[0][0][0] == document, query


@pytest.mark.parametrize("sign", ["¥", "£", "$", "→", "≠", "🦆", "☎️", "👋🏽", "🇳🇴", "§", "&&", "™"])
def test_sign_finds_its_document(sign: str) -> None:
    texts = ["all about prices", f"all about {sign} prices", "all about words"]
    index = Bm25Index.build(texts, ["a", "b", "c"])

    assert [document for document, _ in index.search([sign], 3)[0]] == ["b"]


def test_emoji_is_found_in_any_skin_tone_and_composition() -> None:
    texts = ["👩🏿\u200d🌾 at work", "👋 hello"]
    index = Bm25Index.build(texts, ["farmer", "wave"])

    assert index.search(["🌾"], 1)[0][0][0] == "farmer"
    assert index.search(["👩\u200d🌾"], 1)[0][0][0] == "farmer"
    assert index.search(["👋🏻"], 1)[0][0][0] == "wave"


def test_punctuation_alone_is_no_term() -> None:
    assert TermAnalyzer("auto").analyze("??? ... -- !!! _ ' \u00ad \u200b") == []


def test_places_of_terms_are_those_of_the_original_text() -> None:
    text = "Größe in ｍｍ, photo\u00adgraphy 🦆 C++"
    located = TermAnalyzer("auto").locate(text)

    words = [text[start:end] for start, end, _ in located]

    assert words == ["Größe", "in", "ｍｍ", "photo\u00adgraphy", "🦆", "C++"]
    assert [terms[-1] for _, _, terms in located] == [
        "gross",
        "in",
        "mm",
        "photographi",
        "🦆",
        "c++",
    ]


def test_grouped_number_is_found_with_and_without_separators() -> None:
    texts = [
        "a toll of 12,500 crowns",
        "1.250.000 people",
        "12 boats and 500 oars",
        "version 3.11.2",
    ]
    index = Bm25Index.build(texts, ["toll", "people", "boats", "version"])

    assert index.search(["12500"], 1)[0][0][0] == "toll"
    assert index.search(["12,500"], 1)[0][0][0] == "toll"
    assert index.search(["1250000"], 1)[0][0][0] == "people"
    assert index.search(["500 oars"], 1)[0][0][0] == "boats"
    assert index.search(["3.11.2"], 1)[0][0][0] == "version"
