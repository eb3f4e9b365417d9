"""The field index of a segment, which finds the documents that meet a filter.

For each value of each field, it lists the documents with this value. Documents are numbered by
ascending id. Each condition of a filter gives a mask over these numbers, and masks are combined.

The index is written once, together with the segment, and mapped into memory. It finds the same
documents as `conditions.matches_fields`, but does not look at each document.
"""

from __future__ import annotations

import dataclasses
import json
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

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
from model_code.mapped_tensors import map_tensors, write_tensors

FIELD_INDEX = "fields.safetensors"

KINDS = ("text", "number", "boolean")
"""Types of a value. The code of a type is its position in this tuple."""

NO_INSTANT = np.iinfo(np.int64).min
"""Entry of `FieldIndex.instants` for a value that is not a date."""

MAX_VALUES_IN_LOOP = 64
"""Number of values up to which a loop over the values is faster than an array operation."""

SEPARATOR = b"\xff"
"""Byte that follows each text in the array of folded texts. No UTF-8 text contains it."""


def fields_of_row(fields_json: str, date: str | None) -> dict[str, Any]:
    """Return the fields of a document that filters can name.

    Args:
        fields_json: Fields of the document as JSON.
        date: Date of the document. It becomes the field `date`, unless there is such a field.
    """
    fields: dict[str, Any] = json.loads(fields_json)
    if date and "date" not in fields:
        fields["date"] = date
    return fields


