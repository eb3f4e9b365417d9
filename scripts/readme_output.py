"""Run the commands of the README on three notes, and write their output into the README.

Run: python scripts/readme_output.py

It takes about a minute, and changes only README.md. `...` marks lines of output that are left out.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
START = "<!-- printed by scripts/readme_output.py -->\n"
END = "<!-- end of printed output -->\n"
WIDTH = 100

NOTES = {
    "sourdough.md": "# Keep a sourdough starter\n\nFeed the starter with flour and water once a "
    "day. In the fridge, once a week is enough.\n",
    "bees.md": "# Bees in spring\n\nOpen the hive on the first warm day, and look for the queen "
    "and for food.\n",
    "bike.md": "# Fix a flat tyre\n\nTake the wheel off, find the hole under water, and put a "
    "patch on it.\n",
}
NEW_NOTE = (
    "tomatoes.md",
    "# Grow tomatoes\n\nSow tomatoes indoors in March. Plant them out after the last frost.\n",
)
# Pattern of the lines of `freshet demo` that the README shows.
SHOWN_IN_DEMO = re.compile(
    r"^Running stage 'corpus'|is the champion: |^freshet search|^ +\d  |^ {12}"
)
SEARCH = "freshet search "


def run_command(command: str, folder: Path) -> list[str]:
    """Run a command of Freshet in a folder, and return the lines that it prints."""
    arguments = [sys.executable, "-m", "orchestration.cli", *shlex.split(command)[1:]]
    environment = {**os.environ, "PYTHONPATH": str(README.parent), "COLUMNS": str(WIDTH)}
    completed = subprocess.run(
        arguments,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return completed.stdout.rstrip().splitlines()


def shorten(lines: list[str], shown: re.Pattern[str]) -> list[str]:
    """Replace runs of lines that the README does not show by `...`.

    Args:
        lines: Output of a command.
        shown: Pattern of the lines to show. Lines after the first search are not shown.
    """
    kept: list[str] = []
    searches = 0
    for line in lines:
        if line.startswith(SEARCH):
            searches += 1
        if shown.search(line) and searches <= 1:
            kept.append(line[:WIDTH])
        elif kept[-1:] != ["..."]:
            kept.append("...")
    return kept


def record_session(folder: Path) -> str:
    """Run the README's commands in a folder, and return the session as a Markdown block.

    The session makes a project of three notes, adds a fourth note, and finds it.
    """
    notes = folder / "notes"
    notes.mkdir()
    for name, text in NOTES.items():
        (notes / name).write_text(text, encoding="utf-8")
    project = folder / "search"

    lines = ["$ freshet init search --from notes && cd search"]
    lines.extend(run_command("freshet init search --from notes", folder))
    lines.append("$ freshet demo")
    lines.extend(shorten(run_command("freshet demo", project), SHOWN_IN_DEMO))

    name, text = NEW_NOTE
    (notes / name).write_text(text, encoding="utf-8")
    lines.append(f"$ freshet sync          # after {name} was saved in notes")
    lines.extend(run_command("freshet sync", project))
    question = 'freshet search "when can vegetables go outside?" -k 1'
    lines.append(f"$ {question}")
    lines.extend(run_command(question, project))
    session = "\n".join(line.replace(str(folder), "~") for line in lines)
    return f"```console\n{session}\n```\n"


def main() -> None:
    """Replace the printed output in the README."""
    with tempfile.TemporaryDirectory() as folder:
        session = record_session(Path(folder))
    before, _, rest = README.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    README.write_text(f"{before}{START}{session}{END}{after}", encoding="utf-8")
    print(session)


if __name__ == "__main__":
    main()
