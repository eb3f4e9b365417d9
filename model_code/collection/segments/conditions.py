"""Filters as a tree of conditions, and the typed comparison of field values.

This module is pure: it knows values and conditions, and no index. `parse_filters` turns a filter
into a tree of `All`, `AnyOf`, `Not`, `Exists` and `HasValue`. A `HasValue` holds selectors, and a
value matches if one selector does. An index may evaluate a selector by a lookup of keys, or by a
search in sorted numbers or instants. `matches_fields` evaluates a tree for the fields of one
document, and defines what every faster evaluation has to return.

The comparison:

- A number equals a number of the same size: 2020 is 2020.0. A text that reads as a number compares
  as one with numbers. Two texts are equal only if they are written alike, so "1.10" is not "1.1".
- A date without a time means the whole day in UTC, YYYY-MM the month, and YYYY the year.
- Null, empty texts, empty lists and empty objects do not exist.
- The fields of an object have names with dots: `author.name`.
- A document matches if one of the values of its field does. It matches `!=` if none is equal.
"""

from __future__ import annotations

import calendar
import json
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Literal

from model_code.errors import SettingsError
from model_code.settings import require
from model_code.text.documents import parse_date

Filters = Mapping[str, Any] | Sequence[str]
"""A filter object, or texts as one types them: "package=numpy", "year>=2020", or a JSON object."""

Scalar = str | int | float | bool
Key = tuple[Literal["text", "number", "numeric text", "boolean", "instant"], Scalar]
"""A value in one of its readings. Equal values share a key with the operand."""

MAX_DEPTH = 16

# Longer texts are no numbers. Python refuses to read integers of more than 4,300 digits.
MAX_NUMBER_CHARACTERS = 100

RANGE_OPERATORS = (">", ">=", "<", "<=")
OPERATORS = ("=", "!=", *RANGE_OPERATORS, "in", "exists", "prefix", "contains")

# Operators of a typed condition, longest first, and their names in an object.
TYPED_OPERATORS = {
    "!=": "!=",
    ">=": ">=",
    "<=": "<=",
    "==": "=",
    "^=": "prefix",
    "*=": "contains",
    "=": "=",
    ">": ">",
    "<": "<",
}
TYPED_CONDITION = re.compile(r"([^=!<>]+?)(!=|>=|<=|==|\^=|\*=|=|>|<)(.*)", re.DOTALL)
NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
INTEGER = re.compile(r"[-+]?[0-9]+")
# Every date begins so; other texts need not be parsed.
DATE_START = re.compile(r"[0-9]{4}-")
DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
MONTH = re.compile(r"([0-9]{4})-([0-9]{2})")
YEAR = re.compile(r"[0-9]{4}")
MONTHS_PER_YEAR = 12

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
DAY_MICROSECONDS = timedelta(days=1) // MICROSECOND
EXAMPLE = '{"package": ["numpy", "scipy"], "year": {">=": 2020}}'


@dataclass(frozen=True)
class FieldValue:
    """A value of a field that exists: a text, a number, true or false.

    Values are equal if they are of one type and equal, so 2020 and 2020.0 are one value.

    Attributes:
        kind: Its type.
        value: The value as JSON has it. Texts are in Unicode's form NFC.
    """

    kind: Literal["text", "number", "boolean"]
    value: Scalar

    @cached_property
    def text(self) -> str:
        """The value as one types it: texts as they are, others as JSON.

        >>> FieldValue("number", 2020.0).text, FieldValue("boolean", True).text
        ('2020', 'true')
        """
        if isinstance(self.value, str):
            return self.value
        if isinstance(self.value, float) and self.value.is_integer():
            return str(int(self.value))
        return json.dumps(self.value)

    @cached_property
    def number(self) -> int | float | None:
        """The number that the value is or reads as; None for other values."""
        if self.kind == "number":
            return self.value  # type: ignore[return-value]
        if isinstance(self.value, str):
            return _read_number(self.value)
        return None

    @cached_property
    def instant(self) -> int | None:
        """Microseconds since 1970, UTC, of the date that a text reads as; a day is its begin."""
        if not isinstance(self.value, str):
            return None
        period = _read_period(self.value)
        return None if period is None else period.start

    @cached_property
    def keys(self) -> tuple[Key, ...]:
        """All readings of the value, by which an equal operand finds it."""
        if self.kind != "text":
            return ((self.kind, self.value),)
        keys: list[Key] = [("text", self.value)]
        if self.number is not None:
            keys.append(("numeric text", self.number))
        if self.instant is not None:
            keys.append(("instant", self.instant))
        return tuple(keys)


