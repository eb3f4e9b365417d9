"""Parse filters to trees of conditions, and compare the field values of documents with them.

`parse_filters` turns a filter into a tree of `All`, `AnyOf`, `Not`, `Exists` and `HasValue`. A
`HasValue` has selectors, such as a range. A value matches if it matches one selector.

`matches_fields` evaluates a tree for the fields of one document. It is slow but simple, and defines
the right result. `field_index` evaluates trees for many documents at once.

Rules of comparison:

- Numbers are compared by value: 2020 equals 2020.0.
- A text such as "2020" is compared with a number as a number. Two texts are equal only if all
  characters are equal, so "1.10" is not "1.1".
- A date without a time means the whole day in UTC, YYYY-MM the month, and YYYY the year. In a
  range, such a field value counts as its first moment. It equals every period that contains it.
- The texts "true", "True" and "TRUE" equal true.
- Null, empty texts, empty lists and empty objects count as missing.
- The fields of an object have names with dots: `author.name`.
- A document matches if one of the values of its field matches. It matches `!=` if no value is
  equal.
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
"""A filter object, or conditions as a user types them: "package=numpy", "year>=2020", or JSON."""

Scalar = str | int | float | bool
Key = tuple[Literal["text", "number", "numeric text", "boolean", "instant"], Scalar]
"""A type and a value. A field value equals the operand of a filter if they share a key.

