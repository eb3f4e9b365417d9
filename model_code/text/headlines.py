"""The headline of a document: its title in plain words, with its first sentence.

People ask for a thing by its name or its purpose. In a long passage, details outweigh both in the
passage's vector. So fusions search a vector of the headline as well as the passages.
"""

from __future__ import annotations

import re

from model_code.text.words import (
    SENTENCE_BOUNDARY,
    join_words,
    split_first_sentence,
    word_matches,
    word_spans,
)

MAX_HEADLINE_WORDS = 60
"""Largest number of words of the first sentence that a headline keeps."""

# Signs between the parts of an identifier or a path: numpy.linalg.solve, read_csv, notes/oak-tree.
_IDENTIFIER_SIGNS = re.compile(r"(?<=[^\W_])[._/\\:-]+(?=[^\W\d_])|_+")

# Markup at the start of a line: headings, list items and quotations.
_LINE_MARKUP = re.compile(r"^[#>*+\s-]+")


def readable_title(title: str) -> str:
    """Return a title in which identifiers and paths are split into words.

    >>> readable_title("numpy.linalg.solve"), readable_title("The U.S. in 1.5 pages")
    ('numpy linalg solve', 'The U S. in 1.5 pages')
    """
    return " ".join(_IDENTIFIER_SIGNS.sub(" ", title).split())


def make_headline(title: str, text: str) -> str:
    """Return the readable title and the first sentence of a text.

    Args:
        title: Title of the document; it may be empty.
        text: Text of the document. Lines without a word are skipped.

    >>> make_headline("numpy.linalg.solve", "Solve a linear equation.\\n\\nMore.")
    'numpy linalg solve. Solve a linear equation.'
    >>> make_headline("", "----\\n# Oak trees")
    'Oak trees'
    """
    sentence, _ = split_first_sentence(text[_start_of_first_words(text) :])
    sentence = _LINE_MARKUP.sub("", sentence)
    spans = word_spans(sentence)
    sentence = join_words(sentence, spans, 0, min(len(spans), MAX_HEADLINE_WORDS))
    readable = readable_title(title)
    if not readable:
        return sentence
    if not sentence:
        return readable
    return f"{readable}. {sentence}"


def _start_of_first_words(text: str) -> int:
    """Return the position of the first sentence with a word; of the last one if none has a word."""
    first_word = next(word_matches(text), None)
    end = len(text.rstrip()) if first_word is None else first_word.start() + 1
    start = 0
    for boundary in SENTENCE_BOUNDARY.finditer(text, 0, end):
        # A boundary may have no characters, and the last one may end the text.
        if boundary.end() < end:
            start = boundary.end()
    return start
