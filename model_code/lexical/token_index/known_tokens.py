"""Tokens that passages have from known queries, in addition to the tokens of their texts.

A known query is a query that a document is known to answer. Its tokens count as tokens of all
passages of the document, with a weight u. A token that the text of a passage contains as well
counts once, with weight 1. So the tokens of a document do not depend on other documents. Adding
documents one by one gives the same index as a rebuild.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from model_code.lexical.token_index.bags import TokenBags
from model_code.lexical.token_index.index import SparseIndex, TokenIndex
from model_code.lexical.token_index.postings import Sparse
from model_code.retrieval.bm25_known import KnownWords
from model_code.text.known_queries import KnownQuery, select_queries


@dataclass(frozen=True, eq=False)
class KnownTokens:
    """The tokens of known queries, and their weight.

    Known queries can change after they were indexed. The tokens of the changed passages are in a
    small index of their own, and those in the large index do not count. So a change costs as much
    as the changed documents, and not as much as the segment.

    Attributes:
        index: For each passage, the tokens that it has from known queries and not from its text.
        words: Weight of these tokens, and limits of the known queries of one document.
        changed: The same tokens of the passages whose known queries changed after indexing. None if
            nothing changed.
        changed_rows: Numbers of these passages in `index`, ascending, shape (p,).
    """

    index: TokenIndex
    words: KnownWords
    changed: TokenIndex | None = None
    changed_rows: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

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
        rows, bags_of_rows = _find_known_bags(known, texts, words, find_tokens)
        bags = [np.empty(0, np.int64)] * len(texts.ids)
        for row, bag in zip(rows.tolist(), bags_of_rows, strict=True):
            bags[row] = bag
        return cls(TokenIndex.build(bags, texts.ids), words)

    def change_queries(
        self,
        known: Mapping[str, Sequence[KnownQuery]],
        texts: TokenIndex,
        find_tokens: TokenBags,
    ) -> KnownTokens:
        """Return a copy in which the known queries of the given documents are replaced.

        Searches of the copy equal those of an index that `build` makes of all known queries.

        Args:
            known: All known queries of all documents whose queries changed after indexing, by
                document id.
            texts: Tokens of the passages.
            find_tokens: Finds the tokens of texts.
        """
        rows, bags = _find_known_bags(known, texts, self.words, find_tokens)
        if not len(rows):
            return KnownTokens(self.index, self.words)
        owners = [self.index.ids.document_ids[row] for row in rows.tolist()]
        return KnownTokens(self.index, self.words, TokenIndex.build(bags, owners), rows)

    def scores(self, queries: Sequence[Sparse]) -> Iterator[np.ndarray]:
        """Yield the sums of the query tokens' weights; see `SparseIndex.scores`."""
        if self.changed is None:
            yield from self.index.scores(queries)
            return
        changed_scores = self.changed.scores(queries)
        for scores, changed in zip(self.index.scores(queries), changed_scores, strict=True):
            scores[self.changed_rows] = changed
            yield scores

    def scores_at(self, query: Sparse, passages: np.ndarray) -> np.ndarray:
        """Return these sums for the given passages; see `SparseIndex.scores_at`."""
        scores = self.index.scores_at(query, passages)
        if self.changed is not None:
            is_changed = np.isin(passages, self.changed_rows)
            rows = np.searchsorted(self.changed_rows, passages[is_changed])
            scores[is_changed] = self.changed.scores_at(query, rows)
        return scores

    def matches_at(self, query: Sparse, passage: int) -> list[tuple[int, float]]:
        """Return the query tokens that a passage has from known queries, with their weights."""
        if self.changed is not None and passage in self.changed_rows:
            row = int(np.searchsorted(self.changed_rows, passage))
            return self.changed.matches_at(query, row)
        return self.index.matches_at(query, passage)


def _find_known_bags(
    known: Mapping[str, Sequence[KnownQuery]],
    texts: TokenIndex,
    words: KnownWords,
    find_tokens: TokenBags,
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Find the tokens that passages have from known queries and not from their texts.

    Args:
        known: Known queries by document id. Documents that are not in `texts` are left out.
        texts: Tokens of the passages.
        words: Limits of the known queries of one document.
        find_tokens: Finds the tokens of texts.

    Returns:
        Numbers (p,) of the passages of these documents, ascending, and the ascending tokens of
        each.
    """
    queries = select_queries(chain.from_iterable(known.values()), words.limits)
    query_bags = find_tokens([query.text for query in queries])
    bags_by_document: dict[str, list[np.ndarray]] = {}
    # End of each query's tokens among those of all queries.
    ends = np.cumsum(query_bags.lengths).tolist()
    start = 0
    for query, end in zip(queries, ends, strict=True):
        bag = query_bags.tokens[start:end]
        bags_by_document.setdefault(query.document_id, []).append(bag)
        start = end

    ids = texts.ids
    rows = np.sort(ids.rows_of([document_id for document_id in known if document_id in ids]))
    bags: list[np.ndarray] = []
    for row in rows.tolist():
        document_bags = bags_by_document.get(ids.document_ids[row], [])
        tokens = np.unique(np.concatenate([np.empty(0, np.int64), *document_bags]))
        # A token that the passage's text contains counts once, as a token of the text.
        bags.append(tokens[~texts.contains(tokens, row)])
    return rows, bags


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
        known_scores = self.known.scores(queries)
        for from_text, from_known in zip(text_scores, known_scores, strict=True):
            yield from_text + known_weight * from_known

    def scores_at(self, query: Sparse, passages: np.ndarray) -> np.ndarray:
        """Return the scores of the given passages; see `SparseIndex.scores_at`."""
        known_weight = self.known.words.weight
        from_text = self.texts.scores_at(query, passages)
        from_known = self.known.scores_at(query, passages)
        return from_text + known_weight * from_known

    def matches(self, query: Sparse, document_id: str) -> list[tuple[int, float]]:
        """Return the query tokens in the document's best passage; see `TokenIndex.matches`."""
        passage = self._best_row(query, document_id)
        matches = self.texts.matches_at(query, passage)
        for token, weight in self.known.matches_at(query, passage):
            matches.append((token, self.known.words.weight * weight))
        return sorted(matches, key=lambda match: (-match[1], match[0]))

    def known_tokens(self, query: Sparse, document_id: str) -> set[int]:
        """Return the query tokens that the document's best passage has only from known queries."""
        passage = self._best_row(query, document_id)
        return {token for token, _ in self.known.matches_at(query, passage)}

    def _best_row(self, query: Sparse, document_id: str) -> int:
        """Return the number of the document's best passage among all passages of the index."""
        best = self.best_passage(query, document_id)
        return int(self.ids.rows_of([document_id])[best])