@dataclass(frozen=True)
class Keys:
    """A selector of the values that have one of some keys."""

    keys: frozenset[Key]

    def matches(self, value: FieldValue) -> bool:
        """Return whether the value has one of the keys."""
        return not self.keys.isdisjoint(value.keys)


@dataclass(frozen=True)
class Range:
    """A selector of the numbers or instants in a range.

    Attributes:
        reading: What is compared: `FieldValue.number` or `FieldValue.instant`.
        low: Lower bound; None for none.
        high: Upper bound; None for none.
        includes_low: Whether the lower bound is in the range.
        includes_high: Whether the upper bound is in the range.
    """

    reading: Literal["number", "instant"]
    low: int | float | None = None
    high: int | float | None = None
    includes_low: bool = True
    includes_high: bool = False

    def matches(self, value: FieldValue) -> bool:
        """Return whether the value has this reading, and it is in the range."""
        position = value.number if self.reading == "number" else value.instant
        if position is None:
            return False
        if self.low is not None:
            if position < self.low or (position == self.low and not self.includes_low):
                return False
        if self.high is not None:
            if position > self.high or (position == self.high and not self.includes_high):
                return False
        return True


@dataclass(frozen=True)
class TextPattern:
    """A selector of texts and numbers that begin with a text or contain it, in any case."""

    operator: Literal["prefix", "contains"]
    pattern: str

    def matches(self, value: FieldValue) -> bool:
        """Return whether the value is written so."""
        if value.kind == "boolean":
            return False
        written = value.text.casefold()
        if self.operator == "prefix":
            return written.startswith(self.pattern)
        return self.pattern in written


Selector = Keys | Range | TextPattern


@dataclass(frozen=True)
class HasValue:
    """The condition that a field has a value that one of the selectors selects."""

    field: str
    selectors: tuple[Selector, ...]

    def matches(self, value: FieldValue) -> bool:
        """Return whether a selector selects the value."""
        return any(selector.matches(value) for selector in self.selectors)


@dataclass(frozen=True)
class Exists:
    """The condition that a field, or a field of the object that it is, has a value."""

    field: str

    def covers(self, name: str) -> bool:
        """Return whether a field with this name is the field, or lies in its object."""
        return name == self.field or name.startswith(f"{self.field}.")


@dataclass(frozen=True)
class All:
    """The condition that all parts hold; true without parts."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class AnyOf:
    """The condition that a part holds; false without parts."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Not:
    """The condition that another one does not hold."""

    part: Condition


Condition = HasValue | Exists | All | AnyOf | Not


@dataclass(frozen=True)
class _Period:
    """A span of instants, in microseconds since 1970; an instant has an `end` of None."""

    start: int
    end: int | None = None


def iterate_field_values(fields: Mapping[str, Any]) -> Iterator[tuple[str, FieldValue]]:
    """Yield the values of a document that exist, each with the name of its field.

    A list yields each of its members, and an object its fields with dots in their names.

    >>> fields = {"tags": ["a", None, 1], "author": {"name": "Ann", "mail": ""}}
    >>> [(name, value.text) for name, value in iterate_field_values(fields)]
    [('tags', 'a'), ('tags', '1'), ('author.name', 'Ann')]
    """
    # Nested values are kept in a list instead of the call stack, so that no depth is too much.
    waiting: list[tuple[str, Any]] = list(reversed(fields.items()))
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, Mapping):
            for key, member in reversed(value.items()):
                waiting.append((f"{name}.{key}", member))
        elif isinstance(value, list):
            for member in reversed(value):
                waiting.append((name, member))
        else:
            field_value = make_value(value)
            if field_value is not None:
                yield name, field_value


