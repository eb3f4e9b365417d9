"""The ways to search with a lexical encoder: which side is learned weights, and which is tokens.

| name | query | passage | needs |
|---|---|---|---|
| full | E(q) | E(p) | embeddings of all passages |
| alpha | T(q) | E(p) | the same, but no encoder for the query: as fast as term search |
| beta | E(q) | T(p) | the token index alone, built by the tokenizer |
| beta_own | E(q) on its own tokens | T(p) | the same |
| beta_rerank | E(q) | T(p), then E(p) of the best | the same, and embeddings of those few |

(Zhou et al., Semi-Parametric Retrieval via Binary Token Index, section 5; beta_own is ours.)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache

import numpy as np

from model_code.errors import FreshetError
from model_code.lexical.embedding_index import EmbeddingIndex
from model_code.lexical.encoder import LexicalEncoder
from model_code.lexical.passages import PassagesOnTheFly
from model_code.lexical.settings import MainSearch
from model_code.lexical.vocabulary import Sparse
from model_code.retriever import Ranking
from model_code.token_index.index import TokenIndex

NAMES: tuple[MainSearch, ...] = ("full", "alpha", "beta", "beta_own", "beta_rerank")
BY_TOKENS: tuple[MainSearch, ...] = ("beta", "beta_own")
QUERIES_KEPT = 16  # whose hits are explained one by one


class Searches:
    """Every search of one encoder over one corpus.

    tokens: of the passages, in the order of `passages`; passages: their embeddings, indexed or made on the fly, or None
    where only the token index is searched. rerank_depth: documents of beta that "beta_rerank" ranks again.
    """

    def __init__(
        self,
        encoder: LexicalEncoder,
        tokens: TokenIndex,
        passages: EmbeddingIndex | PassagesOnTheFly | None,
        rerank_depth: int,
    ) -> None:
        self.encoder, self.tokens, self.passages, self.rerank_depth = encoder, tokens, passages, rerank_depth
        self.fingerprint = encoder.fingerprint()
        self._query = lru_cache(QUERIES_KEPT)(lambda name, text: self.queries(name, [text])[0])

    @property
    def names(self) -> list[MainSearch]:
        """The searches that these indexes allow."""
        if self.passages is None:
            return list(BY_TOKENS)
        indexed = isinstance(self.passages, EmbeddingIndex)
        return [name for name in NAMES if indexed or name not in ("full", "alpha")]

    def queries(self, name: MainSearch, texts: Sequence[str]) -> list[Sparse]:
        """The query side of a search."""
        if name == "alpha":
            return [(bag, np.ones(len(bag), np.float32)) for bag in self.encoder.bags(texts)]
        return self.encoder.encode_own(texts) if name == "beta_own" else self.encoder.encode_queries(texts)

    def search(
        self, name: MainSearch, texts: Sequence[str], k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """The k best documents for each text, best first; documents that share no entry with it are left out."""
        return self.find(name, self.queries(name, texts), k, allowed)

    def find(
        self, name: MainSearch, queries: list[Sparse], k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """`search` for what `queries` gives."""
        if name in BY_TOKENS:
            return self.tokens.search(queries, k, self.tokens.fingerprint, allowed)
        if name == "beta_rerank":
            found = self.tokens.search(queries, max(k, self.rerank_depth), self.tokens.fingerprint, allowed)
            candidates = [[document for document, _ in ranking] for ranking in found]
            return [ranking[:k] for ranking in self._embedded.rank(queries, candidates, self.fingerprint)]
        index = self._embedded
        if not isinstance(index, EmbeddingIndex):
            raise FreshetError(f"search {name!r} reads the embeddings of all passages; build the index with embeddings")
        return index.search(queries, k, self.fingerprint, allowed)

    def rank(self, name: MainSearch, texts: Sequence[str], candidates: Sequence[Collection[str]]) -> list[Ranking]:
        """Each text's candidates, all of them, scored and sorted as `search` does."""
        queries = self.queries(name, texts)
        if name in BY_TOKENS:
            return self.tokens.rank(queries, candidates, self.tokens.fingerprint)
        return self._embedded.rank(queries, candidates, self.fingerprint)

    def best_passage(self, name: MainSearch, text: str, document_id: str) -> int:
        """Which of the document's passages (0, 1, ...) scores highest; the first of equals."""
        query = self._query(name, text)
        if name in BY_TOKENS:
            return self.tokens.best_passage(query, document_id, self.tokens.fingerprint)
        return int(np.argmax(self._embedded.scores_at(query, self._embedded.ids.rows_of([document_id]))))

    def matches(self, name: MainSearch, text: str, document_id: str) -> list[tuple[int, float]]:
        """What each token adds to the score of the document's best passage, where it adds anything; heaviest first."""
        query = self._query(name, text)
        if name in BY_TOKENS:
            return self.tokens.matches(query, document_id, self.tokens.fingerprint)
        rows = self._embedded.ids.rows_of([document_id])
        parts = self._embedded.parts(query, int(rows[np.argmax(self._embedded.scores_at(query, rows))]))
        found = zip(query[0][parts > 0].tolist(), parts[parts > 0].tolist(), strict=True)
        return sorted(found, key=lambda match: (-match[1], match[0]))

    @property
    def _embedded(self) -> EmbeddingIndex | PassagesOnTheFly:
        if self.passages is None:
            raise FreshetError("this search reads embeddings of passages, and there are none; build an index with them")
        return self.passages
