"""The command line: `freshet`. Errors are one line; a traceback only with `--debug`."""

from __future__ import annotations

import signal
import sys
from subprocess import CalledProcessError
from typing import NoReturn

from model_code.errors import FreshetError
from model_code.text.words import escape_invisible
from orchestration.cli.app import app
from orchestration.cli.build import INTERRUPTED, STOP_SIGNALS, stopped

__all__ = ["app", "main"]
# Classes of libraries are told by their module, since importing them takes seconds.
FOREIGN = ("sqlalchemy.", "sqlite3", "mlflow.", "psycopg", "httpx", "requests.")


def _end(message: str, code: int) -> NoReturn:
    print(f"error: {escape_invisible(message)}", file=sys.stderr)
    sys.exit(code)


def main() -> None:
    """Entry point of the console script."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    for number in STOP_SIGNALS[1:]:  # as Ctrl-C: what a command has started ends with it
        signal.signal(number, signal.default_int_handler)
    try:
        app([argument for argument in arguments if argument != "--debug"])
    except FreshetError as error:
        if debug:
            raise
        _end(str(error), error.exit_code)
    except Exception as error:
        # the disk, a file's permission, a database, a server or another program is at fault, rather
        # than the code
        foreign = isinstance(error, (OSError, CalledProcessError)) or type(
            error
        ).__module__.startswith(FOREIGN)
        if debug or not foreign:
            raise
        _end(
            f"{type(error).__name__}: {' '.join(str(error).split())} (--debug shows where)",
            FreshetError.exit_code,
        )
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            print(stopped(), file=sys.stderr)
        raise
