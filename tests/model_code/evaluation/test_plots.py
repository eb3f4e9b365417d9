"""Test plots: equal numbers give equal bytes, whatever the settings of matplotlib."""

from __future__ import annotations

import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from model_code.evaluation import plots

METRICS = ["nDCG@10", "hit@1", "R@100"]
SYSTEMS = {
    "bm25": dict.fromkeys(METRICS, {"value": 0.0, "low": 0.0, "high": 0.1}),
    "zero_shot": dict.fromkeys(METRICS, {"value": 0.1, "low": 0.0, "high": 0.2}),
    "hce": dict.fromkeys(METRICS, {"value": 0.2, "low": 0.0, "high": 0.3}),
}
HISTORY = [
    {"step": 0, "nDCG@10": 0.5},
    {"step": 10, "loss": 2.0, "hierarchy_1": 1.0, "nDCG@10": 0.6},
]


def draw_plots() -> list[bytes]:
    return [plots.systems_plot(SYSTEMS, METRICS), plots.training_plot(HISTORY)]


def plot_hashes() -> list[str]:
    return [sha256(png).hexdigest() for png in draw_plots()]


def test_equal_numbers_give_equal_plots_in_another_process(tmp_path):
    file = Path(__file__)
    script = f"import {file.stem} as plots; print(plots.plot_hashes())"
    environment = {
        "PYTHONPATH": f"{file.parent}:{file.parents[3]}",
        "PYTHONHASHSEED": "7",
        "MPLCONFIGDIR": str(tmp_path),
    }

    completed = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )

    assert completed.stdout.strip() == str(plot_hashes())


def test_plots_hold_no_metadata():
    assert not any(re.search(rb"tEXt|tIME|eXIf", png) for png in draw_plots())


def test_plots_ignore_and_keep_settings_of_matplotlib():
    import matplotlib

    hashes = plot_hashes()
    settings = dict(matplotlib.rcParams)

    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        assert plot_hashes() == hashes

    assert dict(matplotlib.rcParams) == settings


@pytest.fixture
def panel_counts(monkeypatch) -> list[float]:
    """Return the number of panels of each drawn plot."""
    counts = []

    def record_panels(size, paint):
        width, _ = size
        counts.append(width / 3.6)

    monkeypatch.setattr(plots, "draw", record_panels)
    return counts


@pytest.mark.parametrize(
    ("history", "extra_values", "panels"),
    [
        (HISTORY, (), 2),
        ([{"step": 1, "loss": 1.0, "log_likelihood": -1.0}], ["log_likelihood"], 2),
        ([{"step": 1, "loss": 1.0}], ["log_likelihood"], 1),
    ],
)
def test_training_plot_has_a_panel_per_value(panel_counts, history, extra_values, panels):
    plots.training_plot(history, extra_values)

    assert panel_counts == [panels]


def test_empty_history_is_not_plotted():
    assert plots.training_plot([]) is None
