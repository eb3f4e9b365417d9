"""Filters: conditions on the fields of documents, which a search result has to meet.

The command line, HTTP and Python share one form. An object states conditions by field, all of which
have to hold. A condition is a value, a list of alternatives, or an object with operators:

    {"package": "numpy", "kind": ["function", "class"], "year": {">=": 2020, "<": 2024}}

The keys `and`, `or` and `not` combine whole objects:

    {"or": [{"package": "numpy"}, {"year": {">=": 2020}}], "not": {"tags": ["old"]}}
"""

from __future__ import annotations

import json
import operator as operators
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from datetime import datetime
from pathlib import Path
from typing import Any

from model_code.collection.segments.documents import read_columns
from model_code.errors import FreshetError, SettingsError
from model_code.settings import require
from model_code.text.documents import parse_date

Index = Mapping[str, Mapping[str, set[str]]]
"""Ids of documents by field and by value, as text."""

Filters = Mapping[str, Any] | Sequence[str]
"""A filter object, or texts as one types them: "package=numpy", "year>=2020", or a JSON object."""

# Values that an error message lists.
MAX_LISTED_VALUES = 8

MAX_DEPTH = 16

RANGES: Mapping[str, Callable[[Any, Any], bool]] = {
    ">": operators.gt,
    ">=": operators.ge,
    "<": operators.lt,
    "<=": operators.le,
}
OPERATORS = ("=", "!=", *RANGES, "in", "exists")
TYPED_CONDITION = re.compile(r"([^=!<>]+)(!=|>=|<=|=|>|<)(.*)", re.DOTALL)
NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
EXAMPLE = '{"package": ["numpy", "scipy"], "year": {">=": 2020}}'


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
    """Index documents by the values of their fields; a list counts as each of its members.

    >>> index_fields([("numpy.sort", {"package": "numpy", "tags": ["array", 1]})])["tags"]
    {'array': {'numpy.sort'}, '1': {'numpy.sort'}}

    Args:
        rows: Id and fields of each document.
    """
    index: dict[str, dict[str, set[str]]] = {}
    for document_id, fields in rows:
        for name, value in fields.items():
            members = value if isinstance(value, list) else [value]
            values = index.setdefault(name, {})
            for member in members:
                values.setdefault(_as_text(member), set()).add(document_id)
    return index


