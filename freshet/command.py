"""The console script `freshet`.

If only the Python client is installed, it explains how to install the command line.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec


def main() -> None:
    """Run the command line, or explain how to install it."""
    if find_spec("typer") is None:
        print(
            "error: this installation holds only the Python client; "
            "for the command line, install Freshet from a clone: pip install -e '.[full]'",
            file=sys.stderr,
        )
        sys.exit(2)
    # The exit is registered before libraries register exit handlers, so that it comes last.
    from orchestration.pipeline.warm_python.server import QuickExit

    quick_exit = QuickExit()
    from orchestration.cli import main as command_line

    with quick_exit.note_exit_code():
        command_line()
