"""Ask addresses of this machine whether they answer: `python -m orchestration.health_check URL...`.

A container calls it to check its own health. The pages need the token of the project, which curl
would have to read from a file. The exit code is 1 if an address does not answer with status 200.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

from model_code.project import Project

# Seconds to wait for an answer.
TIMEOUT_SECONDS = 5.0


def find_problem(url: str, token: str | None) -> str | None:
    """Return why an address does not answer; None if it does.

    Args:
        url: The address.
        token: Token to send; None if there is none.
    """
    headers = {}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    try:
        with urlopen(Request(url, headers=headers), timeout=TIMEOUT_SECONDS):
            return None
    except (URLError, OSError) as error:
        # `urlopen` raises this error for statuses such as 401 and 503, too.
        return f"{url}: {error}"


def read_token(file: Path) -> str | None:
    """Return the token of a project; None if its service has made none yet."""
    if not file.is_file():
        return None
    return file.read_text(encoding="ascii").strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Check all addresses, and print the first problem.

    Args:
        arguments: Command line; None means that of the process.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(description="Check whether addresses answer.")
    parser.add_argument("urls", nargs="+", metavar="URL")
    urls = parser.parse_args(arguments).urls

    token = read_token(Project.find().token_file)
    for url in urls:
        problem = find_problem(url, token)
        if problem is not None:
            print(problem, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
