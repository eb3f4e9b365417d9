"""Guards the ranges of the hierarchy's settings."""

from __future__ import annotations

import pytest

from model_code.errors import SettingsError
from model_code.hierarchy.settings import HierarchySettings
from model_code.settings import parse


@pytest.mark.parametrize(
    "wrong",
    [{"branching": 1}, {"max_iterations": 0}, {"tolerance": 1.0}, {"method": "sideways"}, {"initialisation": "?"}],
)
def test_impossible_values_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        parse(HierarchySettings, wrong, "hierarchy")
