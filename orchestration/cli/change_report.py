"""Print the outcome of a change of documents."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import typer

from model_code.text.words import print_message

if TYPE_CHECKING:
    from model_code.collection.index.changes import ChangeReport


def print_change_report(report: ChangeReport, as_json: bool, dry_run: bool = False) -> None:
    """Print the outcome of a change; exit with code 1 if all rows were refused.

    Args:
        report: The outcome.
        as_json: Whether to print one JSON object in place of sentences.
        dry_run: Whether the change was only planned.

    Raises:
        typer.Exit: With code 1, if all rows were refused.
    """
    if as_json:
        record = dataclasses.asdict(report)
        record["dry_run"] = dry_run
        print_message(json.dumps(record, indent=2, ensure_ascii=False))
    elif dry_run:
        print_message(f"would be: {report}")
    else:
        print_message(str(report))
    if report.failed:
        raise typer.Exit(1)
