"""The console script `freshet`, which explains what to install where only the client is."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def main() -> None:
    """Run the command line, or say that this installation holds the client alone."""
    if find_spec("typer") is None:
        print(
            "error: this installation holds only the Python client; "
            "for the command line, install Freshet from a clone: pip install -e '.[full]'",
            file=sys.stderr,
        )
        sys.exit(2)
    from orchestration.cli import main as command_line

    command_line()
