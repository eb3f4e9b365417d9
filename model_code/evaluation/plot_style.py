"""How every plot looks, and how a figure becomes bytes that depend on its content alone.

The PNG has a white ground, for places that show a file as it is (MLflow, Dagster, DVC). The SVG has none, and its ink
follows the reader's light or dark theme.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO, StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, INK_ON_DARK, GRID = "#24292f", "#d5d9de", "#8c959f"
COLOURS = ("#7f7f7f", "#e69f00", "#56b4e9", "#d55e00", "#009e73", "#cc79a7", "#0072b2", "#8c6d31")
MARKERS = "osD^vPX*"
STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so every machine draws the same letters
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 11,
    "grid.color": GRID,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "freshet",  # ids in the file would be random without it
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}
THEMED = f"<style>:root{{color:{INK}}}@media(prefers-color-scheme:dark){{:root{{color:{INK_ON_DARK}}}}}</style>"


@dataclass(frozen=True)
class Picture:
    """A finished plot: file name without suffix, what it shows in words, and its bytes."""

    name: str
    caption: str
    png: bytes
    svg: str

    @property
    def data_uri(self) -> str:
        """The SVG as an address that an `<img>` of a self-contained page can hold."""
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg.encode()).decode()


def draw(name: str, caption: str, size: tuple[float, float], paint: Callable[[Figure], None]) -> Picture:
    """Let `paint` fill a figure of `size` inches in the common style. Equal paintings give equal bytes."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        figure = Figure(figsize=size)
        FigureCanvasAgg(figure)
        paint(figure)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once, for both files
        png, svg = BytesIO(), StringIO()
        figure.savefig(png, format="png", dpi=150, facecolor="white", metadata={"Software": None})
        figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return Picture(name, caption, png.getvalue(), _themed(svg.getvalue()))


def look(index: int) -> dict[str, str]:
    """Colour and marker of the system at a place of the list: 64 of them can be told apart, 8 without colour."""
    lap = index // len(COLOURS)
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[(index + lap) % len(MARKERS)]}


def looks(systems: Sequence[str]) -> dict[str, dict[str, str]]:
    """One look per system, the same in every plot that lists them in this order.

    >>> looks(["bm25", "hce"])["bm25"]
    {'color': '#7f7f7f', 'marker': 'o'}
    """
    return {system: look(i) for i, system in enumerate(systems)}


def _themed(svg: str) -> str:
    """The bare `<svg>` element, with our ink replaced by the colour of the page's theme."""
    head, opening, rest = svg.partition("<svg ")
    attributes, _, content = rest.partition(">")
    return f"{opening}{attributes}>{THEMED}{content.replace(INK, 'currentColor')}"
