"""Which passages hold an answer of a query, by their strings: false negatives of data sets that name answers.

Karpukhin et al. (2020), "Dense Passage Retrieval", and SVDR take a retrieved passage for a negative only if no answer
of the question is in it. Texts are compared as SQuAD's evaluation compares answers (Rajpurkar et al., 2016).
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
KEPT = 2**14  # passages whose words are at hand: a batch looks at some of them many times

Holds = Callable[[int], bool]


def normalised(text: str) -> str:
    """In lower case, without ASCII punctuation and English articles, words apart by single blanks.

    >>> normalised("The U.S.,  in 1969;\\na man's step")
    'us in 1969 mans step'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


class Answers:
    """Looks for the answers of queries, as runs of whole words, in those passages only that it is asked about."""

    def __init__(self, texts: Sequence[str], answers: Mapping[str, Sequence[str]]) -> None:
        """texts: of all passages; answers: the text of a query -> strings that answer it."""
        self.texts, self.answers = texts, answers
        self._words = lru_cache(maxsize=KEPT)(self._words_of)

    def of(self, query: str) -> Holds | None:
        """Whether a passage holds an answer of the query; None if the query has no answer to look for.

        An answer of nothing but punctuation and articles cannot be looked for.

        >>> holds = Answers(["In 1969, a man", "69 men"], {"when": ["69"]}).of("when")
        >>> holds(0), holds(1)
        (False, True)
        """
        wanted = [f" {words} " for answer in self.answers.get(query, ()) if (words := normalised(answer))]
        if not wanted:
            return None
        return lambda passage: any(answer in self._words(passage) for answer in wanted)

    def held(self, queries: Sequence[str], passages: np.ndarray) -> np.ndarray:
        """Which of m passages hold an answer of which of n queries: (n, m) bool."""
        found = np.zeros((len(queries), len(passages)), dtype=bool)
        for row, query in enumerate(queries):
            if (holds := self.of(query)) is not None:
                found[row] = [holds(passage) for passage in passages.tolist()]
        return found

    def _words_of(self, passage: int) -> str:
        return f" {normalised(self.texts[passage])} "
