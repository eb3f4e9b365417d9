"""The command line: `freshet`. Errors are one line; a traceback only with `--debug`."""

from __future__ import annotations

from orchestration import quiet  # noqa: F401  telemetry is switched off before anything else is imported

import sys  # isort: skip

from model_code.errors import FreshetError
from orchestration.cli.app import app

__all__ = ["app", "main"]
INTERRUPTED = 130  # the exit code that Typer makes of Ctrl-C, which it does not pass on


def main() -> None:
    """Entry point of the console script."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    try:
        app([argument for argument in arguments if argument != "--debug"])
    except FreshetError as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            print("stopped; finished stages are kept, training resumes from its last checkpoint", file=sys.stderr)
        raise