class MergedFields(Mapping[str, Mapping[str, set[str]]]):
    """The fields of several segments, without removed documents.

    A field is merged when it is first asked for.

    >>> old = {"kind": {"new": {"a"}, "old": {"b"}}}
    >>> new = {"kind": {"new": {"b"}}}
    >>> segments = [(old, {"b"}), (new, set())]
    >>> {value: sorted(ids) for value, ids in MergedFields(segments)["kind"].items()}
    {'new': ['a', 'b']}
    """

    def __init__(self, segments: Sequence[tuple[Index, Collection[str]]]) -> None:
        """Merge fields lazily.

        Args:
            segments: Fields of each segment, and its removed documents.
        """
        self._segments = [(index, frozenset(removed)) for index, removed in segments]
        self._merged: dict[str, dict[str, set[str]]] = {}

    def __getitem__(self, name: str) -> Mapping[str, set[str]]:
        """Return the documents that have each value of a field."""
        if name not in self._merged:
            self._merged[name] = self._merge(name)
        if not self._merged[name]:
            raise KeyError(name)
        return self._merged[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the fields that a document has."""
        names = dict.fromkeys(name for index, _ in self._segments for name in index)
        return (name for name in names if name in self)

    def __len__(self) -> int:
        """Return the number of fields."""
        return sum(1 for _ in self)

    def _merge(self, name: str) -> dict[str, set[str]]:
        values: dict[str, set[str]] = {}
        for index, removed in self._segments:
            for value, documents in index.get(name, {}).items():
                values.setdefault(value, set()).update(documents - removed)
        return {value: documents for value, documents in values.items() if documents}


def matching_documents(index: Index, filters: Filters, every: Callable[[], Set[str]]) -> Set[str]:
    """Return the documents that meet a filter.

    Texts are checked more strictly than objects, since a person types them: it is also an error if
    no document has a value that they ask for, or if no document meets all of them. Several `=` of
    one field are alternatives.

    >>> packages = {"numpy": {"a", "b"}, "pandas": {"c"}}
    >>> index = {"package": packages, "year": {"2023": {"b"}, "2024": {"c"}}}
    >>> every = lambda: {"a", "b", "c"}
    >>> sorted(matching_documents(index, ["package=numpy", "package=pandas", "year>2022"], every))
    ['b', 'c']
    >>> without_both = {"not": {"package": "numpy", "year": {"exists": True}}}
    >>> sorted(matching_documents(index, without_both, every))
    ['a', 'c']

    Args:
        index: Fields of the documents.
        filters: A filter object, or texts.
        every: Returns all documents, which negations need.

    Raises:
        FreshetError: If no document has a field of the filter.
        SettingsError: If the filter is malformed.
    """
    matcher = _Matcher(index, every)
    if isinstance(filters, Mapping):
        return matcher.match_all(filters)

    matches: list[Set[str]] = []
    alternatives: dict[str, list[str]] = {}
    for text in filters:
        if text.startswith("{"):
            matches.append(matcher.match_all(json_filter(text)))
            continue
        name, operator, value = _parse_condition(text)
        if operator == "=":
            alternatives.setdefault(name, []).append(value)
        else:
            matches.append(matcher.compare(name, operator, value))

    for name, values in alternatives.items():
        matches.append(matcher.compare(name, "in", values))
        for value in values:
            if value not in index[name]:
                raise FreshetError(
                    f"no document has {name}={value}; values of {name}: {_list_values(index[name])}"
                )

    matching = set.intersection(*(set(documents) for documents in matches))
    if not matching:
        raise FreshetError(
            f"no document has all of {', '.join(filters)}; search with fewer filters"
        )
    return matching


class _Matcher:
    """Finds the documents that meet conditions on one index of fields."""

    def __init__(self, index: Index, every: Callable[[], Set[str]]) -> None:
        self.index = index
        self.every = every

    def match_all(self, conditions: Any, depth: int = 0) -> Set[str]:
        """Return the documents that meet every condition of an object; all if it is empty."""
        shown = json.dumps(conditions, ensure_ascii=False, default=str)
        require(
            isinstance(conditions, Mapping),
            f"a filter is an object such as {EXAMPLE}, not {shown[:80]}",
        )
        require(depth < MAX_DEPTH, f"filters are nested more than {MAX_DEPTH} deep")
        if not conditions:
            return self.every()
        matches = [self._match(name, value, depth) for name, value in conditions.items()]
        return set.intersection(*(set(documents) for documents in matches))

    def _match(self, name: str, value: Any, depth: int) -> Set[str]:
        """Return the documents that meet one entry of an object."""
        if name == "not":
            return self.every() - self.match_all(value, depth + 1)
        if name == "or" and isinstance(value, list):
            return set().union(*(self.match_all(each, depth + 1) for each in value))
        if name == "and" and isinstance(value, list):
            matches = [self.match_all(each, depth + 1) for each in value]
            return set(self.every()).intersection(*matches)
        if isinstance(value, Mapping):
            require(bool(value), f"the filter of {name} states nothing; write it as {EXAMPLE}")
            matches = [self.compare(name, operator, value[operator]) for operator in value]
            return set.intersection(*(set(documents) for documents in matches))
        if isinstance(value, list):
            return self.compare(name, "in", value)
        return self.compare(name, "=", value)

    def compare(self, name: str, operator: str, operand: Any) -> Set[str]:
        """Return the documents with a value of a field that compares to an operand.

        `!=` returns the documents of which no value is equal.
        """
        if operator == "exists":
            require(isinstance(operand, bool), f"exists of {name} is true or false")
            present = set().union(*self.index.get(name, {}).values())
            return present if operand else self.every() - present

        if name not in self.index:
            fields = ", ".join(sorted(self.index)) or "none: the corpus's documents have no fields"
            raise FreshetError(f"no document has a field {name!r}; fields: {fields}")
        values = self.index[name]
        if operator == "=":
            return values.get(_as_text(operand), set())
        if operator == "!=":
            return self.every() - values.get(_as_text(operand), set())
        if operator == "in":
            require(isinstance(operand, list), f"in of {name} takes a list of values")
            return set().union(*(values.get(_as_text(value), ()) for value in operand))
        return self._compare_range(name, operator, operand)

    def _compare_range(self, name: str, operator: str, operand: Any) -> Set[str]:
        """Return the documents with a number or date on one side of a bound.

        Numbers are only compared with numbers, and dates with dates.
        """
        require(
            operator in RANGES,
            f"{name} is filtered by {operator!r}; use one of {', '.join(OPERATORS)}",
        )
        bound = _as_number_or_date(_as_text(operand))
        require(
            bound is not None,
            f"{name} {operator} {_as_text(operand)}: ranges are of numbers and of ISO dates",
        )
        within: set[str] = set()
        for value, documents in self.index[name].items():
            comparable = _as_number_or_date(value)
            if type(comparable) is type(bound) and RANGES[operator](comparable, bound):
                within |= documents
        return within


def json_filter(text: str) -> Any:
    """Return the filter object that a text holds as JSON.

    Raises:
        SettingsError: If the text is no JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise SettingsError(
            f"--filter {text[:80]}: this begins as JSON, and is none; write it as {EXAMPLE}"
        ) from None


def _parse_condition(text: str) -> tuple[str, str, str]:
    """Split a typed condition into field, operator and value."""
    match = TYPED_CONDITION.fullmatch(text)
    require(
        match is not None,
        f"--filter {text}: write it as field=value, field>=value, or as JSON: {EXAMPLE}",
    )
    return match[1], match[2], match[3]  # type: ignore[index]


def _as_number_or_date(text: str) -> float | datetime | None:
    """Return the number or the instant that a value is; None for other values.

    >>> _as_number_or_date("2.5"), _as_number_or_date("2024"), _as_number_or_date("v2")
    (2.5, 2024.0, None)
    """
    if NUMBER.fullmatch(text):
        return float(text)
    return parse_date(text)


def _as_text(value: Any) -> str:
    """Return a value as one types it: texts as they are, others as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def commonest(values: Mapping[str, set[str]], limit: int) -> dict[str, int]:
    """Return the values that most documents have, with their numbers of documents."""
    names = sorted(values, key=lambda value: (-len(values[value]), value))
    return {name: len(values[name]) for name in names[:limit]}


def _list_values(values: Mapping[str, set[str]]) -> str:
    """List the most frequent values, and the number of others."""
    listed = ", ".join(commonest(values, MAX_LISTED_VALUES))
    if len(values) > MAX_LISTED_VALUES:
        listed += f" and {len(values) - MAX_LISTED_VALUES} others"
    return listed
