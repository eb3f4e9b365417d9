"""How a training went, as a picture and as its last rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from assets.family import markdown_table, picture
from model_code.files import read_json

LAST_ROWS = 10


def learning_curve(folder: Path, held_out: Sequence[str] = ()) -> Mapping[str, str]:
    """The curve of `history.json` below `folder`: loss and dev metrics by step, in the style of the report's plots.

    held_out: what else was measured between steps.
    """
    from model_code.evaluation.plots import training_plot

    rows = read_json(folder / "history.json")
    plot = training_plot({folder.name: rows}, measured=held_out)
    drawn = {"learning curve": picture(plot.name, plot.png)} if plot else {}
    return {**drawn, "history": markdown_table(rows[-LAST_ROWS:])}
