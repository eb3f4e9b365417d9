"""Values of Python, numpy and pandas as JSON has them, for the client and for rows of sources."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum
from math import isfinite
from typing import Any

# Types are recognised by name, because importing decimal, uuid or pandas would slow down every
# cold command.
MISSING_TYPES = ("NaTType", "NAType")
TEXT_TYPES = ("UUID", "Timedelta", "timedelta", "Interval", "Period", "Fraction", "UserString")


def replace_missing(value: Any) -> Any:
    """Return a value with null in place of numbers that JSON does not have: NaN and infinity."""
    if isinstance(value, float) and not isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: replace_missing(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [replace_missing(member) for member in value]
    return value


def to_json_value(value: Any) -> Any:
    """Return a value that JSON does not have as one that it has.

    Times become ISO texts, identifiers and bytes in UTF-8 become texts, sets and arrays become
    lists. A decimal number becomes a number if that loses no digit, and else a text. Missing values
    of pandas become null.

    >>> from datetime import date
    >>> to_json_value(date(2024, 5, 1)), to_json_value({"b", "a"}), to_json_value(b"text")
    ('2024-05-01', ['a', 'b'], 'text')

    Raises:
        TypeError: If there is no such value.
    """
    type_name = type(value).__name__
    if type_name in MISSING_TYPES:
        return None
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return _decode(value)
    if isinstance(value, Mapping):
        return replace_missing(dict(value))
    if isinstance(value, set | frozenset):
        return replace_missing(sorted(value, key=str))
    if isinstance(value, deque | range):
        return replace_missing(list(value))
    if isinstance(value, Enum):
        return value.value
    if type_name == "Decimal":
        return _decimal_value(value)
    if type_name in TEXT_TYPES or hasattr(value, "__fspath__"):
        return str(value)
    if hasattr(value, "tolist") and not isinstance(value, memoryview):
        # Arrays, their scalars, and columns of tables. A missing time of numpy becomes None.
        return replace_missing(value.tolist())
    raise TypeError(f"a {type_name} has no form in JSON")


def _decode(value: bytes | bytearray) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise TypeError("bytes that are no UTF-8 have no form in JSON") from None


def _decimal_value(value: Any) -> float | str | None:
    if not value.is_finite():
        return None
    number = float(value)
    # `repr` is the shortest text that reads as the number.
    is_exact = isfinite(number) and type(value)(repr(number)) == value
    return number if is_exact else str(value)