def make_value(value: Any) -> FieldValue | None:
    """Return a JSON value as the value of a field; None if it does not exist."""
    if value is None:
        return None
    if isinstance(value, bool):
        return FieldValue("boolean", value)
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, int | float):
        return FieldValue("number", value)
    text = _normalize(str(value))
    return FieldValue("text", text) if text.strip() else None


def matches_fields(condition: Condition, fields: Mapping[str, Any]) -> bool:
    """Return whether the fields of a document meet a condition.

    >>> condition = parse_filters({"year": {">=": 2020}, "doi": None})
    >>> matches_fields(condition, {"year": "2020.0", "doi": ""})
    True
    """
    return _holds(condition, list(iterate_field_values(fields)))


def _holds(condition: Condition, values: Sequence[tuple[str, FieldValue]]) -> bool:
    if isinstance(condition, All):
        return all(_holds(part, values) for part in condition.parts)
    if isinstance(condition, AnyOf):
        return any(_holds(part, values) for part in condition.parts)
    if isinstance(condition, Not):
        return not _holds(condition.part, values)
    if isinstance(condition, Exists):
        return any(condition.covers(name) for name, _ in values)
    return any(name == condition.field and condition.matches(value) for name, value in values)


def condition_fields(condition: Condition) -> Iterator[str]:
    """Yield the fields whose values a condition compares.

    A field that is only asked for by `exists` or null need not be known, and is left out.
    """
    if isinstance(condition, All | AnyOf):
        for part in condition.parts:
            yield from condition_fields(part)
    elif isinstance(condition, Not):
        yield from condition_fields(condition.part)
    elif isinstance(condition, HasValue):
        yield condition.field


def parse_filters(filters: Filters) -> Condition:
    """Parse a filter object, or texts as one types them.

    Several typed `=` of one field are alternatives.

    >>> parse_filters(["year >= 2020"]) == parse_filters({"year": {">=": "2020"}})
    True

    Raises:
        SettingsError: If the filter is malformed.
    """
    if isinstance(filters, Mapping):
        return _parse_object(filters)
    require(
        not isinstance(filters, str),
        f"filters are an object such as {EXAMPLE}, or a list of texts, not the text "
        f"{str(filters)[:80]!r}",
    )

    parts: list[Condition] = []
    alternatives: dict[str, list[str]] = {}
    for text in filters:
        if text.lstrip().startswith("{"):
            parts.append(_parse_object(json_filter(text)))
            continue
        name, operator, operand = parse_typed(text)
        if operator == "=":
            alternatives.setdefault(name, []).append(operand)
        else:
            parts.append(_parse_comparison(name, operator, operand))
    for name, operands in alternatives.items():
        parts.append(_parse_comparison(name, "in", operands))
    return _combine(parts)


def parse_typed(text: str) -> tuple[str, str, str]:
    """Split a typed condition into field, operator and operand. Blanks around them do not count.

    >>> parse_typed("release year >= 2020"), parse_typed("name^=num")
    (('release year', '>=', '2020'), ('name', 'prefix', 'num'))

    Raises:
        SettingsError: If the text is no condition.
    """
    match = TYPED_CONDITION.fullmatch(text)
    if match is None or not match[1].strip():
        raise SettingsError(
            f"--filter {text}: write it as field=value, field>=value, or as JSON: {EXAMPLE}"
        )
    name, operator, operand = match.groups()
    return name.strip(), TYPED_OPERATORS[operator], operand.strip()


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


