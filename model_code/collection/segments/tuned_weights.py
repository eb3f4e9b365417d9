"""Weights of a fusion that were chosen again after its build.

A retune chooses them on queries that were judged since. The file belongs to a generation, so a
rewind to an older generation also restores the older weights. Nothing is indexed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from model_code.files import read_json, write_json

TUNED_WEIGHTS = "tuned_weights.json"


def save_tuned_weights(folder: Path, weights: Mapping[str, float]) -> None:
    """Write weights, by the name of the component, to the folder of a generation."""
    # JSON objects do not preserve the order of the weights, so they are written as pairs.
    write_json(folder / TUNED_WEIGHTS, list(weights.items()))


def load_tuned_weights(folder: Path) -> dict[str, float]:
    """Read the weights that `save_tuned_weights` wrote."""
    return dict(read_json(folder / TUNED_WEIGHTS))
