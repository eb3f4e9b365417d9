"""Which documents a search may find: a filter over their fields, one for the command line, HTTP and
Python.

An object states conditions that hold together, by field: a value, a list of which one is had, or
operators. Others combine whole objects: {"or": [{"package": "numpy"}, {"year": {">=": 2020, "<":
2024}}], "not": {"tags": ["old"]}}.
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

Index = Mapping[str, Mapping[str, set[str]]]  # field -> value, as text -> documents that have it
Filters = Mapping[str, Any] | Sequence[str]
"""An object, or texts as one types them: "package=numpy", "year>=2020", "kind!=class", or an object
as JSON.
"""
SHOWN = 8  # values that an error message names
MAX_DEPTH = 16
RANGES: Mapping[str, Callable[[Any, Any], bool]] = {
    ">": operators.gt,
    ">=": operators.ge,
    "<": operators.lt,
    "<=": operators.le,
}
OPERATORS = ("=", "!=", *RANGES, "in", "exists")
TYPED = re.compile(r"([^=!<>]+)(!=|>=|<=|=|>|<)(.*)", re.DOTALL)
NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
EXAMPLE = '{"package": ["numpy", "scipy"], "year": {">=": 2020}}'


def read_fields(path: Path) -> Index:
    """The fields of all documents of a generation, from its documents file; a document's date is
    the field `date`.
    """
    rows = zip(*read_columns(path, "document_id", "fields", "date"), strict=True)
    return index_fields(
        (key, ({"date": date} if date else {}) | json.loads(fields)) for key, fields, date in rows
    )


def index_fields(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> Index:
    """Which documents have which value of which field; a list has each of its members.

    >>> index_fields([("numpy.sort", {"package": "numpy", "tags": ["array", 1]})])["tags"]
    {'array': {'numpy.sort'}, '1': {'numpy.sort'}}
    """
    index: dict[str, dict[str, set[str]]] = {}
    for document_id, fields in rows:
        for name, value in fields.items():
            for member in value if isinstance(value, list) else [value]:
                index.setdefault(name, {}).setdefault(_text(member), set()).add(document_id)
    return index


class MergedFields(Mapping[str, Mapping[str, set[str]]]):
    """The fields of several parts without those of removed documents; a field is merged when it is
    asked for.

    >>> parts = [({"kind": {"new": {"a"}, "old": {"b"}}}, {"b"}), ({"kind": {"new": {"b"}}}, set())]
    >>> {value: sorted(documents) for value, documents in MergedFields(parts)["kind"].items()}
    {'new': ['a', 'b']}
    """

    def __init__(self, parts: Sequence[tuple[Index, Collection[str]]]) -> None:
        """parts: each one's fields, and its documents that are removed."""
        self._parts = [(index, frozenset(removed)) for index, removed in parts]
        self._merged: dict[str, dict[str, set[str]]] = {}

    def __getitem__(self, name: str) -> Mapping[str, set[str]]:
        """The documents that have each value of a field."""
        if name not in self._merged:
            values: dict[str, set[str]] = {}
            for index, removed in self._parts:
                for value, documents in index.get(name, {}).items():
                    values.setdefault(value, set()).update(documents - removed)
            self._merged[name] = {
                value: documents for value, documents in values.items() if documents
            }
        if not self._merged[name]:
            raise KeyError(name)
        return self._merged[name]

    def __iter__(self) -> Iterator[str]:
        """The names of the fields that a document has."""
        names = dict.fromkeys(name for index, _ in self._parts for name in index)
        return (name for name in names if name in self)

    def __len__(self) -> int:
        """The number of fields."""
        return sum(1 for _ in self)


def matching_documents(index: Index, filters: Filters, every: Callable[[], Set[str]]) -> Set[str]:
    """The documents that fit a filter; every: all that there are, for what negates.

    FreshetError for an unknown field. Texts are checked more closely, as somebody types them: it is
    an error, too, if no document has a value that they ask for, or none fits all of them. Several
    `=` of one field are alternatives.

    >>> index = {"package": {"numpy": {"a", "b"}, "pandas": {"c"}}, "year": {"2023": {"b"}, "2024": {"c"}}}
    >>> every = lambda: {"a", "b", "c"}
    >>> sorted(matching_documents(index, ["package=numpy", "package=pandas", "year>2022"], every))
    ['b', 'c']
    >>> sorted(matching_documents(index, {"not": {"package": "numpy", "year": {"exists": True}}}, every))
    ['a', 'c']
    """
    fit = _Fit(index, every)
    if isinstance(filters, Mapping):
        return fit.all_of(filters)
    sets = [fit.all_of(json_filter(text)) for text in filters if text.startswith("{")]
    values: dict[str, list[str]] = {}
    for name, operator, value in (_parse(text) for text in filters if not text.startswith("{")):
        if operator == "=":
            values.setdefault(name, []).append(value)
        else:
            sets.append(fit.comparison(name, operator, value))
    for name, alternatives in values.items():
        sets.append(fit.comparison(name, "in", alternatives))
        for value in alternatives:
            if value not in index[name]:
                raise FreshetError(
                    f"no document has {name}={value}; values of {name}: {_listed(index[name])}"
                )
    if not (fitting := set.intersection(*map(set, sets))):
        raise FreshetError(
            f"no document has all of {', '.join(filters)}; search with fewer filters"
        )
    return fitting


