"""Guards the refusal of settings that have no meaning, each with a line that says why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model_code.errors import SettingsError
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.state import IncDsiState

BAD = [
    ({"lambda1": 6.0}, "lambda1 is 6.0, but must be above 0, below 1"),
    ({"gamma2": -0.1}, "gamma2 is -0.1, but must be at least 0"),
]


@pytest.mark.parametrize(("values", "words"), BAD)
def test_impossible_settings(values: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        IncDsiSettings(**values)


@pytest.mark.parametrize(
    ("vectors", "queries", "ids", "words"),
    [
        (np.eye(2), np.eye(2)[:1], ["a", "b"], "do not match"),
        (np.eye(2), np.eye(2), ["a"], "do not match"),
        (np.eye(2), np.eye(2), ["a", "a"], "occurs twice"),
        (np.eye(2), np.full((2, 2), np.inf), ["a", "b"], "not finite"),
    ],
)
def test_states_that_make_no_sense(vectors: np.ndarray, queries: np.ndarray, ids: list[str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        IncDsiState(vectors, queries, ids)