A text can have several keys: "2020" is a text and can be read as a number.
"""

# Largest number of filter objects inside each other.
MAX_DEPTH = 16

# Number of characters above which a text is not read as a number. Python refuses to read integers
# of more than 4,300 digits.
MAX_NUMBER_CHARACTERS = 100

RANGE_OPERATORS = (">", ">=", "<", "<=")
OPERATORS = ("=", "!=", *RANGE_OPERATORS, "in", "exists", "prefix", "contains")

# Name of each operator in a filter object, by its form in a typed condition. Long forms come first,
# so that ">=" is not taken for ">".
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
QUOTED_OPERAND = re.compile(r"""(["'])((?:(?!\1).)+)\1""", re.DOTALL)
NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
INTEGER = re.compile(r"[-+]?[0-9]+")
# Beginning of every date. Other texts are not parsed as dates, which saves time.
DATE_START = re.compile(r"[0-9]{4}-")
DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
MONTH = re.compile(r"([0-9]{4})-([0-9]{2})")
YEAR = re.compile(r"[0-9]{4}")
MONTHS_PER_YEAR = 12
# Texts of true and false, as JSON, Python and spreadsheets write them.
BOOLEAN_TEXTS = {
    True: ("true", "True", "TRUE"),
    False: ("false", "False", "FALSE"),
}

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
DAY_MICROSECONDS = timedelta(days=1) // MICROSECOND
EXAMPLE = '{"package": ["numpy", "scipy"], "year": {">=": 2020}}'


@dataclass(frozen=True)
class FieldValue:
    """A value of a field that is not missing: a text, a number, true or false.

    Two values are equal if they have the same type and are equal. So 2020 and 2020.0 are equal, but
    2020 and "2020" are not.

    Attributes:
        kind: Type of the value.
        value: The value as Python's JSON parser returns it. Texts are in Unicode's form NFC.
    """

    kind: Literal["text", "number", "boolean"]
    value: Scalar

    @cached_property
    def text(self) -> str:
        """The value as a user types it. Numbers, true and false are written as in JSON.

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
        """The value as a number. None if it is neither a number nor a text such as "2.5"."""
        if self.kind == "number":
            return self.value  # type: ignore[return-value]
        if isinstance(self.value, str):
            return _read_number(self.value)
        return None

    @cached_property
    def period(self) -> Period | None:
        """The year, month, day or point of time that the value means. None if it is not a date.

        The number 2019 and the text "2019" mean the year.
        """
        if self.kind == "boolean":
            return None
        return _read_period(self.text)

    @cached_property
    def instant(self) -> int | None:
        """The first moment of `period`, in microseconds since 1970, UTC. None without a period."""
        if self.period is None:
            return None
        return self.period.start

    @cached_property
    def keys(self) -> tuple[Key, ...]:
        """The keys by which filters test equality, as pairs of a type and a value.

        The operand of a filter has keys as well. The value equals the operand if they share a key.
        A number or truth value has one key. A text can have several:

        - "text": the text itself.
        - "numeric text": the number that it can be read as. Only operands that are numbers have
          this key, so the text "2020" equals the number 2020 and not the text "2020.0".
        - "instant": the first moment of the day or time that it means. A text such as "2020-05" has
          no such key, or the month would equal its first day.
        """
        if self.kind != "text":
            return ((self.kind, self.value),)

        keys: list[Key] = [("text", self.value)]
        if self.number is not None:
            keys.append(("numeric text", self.number))
        if self.period is not None and self.period.is_within_a_day:
            keys.append(("instant", self.period.start))
        return tuple(keys)


@dataclass(frozen=True)
class Keys:
    """A selector of the values that have at least one of the given keys.

    A key is a pair of a type and a value, such as the number 2020; see `FieldValue.keys`.
    """

    keys: frozenset[Key]

    def matches(self, value: FieldValue) -> bool:
        """Return whether a value has one of the keys."""
        return not self.keys.isdisjoint(value.keys)


@dataclass(frozen=True)
class Range:
    """A selector of the numbers or times in a range.

    Attributes:
        reading: "number" to compare `FieldValue.number`, "instant" to compare `FieldValue.instant`.
        low: Lower bound. None if the range has no lower bound.
        high: Upper bound. None if the range has no upper bound.
        includes_low: Whether the lower bound is in the range.
        includes_high: Whether the upper bound is in the range.
        is_period: Whether values are left out that mean a longer period than the range, such as the
            year 2019 in January 2019.
    """

    reading: Literal["number", "instant"]
    low: int | float | None = None
    high: int | float | None = None
    includes_low: bool = True
    includes_high: bool = False
    is_period: bool = False

    def matches(self, value: FieldValue) -> bool:
        """Return whether a value has the type of the range, a number or a time, and lies in it."""
        position = value.number if self.reading == "number" else value.instant
        if position is None:
            return False
        if self.is_period and not self._contains_period(value):
            return False
        return self._is_above_low(position) and self._is_below_high(position)

    def _contains_period(self, value: FieldValue) -> bool:
        """Return whether the period that a value means ends within the range."""
        period = value.period
        if period is None or period.end is None or self.high is None:
            return True
        return period.end <= self.high

    def _is_above_low(self, position: int | float) -> bool:
        """Return whether a number or time respects the lower bound."""
        if self.low is None or position > self.low:
            return True
        return position == self.low and self.includes_low

    def _is_below_high(self, position: int | float) -> bool:
        """Return whether a number or time respects the upper bound."""
        if self.high is None or position < self.high:
            return True
        return position == self.high and self.includes_high


@dataclass(frozen=True)
class TextPattern:
    """A selector of texts and numbers that begin with a pattern or contain it.

    Upper and lower case are not distinguished.

    Attributes:
        operator: "prefix" or "contains".
        pattern: The pattern in folded case.
    """

    operator: Literal["prefix", "contains"]
    pattern: str

    def matches(self, value: FieldValue) -> bool:
        """Return whether the text of a value begins with the pattern or contains it."""
        if value.kind == "boolean":
            return False
        written = value.text.casefold()
        if self.operator == "prefix":
            return written.startswith(self.pattern)
        return self.pattern in written


Selector = Keys | Range | TextPattern


@dataclass(frozen=True)
class HasValue:
    """The condition that a field has a value which matches one of the selectors.

    A selector is a set of keys, a range, or a pattern of texts.
    """

    field: str
    selectors: tuple[Selector, ...]

    def matches(self, value: FieldValue) -> bool:
        """Return whether a value matches one of the selectors."""
        return any(selector.matches(value) for selector in self.selectors)


@dataclass(frozen=True)
class Exists:
    """The condition that a field has a value.

    If the field is an object, one of the fields of the object must have a value.
    """

    field: str

    def covers(self, name: str) -> bool:
        """Return whether `name` is the name of the field, or of a field inside of it."""
        return name == self.field or name.startswith(f"{self.field}.")


@dataclass(frozen=True)
class All:
    """The condition that all of its parts hold. It is true without parts."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class AnyOf:
    """The condition that at least one of its parts holds. It is false without parts."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Not:
    """The condition that its part does not hold."""

    part: Condition


Condition = HasValue | Exists | All | AnyOf | Not


@dataclass(frozen=True)
class Period:
    """A period or a point of time, in microseconds since 1970.

    Attributes:
        start: First microsecond of the period, or the point of time.
        end: First microsecond after the period. None for a point of time.
    """

    start: int
    end: int | None = None

    @property
    def is_within_a_day(self) -> bool:
        """Whether this is a day or a point of time, and not a month or a year."""
        return self.end is None or self.end - self.start <= DAY_MICROSECONDS


def iterate_field_values(fields: Mapping[str, Any]) -> Iterator[tuple[str, FieldValue]]:
    """Yield each field value of a document with the name of its field.

    A list yields each of its members. An object yields its fields, with dots in their names.
    Missing values are left out.

    >>> fields = {"tags": ["a", None, 1], "author": {"name": "Ann", "mail": ""}}
    >>> [(name, value.text) for name, value in iterate_field_values(fields)]
    [('tags', 'a'), ('tags', '1'), ('author.name', 'Ann')]
    """
    # A list of waiting values replaces recursion, whose depth Python limits. Its last entry is
    # visited first, so that values are added to it in reverse order.
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
    """Return a JSON value as a field value. None if it counts as missing, such as an empty text."""
    if value is None:
        return None
    if isinstance(value, bool):
        return FieldValue("boolean", value)
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, int | float):
        return FieldValue("number", value)
    text = _normalize(str(value))
    if not text.strip():
        return None
    return FieldValue("text", text)


def matches_fields(condition: Condition, fields: Mapping[str, Any]) -> bool:
    """Return whether the fields of a document meet a condition.

    >>> condition = parse_filters({"year": {">=": 2020}, "doi": None})
    >>> matches_fields(condition, {"year": "2020.0", "doi": ""})
    True
    """
    return _holds(condition, list(iterate_field_values(fields)))


def _holds(condition: Condition, values: Sequence[tuple[str, FieldValue]]) -> bool:
    """Return whether a condition holds for a document, given its fields' names and values."""
    if isinstance(condition, All):
        return all(_holds(part, values) for part in condition.parts)
    if isinstance(condition, AnyOf):
        return any(_holds(part, values) for part in condition.parts)
    if isinstance(condition, Not):
        return not _holds(condition.part, values)
    if isinstance(condition, Exists):
        return any(condition.covers(name) for name, _ in values)
    return any(name == condition.field and condition.matches(value) for name, value in values)


def matches_everything(condition: Condition) -> bool:
    """Return whether a condition holds for every document, because it states nothing.

    >>> matches_everything(parse_filters({"and": [{}]})), matches_everything(parse_filters({}))
    (True, True)
    >>> matches_everything(parse_filters({"year": {"exists": True}}))
    False
    """
    if isinstance(condition, All):
        return all(matches_everything(part) for part in condition.parts)
    if isinstance(condition, AnyOf):
        return any(matches_everything(part) for part in condition.parts)
    if isinstance(condition, Not):
        return _matches_nothing(condition.part)
    return False


def _matches_nothing(condition: Condition) -> bool:
    """Return whether a condition holds for no document, such as `or` without alternatives."""
    if isinstance(condition, All):
        return any(_matches_nothing(part) for part in condition.parts)
    if isinstance(condition, AnyOf):
        return all(_matches_nothing(part) for part in condition.parts)
    if isinstance(condition, Not):
        return matches_everything(condition.part)
    return isinstance(condition, HasValue) and not condition.selectors


def condition_fields(condition: Condition) -> Iterator[str]:
    """Yield the names of the fields whose values a condition compares.

    Fields that are only tested for existence are left out. They may be unknown.
    """
    if isinstance(condition, All | AnyOf):
        for part in condition.parts:
            yield from condition_fields(part)
    elif isinstance(condition, Not):
        yield from condition_fields(condition.part)
    elif isinstance(condition, HasValue):
        yield condition.field


def parse_filters(filters: Filters) -> Condition:
    """Parse a filter object, or conditions that a user typed.

    All typed conditions must hold. However, several `=` of the same field are alternatives.

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
        require(
            isinstance(text, str),
            f"a list of filters holds texts such as year>=2020, not {str(text)[:80]!r}; give one "
            f"object instead: {EXAMPLE}",
        )
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
    """Split a typed condition into field, operator and operand, without blanks around them.

    Quotes around the operand are no part of it, as in other query languages.

    >>> parse_typed("release year >= 2020"), parse_typed('name ^= "num"')
    (('release year', '>=', '2020'), ('name', 'prefix', 'num'))

    Raises:
        SettingsError: If the text does not have the form of a condition.
    """
    match = TYPED_CONDITION.fullmatch(text)
    if match is None or not match[1].strip():
        raise SettingsError(
            f"--filter {text}: write it as field=value, field>=value, or as JSON: {EXAMPLE}"
        )
    name, operator, operand = match.groups()
    operand = operand.strip()
    quoted = QUOTED_OPERAND.fullmatch(operand)
    if quoted is not None:
        operand = quoted[2]
    return name.strip(), TYPED_OPERATORS[operator], operand


def json_filter(text: str) -> Any:
    """Parse a filter object that a user typed as JSON.

    Raises:
        SettingsError: If the text is not valid JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise SettingsError(
            f"--filter {text[:80]}: this begins as JSON, and is none; write it as {EXAMPLE}"
        ) from None


def _parse_object(conditions: Any, depth: int = 0) -> Condition:
    """Return the condition that all entries of a filter object hold."""
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
    """Return the condition of one entry of a filter object.

    Args:
        name: Name of a field, or "and", "or" or "not".
        value: Value of the entry.
        depth: Number of filter objects around this one.
    """
    if name == "not":
        return Not(_parse_object(value, depth + 1))
    if name in ("and", "or") and isinstance(value, list):
        parts = tuple(_parse_object(member, depth + 1) for member in value)
        return All(parts) if name == "and" else AnyOf(parts)
    if name in ("and", "or") and isinstance(value, Mapping):
        # A field may be called "and" or "or", but then an operator must compare it.
        require(
            not value.keys().isdisjoint(OPERATORS),
            f"{name} takes a list of filter objects; put the object into brackets",
        )
    if isinstance(value, Mapping):
        require(bool(value), f"the filter of {name} states nothing; write it as {EXAMPLE}")
        comparisons = [_parse_comparison(name, key, operand) for key, operand in value.items()]
        return _combine(comparisons)
    return _parse_comparison(name, "=", value)


def _combine(parts: Sequence[Condition]) -> Condition:
    """Return the condition that all parts hold. A single part is returned without `All`."""
    return parts[0] if len(parts) == 1 else All(tuple(parts))


def _parse_comparison(name: str, operator: str, operand: Any) -> Condition:
    """Return the condition that compares a field with an operand.

    Args:
        name: Name of the field.
        operator: One of `OPERATORS`.
        operand: Value from the filter.
    """
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
    """Return the condition that a field equals an operand, or one member of a list of operands.

    Null and the empty text as operands match documents without the field.
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
        # An operand such as "2020-05" means a whole month, and matches each time in it.
        period = value.period
        if period is not None and period.end is not None:
            selectors.append(Range("instant", period.start, period.end, is_period=True))
    if keys:
        selectors.insert(0, Keys(frozenset(keys)))

    has_value = HasValue(name, tuple(selectors))
    is_missing = Not(Exists(name))
    if not accepts_missing:
        return has_value
    if not selectors:
        return is_missing
    return AnyOf((has_value, is_missing))


def _equal_keys(operand: FieldValue) -> Iterator[Key]:
    """Yield the keys of the operand of a filter: pairs of a type and a value.

    A field value equals the operand if it has one of these keys; see `FieldValue.keys`. An operand
    such as "2020-05" means a month, and also equals every time in it. The caller adds this range.
    """
    if operand.kind == "number":
        yield "number", operand.value
        yield "numeric text", operand.value
    elif operand.kind == "boolean":
        yield "boolean", operand.value
        for text in BOOLEAN_TEXTS[bool(operand.value)]:
            yield "text", text
    else:
        yield "text", operand.value
        for truth, texts in BOOLEAN_TEXTS.items():
            if operand.value in texts:
                yield "boolean", truth
        if operand.number is not None:
            yield "number", operand.number
        if operand.period is not None and operand.period.is_within_a_day:
            yield "instant", operand.period.start


def _parse_pattern(name: str, operator: str, operand: Any) -> Condition:
    """Return the condition that a field has a value which begins with a text or contains it."""
    require(
        isinstance(operand, str) and operand != "",
        f"{operator} of {name} takes a text that is not empty, not {_shown(operand)}",
    )
    pattern = TextPattern(operator, _normalize(operand).casefold())  # type: ignore[arg-type]
    return HasValue(name, (pattern,))


def _range_selectors(name: str, operator: str, operand: Any) -> Iterator[Range]:
    """Yield the ranges of numbers and of times that an operator such as `>=` selects.

    Numbers are only compared with numbers, and dates only with dates. An operand such as "2020" can
    be a number or a year, so it gives both ranges.
    """
    value = _read_operand(name, operand)
    number = None
    period = None
    if value is not None:
        number = value.number
        period = value.period
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
    """Return the range that an operator selects, relative to an operand from `start` to `end`.

    An operand such as "2020" means a whole year. `>` selects times after its end, and `>=` times
    from its start on.

    Args:
        reading: "number" or "instant"; see `Range`.
        operator: One of `RANGE_OPERATORS`.
        start: Start of the operand, included.
        end: End of the operand.
        includes_end: Whether the end is included.
    """
    if operator == ">":
        return Range(reading, low=end, includes_low=not includes_end)
    if operator == ">=":
        return Range(reading, low=start)
    if operator == "<":
        return Range(reading, high=start)
    return Range(reading, high=end, includes_high=includes_end)


def _read_operand(name: str, operand: Any) -> FieldValue | None:
    """Return an operand as a field value. None if it is null or an empty text."""
    is_scalar = operand is None or isinstance(operand, Scalar)
    is_nan = isinstance(operand, float) and math.isnan(operand)
    require(
        is_scalar and not is_nan,
        f"{name} is compared with {_shown(operand)}; use a text, a number, true, false or null",
    )
    return make_value(operand)


def _month_period(year: int, month: int, months: int) -> Period | None:
    """Return the period of a number of months. None if year or month is out of range.

    Args:
        year: The year.
        month: First month, from 1.
        months: Number of months.
    """
    try:
        start = datetime(year, month, 1, tzinfo=UTC)
    except ValueError:
        return None
    days = 0
    for number in range(month, month + months):
        days += calendar.monthrange(year, number)[1]
    first = _microseconds(start)
    return Period(first, first + days * DAY_MICROSECONDS)


def _read_period(text: str) -> Period | None:
    """Return the year, month, day or time that a text means. None if it is not a date."""
    if YEAR.fullmatch(text):
        return _month_period(int(text), 1, MONTHS_PER_YEAR)
    if not DATE_START.match(text):
        return None
    month = MONTH.fullmatch(text)
    if month is not None:
        return _month_period(int(month[1]), int(month[2]), 1)
    instant = parse_date(text)
    if instant is None:
        return None
    start = _microseconds(instant)
    if DAY.fullmatch(text):
        return Period(start, start + DAY_MICROSECONDS)
    return Period(start)


def _microseconds(instant: datetime) -> int:
    """Return a time in microseconds since 1970, UTC."""
    return (instant - EPOCH) // MICROSECOND


def _read_number(text: str) -> int | float | None:
    """Return the number that a text means. None if it is not a number.

    >>> _read_number("2.5"), _read_number("2024"), _read_number("v2")
    (2.5, 2024, None)
    """
    if len(text) > MAX_NUMBER_CHARACTERS or not NUMBER.fullmatch(text):
        return None
    return int(text) if INTEGER.fullmatch(text) else float(text)


def _normalize(text: str) -> str:
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def _shown(value: Any) -> str:
    """Return the beginning of a value, at most 80 characters, for an error message."""
    if isinstance(value, str):
        return value[:80]
    return json.dumps(value, ensure_ascii=False, default=str)[:80]
