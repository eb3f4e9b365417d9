"""Tokens that passages have from known queries, in addition to the tokens of their texts.

A known query is a query that a document is known to answer. Its tokens count as tokens of all
passages of the document, with a weight u. A token that the text of a passage contains as well
counts once, with weight 1. So the tokens of a document do not depend on other documents. Adding
documents one by one gives the same index as a rebuild.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from model_code.lexical.token_index.bags import Bags, TokenBags
from model_code.lexical.token_index.index import SparseIndex, TokenIndex
from model_code.lexical.token_index.postings import Sparse
from model_code.retrieval.bm25_index import KnownWords
from model_code.text.known_queries import KnownQuery, select_queries


@dataclass(frozen=True, eq=False)
class KnownTokens:
    """The tokens of known queries, and their weight.

    Attributes:
        index: For each passage, the tokens that it has from known queries and not from its text.
        words: Weight of these tokens, and limits of the known queries of one document.
    """

    index: TokenIndex
    words: KnownWords

    @classmethod
    def build(
        cls,
        known: Mapping[str, Sequence[KnownQuery]],
        texts: TokenIndex,
        words: KnownWords,
        find_tokens: TokenBags,
    ) -> KnownTokens:
        """Index the tokens of known queries.

        Args:
            known: Known queries by document id.
            texts: Tokens of the passages.
            words: Weight of the tokens, and limits of the known queries of one document.
            find_tokens: Finds the tokens of texts.
        """
        no_tokens = Bags(np.empty(0, np.int64), np.zeros(len(texts.ids), np.int64))
        empty = cls(TokenIndex.build(no_tokens, texts.ids), words)
        return empty.change_queries(known, texts, find_tokens)

    def change_queries(
        self,
        known: Mapping[str, Sequence[KnownQuery]],
        texts: TokenIndex,
        find_tokens: TokenBags,
    ) -> KnownTokens:
        """Return a copy in which the known queries of the given documents are replaced.

        Args:
            known: All known queries of these documents after the change, by document id.
            texts: Tokens of the passages.
            find_tokens: Finds the tokens of texts.
        """
        ids = self.index.ids
        changed_ids = [document_id for document_id in known if document_id in ids]
        if not changed_ids:
            return self
        queries = select_queries(chain.from_iterable(known.values()), self.words.limits)
        query_bags = find_tokens([query.text for query in queries])
        bags_by_document: dict[str, list[np.ndarray]] = {}
        # End of each query's tokens among those of all queries.
        ends = np.cumsum(query_bags.lengths).tolist()
        start = 0
        for query, end in zip(queries, ends, strict=True):
            bag = query_bags.tokens[start:end]
            bags_by_document.setdefault(query.document_id, []).append(bag)
            start = end

        # The rows are the passages of the changed documents. Other passages keep their tokens.
        changed_rows = ids.rows_of(changed_ids)
        text_bags = texts.bags(changed_rows)
        bags = self.index.bags(np.arange(len(ids)))
        for row, text_bag in zip(changed_rows.tolist(), text_bags, strict=True):
            document_bags = bags_by_document.get(ids.document_ids[row], [])
            query_tokens = np.concatenate([np.empty(0, np.int64), *document_bags])
            # A token that the passage's text contains counts once, as a token of the text.
            bags[row] = np.setdiff1d(query_tokens, text_bag)
        return KnownTokens(TokenIndex.build(bags, ids), self.words)


class TokensWithKnown(SparseIndex):
    """A token index in which tokens of known queries count as tokens of their documents.

    The weights of text tokens and of known tokens are summed separately, and both sums are exact.
    So a score depends on the query and the passage only.
    """

    def __init__(self, texts: TokenIndex, known: KnownTokens) -> None:
        """Combine the tokens of passages with the tokens that they have from known queries."""
        self.texts = texts
        self.known = known
        self.ids = texts.ids

    def scores(self, queries: Sequence[Sparse]) -> Iterator[np.ndarray]:
        """Yield the scores of all passages; see `SparseIndex.scores`."""
        known_weight = self.known.words.weight
        text_scores = self.texts.scores(queries)
        known_scores = self.known.index.scores(queries)
        for from_text, from_known in zip(text_scores, known_scores, strict=True):
            yield from_text + known_weight * from_known

    def scores_at(self, query: Sparse, passages: np.ndarray) -> np.ndarray:
        """Return the scores of the given passages; see `SparseIndex.scores_at`."""
        known_weight = self.known.words.weight
        from_text = self.texts.scores_at(query, passages)
        from_known = self.known.index.scores_at(query, passages)
        return from_text + known_weight * from_known

    def matches(self, query: Sparse, document_id: str) -> list[tuple[int, float]]:
        """Return the query tokens in the document's best passage; see `TokenIndex.matches`."""
        passage = self._best_row(query, document_id)
        matches = self.texts.matches_at(query, passage)
        for token, weight in self.known.index.matches_at(query, passage):
            matches.append((token, self.known.words.weight * weight))
        return sorted(matches, key=lambda match: (-match[1], match[0]))

    def known_tokens(self, query: Sparse, document_id: str) -> set[int]:
        """Return the query tokens that the document's best passage has only from known queries."""
        passage = self._best_row(query, document_id)
        return {token for token, _ in self.known.index.matches_at(query, passage)}

    def _best_row(self, query: Sparse, document_id: str) -> int:
        """Return the number of the document's best passage among all passages of the index."""
        best = self.best_passage(query, document_id)
        return int(self.ids.rows_of([document_id])[best])
