"""BM25 by bm25s: the lexical baseline, over the same passage texts that an encoder sees.

Robertson and Zaragoza (2009), The Probabilistic Relevance Framework, with Lucene's idf. A passage d scores the
sum over query terms t of log(1 + (N - n_t + .5) / (n_t + .5)) * f(t, d) / (f(t, d) + k1 (1 - b + b |d| / mean |d|)),
where t is in n_t of N passages, and f(t, d) times in d.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from model_code.index.settings import Bm25Settings
from model_code.index.top_k import top_k
from model_code.retriever import Ranking

DEFAULTS = Bm25Settings()
TERM = r"[^\W_]+"  # letters and digits: snake_case is two words, and one letter is one (-l)


class Bm25:
    """A BM25 index over passages; documents are ranked by their best passage.

    >>> index = Bm25(["the cat sat", "dogs ran away", "a cat and a cat"], ["a", "b", "c"])
    >>> [document for document, _ in index.search(["cat"], k=3)[0]]
    ['c', 'a']
    """

    def __init__(self, texts: Sequence[str], document_ids: Sequence[str], settings: Bm25Settings = DEFAULTS) -> None:
        """Index `texts` (n), passage i of document `document_ids[i]`."""
        import bm25s

        self.document_ids, self.settings = np.array(document_ids, dtype=object), settings
        self._index = bm25s.BM25(k1=settings.k1, b=settings.b, method="lucene")
        terms = self._terms(texts)
        self._known = {term for passage in terms for term in passage}
        if self._known:  # bm25s cannot index passages without a single term between them
            self._index.index(terms, show_progress=False)

    def search(self, texts: Sequence[str], k: int, allowed: Collection[str] | None = None) -> list[Ranking]:
        """The k best documents for each query, best first, of `allowed` ones only, unless None.

        Documents that share no term with a query are left out.
        """
        kept = None if allowed is None else frozenset(allowed)
        mask = True if kept is None else np.array([document in kept for document in self.document_ids], dtype=bool)
        return [self._search_one(terms, k, mask) for terms in self._terms(texts)]

    def scores(self, text: str) -> np.ndarray:
        """The score of every passage for one query: (n,) float32, 0 where no term is shared."""
        return self._scores(self._terms([text])[0])

    def _search_one(self, terms: list[str], k: int, mask: np.ndarray | bool) -> Ranking:
        scores = self._scores(terms)
        rows = np.flatnonzero((scores > 0) & mask)
        return top_k(scores[rows], self.document_ids[rows], k) if len(rows) else []

    def _scores(self, terms: list[str]) -> np.ndarray:
        known = [term for term in terms if term in self._known]
        if not known:
            return np.zeros(len(self.document_ids), dtype=np.float32)
        return self._index.get_scores(known)

    def terms(self, text: str) -> list[str]:
        """What of a text is searched, in its order."""
        return self._terms([text])[0]

    def _terms(self, texts: Sequence[str]) -> list[list[str]]:
        import bm25s

        stopwords = self.settings.stopwords
        return bm25s.tokenize(
            list(texts), stopwords=stopwords, token_pattern=TERM, return_ids=False, show_progress=False
        )
