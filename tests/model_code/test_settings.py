"""Guards what the settings' parser makes of values that YAML reads as another type than the one that is meant."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from ruamel.yaml import YAML

from model_code.errors import SettingsError
from model_code.settings import parse


@dataclass(frozen=True)
class Parts:
    by: str = "none"
    new_from: str | None = None
    share: float = 0.1


def parsed(text: str) -> Parts:
    return parse(Parts, YAML(typ="safe", pure=True).load(text), "parts")


def test_a_date_is_iso_text_in_quotes_and_refused_without():
    assert parsed("{new_from: '2025-01-01'}").new_from == "2025-01-01"
    with pytest.raises(SettingsError, match=r"parts\.new_from must be text.*put quotes around it: '2025-01-01'"):
        parsed("{new_from: 2025-01-01}")


@pytest.mark.parametrize("text", ["{share: 2025-01-01}", "{by: 2025}"])
def test_a_value_of_another_type_is_still_refused(text: str):
    with pytest.raises(SettingsError, match="must be of type"):
        parsed(text)
