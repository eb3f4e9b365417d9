"""Convert values of Python, numpy and pandas to JSON values.

The client uses this for request bodies, and sources use it for the fields of rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum
from math import isfinite
from typing import Any

# Types are recognised by name, because importing decimal, uuid or pandas would slow down every
# cold command.
# Types of pandas' missing values, which become null.
MISSING_TYPES = ("NaTType", "NAType")
# Types whose values are written as text.
TEXT_TYPES = ("UUID", "Timedelta", "timedelta", "Interval", "Period", "Fraction", "UserString")


# Floats below this number have all digits of the integer that they mean.
EXACT_FLOAT_LIMIT = 2.0**53


def read_id_value(value: Any) -> str | None:
    """Return the id that a value means; None if it means none.

    An id is a text or a whole number. A column of whole numbers becomes a column of floats in
    pandas if one of its values is missing, so 12.0 means the id `12`.

    >>> read_id_value("a"), read_id_value(12), read_id_value(12.0)
    ('a', '12', '12')
    >>> read_id_value(12.5), read_id_value(True)
    (None, None)
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        is_exact = value.is_integer() and abs(value) < EXACT_FLOAT_LIMIT
        return str(int(value)) if is_exact else None
    return None


def replace_missing(value: Any) -> Any:
    """Replace NaN and infinity by None at any depth, because JSON has no such numbers."""
    if isinstance(value, float) and not isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: replace_missing(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [replace_missing(member) for member in value]
    return value


def to_json_value(value: Any) -> Any:
    """Convert a value that JSON cannot represent to one that it can.

    Times become ISO texts. Identifiers and bytes in UTF-8 become texts. Sets and arrays become
    lists. Missing values of pandas become null. A decimal number becomes a number if no digit is
    lost, and a text otherwise.

    >>> from datetime import date
    >>> to_json_value(date(2024, 5, 1)), to_json_value({"b", "a"}), to_json_value(b"text")
    ('2024-05-01', ['a', 'b'], 'text')

    Raises:
        TypeError: If the value has no form in JSON.
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
    """Return bytes in UTF-8 as text; raise `TypeError` for other bytes."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise TypeError("bytes that are no UTF-8 have no form in JSON") from None


def _decimal_value(value: Any) -> float | str | None:
    """Return a `Decimal` as a number if no digit is lost, and as a text otherwise.

    None for NaN and infinity, which JSON does not have.
    """
    if not value.is_finite():
        return None
    number = float(value)
    # `repr` is the shortest text that is parsed as the same float. As a decimal number, this text
    # equals the value only if no digit is lost. A value beyond the largest float is infinite here.
    decimal_type = type(value)
    is_exact = isfinite(number) and decimal_type(repr(number)) == value
    return number if is_exact else str(value)
