"""The costs against the size of the corpus, on logarithmic axes: a straight line is a power, its slope the exponent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from model_code.files import replacing


def draw(path: Path, sizes: Sequence[int], measured: Mapping[str, Sequence[float]]) -> None:
    """Write a PNG: seconds on the left, MiB on the right, and a grey line of exponent 1 for comparison."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    for name, values in measured.items():
        axes = right if name.startswith("memory") else left
        axes.plot(sizes, values, marker="o", label=name)
    for axes, unit in ((left, "seconds of processor time"), (right, "MiB")):
        least = min(min(line.get_ydata()) for line in axes.get_lines())
        linear = [least * size / sizes[0] for size in sizes]
        axes.plot(sizes, linear, color="0.7", linestyle="--", label="linear", zorder=0)
        axes.set(xscale="log", yscale="log", xlabel="passages", ylabel=unit)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3 if axes is left else 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as aside:
        figure.savefig(aside, format="png", dpi=110)
