"""Which documents a search may find: those whose fields have the values that were asked for."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from model_code.errors import FreshetError
from model_code.live.documents import read_columns
from model_code.settings import require

Index = Mapping[str, Mapping[str, set[str]]]  # field -> value, as text -> documents that have it
SHOWN = 8  # values that an error message names


def read_fields(path: Path) -> Index:
    """The fields of all documents of a generation, from its documents file."""
    document_ids, fields = read_columns(path, "document_id", "fields")
    return index_fields(zip(document_ids, map(json.loads, fields), strict=True))


def index_fields(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> Index:
    """Which documents have which value of which field; a list has each of its members.

    >>> index_fields([("numpy.sort", {"package": "numpy", "tags": ["array", 1]})])["tags"]
    {'array': {'numpy.sort'}, '1': {'numpy.sort'}}
    """
    index: dict[str, dict[str, set[str]]] = {}
    for document_id, fields in rows:
        for name, value in fields.items():
            for one in value if isinstance(value, list) else [value]:
                index.setdefault(name, {}).setdefault(_text(one), set()).add(document_id)
    return index


class MergedFields(Mapping[str, Mapping[str, set[str]]]):
    """The fields of several parts without those of removed documents; a field is merged when it is asked for.

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
            self._merged[name] = {value: documents for value, documents in values.items() if documents}
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


def matching(index: Index, filters: Sequence[str]) -> set[str]:
    """The documents that have, for each field named, one of the values named for it; filters are "field=value".

    FreshetError for an unknown field, or if no document is left.

    >>> index = {"package": {"numpy": {"a", "b"}, "pandas": {"c"}}, "kind": {"class": {"b", "c"}}}
    >>> sorted(matching(index, ["package=numpy", "package=pandas", "kind=class"]))
    ['b', 'c']
    """
    wanted: dict[str, set[str]] = {}
    for text in filters:
        name, value = _parse(index, text)
        wanted.setdefault(name, set()).update(index[name].get(value, ()))
        if value not in index[name]:
            raise FreshetError(f"no document has {name}={value}; values of {name}: {_listed(index[name])}")
    found = set.intersection(*wanted.values())
    if not found:
        raise FreshetError(f"no document has all of {', '.join(filters)}; search with fewer filters")
    return found


def _parse(index: Index, text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    require(bool(name and separator), f"--filter {text}: write it as field=value")
    if name not in index:
        known = ", ".join(sorted(index)) or "none: the corpus's documents have no fields"
        raise FreshetError(f"no document has a field {name!r}; fields: {known}")
    return name, value


def _text(value: Any) -> str:
    """A value as one types it: texts as they are, others as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _listed(values: Mapping[str, set[str]]) -> str:
    """The commonest values, and how many others there are."""
    names = sorted(values, key=lambda value: (-len(values[value]), value))
    others = f" and {len(names) - SHOWN} others" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + others
