"""The command that shows who changed what."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from model_code.project import Project
from model_code.text.words import print_message
from orchestration.cli.options import AsJson

DEFAULT_ENTRIES = 50


def audit(
    actor: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Only changes by this actor: a user of this machine, token, anonymous or unknown.",
        ),
    ] = None,
    action: Annotated[
        str | None,
        typer.Option(metavar="ACTION", help="Only this action, such as put, erase or promote."),
    ] = None,
    document: Annotated[
        str | None, typer.Option(metavar="ID", help="Only changes of this document.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="DATE", help="Only changes since this date or time in UTC."),
    ] = None,
    number: Annotated[
        int, typer.Option("-n", min=1, metavar="N", help="Number of newest changes to show.")
    ] = DEFAULT_ENTRIES,
    as_json: AsJson = False,
) -> None:
    """Show who changed what: documents, feedback, judgements, settings and promotions.

    Use it to find out who deleted a document or promoted a version.

    Example: freshet audit --action erase --since 2026-11-01
    """
    from orchestration.registry.audit_trail import filter_trail, parse_moment, read_trail

    moment = None if since is None else parse_moment(since)
    entries = filter_trail(read_trail(Project.find()), actor, action, document, moment)
    newest = entries[-number:]
    if as_json:
        values = [entry.as_dict() for entry in newest]
        print_message(json.dumps(values, indent=2, ensure_ascii=False))
        return
    if not newest:
        print_message("no change is recorded that meets these conditions")
    for entry in newest:
        print_message(entry.text)
    hidden = len(entries) - len(newest)
    if hidden:
        print_message(f"{hidden:,} earlier changes are not shown; -n {len(entries)} shows all")
