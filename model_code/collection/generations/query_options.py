"""Options of a search beside its text, and the order that they put its documents in.

`sort`, `group_by`, `boost` and `facets` look at the `window` best documents of the ranking. A
semantic retriever ranks every document, so an order of all of them would say nothing about the
query.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from model_code.collection.generations.boosts import Boost, parse_boosts
from model_code.collection.segments.conditions import FieldValue, Filters
from model_code.retrieval.protocol import Ranking
from model_code.settings import require

DEFAULT_WINDOW = 100
MAX_WINDOW = 1000

FieldReader = Callable[[str, Sequence[str]], Sequence[Sequence[FieldValue]]]
"""(field, document ids) -> the values that each document has in the field."""

SortKey = tuple[int, Any]
"""Order of the value's type, and the value."""


@dataclass(frozen=True)
class QueryOptions:
    """Options of a search.

    Attributes:
        k: Number of hits of a page.
        filters: Conditions on fields; see `model_code.collection.segments.conditions`.
        explain: Whether to add to each hit what its score is made of.
        offset: Number of hits to skip.
        window: Number of best documents that are sorted, grouped, boosted and counted.
        sort: Fields to sort by; a leading "-" sorts descending. Documents without a value come
            last. Without fields, hits are ordered by their scores.
        group_by: Field of which only the best document per value is returned. Documents without a
            value are all returned.
        facets: Fields whose values are counted.
        boost: Fields that raise scores; see `model_code.collection.generations.boosts`.
        syntax: Whether phrases, excluded words and words of the title are conditions; see
            `model_code.text.query_syntax`. Otherwise they are text.
        typos: Whether one typo is tolerated in longer words that no document contains.
        prefix: Whether the last word may be unfinished.
        floor: Whether hits are compared with the relevance floor.
        min_score: Lowest score of a hit. None: no limit.
        diversity: How much similar documents are moved down, from 0 (not at all) to 1; see
            `model_code.retrieval.diversity`.
        rerank: Whether the best documents are reranked, if the project has a reranker.

    Raises:
        SettingsError: If a value is out of range, or a boost is malformed.
    """

    k: int = 10
    filters: Filters = ()
    explain: bool = False
    offset: int = 0
    window: int = DEFAULT_WINDOW
    sort: Sequence[str] = ()
    group_by: str | None = None
    facets: Sequence[str] = ()
    boost: Mapping[str, Any] | Sequence[str] = ()
    syntax: bool = True
    typos: bool = True
    prefix: bool = False
    floor: bool = True
    min_score: float | None = None
    diversity: float = 0.0
    rerank: bool = True
    boosts: tuple[Boost, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Check the values, and parse the boosts."""
        require(self.k >= 1, f"k is {self.k}, but a page has at least one hit")
        require(self.offset >= 0, f"offset is {self.offset}, but it must not be negative")
        require(
            1 <= self.window <= MAX_WINDOW,
            f"window is {self.window}, but it must be between 1 and {MAX_WINDOW}",
        )
        for name, values in (("sort", self.sort), ("facets", self.facets)):
            require(
                not isinstance(values, str),
                f"{name} is the text {values!r}, but it must be a list of fields",
            )
        require(
            0 <= self.diversity <= 1,
            f"diversity is {self.diversity}, but it must be between 0 and 1",
        )
        require(
            self.min_score is None or math.isfinite(self.min_score),
            f"min_score is {self.min_score}, but it must be a finite number",
        )
        object.__setattr__(self, "boosts", parse_boosts(self.boost))

    @property
    def reorders(self) -> bool:
        """Whether the window is put in another order than that of the ranking."""
        reorders_by_fields = self.sort or self.boosts or self.group_by is not None
        return bool(reorders_by_fields or self.diversity)

    @property
    def depth(self) -> int:
        """Number of documents that the retriever has to rank."""
        last = self.offset + self.k
        if self.reorders:
            return self.window
        return max(last, self.window) if self.facets else last

    def fields(self) -> list[str]:
        """Return the fields that must be known."""
        names = [name.removeprefix("-") for name in self.sort]
        names.extend(self.facets)
        names.extend(boost.field for boost in self.boosts)
        if self.group_by is not None:
            names.append(self.group_by)
        return names


def sort_ranking(ranking: Ranking, sort: Sequence[str], read: FieldReader) -> Ranking:
    """Return the documents of a ranking, sorted by fields; equal ones keep their order.

    Of several values of a document, the least counts, or the greatest if descending.
    """
    ordered = list(ranking)
    # Python's sort is stable, so the last field is sorted by first.
    for name in reversed(sort):
        is_descending = name.startswith("-")
        ids = [document_id for document_id, _ in ordered]
        values = read(name.removeprefix("-"), ids)
        with_value: list[tuple[SortKey, tuple[str, float]]] = []
        without_value: Ranking = []
        for entry, entry_values in zip(ordered, values, strict=True):
            keys = [_sort_key(value) for value in entry_values]
            if keys:
                with_value.append((max(keys) if is_descending else min(keys), entry))
            else:
                without_value.append(entry)
        with_value.sort(key=lambda pair: pair[0], reverse=is_descending)
        ordered = [entry for _, entry in with_value]
        ordered.extend(without_value)
    return ordered


def _sort_key(value: FieldValue) -> SortKey:
    """Return a key that orders values of all types: numbers, dates, texts, false and true."""
    if value.number is not None:
        return 0, value.number
    if value.instant is not None:
        return 1, value.instant
    if isinstance(value.value, str):
        return 2, (value.value.casefold(), value.value)
    return 3, value.value


def group_ranking(ranking: Ranking, group_by: str, read: FieldReader) -> Ranking:
    """Return the first document of each value of a field. A document counts by its first value.

    Documents without a value are all kept.
    """
    values = read(group_by, [document_id for document_id, _ in ranking])
    seen: set[FieldValue] = set()
    kept: Ranking = []
    for entry, entry_values in zip(ranking, values, strict=True):
        if entry_values:
            if entry_values[0] in seen:
                continue
            seen.add(entry_values[0])
        kept.append(entry)
    return kept


def count_facets(
    document_ids: Sequence[str], facets: Sequence[str], read: FieldReader, limit: int
) -> dict[str, dict[str, int]]:
    """Count the documents with each value of some fields.

    Args:
        document_ids: Documents to count.
        facets: The fields.
        read: Reads values.
        limit: Largest number of values of a field; the most frequent ones are returned.

    Returns:
        By field and value, as text, the number of documents, the most frequent first.
    """
    counts: dict[str, dict[str, int]] = {}
    for name in facets:
        by_value: dict[str, int] = {}
        for values in read(name, document_ids):
            for text in {value.text for value in values}:
                by_value[text] = by_value.get(text, 0) + 1
        most_frequent = sorted(by_value, key=lambda text: (-by_value[text], text))[:limit]
        counts[name] = {text: by_value[text] for text in most_frequent}
    return counts
