"""Print tables as aligned text."""

from __future__ import annotations

import io
from collections.abc import Sequence

# Width of the page that rich prints on. It is wider than any table, so that no row is wrapped.
MAX_TABLE_CHARACTERS = 10_000


def table_text(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as text: a line with the names of the columns, then the rows, all aligned.

    >>> print(table_text(["system", "hit@1"], [["bm25", "0.5"], ["zero_shot", "0.625"]]))
    system     hit@1
    bm25       0.5
    zero_shot  0.625
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in columns:
        table.add_column(Text(column), no_wrap=True)
    for row in rows:
        cells = [Text(cell) for cell in row]
        table.add_row(*cells)

    stream = io.StringIO()
    console = Console(file=stream, width=MAX_TABLE_CHARACTERS, color_system=None)
    console.print(table)
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    return "\n".join(lines)
