"""Filters: conditions on the fields of documents, which a search result has to meet.

The command line, HTTP and Python share one form. An object states conditions by field, all of which
have to hold. A condition is a value, a list of alternatives, or an object with operators:

    {"package": "numpy", "kind": ["function", "class"], "year": {">=": 2020, "<": 2024}}

The keys `and`, `or` and `not` combine whole objects:

    {"or": [{"package": "numpy"}, {"year": {">=": 2020}}], "not": {"tags": ["old"]}}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from model_code.collection.segments.conditions import (
    All,
    AnyOf,
    Condition,
    Exists,
    FieldValue,
    Filters,
    HasValue,
    Not,
    condition_fields,
    iterate_field_values,
    make_value,
    parse_filters,
    parse_typed,
)
from model_code.collection.segments.documents import read_columns
from model_code.errors import FreshetError

Index = Mapping[str, Mapping[FieldValue, set[str]]]
"""Ids of documents by field and by value."""

# Values that an error message lists.
MAX_LISTED_VALUES = 8


def read_fields(path: Path) -> Index:
    """Read the fields of all documents in a documents file.

    The date of a document is its field `date`.
    """
    rows: list[tuple[str, dict[str, Any]]] = []
    columns = read_columns(path, "document_id", "fields", "date")
    for document_id, fields_json, date in zip(*columns, strict=True):
        fields = json.loads(fields_json)
        if date and "date" not in fields:
            fields["date"] = date
        rows.append((document_id, fields))
    return index_fields(rows)


def index_fields(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> Index:
    """Index documents by the values of their fields; see `iterate_field_values`.

    A field whose values are all null or empty is known, but has no values.

    >>> index = index_fields([("numpy.sort", {"package": "numpy", "tags": ["array", 1]})])
    >>> {value.text: ids for value, ids in index["tags"].items()}
    {'array': {'numpy.sort'}, '1': {'numpy.sort'}}

    Args:
        rows: Id and fields of each document.
    """
    index: dict[str, dict[FieldValue, set[str]]] = {}
    for document_id, fields in rows:
        for name in fields:
            index.setdefault(name, {})
        for name, value in iterate_field_values(fields):
            values = index.setdefault(name, {})
            values.setdefault(value, set()).add(document_id)
    return index


class MergedFields(Mapping[str, Mapping[FieldValue, set[str]]]):
    """The fields of several segments, without removed documents.

    A field is merged when it is first asked for. Iteration leaves out fields that no document has
    any more; a lookup of them gives no values.

    >>> new, old = FieldValue("text", "new"), FieldValue("text", "old")
    >>> segments = [({"kind": {new: {"a"}, old: {"b"}}}, {"b"}), ({"kind": {new: {"b"}}}, set())]
    >>> {value.text: sorted(ids) for value, ids in MergedFields(segments)["kind"].items()}
    {'new': ['a', 'b']}
    """

    def __init__(
        self, segments: Sequence[tuple[Index, Collection[str]]], known: Iterable[str] = ()
    ) -> None:
        """Merge fields lazily.

        Args:
            segments: Fields of each segment, and its removed documents.
            known: Further fields, which only documents of earlier segments had.
        """
        self._known = frozenset(known)
        self._segments = [(index, frozenset(removed)) for index, removed in segments]
        self._merged: dict[str, dict[FieldValue, set[str]]] = {}

    def __getitem__(self, name: str) -> Mapping[FieldValue, set[str]]:
        """Return the documents that have each value of a field.

        Raises:
            KeyError: If no document ever had the field.
        """
        if name not in self._merged:
            is_known = name in self._known or any(name in index for index, _ in self._segments)
            if not is_known:
                raise KeyError(name)
            self._merged[name] = self._merge(name)
        return self._merged[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the fields that a document has."""
        names = dict.fromkeys(name for index, _ in self._segments for name in index)
        return (name for name in names if self[name])

    def __len__(self) -> int:
        """Return the number of fields that a document has."""
        return sum(1 for _ in self)

    def _merge(self, name: str) -> dict[FieldValue, set[str]]:
        values: dict[FieldValue, set[str]] = {}
        for index, removed in self._segments:
            for value, documents in index.get(name, {}).items():
                values.setdefault(value, set()).update(documents - removed)
        return {value: documents for value, documents in values.items() if documents}


