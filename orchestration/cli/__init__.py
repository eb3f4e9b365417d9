"""The command line `freshet`.

Errors that a user can fix are one line on standard error. `--debug` shows the traceback.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from subprocess import CalledProcessError
from typing import NoReturn

from model_code.errors import FreshetError
from model_code.text.words import escape_invisible
from orchestration.cli.app import app
from orchestration.cli.signals import INTERRUPTED_EXIT_CODE, interrupted_message

__all__ = ["app", "main"]
# Errors of these modules come from a database, a server or the network. Their classes are
# recognised by module, because importing them takes seconds.
ENVIRONMENT_ERROR_MODULES = ("sqlalchemy.", "sqlite3", "mlflow.", "psycopg", "httpx", "requests.")


def main() -> None:
    """Run the command that `sys.argv` names, and show errors as one line."""
    _escape_unencodable_letters()
    arguments = [decode_argument(argument) for argument in sys.argv[1:]]
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]

    # SIGTERM and SIGHUP end a command as Ctrl-C does, together with the processes that it started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.default_int_handler)

    try:
        app(arguments)
    except FreshetError as error:
        if debug:
            raise
        _exit_with_error(str(error), error.exit_code)
    except Exception as error:
        # A programming error keeps its traceback.
        if debug or not _is_environment_error(error):
            raise
        text = " ".join(str(error).split())
        message = f"{type(error).__name__}: {text} (--debug shows where)"
        _exit_with_error(message, FreshetError.exit_code)
    except SystemExit as exit_request:
        if exit_request.code == INTERRUPTED_EXIT_CODE:
            print(interrupted_message(), file=sys.stderr)
        raise


def decode_argument(argument: str) -> str:
    """Return an argument whose letters Python could not decode, read as UTF-8.

    In a locale such as POSIX, Python decodes only ASCII, and passes other bytes on as surrogates.
    But most terminals send UTF-8. Names of existing files are returned unchanged, because only the
    surrogates open them. Bytes that are not UTF-8 are returned unchanged as well.

    Args:
        argument: An argument from `sys.argv`.

    >>> decode_argument("caf\\udcc3\\udca9")
    'café'
    """
    if argument.isascii():
        return argument
    # In an option such as --from=notes, the name of a file follows the equals sign.
    file_name = argument
    if argument.startswith("--"):
        file_name = argument.partition("=")[2]
    try:
        if file_name and os.path.lexists(file_name):
            return argument
        return argument.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError:
        return argument


def _escape_unencodable_letters() -> None:
    """Print letters that the terminal's encoding lacks as escapes instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        # Tests replace the streams by objects that have no `reconfigure`.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _is_environment_error(error: Exception) -> bool:
    """Return whether the cause is outside the code: a disk, a database, a server, a program."""
    if isinstance(error, (OSError, CalledProcessError)):
        return True
    return type(error).__module__.startswith(ENVIRONMENT_ERROR_MODULES)


def _exit_with_error(message: str, code: int) -> NoReturn:
    print(f"error: {escape_invisible(message)}", file=sys.stderr)
    sys.exit(code)
