"""Apply filters, which are conditions on the fields of documents, to all documents of a collection.

The command line, HTTP and Python use the same form. A filter is an object with a condition for each
field. All conditions must hold. A condition is a value, a list of alternative values, or an object
with operators:

    {"package": "numpy", "kind": ["function", "class"], "year": {">=": 2020, "<": 2024}}

The keys `and`, `or` and `not` combine whole objects:

    {"or": [{"package": "numpy"}, {"year": {">=": 2020}}], "not": {"tags": ["old"]}}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from model_code.collection.segments.conditions import (
    FieldValue,
    Filters,
    condition_fields,
    make_value,
    parse_filters,
    parse_typed,
)
from model_code.collection.segments.field_index import FieldIndex
from model_code.errors import FreshetError

# Largest number of values that an error message lists.
MAX_LISTED_VALUES = 8


class CollectionFields:
    """The fields of all live documents of a collection, to which filters are applied.

    The documents are in several segments, each with an index of its fields.

    >>> rows = [{"package": "numpy"}, {"package": "numpy", "year": 2023}, {"year": 2024}]
    >>> fields = CollectionFields([(FieldIndex.build(rows), np.array([True, True, True]))])
    >>> fields.find(["package = numpy", "year > 2022"])
    [array([False,  True, False])]
    >>> fields.find({"not": {"package": "numpy", "year": {"exists": True}}})
    [array([ True, False,  True])]
    """

    def __init__(
        self, segments: Sequence[tuple[FieldIndex, np.ndarray]], known: Iterable[str] = ()
    ) -> None:
        """Combine the field indexes of segments.

        Args:
            segments: Field index of each segment, and the mask (n,) of its documents that are not
                removed.
            known: Names of further fields, which only removed documents had. A filter may name
                them.
        """
        self.segments = tuple(segments)
        self._known = set(known)
        for index, _ in self.segments:
            self._known.update(index.value_ranges)

    def with_waiting(self, waiting: FieldIndex) -> CollectionFields:
        """Return these fields and those of documents that are not searchable yet.

        Args:
            waiting: Field index of the documents. It becomes the last segment.
        """
        waiting_segment = (waiting, np.ones(int(waiting.size[0]), bool))
        return CollectionFields([*self.segments, waiting_segment], self._known)

    def restricted_to(self, masks: Sequence[np.ndarray]) -> CollectionFields:
        """Return the fields of some documents only.

        Args:
            masks: For each segment the mask (n,) of the documents.
        """
        indexes = [index for index, _ in self.segments]
        return CollectionFields(list(zip(indexes, masks, strict=True)), self._known)

    def find(self, filters: Filters) -> list[np.ndarray]:
        """Return which documents of each segment meet a filter.

        In a typed condition `field=word`, the word must be a value of the field. Otherwise it is
        probably a typing error. In a filter object, an unknown value matches no document.

        Args:
            filters: A filter object, or typed conditions.

        Returns:
            A mask (n,) for each segment. Removed documents meet no filter.

        Raises:
            FreshetError: If the filter compares a field that no document ever had, or a typed word
                is not a value of its field.
            SettingsError: If the filter is malformed.
        """
        condition = parse_filters(filters)
        self.require_known(condition_fields(condition))
        if not isinstance(filters, Mapping):
            self._check_typed_words(filters)
        return [index.find(condition) & is_live for index, is_live in self.segments]

    def require_known(self, names: Iterable[str]) -> None:
        """Raise an error unless all fields are known and can hold values.

        A field is known if a document has it, or had it before the document was removed. A field
        that is always an object holds no values. The fields inside of the object do.

        Raises:
            FreshetError: If a field is not known, or always an object. The message lists the fields
                that can be named.
        """
        for name in names:
            if name not in self._known:
                fields = ", ".join(self.names())
                known = f"fields: {fields}" if fields else "the documents have no fields"
                raise FreshetError(f"no document has a field {name!r}; {known}")
            inner_names = self._fields_inside(name)
            if inner_names:
                listed = ", ".join(inner_names)
                raise FreshetError(
                    f"the field {name!r} is an object; name a field inside of it: {listed}"
                )

    def has_dates(self, name: str) -> bool:
        """Return whether a value of a field is a date."""
        return any(index.has_dates(name) for index, _ in self.segments)

    def has_numbers(self, name: str) -> bool:
        """Return whether a value of a field is a number, or a text that reads as one."""
        return any(index.has_numbers(name) for index, _ in self.segments)

    def names(self) -> list[str]:
        """Return the names of the fields that live documents have, sorted."""
        return sorted(name for name in self._known if self._has_values(name))

    def count(self, name: str) -> dict[FieldValue, int]:
        """Return the values of a field in live documents, each with its number of documents."""
        counts: dict[FieldValue, int] = {}
        for index, is_live in self.segments:
            for value, count in index.count_documents(name, is_live).items():
                counts[value] = counts.get(value, 0) + count
        return counts

    def _fields_inside(self, name: str) -> list[str]:
        """Return the fields inside of a field that is always an object. Empty for other fields."""
        if any(index.value_ranges.get(name) for index, _ in self.segments):
            return []
        return [inner for inner in self.names() if inner.startswith(f"{name}.")]

    def _has_values(self, name: str) -> bool:
        return any(index.has_values(name, is_live) for index, is_live in self.segments)

    def _check_typed_words(self, filters: Sequence[str]) -> None:
        """Raise an error if the word in a typed condition `field=word` is not a value of the field.

        Such a word is probably a typing error, so the message lists values that exist. Numbers and
        dates are not checked. Fields that no live document has are not checked either.
        """
        for name, word in _typed_words(filters):
            is_value = any(index.has_text(name, word, is_live) for index, is_live in self.segments)
            if not is_value and self._has_values(name):
                raise FreshetError(
                    f"no document has {name}={word}; "
                    f"values of {name}: {_list_values(self.count(name))}"
                )


def commonest(counts: Mapping[FieldValue, int], limit: int) -> dict[str, int]:
    """Return the values that most documents have.

    Args:
        counts: Number of documents by value.
        limit: Largest number of values to return.

    Returns:
        Number of documents by the text of the value, the most frequent values first.
    """
    total: dict[str, int] = {}
    for value, count in counts.items():
        # The number 2020 and the text "2020" have the same text, so their counts are added.
        total[value.text] = total.get(value.text, 0) + count
    names = sorted(total, key=lambda name: (-total[name], name))
    return {name: total[name] for name in names[:limit]}


def _typed_words(filters: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield field and word of each typed condition `field=word`, except for numbers and dates."""
    for text in filters:
        is_json_object = text.lstrip().startswith("{")
        if is_json_object:
            continue
        name, operator, operand = parse_typed(text)
        value = make_value(operand)
        if operator != "=" or value is None:
            continue
        is_word = value.number is None and value.instant is None
        if is_word:
            yield name, value.text


def _list_values(counts: Mapping[FieldValue, int]) -> str:
    """Return a text that lists the most frequent values and the number of others."""
    listed = ", ".join(commonest(counts, MAX_LISTED_VALUES))
    if len(counts) > MAX_LISTED_VALUES:
        listed += f" and {len(counts) - MAX_LISTED_VALUES} others"
    return listed
