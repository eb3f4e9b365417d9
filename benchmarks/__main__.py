"""Run the benchmarks with `python -m benchmarks` and print an error as one line, like `freshet`."""

from __future__ import annotations

import sys  # isort: skip

import typer

from benchmarks.bench import bench
from model_code.errors import FreshetError

app = typer.Typer(name="freshet bench", add_completion=False, pretty_exceptions_enable=False)
app.command()(bench)
try:
    app(prog_name="freshet bench")
except FreshetError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