@dataclass(frozen=True, eq=False)
class FieldIndex:
    """The values of all F fields of n documents, as arrays that can be mapped into memory.

    All V values of all fields are numbered. Fields are sorted by name, and the values of a field by
    type and text. Field f has the values `field_starts[f]` to `field_starts[f + 1]`. Value v occurs
    in the documents `documents[starts[v] : starts[v + 1]]`.

    Attributes:
        names: Names of the fields as JSON, in UTF-8, uint8.
        field_starts: Number of the first value of each field, and at the end V, shape (F + 1,).
        texts: Texts of all values, one after the other, in UTF-8, uint8.
        text_starts: Start of each value's text in `texts`, and at the end the length, shape
            (V + 1,).
        folded: Texts of all values in folded case, each followed by `SEPARATOR`, uint8.
        folded_starts: Start of each value's text in `folded`, and at the end the length, shape
            (V + 1,).
        kinds: Code of each value's type, shape (V,), uint8.
        numbers: Each value as a number, or NaN, shape (V,), float64.
        instants: First moment of the date that each value means, in microseconds since 1970, or
            `NO_INSTANT`, shape (V,).
        starts: Start of each value's documents in `documents`, and at the end the length, shape
            (V + 1,).
        documents: Numbers of the documents of all values, ascending for each value, int32.
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
        """Build the index of the fields of documents.

        A field whose values are all null or empty is in the index, with no values.

        Args:
            rows: Fields of each document. The documents must be sorted by id.
        """
        # Numbers of the documents with each value, by the name of the field and the value.
        postings: dict[str, dict[FieldValue, list[int]]] = {}
        size = 0
        for number, fields in enumerate(rows):
            size += 1
            for name in fields:
                postings.setdefault(name, {})
            for name, value in iterate_field_values(fields):
                numbers = postings.setdefault(name, {}).setdefault(value, [])
                # A list may contain a value twice. Its document is counted once.
                if not numbers or numbers[-1] != number:
                    numbers.append(number)
        return cls._from_postings(postings, size)

    @classmethod
    def _from_postings(
        cls, postings: Mapping[str, Mapping[FieldValue, list[int]]], size: int
    ) -> FieldIndex:
        """Turn the documents of each value into the arrays of the index.

        Args:
            postings: Ascending numbers of the documents with each value, by field and value.
            size: Number of documents.
        """
        names = sorted(postings)
        value_counts = [len(postings[name]) for name in names]
        values: list[FieldValue] = []
        document_counts: list[int] = []
        documents: list[int] = []
        for name in names:
            for value in sorted(postings[name], key=_sort_key):
                numbers = postings[name][value]
                values.append(value)
                document_counts.append(len(numbers))
                documents.extend(numbers)

        texts = [value.text.encode("utf-8", "surrogatepass") for value in values]
        folded = [_fold(value) + SEPARATOR for value in values]
        instants = []
        for value in values:
            instant = value.instant
            if instant is None:
                instant = NO_INSTANT
            instants.append(instant)
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
            starts=_starts(document_counts),
            documents=np.array(documents, np.int32),
            size=np.array([size]),
        )

    def save(self, path: Path) -> None:
        """Write the index to a file. Equal indexes give equal bytes."""
        arrays = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        write_tensors(arrays, path)

    @classmethod
    def load(cls, path: Path) -> FieldIndex:
        """Map the index that `save` wrote into memory."""
        return cls(**map_tensors(path))

    @cached_property
    def value_ranges(self) -> dict[str, range]:
        """Range of the numbers of each field's values, by the name of the field."""
        starts = self.field_starts.tolist()
        ranges = {}
        for i, name in enumerate(json.loads(self.names.tobytes())):
            ranges[name] = range(starts[i], starts[i + 1])
        return ranges

    def value(self, number: int) -> FieldValue:
        """Return the value with a certain number. All values of all fields are numbered."""
        kind = KINDS[self.kinds[number]]
        text = self._text_bytes(number).decode("utf-8", "surrogatepass")
        if kind == "text":
            return FieldValue(kind, text)
        return FieldValue(kind, json.loads(text))

    def find(self, condition: Condition) -> np.ndarray:
        """Return the mask (n,) of the documents that meet a condition."""
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
        """Count the documents with each value of a field.

        Args:
            name: Name of the field.
            is_live: Mask (n,) of the documents to count.

        Returns:
            Number of documents by value. Values without a document are left out.
        """
        # The documents of all values of the field are neighbours. `sums[i]` is the number of live
        # ones among the first i of them, so that a difference counts those of one value.
        values = self.value_ranges.get(name, range(0))
        starts = self.starts[values.start : values.stop + 1]
        documents = self.documents[starts[0] : starts[-1]]
        sums = np.concatenate([[0], np.cumsum(is_live[documents])])
        counts = np.diff(sums[starts - starts[0]])

        counts_by_value: dict[FieldValue, int] = {}
        for i in np.flatnonzero(counts).tolist():
            counts_by_value[self.value(values.start + i)] = int(counts[i])
        return counts_by_value

    def values_of(self, name: str, documents: Sequence[int]) -> list[list[FieldValue]]:
        """Return the values of a field for each given document.

        Args:
            name: Name of the field.
            documents: Numbers of different documents.

        Returns:
            Values of each document, in the order of `documents`. The values of a document are
            sorted by type and text, because the index does not know their order in the document.
        """
        values = self.value_ranges.get(name, range(0))
        starts = self.starts[values.start : values.stop + 1]
        # A posting is an occurrence of a value in a document. This is the document of each one.
        postings = self.documents[starts[0] : starts[-1]]
        # Position in the result of each document of the segment, or -1.
        result_position = np.full(self._documents, -1, np.int32)
        result_position[np.asarray(documents, np.int64)] = np.arange(len(documents))

        found: list[list[FieldValue]] = [[] for _ in documents]
        for posting in np.flatnonzero(result_position[postings] >= 0).tolist():
            # The value of a posting is the last one whose postings start at or before it.
            number = int(np.searchsorted(starts, starts[0] + posting, side="right")) - 1
            value = self.value(values.start + number)
            position = result_position[postings[posting]]
            found[position].append(value)
        return found

    def has_values(self, name: str, is_live: np.ndarray) -> bool:
        """Return whether a live document has any value of a field.

        Args:
            name: Name of the field.
            is_live: Mask (n,) of the live documents.
        """
        values = self.value_ranges.get(name, range(0))
        return bool(is_live[self._documents_of(values)].any())

    def has_dates(self, name: str) -> bool:
        """Return whether a value of a field is a date."""
        values = self.value_ranges.get(name, range(0))
        return bool((self.instants[values.start : values.stop] != NO_INSTANT).any())

    def has_numbers(self, name: str) -> bool:
        """Return whether a value of a field is a number, or a text that reads as one."""
        values = self.value_ranges.get(name, range(0))
        return not bool(np.isnan(self.numbers[values.start : values.stop]).all())

    def has_text(self, name: str, text: str, is_live: np.ndarray) -> bool:
        """Return whether a live document has a value with a certain text in a field.

        Args:
            name: Name of the field.
            text: Text of the value; see `FieldValue.text`.
            is_live: Mask (n,) of the live documents.
        """
        values = self.value_ranges.get(name, range(0))
        # Values of different types can have the same text, such as 2020 and "2020".
        for kind in KINDS:
            for number in self._numbers_of(values, kind, text):
                documents = self._documents_of(range(number, number + 1))
                if is_live[documents].any():
                    return True
        return False

    @property
    def _documents(self) -> int:
        """Number n of documents."""
        return int(self.size[0])

    def _documents_of(self, values: range) -> np.ndarray:
        """Return the numbers of the documents with one of some neighbouring values.

        A document is listed once for each of the values that it has.

        Args:
            values: Numbers of the values.
        """
        return self.documents[self.starts[values.start] : self.starts[values.stop]]

    def _text_bytes(self, number: int) -> bytes:
        """Return the text of the value with a number, in UTF-8."""
        return self.texts[self.text_starts[number] : self.text_starts[number + 1]].tobytes()

    def _find_existing(self, condition: Exists) -> np.ndarray:
        """Return the mask (n,) of the documents that have a value in a field.

        If the field is an object, a value in a field of the object counts.
        """
        matches = np.zeros(self._documents, bool)
        for name, values in self.value_ranges.items():
            if condition.covers(name):
                matches[self._documents_of(values)] = True
        return matches

    def _find_values(self, condition: HasValue) -> np.ndarray:
        """Return the mask (n,) of the documents with a value that matches a selector."""
        matches = np.zeros(self._documents, bool)
        values = self.value_ranges.get(condition.field)
        if values is None:
            return matches
        for selector in condition.selectors:
            selected = self._select(values, selector)
            if len(selected) <= MAX_VALUES_IN_LOOP:
                for number in selected:
                    matches[self._documents_of(range(number, number + 1))] = True
            else:
                self._mark_documents(matches, values, selected)
        return matches

    def _mark_documents(
        self, matches: np.ndarray, values: range, selected: Collection[int]
    ) -> None:
        """Set the mask of all documents that have a selected value. Fast for many such values.

        Args:
            matches: Mask (n,) to change.
            values: Numbers of all values of the field.
            selected: Numbers of the selected values.
        """
        selected_numbers = np.fromiter(selected, np.int64, len(selected))
        is_selected = np.zeros(len(values), bool)
        is_selected[selected_numbers - values.start] = True
        # Each value is repeated once for each of its documents, so that the mask fits to them.
        document_counts = np.diff(self.starts[values.start : values.stop + 1])
        has_selected_value = np.repeat(is_selected, document_counts)
        matches[self._documents_of(values)[has_selected_value]] = True

    def _select(self, values: range, selector: Selector) -> Collection[int]:
        """Return the numbers of the values of a field that match a selector."""
        if isinstance(selector, Range):
            return self._select_range(values, selector)
        if isinstance(selector, TextPattern):
            return self._select_pattern(values, selector)
        return self._select_keys(values, selector)

    def _select_range(self, values: range, selector: Range) -> list[int]:
        """Return the numbers of the values of a field that lie in a range.

        Values and bounds are rounded to float64. Rounding keeps their order, so that only values
        that equal a rounded bound have to be compared exactly.
        """
        # A position is the value as a number or time. A value that is no number and no time lies in
        # no range.
        if selector.reading == "number":
            positions = self.numbers[values.start : values.stop]
            is_inside = ~np.isnan(positions)
        else:
            positions = self.instants[values.start : values.stop]
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
        """Return the numbers of the values whose text begins with a pattern or contains it.

        One search in the concatenated texts finds all matches. A separator before the pattern
        restricts it to the beginnings of texts.
        """
        is_prefix = selector.operator == "prefix"
        pattern = selector.pattern.encode("utf-8", "surrogatepass")
        if is_prefix:
            pattern = SEPARATOR + pattern

        # Each text is followed by a separator. Another one is put before the first text, so that
        # position i in `joined_texts` is position `start + i - 1` in `self.folded`.
        start = int(self.folded_starts[values.start])
        end = int(self.folded_starts[values.stop])
        joined_texts = SEPARATOR + self.folded[start:end].tobytes()

        selected: list[int] = []
        position = joined_texts.find(pattern)
        while position >= 0:
            match = start + position - 1
            if is_prefix:
                # The match begins with the separator before the text.
                match += 1
            # The matching value is the last one whose text starts at or before the match.
            number = int(np.searchsorted(self.folded_starts, match, side="right")) - 1
            if KINDS[self.kinds[number]] != "boolean":
                selected.append(number)
            # One match per text is enough, so the search continues with the separator before the
            # next text.
            next_separator = int(self.folded_starts[number + 1]) - start
            position = joined_texts.find(pattern, next_separator)
        return selected

    def _select_keys(self, values: range, selector: Keys) -> set[int]:
        """Return the numbers of those values of a field that have one of the selector's keys.

        A key is a type and a value; see `conditions.Key`.
        """
        selected: set[int] = set()
        for key in selector.keys:
            reading, operand = key
            if reading == "text":
                selected.update(self._numbers_of(values, "text", str(operand)))
                continue
            if reading == "boolean":
                selected.update(self._numbers_of(values, "boolean", json.dumps(operand)))
                continue

            if reading == "instant":
                positions = self.instants[values.start : values.stop]
                rounded_operand = _round_bound(operand, "instant")
            else:
                positions = self.numbers[values.start : values.stop]
                rounded_operand = _round_bound(operand, "number")
            # Different numbers can be rounded to the same float64, so the exact values are
            # compared, too.
            for i in np.flatnonzero(positions == rounded_operand).tolist():
                number = values.start + i
                if key in self.value(number).keys:
                    selected.add(number)
        return selected

    def _numbers_of(self, values: range, kind: str, text: str) -> Iterator[int]:
        """Yield the number of the value with a certain type and text, if there is one.

        The values of a field are sorted by type and text, so that binary search finds it.
        """
        wanted = (KINDS.index(kind), text.encode("utf-8", "surrogatepass"))
        number = bisect_left(values, wanted, key=self._type_and_text) + values.start
        if number < values.stop and self._type_and_text(number) == wanted:
            yield number

    def _type_and_text(self, number: int) -> tuple[int, bytes]:
        """Return the code of a value's type and its text. The values of a field are sorted so."""
        return int(self.kinds[number]), self._text_bytes(number)


def _sort_key(value: FieldValue) -> tuple[int, bytes]:
    """Return the code of a value's type and its text, by which an index sorts its values."""
    return KINDS.index(value.kind), value.text.encode("utf-8", "surrogatepass")


def _fold(value: FieldValue) -> bytes:
    """Return the text of a value in folded case, so that patterns match any case."""
    return value.text.casefold().encode("utf-8", "surrogatepass")


def _as_float(value: FieldValue) -> float:
    """Return a value as a number, or NaN if it is not one."""
    if value.number is None:
        return float("nan")
    return _round_bound(value.number, "number")


def _round_bound(bound: Any, reading: str) -> float | int:
    """Round a bound to the type of the arrays: float64 for numbers, int64 for times."""
    if reading == "instant":
        return int(bound)
    try:
        return float(bound)
    except OverflowError:
        # An integer of more than 308 digits has no float64.
        return float("inf") if bound > 0 else float("-inf")


def _starts(lengths: Iterable[int]) -> np.ndarray:
    """Return where each of n items starts if they are joined, and at the end the total length.

    >>> _starts([3, 2]).tolist()
    [0, 3, 5]
    """
    return np.cumsum([0, *lengths])


def _as_bytes(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)