class _Fit:
    """Which documents fit conditions, over one index of fields."""

    def __init__(self, index: Index, every: Callable[[], Set[str]]) -> None:
        self.index, self.every = index, every

    def all_of(self, conditions: Any, depth: int = 0) -> Set[str]:
        """The documents that fit each condition of an object; all of them if it states none."""
        shown = json.dumps(conditions, ensure_ascii=False, default=str)
        require(
            isinstance(conditions, Mapping),
            f"a filter is an object such as {EXAMPLE}, not {shown[:80]}",
        )
        require(depth < MAX_DEPTH, f"filters are nested more than {MAX_DEPTH} deep")
        sets = [self._condition(name, value, depth) for name, value in conditions.items()]
        return set.intersection(*map(set, sets)) if sets else self.every()

    def _condition(self, name: str, value: Any, depth: int) -> Set[str]:
        if name == "not":
            return self.every() - self.all_of(value, depth + 1)
        if name in ("and", "or") and isinstance(value, list):
            sets = [self.all_of(condition, depth + 1) for condition in value]
            return set().union(*sets) if name == "or" else set(self.every()).intersection(*sets)
        if isinstance(value, Mapping):
            require(bool(value), f"the filter of {name} states nothing; write it as {EXAMPLE}")
            return set.intersection(
                *(set(self.comparison(name, operator, value[operator])) for operator in value)
            )
        return self.comparison(name, "in" if isinstance(value, list) else "=", value)

    def comparison(self, name: str, operator: str, operand: Any) -> Set[str]:
        """The documents of which one value of a field compares so; `!=`: of which none is equal."""
        if operator == "exists":
            require(isinstance(operand, bool), f"exists of {name} is true or false")
            present = set().union(*self.index.get(name, {}).values())
            return present if operand else self.every() - present
        if name not in self.index:
            fields = ", ".join(sorted(self.index)) or "none: the corpus's documents have no fields"
            raise FreshetError(f"no document has a field {name!r}; fields: {fields}")
        values = self.index[name]
        if operator == "=":
            return values.get(_text(operand), set())
        if operator == "!=":
            return self.every() - values.get(_text(operand), set())
        if operator == "in":
            require(isinstance(operand, list), f"in of {name} takes a list of values")
            return set().union(*(values.get(_text(value), ()) for value in operand))
        require(
            operator in RANGES,
            f"{name} is filtered by {operator!r}; use one of {', '.join(OPERATORS)}",
        )
        bound = _measure(_text(operand))
        require(
            bound is not None,
            f"{name} {operator} {_text(operand)}: ranges are of numbers and of ISO dates",
        )
        measured = ((value, _measure(value)) for value in values)
        within = [
            value
            for value, size in measured
            if type(size) is type(bound) and RANGES[operator](size, bound)
        ]
        return set().union(*(values[value] for value in within))


def json_filter(text: str) -> Any:
    """The filter that a text holds as JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise SettingsError(
            f"--filter {text[:80]}: this begins as JSON, and is none; write it as {EXAMPLE}"
        ) from None


def _parse(text: str) -> tuple[str, str, str]:
    match = TYPED.fullmatch(text)
    require(
        match is not None,
        f"--filter {text}: write it as field=value, field>=value, or as JSON: {EXAMPLE}",
    )
    return match[1], match[2], match[3]  # type: ignore[index]


def _measure(text: str) -> float | datetime | None:
    """The number or the instant that a value is; None of any other.

    >>> _measure("2.5"), _measure("2024"), _measure("v2")
    (2.5, 2024.0, None)
    """
    return float(text) if NUMBER.fullmatch(text) else parse_date(text)


def _text(value: Any) -> str:
    """A value as one types it: texts as they are, others as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def commonest(values: Mapping[str, set[str]], limit: int) -> dict[str, int]:
    """The values that most documents have, and how many have them."""
    names = sorted(values, key=lambda value: (-len(values[value]), value))
    return {name: len(values[name]) for name in names[:limit]}


def _listed(values: Mapping[str, set[str]]) -> str:
    """The commonest values, and how many others there are."""
    others = f" and {len(values) - SHOWN} others" if len(values) > SHOWN else ""
    return ", ".join(commonest(values, SHOWN)) + others
