"""The numbers behind the plots as tables, one row per point; also written as CSV for `dvc plots`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from model_code.errors import SettingsError
from model_code.evaluation.metrics import Metric

Estimates = Mapping[str, Mapping[str, Mapping[str, float]]]  # system -> metric -> {"value", "low", "high", "queries"}
History = Sequence[Mapping[str, Any]]  # rows of a training run: step, loss, its parts, a dev metric where evaluated


def recall_table(systems: Estimates) -> pd.DataFrame:
    """R@k against k: columns k and one per system, the shape that DVC draws as one line each."""
    cutoffs = {name: int(name[2:]) for name in _metrics(systems) if name.startswith("R@")}
    return _by_number(systems, "k", cutoffs)


def level_table(systems: Estimates) -> pd.DataFrame:
    """Accuracy of the first document's path against the hierarchy's level; columns level and one per system."""
    levels = {name: int(name[6:]) for name in _metrics(systems) if name.startswith("level@")}
    return _by_number(systems, "level", levels)


def training_table(histories: Mapping[str, History]) -> pd.DataFrame:
    """All training histories in one: columns retriever, step, then whatever was logged; empty where it was not."""
    rows = [{"retriever": name} | dict(row) for name, history in sorted(histories.items()) for row in history]
    return pd.DataFrame(rows, columns=None if rows else ["retriever", "step", "loss"])


def metrics_among(names: Iterable[str]) -> list[str]:
    """Those names that are metrics: of a history's row, what was measured on dev.

    >>> metrics_among(["step", "loss", "nDCG@10"])
    ['nDCG@10']
    """
    return [name for name in names if _is_metric(name)]


def _metrics(systems: Estimates) -> list[str]:
    return list(next(iter(systems.values()), {}))


def _by_number(systems: Estimates, axis: str, numbers: Mapping[str, int]) -> pd.DataFrame:
    ordered = sorted(numbers, key=lambda metric: numbers[metric])
    columns = {name: [metrics[metric]["value"] for metric in ordered] for name, metrics in systems.items()}
    return pd.DataFrame({axis: [numbers[metric] for metric in ordered]} | columns)


def _is_metric(name: str) -> bool:
    try:
        Metric.parse(name)
    except SettingsError:
        return False
    return True
