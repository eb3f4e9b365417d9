"""Search for phrases, word for word, in many texts at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from model_code.text.words import split_words


def normalize_phrase(text: str) -> str:
    """Return the words of a text in lower case, joined by single spaces.

    Texts that differ only in case, punctuation or white space are the same phrase.

    >>> normalize_phrase("  Sort an *Array*, in-place!")
    'sort an array in place'
    """
    return " ".join(split_words(text.casefold()))


def documents_containing(phrases: Iterable[str], texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the documents that contain each phrase as a run of whole words.

    A phrase is looked for only in texts that contain its rarest word.

    Args:
        phrases: Phrases that `normalize_phrase` returned. No document contains an empty phrase.
        texts: Texts that `normalize_phrase` returned, by document id.

    Returns:
        Ids of the documents that contain each phrase.

    >>> documents_containing(["sort a"], {"d1": "sort a list", "d2": "sort all"})
    {'sort a': {'d1'}}
    """
    words_by_document = {document: set(text.split()) for document, text in texts.items()}
    # Number of documents that contain each word.
    frequency: Counter[str] = Counter()
    for words in words_by_document.values():
        frequency.update(words)

    containing: dict[str, set[str]] = {phrase: set() for phrase in phrases}
    phrases_by_rarest_word: dict[str, list[str]] = {}
    for phrase in containing:
        if phrase:
            rarest = min(phrase.split(), key=lambda word: (frequency[word], word))
            phrases_by_rarest_word.setdefault(rarest, []).append(phrase)

    for document, words in words_by_document.items():
        # With blanks around both, a phrase is found only as whole words.
        padded_text = f" {texts[document]} "
        for word in phrases_by_rarest_word.keys() & words:
            for phrase in phrases_by_rarest_word[word]:
                if f" {phrase} " in padded_text:
                    containing[phrase].add(document)
    return containing