def matching_documents(index: Index, filters: Filters, every: Callable[[], Set[str]]) -> Set[str]:
    """Return the documents that meet a filter.

    A word that a person types as `field=word` has to be a value of the field, because otherwise it
    is a typing error. In a filter object, it just matches no document.

    >>> rows = [("a", {"package": "numpy"}), ("b", {"package": "numpy", "year": 2023})]
    >>> index = index_fields([*rows, ("c", {"year": 2024})])
    >>> every = lambda: {"a", "b", "c"}
    >>> sorted(matching_documents(index, ["package = numpy", "year > 2022"], every))
    ['b']
    >>> without_both = {"not": {"package": "numpy", "year": {"exists": True}}}
    >>> sorted(matching_documents(index, without_both, every))
    ['a', 'c']

    Args:
        index: Fields of the documents.
        filters: A filter object, or texts.
        every: Returns all documents, which negations need.

    Raises:
        FreshetError: If no document ever had a field whose values the filter compares.
        SettingsError: If the filter is malformed.
    """
    condition = parse_filters(filters)
    require_known_fields(index, condition_fields(condition))
    if not isinstance(filters, Mapping):
        _check_typed_words(index, filters)
    return _find(index, condition, every)


def require_known_fields(index: Index, names: Iterable[str]) -> None:
    """Check that documents have fields with these names, or had them once.

    Raises:
        FreshetError: If no document ever had one of the fields. The message lists the others.
    """
    for name in names:
        if name not in index:
            raise FreshetError(f"no document has a field {name!r}; fields: {_list_fields(index)}")


def _check_typed_words(index: Index, filters: Sequence[str]) -> None:
    """Check that typed words are values of their fields.

    Numbers and dates are not checked, and neither are fields that no document has any more.
    """
    for text in filters:
        if text.lstrip().startswith("{"):
            continue
        name, operator, operand = parse_typed(text)
        word = make_value(operand)
        if operator != "=" or word is None or word.number is not None or word.instant is not None:
            continue
        values = index[name]
        if values and not any(value.text == word.text for value in values):
            raise FreshetError(
                f"no document has {name}={word.text}; values of {name}: {_list_values(values)}"
            )


def _find(index: Index, condition: Condition, every: Callable[[], Set[str]]) -> Set[str]:
    """Return the documents that meet a condition."""
    if isinstance(condition, Not):
        return every() - _find(index, condition.part, every)
    if isinstance(condition, AnyOf):
        return set().union(*(_find(index, part, every) for part in condition.parts))
    if isinstance(condition, All):
        if not condition.parts:
            return every()
        matches = [set(_find(index, part, every)) for part in condition.parts]
        return set.intersection(*matches)
    if isinstance(condition, Exists):
        return _find_existing(index, condition)
    return _find_values(index, condition)


def _find_existing(index: Index, condition: Exists) -> set[str]:
    documents: set[str] = set()
    for name in index:
        if condition.covers(name):
            documents.update(*index[name].values())
    return documents


def _find_values(index: Index, condition: HasValue) -> set[str]:
    documents: set[str] = set()
    for value, ids in index[condition.field].items():
        if condition.matches(value):
            documents |= ids
    return documents


def commonest(values: Mapping[FieldValue, Collection[str]], limit: int) -> dict[str, int]:
    """Return the values that most documents have, as texts, with their numbers of documents."""
    counts: dict[str, int] = {}
    for value, documents in values.items():
        # A number and a text may be written alike.
        counts[value.text] = counts.get(value.text, 0) + len(documents)
    names = sorted(counts, key=lambda name: (-counts[name], name))
    return {name: counts[name] for name in names[:limit]}


def _list_fields(index: Index) -> str:
    """List the fields that documents have."""
    names = sorted(name for name in index if index[name])
    return ", ".join(names) or "none: the corpus's documents have no fields"


def _list_values(values: Mapping[FieldValue, Collection[str]]) -> str:
    """List the most frequent values, and the number of others."""
    listed = ", ".join(commonest(values, MAX_LISTED_VALUES))
    if len(values) > MAX_LISTED_VALUES:
        listed += f" and {len(values) - MAX_LISTED_VALUES} others"
    return listed
