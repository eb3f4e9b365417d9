"""Guards the group `drift`: the defaults are allowed, and every impossible value is refused with a line that teaches.

pytest tests/model_code/drift/test_settings.py
"""

from __future__ import annotations

from typing import Any

import pytest

from model_code.drift.settings import DriftSettings
from model_code.errors import SettingsError
from model_code.settings import parse


def test_the_defaults_are_allowed() -> None:
    assert parse(DriftSettings, {}, "drift") == DriftSettings()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"alpha": 0.0}, r"^drift.alpha is 0.0, but must be above 0, at most 0.5: chance"),
        ({"alpha": 0.005}, r"alpha is 0.005, but must be at least 0.009"),
        ({"draws": 100}, r"drift.draws is no longer a setting: its default is a constant now; delete the key"),
        ({"minimum_batch": 5}, r"minimum_batch is 5, but must be at least 10"),
        ({"minimum_batch": 501}, r"minimum_batch is 501, but must be at most 500"),
        ({"window": 0}, r"window is 0, but must be at least 1"),
        ({"cooldown": -1}, r"cooldown is -1, but must be at least 0"),
        ({"growth_limit": 0.0}, r"growth_limit is 0.0, but must be above 0"),
        ({"conflict_limit": 1.0}, "conflict_limit is 1.0, but must be above 0, below 1"),
        ({"batches": "in_order"}, r"drift.batches is no longer a setting: batches of the null are drawn"),
        (
            {"topic_divergence": "jensen_shannon"},
            r"topic_divergence is no longer a setting: shares of topics",
        ),
    ],
)
def test_impossible_values_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse(DriftSettings, values, "drift")
