"""Guards the pictures: equal numbers give equal bytes, nobody's settings of matplotlib come in,
nothing to draw.
"""

from __future__ import annotations

import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from model_code.evaluation import plots

SYSTEMS = {
    name: {
        metric: {"value": 0.1 * i, "low": 0.0, "high": 0.1 * i + 0.1}
        for metric in ("nDCG@10", "hit@1", "R@100")
    }
    for i, name in enumerate(["bm25", "zero_shot", "hce"])
}
HISTORY = [
    {"step": 0, "nDCG@10": 0.5},
    {"step": 10, "loss": 2.0, "hierarchy_1": 1.0, "nDCG@10": 0.6},
]


def pictures():
    return [
        plots.systems_plot(SYSTEMS, ["nDCG@10", "hit@1", "R@100"]),
        plots.training_plot(HISTORY),
    ]


def hashes():
    return [sha256(png).hexdigest() for png in pictures()]


def test_equal_numbers_give_equal_pictures(
    tmp_path,
):
    import matplotlib

    here, found = Path(__file__), hashes()
    script = f"import {here.stem} as plots; print(plots.hashes())"
    environment = {
        "PYTHONPATH": f"{here.parent}:{here.parents[3]}",
        "PYTHONHASHSEED": "7",
        "MPLCONFIGDIR": str(tmp_path),
    }
    output = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == str(found)
    assert not any(re.search(rb"tEXt|tIME|eXIf", png) for png in pictures())
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        assert hashes() == found
    assert dict(matplotlib.rcParams) == before


def test_training_plot_has_a_panel_per_value(monkeypatch):
    drawn = []
    monkeypatch.setattr(plots, "draw", lambda size, paint: drawn.append(size))
    plots.training_plot(HISTORY)
    plots.training_plot([{"step": 1, "loss": 1.0, "log_likelihood": -1.0}], ["log_likelihood"])
    plots.training_plot([{"step": 1, "loss": 1.0}], ["log_likelihood"])
    assert [width / 3.6 for width, _ in drawn] == [2, 2, 1]
    assert plots.training_plot([]) is None
