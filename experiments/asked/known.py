"""Known queries by the rules of the product: which are held out, which count, which protect.

A known query is a query that a document is known to answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from experiments.asked.data import Dataset
from model_code.incdsi.constraints import limit_queries
from model_code.text.known_queries import (
    KnownQuery,
    QuerySource,
    normalize_query,
    resolve_queries,
    select_queries,
)

KnownPair = tuple[int, int]
"""Number of a document, and row of a query that the document is known to answer."""


class QueryTexts:
    """The queries of a collection by their texts. Queries with equal normalised texts are equal.

    Args:
        dataset: The collection.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.texts = list(dataset.queries.values())
        self._row_of_text = {text: row for row, text in enumerate(self.texts)}

    @cached_property
    def normalized(self) -> dict[str, str]:
        """Normalised text of each query, by its id."""
        return {query: normalize_query(text) for query, text in self.dataset.queries.items()}

    @cached_property
    def numbers(self) -> np.ndarray:
        """A number (q,) for each query. Equal normalised texts have equal numbers."""
        number_of_text: dict[str, int] = {}
        numbers = []
        for text in self.normalized.values():
            numbers.append(number_of_text.setdefault(text, len(number_of_text)))
        return np.array(numbers, dtype=np.int64)

    def drop_held_out(self, known: Iterable[str], judging: Iterable[str]) -> list[str]:
        """Return the known queries whose text is not that of a query that judges.

        Args:
            known: Ids of known queries.
            judging: Ids of dev and test queries.
        """
        held_out = {self.normalized[query] for query in judging}
        return [query for query in known if self.normalized[query] not in held_out]

    def select(self, pairs: Sequence[KnownPair]) -> list[KnownPair]:
        """Return the known queries whose words count, within the limits of the product.

        Near-duplicates of one document count once.
        """
        return self._pairs(select_queries(self._known_queries(pairs)))

    def limit(self, pairs: Sequence[KnownPair]) -> list[KnownPair]:
        """Return the known queries that IncDSI protects, within the limit of the product."""
        answered = [
            (query.document_id, query.text) for query in resolve_queries(self._known_queries(pairs))
        ]
        number_of = self._number_of_document
        return [
            (number_of[document_id], self._row_of_text[text])
            for document_id, text in limit_queries(answered)
        ]

    @cached_property
    def _number_of_document(self) -> dict[str, int]:
        """Number of each document by its id."""
        return {document_id: number for number, document_id in enumerate(self.dataset.ids)}

    def _known_queries(self, pairs: Sequence[KnownPair]) -> list[KnownQuery]:
        """Return pairs in the form of the product."""
        ids = self.dataset.ids
        return [
            KnownQuery(ids[document], self.texts[row], QuerySource.QRELS) for document, row in pairs
        ]

    def _pairs(self, queries: Iterable[KnownQuery]) -> list[KnownPair]:
        """Return known queries of the product as pairs."""
        number_of = self._number_of_document
        return [(number_of[query.document_id], self._row_of_text[query.text]) for query in queries]
