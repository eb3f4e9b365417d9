"""The index of a segment's fields: the documents that have each value of each field.

It is written once with the segment and mapped into memory, so that no search and no generation has
to build it. Documents are numbered by ascending id. A condition gives a mask over these numbers,
and masks are combined by numpy.

`conditions.matches_fields` defines what a condition matches. This module finds the same documents
without looking at each of them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from model_code.collection.segments.conditions import (
    All,
    AnyOf,
    Condition,
    Exists,
    FieldValue,
    HasValue,
    Keys,
    Not,
    Range,
    Selector,
    TextPattern,
    iterate_field_values,
)
from model_code.files import atomic_write
from model_code.mapped_tensors import map_tensors

FIELD_INDEX = "fields.safetensors"

KINDS = ("text", "number", "boolean")
"""Types of a value, in the order of their codes."""

NO_INSTANT = np.iinfo(np.int64).min
"""Marks a value that reads as no date."""

MAX_VALUES_IN_LOOP = 64
"""Values up to which a loop marks their documents faster than one pass over the field."""

SEPARATOR = b"\xff"
"""Ends each text in the array of folded texts. No UTF-8 text contains this byte."""


def fields_of_row(fields_json: str, date: str | None) -> dict[str, Any]:
    """Return the fields that filters ask for; the date of a document is its field `date`."""
    fields: dict[str, Any] = json.loads(fields_json)
    if date and "date" not in fields:
        fields["date"] = date
    return fields


@dataclass(frozen=True, eq=False)
class FieldIndex:
    """The values of all fields of n documents.

    Fields are sorted by name, and the values of a field by type and text. The values of field f
    are the numbers `field_starts[f]` to `field_starts[f + 1]`. The documents of value v are the
    entries `starts[v]` to `starts[v + 1]` of `documents`.

    Attributes:
        names: Names of the fields as JSON, in UTF-8, uint8.
        field_starts: First value of each field, then the number of values, shape (F + 1,).
        texts: Texts of all values, one after the other, in UTF-8, uint8.
        text_starts: Start of each value's text, then the end of the last one, shape (V + 1,).
        folded: The texts for comparisons in any case, each with `SEPARATOR` behind it, uint8.
        folded_starts: Start of each value's folded text, then the end, shape (V + 1,).
        kinds: Code of each value's type, shape (V,), uint8.
        numbers: Number that each value is or reads as, else NaN, shape (V,), float64.
        instants: Microseconds since 1970 that each value reads as, else `NO_INSTANT`, shape (V,).
        starts: Start of each value's documents, then their number, shape (V + 1,).
        documents: Numbers of documents, ascending for each value, int32.
        size: Number n of documents, shape (1,).
    """

    names: np.ndarray
    field_starts: np.ndarray
    texts: np.ndarray
    text_starts: np.ndarray
    folded: np.ndarray
    folded_starts: np.ndarray
    kinds: np.ndarray
    numbers: np.ndarray
    instants: np.ndarray
    starts: np.ndarray
    documents: np.ndarray
    size: np.ndarray

    @classmethod
    def build(cls, rows: Iterable[Mapping[str, Any]]) -> FieldIndex:
        """Index the fields of documents.

        A field whose values are all null or empty is known, but has no values.

        Args:
            rows: Fields of each document, by ascending id of the documents.
        """
        postings: dict[str, dict[FieldValue, list[int]]] = {}
        size = 0
        for number, fields in enumerate(rows):
            size += 1
            for name in fields:
                postings.setdefault(name, {})
            for name, value in iterate_field_values(fields):
                numbers = postings.setdefault(name, {}).setdefault(value, [])
                # A list may repeat a value.
                if not numbers or numbers[-1] != number:
                    numbers.append(number)
        return cls._from_postings(postings, size)

    @classmethod
    def _from_postings(
        cls, postings: Mapping[str, Mapping[FieldValue, list[int]]], size: int
    ) -> FieldIndex:
        names = sorted(postings)
        value_counts = [len(postings[name]) for name in names]
        values: list[FieldValue] = []
        documents: list[list[int]] = []
        for name in names:
            for value in sorted(postings[name], key=_sort_key):
                values.append(value)
                documents.append(postings[name][value])

        texts = [value.text.encode("utf-8", "surrogatepass") for value in values]
        folded = [_fold(value) + SEPARATOR for value in values]
        instants = [NO_INSTANT if value.instant is None else value.instant for value in values]
        flat = [number for numbers in documents for number in numbers]
        return cls(
            names=_as_bytes(json.dumps(names).encode()),
            field_starts=_starts(value_counts),
            texts=_as_bytes(b"".join(texts)),
            text_starts=_starts(map(len, texts)),
            folded=_as_bytes(b"".join(folded)),
            folded_starts=_starts(map(len, folded)),
            kinds=np.array([KINDS.index(value.kind) for value in values], np.uint8),
            numbers=np.array([_as_float(value) for value in values], np.float64),
            instants=np.array(instants, np.int64),
            starts=_starts(map(len, documents)),
            documents=np.array(flat, np.int32),
            size=np.array([size]),
        )

    def save(self, path: Path) -> None:
        """Write the index; equal indexes give equal bytes."""
        with atomic_write(path) as temporary:
            save_file(
                {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)},
                temporary,
            )

    @classmethod
    def load(cls, path: Path) -> FieldIndex:
        """Map an index that `save` wrote."""
        return cls(**map_tensors(path))

    @cached_property
    def value_ranges(self) -> dict[str, range]:
        """The numbers of each field's values, by the name of the field."""
        starts = self.field_starts.tolist()
        ranges = {}
        for i, name in enumerate(json.loads(self.names.tobytes())):
            ranges[name] = range(starts[i], starts[i + 1])
        return ranges

    def value(self, number: int) -> FieldValue:
        """Return a value by its number."""
        kind = KINDS[self.kinds[number]]
        text = self._text_bytes(number).decode("utf-8", "surrogatepass")
        if kind == "text":
            return FieldValue(kind, text)
        return FieldValue(kind, json.loads(text))

    def find(self, condition: Condition) -> np.ndarray:
        """Return which documents meet a condition, shape (n,), bool."""
        if isinstance(condition, Not):
            return ~self.find(condition.part)
        if isinstance(condition, AnyOf):
            matches = np.zeros(self._documents, bool)
            for part in condition.parts:
                matches |= self.find(part)
            return matches
        if isinstance(condition, All):
            matches = np.ones(self._documents, bool)
            for part in condition.parts:
                matches &= self.find(part)
            return matches
        if isinstance(condition, Exists):
            return self._find_existing(condition)
        return self._find_values(condition)

    def count_documents(self, name: str, is_live: np.ndarray) -> dict[FieldValue, int]:
        """Return the values of a field that live documents have, with their numbers of documents.

        Args:
            name: Name of the field.
            is_live: Which documents count, shape (n,), bool.
        """
        values = self.value_ranges.get(name, range(0))
        first = int(self.starts[values.start])
        last = int(self.starts[values.stop])
        sums = np.concatenate([[0], np.cumsum(is_live[self.documents[first:last]])])
        boundaries = self.starts[values.start : values.stop + 1] - first
        counts = np.diff(sums[boundaries])
        return {
            self.value(values.start + i): int(counts[i]) for i in np.flatnonzero(counts).tolist()
        }

    def values_of(self, name: str, documents: Sequence[int]) -> list[list[FieldValue]]:
        """Return the values that each of some documents has in a field.

        Args:
            name: Name of the field.
            documents: Numbers of different documents.
        """
        values = self.value_ranges.get(name, range(0))
        starts = self.starts[values.start : values.stop + 1]
        postings = self.documents[starts[0] : starts[-1]]
        place = np.full(self._documents, -1, np.int32)
        place[np.asarray(documents, np.int64)] = np.arange(len(documents))

        found: list[list[FieldValue]] = [[] for _ in documents]
        for posting in np.flatnonzero(place[postings] >= 0).tolist():
            number = int(np.searchsorted(starts, starts[0] + posting, side="right")) - 1
            found[place[postings[posting]]].append(self.value(values.start + number))
        return found

    def has_values(self, name: str, is_live: np.ndarray) -> bool:
        """Return whether a live document has a value of a field."""
        values = self.value_ranges.get(name, range(0))
        documents = self.documents[self.starts[values.start] : self.starts[values.stop]]
        return bool(is_live[documents].any())

    def has_text(self, name: str, text: str, is_live: np.ndarray) -> bool:
        """Return whether a live document has a value of a field that is written so."""
        for number in self._numbers_with_text(self.value_ranges.get(name, range(0)), text):
            documents = self.documents[self.starts[number] : self.starts[number + 1]]
            if is_live[documents].any():
                return True
        return False

    @property
    def _documents(self) -> int:
        return int(self.size[0])

    def _text_bytes(self, number: int) -> bytes:
        return self.texts[self.text_starts[number] : self.text_starts[number + 1]].tobytes()

    def _find_existing(self, condition: Exists) -> np.ndarray:
        matches = np.zeros(self._documents, bool)
        for name, values in self.value_ranges.items():
            if condition.covers(name):
                matches[self.documents[self.starts[values.start] : self.starts[values.stop]]] = True
        return matches

    def _find_values(self, condition: HasValue) -> np.ndarray:
        """Return which documents have a value that a selector selects."""
        matches = np.zeros(self._documents, bool)
        values = self.value_ranges.get(condition.field)
        if values is None:
            return matches
        for selector in condition.selectors:
            selected = self._select(values, selector)
            if len(selected) <= MAX_VALUES_IN_LOOP:
                for number in selected:
                    matches[self.documents[self.starts[number] : self.starts[number + 1]]] = True
            else:
                self._mark_documents(matches, values, selected)
        return matches

    def _mark_documents(
        self, matches: np.ndarray, values: range, selected: Collection[int]
    ) -> None:
        """Set the mask of the documents that have many values of a field."""
        is_selected = np.zeros(len(values), bool)
        is_selected[np.fromiter(selected, np.int64, len(selected)) - values.start] = True
        starts = self.starts[values.start : values.stop + 1]
        of_documents = np.repeat(is_selected, np.diff(starts))
        matches[self.documents[starts[0] : starts[-1]][of_documents]] = True

    def _select(self, values: range, selector: Selector) -> Collection[int]:
        """Return the numbers of a field's values that a selector selects."""
        if isinstance(selector, Range):
            return self._select_range(values, selector)
        if isinstance(selector, TextPattern):
            return self._select_pattern(values, selector)
        return self._select_keys(values, selector)

    def _select_range(self, values: range, selector: Range) -> list[int]:
        """Return the values in a range.

        Numbers are stored as float64, to which rounding is monotonic. So only values at a bound
        need to be compared exactly.
        """
        slice_ = slice(values.start, values.stop)
        if selector.reading == "number":
            positions = self.numbers[slice_]
            is_inside = ~np.isnan(positions)
        else:
            positions = self.instants[slice_]
            is_inside = positions != NO_INSTANT

        is_at_bound = np.zeros(len(values), bool)
        if selector.low is not None:
            low = _round_bound(selector.low, selector.reading)
            is_inside &= positions >= low
            is_at_bound |= positions == low
        if selector.high is not None:
            high = _round_bound(selector.high, selector.reading)
            is_inside &= positions <= high
            is_at_bound |= positions == high

        for i in np.flatnonzero(is_inside & is_at_bound).tolist():
            is_inside[i] = selector.matches(self.value(values.start + i))
        return (np.flatnonzero(is_inside) + values.start).tolist()

    def _select_pattern(self, values: range, selector: TextPattern) -> list[int]:
        """Return the values whose folded texts begin with a pattern or contain it."""
        pattern = selector.pattern.encode("utf-8", "surrogatepass")
        # One byte earlier, so that the first text has a separator before it, too.
        first = int(self.folded_starts[values.start])
        text = SEPARATOR + self.folded[first : self.folded_starts[values.stop]].tobytes()
        if selector.operator == "prefix":
            pattern = SEPARATOR + pattern

        selected: list[int] = []
        position = text.find(pattern)
        while position >= 0:
            inside = position if selector.operator == "prefix" else position - 1
            number = int(np.searchsorted(self.folded_starts, first + inside, side="right")) - 1
            if KINDS[self.kinds[number]] != "boolean":
                selected.append(number)
            # Go on behind the text that matched.
            next_text = int(self.folded_starts[number + 1]) - first
            position = text.find(pattern, next_text)
        return selected

    def _select_keys(self, values: range, selector: Keys) -> set[int]:
        """Return the values that have one of some keys."""
        selected: set[int] = set()
        for reading, operand in selector.keys:
            if reading == "text":
                selected.update(self._numbers_of(values, "text", str(operand)))
            elif reading == "boolean":
                selected.update(self._numbers_of(values, "boolean", json.dumps(operand)))
            else:
                positions = self.instants if reading == "instant" else self.numbers
                bound = _round_bound(operand, "instant" if reading == "instant" else "number")
                candidates = np.flatnonzero(positions[values.start : values.stop] == bound)
                for number in (candidates + values.start).tolist():
                    if (reading, operand) in self.value(number).keys:
                        selected.add(number)
        return selected

    def _numbers_with_text(self, values: range, text: str) -> Iterator[int]:
        """Yield the values of any type that are written so."""
        for kind in KINDS:
            yield from self._numbers_of(values, kind, text)

    def _numbers_of(self, values: range, kind: str, text: str) -> Iterator[int]:
        """Yield the value of one type that is written so, by binary search."""
        wanted = (KINDS.index(kind), text.encode("utf-8", "surrogatepass"))
        low = values.start
        high = values.stop
        while low < high:
            middle = (low + high) // 2
            if (int(self.kinds[middle]), self._text_bytes(middle)) < wanted:
                low = middle + 1
            else:
                high = middle
        if low < values.stop and (int(self.kinds[low]), self._text_bytes(low)) == wanted:
            yield low


def _sort_key(value: FieldValue) -> tuple[int, bytes]:
    return KINDS.index(value.kind), value.text.encode("utf-8", "surrogatepass")


def _fold(value: FieldValue) -> bytes:
    return value.text.casefold().encode("utf-8", "surrogatepass")


def _as_float(value: FieldValue) -> float:
    return float("nan") if value.number is None else _round_bound(value.number, "number")


def _round_bound(bound: Any, reading: str) -> float | int:
    """Return a bound as the arrays hold it: a float for numbers, microseconds for instants."""
    if reading == "instant":
        return int(bound)
    try:
        return float(bound)
    except OverflowError:
        return float("inf") if bound > 0 else float("-inf")


def _starts(lengths: Iterable[int]) -> np.ndarray:
    return np.cumsum([0, *lengths])


def _as_bytes(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)
