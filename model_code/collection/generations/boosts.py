"""Boosts: fields that raise the scores of a search, such as recency and popularity.

A search boosts the documents of its window, which are the best documents of the ranking. A boost
changes the score of a document to

    score + weight * spread * strength

The spread is the difference between the scores of the first and the last document of the window.
Therefore a weight has the same effect for every retriever, whatever the size of its scores.

The strength of a date is 1 for the present, and halves with every `half_life` of its age. The
strength of a number x is x / (x + pivot), which is 1/2 at the pivot and never exceeds 1. A document
without a value has strength 0.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from model_code.collection.segments.conditions import FieldValue
from model_code.errors import FreshetError, SettingsError
from model_code.settings import require

if TYPE_CHECKING:
    from model_code.collection.segments.filters import CollectionFields

# Weight of a boost that states none. It adds at most 0.3 of the difference between the best and the
# lowest score.
DEFAULT_WEIGHT = 0.3

# Largest weight that a search accepts.
MAX_WEIGHT = 100.0

DURATION = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*([hdwy])")
DURATION_SECONDS = {"h": 3600, "d": 86_400, "w": 604_800, "y": 31_557_600}
KEYS = ("half_life", "pivot", "weight")
EXAMPLE = '{"date": {"half_life": "30d"}} or {"downloads": {"weight": 0.2}}'
MICROSECONDS = 1_000_000

# Numbers from this size on are ignored, because sums with them could exceed the range of a float.
MAX_NUMBER = 1e300


@dataclass(frozen=True)
class Boost:
    """The boost of one field.

    Attributes:
        field: Name of the field.
        weight: Largest amount that the boost adds to a score, as a share of the spread. The spread
            is the difference between the best and the lowest score of the boosted documents.
        half_life_seconds: Age in seconds at which a date has strength 1/2. None for numbers.
        pivot: Number that has strength 1/2. None means the median of the positive numbers of the
            boosted documents.
    """

    field: str
    weight: float = DEFAULT_WEIGHT
    half_life_seconds: float | None = None
    pivot: float | None = None

    def strengths(self, values: Sequence[Sequence[FieldValue]], now: datetime) -> list[float]:
        """Return the strength of each document, from 0 to 1.

        Args:
            values: Values of the field, for each document. The strongest value counts.
            now: The present time.
        """
        if self.half_life_seconds is not None:
            return [self._date_strength(document_values, now) for document_values in values]
        numbers = [_largest_number(document_values) for document_values in values]
        positive = [number for number in numbers if number > 0]
        if not positive:
            return [0.0] * len(numbers)
        pivot = statistics.median(positive) if self.pivot is None else self.pivot
        strengths: list[float] = []
        for number in numbers:
            strength = 0.0
            if number > 0:
                strength = number / (number + pivot)
            strengths.append(strength)
        return strengths

    def _date_strength(self, values: Sequence[FieldValue], now: datetime) -> float:
        """Return the strength of a document's latest date. It is 0 without a date."""
        instants = [value.instant for value in values if value.instant is not None]
        if not instants or self.half_life_seconds is None:
            return 0.0
        age_seconds = now.timestamp() - max(instants) / MICROSECONDS
        # A date in the future counts as the present.
        return 0.5 ** (max(age_seconds, 0.0) / self.half_life_seconds)


def _largest_number(values: Sequence[FieldValue]) -> float:
    """Return the largest number among the values, or 0. Very large numbers are ignored."""
    numbers: list[float] = []
    for value in values:
        number = value.number
        if number is not None and abs(number) < MAX_NUMBER:
            numbers.append(float(number))
    return max(numbers, default=0.0)


def add_boosts(
    boosts: Sequence[Boost],
    scores: Sequence[float],
    values: Sequence[Sequence[Sequence[FieldValue]]],
    now: datetime | None = None,
) -> list[list[float]]:
    """Compute the amount that each boost adds to the score of each document.

    Args:
        boosts: The b boosts.
        scores: Scores of the n documents to boost, best first.
        values: For each boost and each document, the values of the boost's field.
        now: The present time. None uses the clock.

    Returns:
        Amounts (b, n).
    """
    if not scores:
        return [[] for _ in boosts]
    spread = scores[0] - scores[-1]
    if spread <= 0:
        # All scores are equal. Any positive spread lets the boosts decide the order.
        spread = 1.0
    present = datetime.now(UTC) if now is None else now
    additions: list[list[float]] = []
    for boost, field_values in zip(boosts, values, strict=True):
        strengths = boost.strengths(field_values, present)
        additions.append([boost.weight * spread * strength for strength in strengths])
    return additions