def _parse_object(conditions: Any, depth: int = 0) -> Condition:
    """Return the condition that every entry of an object holds."""
    require(depth < MAX_DEPTH, f"filters are nested more than {MAX_DEPTH} deep")
    require(
        isinstance(conditions, Mapping),
        f"a filter is an object such as {EXAMPLE}, not {_shown(conditions)}",
    )
    parts: list[Condition] = []
    for name, value in conditions.items():
        parts.append(_parse_entry(name, value, depth))
    return _combine(parts)


def _parse_entry(name: str, value: Any, depth: int) -> Condition:
    """Return the condition of one entry of a filter object."""
    if name == "not":
        return Not(_parse_object(value, depth + 1))
    if name in ("and", "or") and isinstance(value, list):
        parts = tuple(_parse_object(member, depth + 1) for member in value)
        return All(parts) if name == "and" else AnyOf(parts)
    if isinstance(value, Mapping):
        require(bool(value), f"the filter of {name} states nothing; write it as {EXAMPLE}")
        comparisons = [_parse_comparison(name, key, operand) for key, operand in value.items()]
        return _combine(comparisons)
    return _parse_comparison(name, "=", value)


def _combine(parts: Sequence[Condition]) -> Condition:
    """Return the condition that all parts hold, without a wrapper around a single one."""
    return parts[0] if len(parts) == 1 else All(tuple(parts))


def _parse_comparison(name: str, operator: str, operand: Any) -> Condition:
    """Return the condition that a field compares to an operand."""
    if operator == "exists":
        require(isinstance(operand, bool), f"exists of {name} is true or false")
        return Exists(name) if operand else Not(Exists(name))
    if operator == "in":
        require(isinstance(operand, list), f"in of {name} takes a list of values")
    if operator in ("=", "in"):
        return _parse_equality(name, operand)
    if operator == "!=":
        return Not(_parse_equality(name, operand))
    if operator in ("prefix", "contains"):
        return _parse_pattern(name, operator, operand)
    require(
        operator in RANGE_OPERATORS,
        f"{name} is filtered by {operator!r}; use one of {', '.join(OPERATORS)}, "
        f"or write the field of an object as {name}.FIELD",
    )
    return HasValue(name, tuple(_range_selectors(name, operator, operand)))


def _parse_equality(name: str, operand: Any) -> Condition:
    """Return the condition that a value of a field equals an operand, or one of a list.

    Null and the empty text stand for a field that does not exist.
    """
    operands = operand if isinstance(operand, list) else [operand]
    keys: set[Key] = set()
    selectors: list[Selector] = []
    accepts_missing = False
    for member in operands:
        value = _read_operand(name, member)
        if value is None:
            accepts_missing = True
            continue
        keys.update(_equal_keys(value))
        period = _operand_period(value)
        if period is not None and period.end is not None:
            selectors.append(Range("instant", period.start, period.end))
    if keys:
        selectors.insert(0, Keys(frozenset(keys)))

    has_value = HasValue(name, tuple(selectors))
    if not accepts_missing:
        return has_value
    return AnyOf((has_value, Not(Exists(name)))) if selectors else Not(Exists(name))


def _equal_keys(operand: FieldValue) -> Iterator[Key]:
    """Yield the keys of the values that equal an operand, periods aside."""
    if operand.kind == "number":
        yield "number", operand.value
        yield "numeric text", operand.value
    elif operand.kind == "boolean":
        yield "boolean", operand.value
        yield "text", operand.text
    else:
        yield "text", operand.value
        if operand.value in ("true", "false"):
            yield "boolean", operand.value == "true"
        if operand.number is not None:
            yield "number", operand.number
        if operand.instant is not None:
            yield "instant", operand.instant


def _parse_pattern(name: str, operator: str, operand: Any) -> Condition:
    """Return the condition that a value of a field begins with a text, or contains it."""
    require(
        isinstance(operand, str) and operand != "",
        f"{operator} of {name} takes a text that is not empty, not {_shown(operand)}",
    )
    pattern = TextPattern(operator, _normalize(operand).casefold())  # type: ignore[arg-type]
    return HasValue(name, (pattern,))


