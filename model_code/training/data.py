"""Training data: passages, and pairs of a query and a passage that answers it.

Judgements refer to documents, but training needs passages. A pair therefore uses the passage of the
relevant document that shares most words with the query, or the first of several such passages.
Search ranks a document by its best passage, so this passage should move closer to the query. A
pseudo-query that was cut out of its document shares most words with the passage around it.
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
# Number of passages whose normalised words are cached, because batches check some passages often.
MAX_CACHED_PASSAGES = 2**14

ContainsAnswer = Callable[[int], bool]
"""A function from the number of a passage to whether it contains an answer of one query."""


@dataclass(frozen=True, eq=False)
class Passages:
    """The N passages of the corpus.

    Attributes:
        texts: Text of each passage.
        documents: Number of each passage's document, (N,) int64, from 0 without gaps.
    """

    texts: Sequence[str]
    documents: np.ndarray

    @cached_property
    def _order(self) -> np.ndarray:
        """All passages (N,), grouped by document."""
        return np.argsort(self.documents, kind="stable")

    @cached_property
    def _starts(self) -> np.ndarray:
        """Start of each document's passages in `_order`, followed by N."""
        return np.concatenate([[0], np.cumsum(np.bincount(self.documents))])

    def of(self, document: int) -> np.ndarray:
        """Return the passages of a document, ascending.

        >>> Passages(["a", "b", "c"], np.array([0, 1, 0])).of(0).tolist()
        [0, 2]
        """
        return self._order[self._starts[document] : self._starts[document + 1]]

    def of_all(self, documents: Collection[int]) -> np.ndarray:
        """Return the passages of one or more documents, by ascending document number."""
        return np.concatenate([self.of(document) for document in sorted(documents)])

    def best(self, document: int, query: str) -> int:
        """Return the passage of a document that shares most words with a query.

        Of several such passages, the first is returned.

        >>> passages = Passages(["sort a list", "open a file"], np.array([0, 0]))
        >>> passages.best(0, "opening and closing a file")
        1
        """
        candidates = self.of(document)
        if len(candidates) == 1:
            return int(candidates[0])

        query_words = _words(query)

        def count_shared_words(passage: int) -> int:
            return len(query_words & _words(self.texts[passage]))

        # Passages that share equally many words are ordered, and `max` returns the first of them.
        return int(max(candidates, key=count_shared_words))


@dataclass(frozen=True, eq=False)
class Pairs:
    """n training pairs.

    Attributes:
        queries: Text of each pair's query.
        passages: Number of each pair's passage, (n,) int64.
        relevant: Numbers of the documents that are known to answer each pair's query.
        answers: Strings that answer a query, by the text of the query. Pseudo-queries have none.
    """

    queries: Sequence[str]
    passages: np.ndarray
    relevant: Sequence[frozenset[int]]
    answers: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.queries)


def make_pairs(passages: Passages, judgements: Iterable[tuple[str, Sequence[int]]]) -> Pairs:
    """Make one pair per query and relevant document, in the given order.

    Args:
        passages: The searched passages.
        judgements: Query texts, each with the numbers of its relevant documents.

    >>> corpus = Passages(["sort a list", "open a file"], np.array([0, 1]))
    >>> pairs = make_pairs(corpus, [("ordering", [0]), ("files", [1]), ("ordering", [1])])
    >>> pairs.passages.tolist()
    [0, 1, 1]
    >>> [sorted(documents) for documents in pairs.relevant]
    [[0], [1], [1]]
    >>> both = TrainingData(corpus, pairs, pairs).pairs
    >>> [sorted(documents) for documents in both.relevant]
    [[0, 1], [1], [0, 1], [0, 1], [1], [0, 1]]
    """
    queries: list[str] = []
    best_passages: list[int] = []
    relevant: list[frozenset[int]] = []
    for query, documents in judgements:
        answering = frozenset(documents)
        for document in documents:
            queries.append(query)
            best_passages.append(passages.best(document, query))
            relevant.append(answering)
    return Pairs(queries, np.array(best_passages, dtype=np.int64), relevant)


@dataclass(frozen=True, eq=False)
class TrainingData:
    """The passages and both kinds of training pairs. One kind may have no pairs.

    Attributes:
        passages: The searched passages.
        supervised: Pairs of a judged query with a passage of a relevant document.
        unsupervised: Pairs of a generated query with the passage that it was made from.
    """

    passages: Passages
    supervised: Pairs
    unsupervised: Pairs

    @cached_property
    def pairs(self) -> Pairs:
        """The supervised pairs, followed by the unsupervised pairs.

        Pairs are numbered through both kinds. Queries with equal texts count as one query, whose
        relevant documents are those of all its pairs.
        """
        queries = [*self.supervised.queries, *self.unsupervised.queries]
        passages = np.concatenate([self.supervised.passages, self.unsupervised.passages])

        documents_by_query: dict[str, frozenset[int]] = {}
        all_relevant = [*self.supervised.relevant, *self.unsupervised.relevant]
        for query, documents in zip(queries, all_relevant, strict=True):
            documents_by_query[query] = documents_by_query.get(query, frozenset()) | documents

        relevant = [documents_by_query[query] for query in queries]
        answers = dict(self.unsupervised.answers)
        answers.update(self.supervised.answers)
        return Pairs(queries, passages, relevant, answers)

    @cached_property
    def answers(self) -> Answers:
        """A search that tells whether a passage contains an answer of a query."""
        return Answers(self.passages.texts, self.pairs.answers)


def squad_form(text: str) -> str:
    """Normalise a text like SQuAD's evaluation: lower case, no ASCII punctuation, no articles.

    >>> squad_form("The U.S.,  in 1969;\\na man's step")
    'us in 1969 mans step'
    """
    without_punctuation = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", without_punctuation).split())


class Answers:
    """A search for the answers of queries in passages, as runs of whole words.

    A passage that contains an answer is not used as a negative, as in Karpukhin et al. (2020),
    "Dense Passage Retrieval", and in SVDR. Texts are normalised like answers in SQuAD's evaluation
    (Rajpurkar et al. 2016). A passage is normalised when it is first checked.

    Args:
        texts: Texts of all passages.
        answers: Strings that answer a query, by the text of the query.
    """

    def __init__(self, texts: Sequence[str], answers: Mapping[str, Sequence[str]]) -> None:
        self.texts = texts
        self.answers = answers
        self._words = lru_cache(maxsize=MAX_CACHED_PASSAGES)(self._words_of)

    def of(self, query: str) -> ContainsAnswer | None:
        """Return a function that checks whether a passage contains an answer of the query.

        It is None if the query has no answers, or only answers of punctuation and articles.

        >>> contains_answer = Answers(["In 1969, a man", "69 men"], {"when": ["69"]}).of("when")
        >>> contains_answer(0), contains_answer(1)
        (False, True)
        """
        normalized = [squad_form(answer) for answer in self.answers.get(query, ())]
        # With a blank on both sides, an answer is found as whole words only.
        padded = [f" {words} " for words in normalized if words]
        if not padded:
            return None

        def contains_answer(passage: int) -> bool:
            return any(answer in self._words(passage) for answer in padded)

        return contains_answer

    def _words_of(self, passage: int) -> str:
        """Return the normalised words of a passage, with a blank before and after each word."""
        return f" {squad_form(self.texts[passage])} "


def _words(text: str) -> set[str]:
    return set(WORD.findall(text.lower()))