def require_boostable_fields(boosts: Sequence[Boost], fields: CollectionFields) -> None:
    """Raise an error if a boost would have no effect, because its field has no such values.

    Args:
        boosts: The boosts. Their fields are known.
        fields: Fields of the live documents.

    Raises:
        FreshetError: If a boost with a half-life names a field without dates, or one without a
            half-life names a field without numbers.
    """
    for boost in boosts:
        name = boost.field
        has_dates = fields.has_dates(name)
        has_numbers = fields.has_numbers(name)
        is_for_dates = boost.half_life_seconds is not None
        if is_for_dates and has_numbers and not has_dates:
            raise FreshetError(
                f"the boost of {name} has a half_life, which is for dates, but {name} holds "
                "numbers; leave it out"
            )
        if not is_for_dates and has_dates and not has_numbers:
            raise FreshetError(
                f"{name} holds dates, and their boost needs a half_life, such as "
                f'{{"{name}": {{"half_life": "30d"}}}}'
            )
        if not has_dates and not has_numbers and fields.count(name):
            raise FreshetError(
                f"{name} holds neither dates nor numbers; boost another field, or use a filter"
            )


def parse_boosts(boost: Mapping[str, Any] | Sequence[str]) -> tuple[Boost, ...]:
    """Parse boosts: an object by field, or texts such as "date:30d" and "downloads:0.2".

    >>> parse_boosts({"date": {"half_life": "30d"}}) == parse_boosts(["date:30d"])
    True

    Raises:
        SettingsError: If a boost is malformed.
    """
    require(
        not isinstance(boost, str),
        f"boost is the text {str(boost)[:80]!r}; write it as {EXAMPLE}, or as a list of texts",
    )
    boosts: list[Boost] = []
    if isinstance(boost, Mapping):
        for name, settings in boost.items():
            boosts.append(_parse_boost(name, settings))
    else:
        for text in boost:
            # The name of a field may contain colons, so the last one separates the value.
            name, _, value = text.rpartition(":")
            if not name:
                boosts.append(Boost(text.strip()))
            elif DURATION.fullmatch(value.strip()):
                boosts.append(_parse_boost(name.strip(), {"half_life": value}))
            else:
                boosts.append(_parse_boost(name.strip(), {"weight": value}))
    return tuple(boosts)


def _parse_boost(name: str, settings: Any) -> Boost:
    """Return the boost of a field, given its settings: an object with some of the keys `KEYS`.

    Raises:
        SettingsError: If a key or a value is malformed.
    """
    require(
        isinstance(settings, Mapping) and all(key in KEYS for key in settings),
        f"the boost of {name} is {str(settings)[:80]}; it is an object with some of the keys "
        f"{', '.join(KEYS)}, such as {EXAMPLE}",
    )
    half_life = settings.get("half_life")
    pivot = settings.get("pivot")
    require(
        half_life is None or pivot is None,
        f"the boost of {name} has both half_life and pivot; half_life is for dates, pivot for "
        "numbers",
    )
    weight = _read_positive(name, "weight", settings.get("weight", DEFAULT_WEIGHT))
    require(weight <= MAX_WEIGHT, f"weight of {name} is {weight:g}; the largest is {MAX_WEIGHT:g}")
    if half_life is not None:
        return Boost(name, weight, half_life_seconds=_read_duration(name, half_life))
    if pivot is not None:
        return Boost(name, weight, pivot=_read_positive(name, "pivot", pivot))
    return Boost(name, weight)


def _read_positive(name: str, key: str, value: Any) -> float:
    """Return a setting of a boost as a number above 0.

    Args:
        name: Field of the boost, for the error message.
        key: Name of the setting, for the error message.
        value: Value of the setting.

    Raises:
        SettingsError: If the value is not a number above 0.
    """
    number = math.nan
    is_number_or_text = isinstance(value, int | float | str) and not isinstance(value, bool)
    if is_number_or_text:
        # A text may be no number, and a whole number may be too large for a float.
        with suppress(ValueError, OverflowError):
            number = float(value)
    require(
        math.isfinite(number) and number > 0,
        f"{key} of the boost of {name} is {str(value)[:80]!r}; it must be a number above 0",
    )
    return number


def _read_duration(name: str, value: Any) -> float:
    """Return a duration such as "30d" in seconds.

    Args:
        name: Field of the boost, for the error message.
        value: The duration.

    Raises:
        SettingsError: If the value is not a duration above 0.
    """
    match = DURATION.fullmatch(str(value).strip())
    seconds = 0.0
    if match is not None:
        seconds = float(match[1]) * DURATION_SECONDS[match[2]]
    if seconds <= 0:
        raise SettingsError(
            f"half_life of the boost of {name} is {str(value)[:80]!r}; write a number above 0 of "
            "hours, days, weeks or years, such as 12h, 30d, 2w or 1y"
        )
    return seconds
