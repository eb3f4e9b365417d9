"""The bench `drift` as curves: alarms, retraining and harm by the share of a batch that came from elsewhere."""

from __future__ import annotations

import csv
from itertools import groupby
from pathlib import Path

from model_code.files import replacing

CALLS = {"alarm": "some measure alarms", "retrain": "a retrain is called for"}


def draw(path: Path, curve: Path) -> None:
    """Write a PNG of `drift_curve.csv`: a line per source with 95 % intervals, from the batches without a shift on."""
    from matplotlib.figure import Figure

    with curve.open(newline="") as stream:
        lines = list(csv.DictReader(stream))
    unshifted = {line["reference"]: line for line in lines if line["source"] == "none"}
    figure = Figure(figsize=(12, 4), layout="constrained")
    panels = figure.subplots(1, 3)
    for (reference, source), cells in groupby(lines, key=lambda line: (line["reference"], line["source"])):
        if source == "none":
            continue
        cells = [unshifted[reference], *cells]
        shares = [float(cell["share"]) for cell in cells]
        for axes, call in zip(panels, CALLS, strict=False):
            rate, low, high = ([float(cell[name]) for cell in cells] for name in (call, f"{call}_low", f"{call}_high"))
            (drawn,) = axes.plot(
                shares, rate, marker="o", label=source if reference in source else f"{reference} and {source}"
            )
            axes.fill_between(shares, low, high, alpha=0.12, color=drawn.get_color())
        panels[2].plot(shares, [float(cell["harm"]) for cell in cells], marker="o", color=drawn.get_color())
    for axes, title in zip(panels, (*CALLS.values(), "harm: loss of MRR@10"), strict=True):
        axes.set(xlabel="share of the batch from elsewhere", title=title)
        axes.grid(alpha=0.3)
    for axes in panels[:2]:
        axes.axhline(0.05, color="0.5", linestyle="--", linewidth=1)
        axes.set(ylim=(-0.03, 1.03), ylabel="share of batches")
    panels[2].axhline(0, color="0.5", linewidth=1)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as aside:
        figure.savefig(aside, format="png", dpi=110)