def _range_selectors(name: str, operator: str, operand: Any) -> Iterator[Range]:
    """Yield the ranges of numbers and of instants on one side of a bound.

    Numbers are only compared with numbers, and dates with dates. A year is both.
    """
    value = _read_operand(name, operand)
    number = None if value is None else value.number
    period = None if value is None else _operand_period(value)
    require(
        number is not None or period is not None,
        f"{name} {operator} {_shown(operand)}: ranges are of numbers and of ISO dates",
    )
    if number is not None:
        yield _range_of("number", operator, number, number, includes_end=True)
    if period is not None:
        is_instant = period.end is None
        end = period.start if period.end is None else period.end
        yield _range_of("instant", operator, period.start, end, includes_end=is_instant)


def _range_of(
    reading: Literal["number", "instant"],
    operator: str,
    start: int | float,
    end: int | float,
    includes_end: bool,
) -> Range:
    """Return the range on one side of the span from `start` to `end`.

    Args:
        reading: What is compared.
        operator: One of `RANGE_OPERATORS`.
        start: Begin of the span, which belongs to it.
        end: End of the span.
        includes_end: Whether the end belongs to the span.
    """
    if operator == ">":
        return Range(reading, low=end, includes_low=not includes_end)
    if operator == ">=":
        return Range(reading, low=start)
    if operator == "<":
        return Range(reading, high=start)
    return Range(reading, high=end, includes_high=includes_end)


def _read_operand(name: str, operand: Any) -> FieldValue | None:
    """Return an operand as a value; None if it is null or empty."""
    is_scalar = operand is None or isinstance(operand, Scalar)
    is_nan = isinstance(operand, float) and math.isnan(operand)
    require(
        is_scalar and not is_nan,
        f"{name} is compared with {_shown(operand)}; use a text, a number, true, false or null",
    )
    return make_value(operand)


def _operand_period(operand: FieldValue) -> _Period | None:
    """Return the instant, day, month or year that an operand reads as; None for others."""
    text = operand.text
    if operand.kind == "boolean":
        return None
    if YEAR.fullmatch(text):
        return _month_period(int(text), 1, MONTHS_PER_YEAR)
    month = MONTH.fullmatch(text)
    if month is not None:
        return _month_period(int(month[1]), int(month[2]), 1)
    return _read_period(text)


def _month_period(year: int, month: int, months: int) -> _Period | None:
    """Return the period of some months of a year; None if there are no such months."""
    try:
        start = datetime(year, month, 1, tzinfo=UTC)
    except ValueError:
        return None
    days = 0
    for number in range(month, month + months):
        days += calendar.monthrange(year, number)[1]
    first = _microseconds(start)
    return _Period(first, first + days * DAY_MICROSECONDS)


def _read_period(text: str) -> _Period | None:
    """Return the instant or the day that a text reads as; None for other texts."""
    if not DATE_START.match(text):
        return None
    instant = parse_date(text)
    if instant is None:
        return None
    start = _microseconds(instant)
    if DAY.fullmatch(text):
        return _Period(start, start + DAY_MICROSECONDS)
    return _Period(start)


def _microseconds(instant: datetime) -> int:
    """Return the microseconds since 1970, UTC."""
    return (instant - EPOCH) // MICROSECOND


def _read_number(text: str) -> int | float | None:
    """Return the number that a text reads as; None for other texts.

    >>> _read_number("2.5"), _read_number("2024"), _read_number("v2")
    (2.5, 2024, None)
    """
    if len(text) > MAX_NUMBER_CHARACTERS or not NUMBER.fullmatch(text):
        return None
    return int(text) if INTEGER.fullmatch(text) else float(text)


def _normalize(text: str) -> str:
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def _shown(value: Any) -> str:
    """Return the beginning of a value, for an error message."""
    if isinstance(value, str):
        return value[:80]
    return json.dumps(value, ensure_ascii=False, default=str)[:80]
