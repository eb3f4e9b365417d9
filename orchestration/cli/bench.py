"""`freshet bench`: runs the benchmarks of a clone of the repository, which the installed package does not bring."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import typer

from model_code.errors import FreshetError

CLONE = Path(__file__).parents[2]
ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}


def bench(context: typer.Context) -> None:
    """Measure one part against its peer, or all of them, one after the other; `--help` tells the options."""
    if not (CLONE / "benchmarks").is_dir():
        raise FreshetError("benchmarks run from a clone of the repository: the installed package is without them")
    path = os.pathsep.join(filter(None, [str(CLONE), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "benchmarks", *context.args]
    raise typer.Exit(subprocess.run(command, env=os.environ | {"PYTHONPATH": path}).returncode)


def add_to(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command(context_settings=ANY_ARGUMENTS, add_help_option=False)(bench)
