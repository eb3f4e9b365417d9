"""What an encoder is trained on: passages, and pairs of a query and a passage that answers it.

Judgements are per document, training is per passage. A pair takes the passage of its document that
shares most of the query's words (the first of equals): search ranks a document by its best passage,
so that is the one to bring closer. For a pseudo-query cut from a document it is the passage that it
was cut from.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

WORD = re.compile(r"\w+")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
MAX_CACHED_PASSAGES = (
    2**14
)  # passages whose words are at hand: a batch looks at some of them many times

ContainsAnswer = Callable[[int], bool]


@dataclass(frozen=True, eq=False)
class Passages:
    """The corpus that is searched: N passages, each of a document."""

    texts: Sequence[str]
    documents: np.ndarray  # (N,) int64, the number of each passage's document, from 0 without gaps

    @cached_property
    def _order(self) -> np.ndarray:
        return np.argsort(self.documents, kind="stable")

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(np.bincount(self.documents))])

    def of(self, document: int) -> np.ndarray:
        """The passages of a document, ascending.

        >>> Passages(["a", "b", "c"], np.array([0, 1, 0])).of(0).tolist()
        [0, 2]
        """
        return self._order[self._starts[document] : self._starts[document + 1]]

    def of_all(self, documents: Collection[int]) -> np.ndarray:
        """The passages of at least one document, document after document."""
        return np.concatenate([self.of(document) for document in sorted(documents)])

    def best(self, document: int, query: str) -> int:
        """The passage of a document that shares most words with a query, the first of equals.

        >>> Passages(["sort a list", "open a file"], np.array([0, 0])).best(0, "opening and closing a file")
        1
        """
        candidates = self.of(document)
        if len(candidates) == 1:
            return int(candidates[0])
        words = _words(query)
        return int(
            max(
                candidates, key=lambda passage: (len(words & _words(self.texts[passage])), -passage)
            )
        )


@dataclass(frozen=True, eq=False)
class Pairs:
    """n training pairs: the texts of the queries, the passage of each, and the documents known to
    answer each query.

    `answers` are strings that answer a query, where the data has them; pseudo-queries have none.
    """

    queries: Sequence[str]
    passages: np.ndarray  # (n,) int64, passage numbers
    relevant: Sequence[frozenset[int]]  # document numbers
    answers: Mapping[str, Sequence[str]] = field(default_factory=dict)  # text of a query -> strings

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.queries)


def make_pairs(passages: Passages, judgements: Iterable[tuple[str, Sequence[int]]]) -> Pairs:
    """One pair per query and relevant document, from (query text, relevant document numbers) in the
    order given.

    >>> corpus = Passages(["sort a list", "open a file"], np.array([0, 1]))
    >>> pairs = make_pairs(corpus, [("ordering", [0]), ("files", [1]), ("ordering", [1])])
    >>> pairs.passages.tolist(), [sorted(documents) for documents in TrainingData(corpus, pairs, pairs).pairs.relevant]
    ([0, 1, 1], [[0, 1], [1], [0, 1], [0, 1], [1], [0, 1]])
    """
    rows = [
        (query, document, frozenset(documents))
        for query, documents in judgements
        for document in documents
    ]
    best = [passages.best(document, query) for query, document, _ in rows]
    return Pairs(
        [query for query, *_ in rows],
        np.array(best, dtype=np.int64),
        [relevant for *_, relevant in rows],
    )


@dataclass(frozen=True, eq=False)
class TrainingData:
    """All that a trainer reads: the passages and the two kinds of pairs, either of which may be
    empty.
    """

    passages: Passages
    supervised: Pairs
    unsupervised: Pairs

    @cached_property
    def pairs(self) -> Pairs:
        """The supervised pairs, then the unsupervised ones: pair numbers count through both.

        Queries of equal text are one query: what is relevant to either is relevant to both.
        """
        queries = [*self.supervised.queries, *self.unsupervised.queries]
        passages = np.concatenate([self.supervised.passages, self.unsupervised.passages])
        by_query: dict[str, frozenset[int]] = {}
        for query, documents in zip(
            queries, [*self.supervised.relevant, *self.unsupervised.relevant], strict=True
        ):
            by_query[query] = by_query.get(query, frozenset()) | documents
        relevant = [by_query[query] for query in queries]
        answers = {**self.unsupervised.answers, **self.supervised.answers}
        return Pairs(queries, passages, relevant, answers)

    @cached_property
    def answers(self) -> Answers:
        """Which passages hold an answer of a query, as far as their strings tell."""
        return Answers(self.passages.texts, self.pairs.answers)


def squad_form(text: str) -> str:
    """In lower case, without ASCII punctuation and English articles, words apart by single blanks.

    >>> squad_form("The U.S.,  in 1969;\\na man's step")
    'us in 1969 mans step'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


class Answers:
    """A search for the answers of queries, as runs of whole words, in those passages only that it
    is asked about.

    Karpukhin et al. (2020), "Dense Passage Retrieval", and SVDR take a retrieved passage for a
    negative only if no answer of the question is in it. Texts are compared as SQuAD's evaluation
    compares answers (Rajpurkar et al., 2016).
    """

    def __init__(self, texts: Sequence[str], answers: Mapping[str, Sequence[str]]) -> None:
        """texts: of all passages; answers: the text of a query -> strings that answer it."""
        self.texts, self.answers = texts, answers
        self._words = lru_cache(maxsize=MAX_CACHED_PASSAGES)(self._words_of)

    def of(self, query: str) -> ContainsAnswer | None:
        """Whether a passage holds an answer of the query; None if the query has no answer to look
        for.

        An answer of nothing but punctuation and articles cannot be looked for.

        >>> holds = Answers(["In 1969, a man", "69 men"], {"when": ["69"]}).of("when")
        >>> holds(0), holds(1)
        (False, True)
        """
        answers = [
            f" {words} " for answer in self.answers.get(query, ()) if (words := squad_form(answer))
        ]
        if not answers:
            return None
        return lambda passage: any(answer in self._words(passage) for answer in answers)

    def _words_of(self, passage: int) -> str:
        return f" {squad_form(self.texts[passage])} "


def _words(text: str) -> set[str]:
    return set(WORD.findall(text.lower()))
