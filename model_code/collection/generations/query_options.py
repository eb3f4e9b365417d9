"""Options of a search, and functions that sort, group and count its documents.

Sorting, grouping, boosts and facets use only the window, the best documents of the ranking. A dense
retriever ranks every document. If all of them were sorted by a field, the first hits would have
nothing to do with the query.
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
from model_code.text.folding import fold_characters, fold_letters

# Number of best documents in the window, by default and at most.
DEFAULT_WINDOW = 100
MAX_WINDOW = 1000

FieldReader = Callable[[str, Sequence[str]], Sequence[Sequence[FieldValue]]]
"""Function that takes a field and document ids, and returns the values of each document."""

SortKey = tuple[int, Any]
"""Number of the value's type, which decides first, and the value."""


@dataclass(frozen=True)
class QueryOptions:
    """Options of a search.

    Attributes:
        k: Number of hits on a page.
        filters: Conditions on fields; see `model_code.collection.segments.conditions`.
        explain: Whether to add to each hit the parts that its score consists of.
        offset: Number of hits to skip.
        window: Number of best documents that are sorted, grouped, boosted and counted.
        sort: Fields to sort by. A leading "-" sorts descending. Documents without a value come
            last. Without fields, hits are sorted by their scores.
        group_by: Field to group by. Only the best document of each value is returned. All documents
            without a value are returned.
        facets: Fields whose values are counted.
        boost: Fields that raise scores; see `model_code.collection.generations.boosts`.
        syntax: Whether phrases, excluded words and words of the title are conditions; see
            `model_code.text.query_syntax`. If False, they are searched as text.
        typos: Whether one typo is tolerated in longer words that no document contains.
        prefix: Whether the last word may be unfinished.
        floor: Whether to mark hits that fit the query so little that they are probably no answers.
        min_score: Lowest score of a hit. None sets no limit.
        diversity: How far similar documents move down, from 0 (not at all) to 1; see
            `model_code.retrieval.diversity`.
        rerank: Whether the best documents are reranked, if the project has a reranker.
        boosts: The parsed `boost`.

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
            self.group_by is None or isinstance(self.group_by, str),
            f"group_by is {self.group_by!r}, but it must be the name of one field",
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
        """Whether an option orders the documents of the window by something other than scores."""
        orders_by_fields = len(self.sort) > 0 or len(self.boosts) > 0
        return orders_by_fields or self.group_by is not None or self.diversity > 0

    @property
    def depth(self) -> int:
        """Number of documents that the retriever has to rank.

        A page needs the documents up to its last hit. Options that reorder or count documents need
        the whole window. Reordering never looks beyond it, so deeper pages are then empty.
        """
        if self.reorders:
            return self.window
        last_rank = self.offset + self.k
        if self.facets:
            return max(last_rank, self.window)
        return last_rank

    def fields(self) -> list[str]:
        """Return all fields that the options name, except for filters."""
        names = [name.removeprefix("-") for name in self.sort]
        names.extend(self.facets)
        names.extend(boost.field for boost in self.boosts)
        if self.group_by is not None:
            names.append(self.group_by)
        return names


def sort_ranking(ranking: Ranking, sort: Sequence[str], read: FieldReader) -> Ranking:
    """Sort the documents of a ranking by fields.

    Documents with equal values keep their order. If a document has several values of a field, the
    smallest one counts, or the largest one if the order is descending.

    Args:
        ranking: Documents with scores.
        sort: Fields, the most important first. A leading "-" sorts descending.
        read: Reads values of fields.
    """
    ordered = list(ranking)
    # Each sort keeps the order of documents with equal values. So sorting by the least important
    # field first gives the right order.
    for name in reversed(sort):
        is_descending = name.startswith("-")
        ordered = _sort_by_field(ordered, name.removeprefix("-"), is_descending, read)
    return ordered


def _sort_by_field(ranking: Ranking, name: str, is_descending: bool, read: FieldReader) -> Ranking:
    """Sort the documents of a ranking by one field. Documents without a value come last."""
    values = read(name, [document_id for document_id, _ in ranking])
    has_dates = False
    for document_values in values:
        if any(_is_date(value) for value in document_values):
            has_dates = True

    with_value: list[tuple[SortKey, tuple[str, float]]] = []
    without_value: Ranking = []
    for entry, document_values in zip(ranking, values, strict=True):
        keys = [_sort_key(value, has_dates) for value in document_values]
        if not keys:
            without_value.append(entry)
            continue
        key = max(keys) if is_descending else min(keys)
        with_value.append((key, entry))
    with_value.sort(key=lambda pair: pair[0], reverse=is_descending)

    ordered = [entry for _, entry in with_value]
    ordered.extend(without_value)
    return ordered


def _is_date(value: FieldValue) -> bool:
    """Return whether a value is a date and cannot be a plain number."""
    return value.instant is not None and value.number is None


def _sort_key(value: FieldValue, has_dates: bool) -> SortKey:
    """Return a sort key that compares values of all types.

    Numbers come before dates, then texts, then false and true. The accents and the case of a text
    only count among texts that are equal without them.

    Args:
        value: The value.
        has_dates: Whether the field has dates. Then a number such as 2019 is a year.
    """
    if has_dates and value.instant is not None:
        return 1, value.instant
    if value.number is not None:
        return 0, value.number
    if isinstance(value.value, str):
        folded = fold_letters(fold_characters(value.value))
        return 2, (folded, value.value)
    return 3, value.value


def group_ranking(ranking: Ranking, group_by: str, read: FieldReader) -> Ranking:
    """Keep the first document for each value of a field.

    If a document has several values, the first one that `read` returns counts. A field index lists
    values by type and then by text, whatever their order in the document. All documents without a
    value are kept.

    Args:
        ranking: Documents with scores.
        group_by: The field.
        read: Reads values of fields.
    """
    values = read(group_by, [document_id for document_id, _ in ranking])
    seen_values: set[FieldValue] = set()
    kept: Ranking = []
    for entry, entry_values in zip(ranking, values, strict=True):
        if not entry_values:
            kept.append(entry)
            continue
        first_value = entry_values[0]
        if first_value not in seen_values:
            seen_values.add(first_value)
            kept.append(entry)
    return kept


def count_facets(
    document_ids: Sequence[str], facets: Sequence[str], read: FieldReader, limit: int
) -> dict[str, dict[str, int]]:
    """Count the documents with each value of the given fields.

    Args:
        document_ids: Ids of the documents to count.
        facets: The fields.
        read: Reads values of fields.
        limit: Largest number of values per field. The most frequent values are returned.

    Returns:
        For each field, the number of documents by the text of the value, the most frequent first.
    """
    counts: dict[str, dict[str, int]] = {}
    for name in facets:
        by_value: dict[str, int] = {}
        for values in read(name, document_ids):
            # A document with a value twice, such as 2020 and "2020", is counted once.
            texts = {value.text for value in values}
            for text in texts:
                by_value[text] = by_value.get(text, 0) + 1
        most_frequent = sorted(by_value, key=lambda text: (-by_value[text], text))[:limit]
        counts[name] = {text: by_value[text] for text in most_frequent}
    return counts
