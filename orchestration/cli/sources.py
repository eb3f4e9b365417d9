"""The commands `freshet sources`: list, remove and rename the sources of an index."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from model_code.project import Project
from model_code.text.words import print_message
from orchestration.cli.change_report import print_change_report
from orchestration.cli.options import AsJson, Command, DryRun, Group
from orchestration.running_service import find_running_service

if TYPE_CHECKING:
    from freshet.results import SourceState

SourceName = Annotated[str, typer.Argument(help="Name of the source.")]

sources = typer.Typer(
    cls=Group,
    help="List, remove and rename the sources that feed the index.",
    no_args_is_help=True,
)


@sources.command("list", cls=Command)
def list_sources(as_json: AsJson = False) -> None:
    """List all sources with their documents and the time of their last sync.

    Example: freshet sources list
    """
    from model_code.collection.sync.named_sources import source_states

    states = source_states(Project.find())
    if as_json:
        values = [dataclasses.asdict(state) for state in states]
        print_message(json.dumps(values, indent=2, ensure_ascii=False))
    else:
        print_message("\n".join(source_line(state) for state in states))


@sources.command(cls=Command)
def remove(name: SourceName, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Delete the documents of a source from the index, and forget the source.

    Its files are not touched. freshet rollback --generation restores the documents.

    Example: freshet sources remove wiki --dry-run
    """
    from model_code.collection.index.live_index import LiveIndex
    from model_code.collection.sync.source_changes import remove_source

    index = LiveIndex(Project.find(), find_service=find_running_service)
    print_change_report(remove_source(index, name, dry_run), as_json, dry_run)


@sources.command(cls=Command)
def rename(
    old: SourceName,
    new: Annotated[str, typer.Argument(help="New name of the source.")],
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Rename a source and its documents.

    Texts, known queries, feedback and own judgements stay with the documents.

    Example: freshet sources rename wiki handbook
    """
    from model_code.collection.index.live_index import LiveIndex
    from model_code.collection.sync.source_changes import rename_source
    from orchestration.freshness.judged_pairs import rename_judged_source

    project = Project.find()
    index = LiveIndex(project, find_service=find_running_service)
    # The judgements are renamed before the source, so that an interrupted rename can be repeated.
    report = rename_source(index, old, new, dry_run=True)
    judgements = rename_judged_source(project, old, new, dry_run)
    if not dry_run:
        report = rename_source(index, old, new)
    report.judgements = judgements
    print_change_report(report, as_json, dry_run)


def source_line(state: SourceState) -> str:
    """Return a line with the name, size, last sync and location of a source."""
    noun = "document" if state.documents == 1 else "documents"
    number = "an unknown number of"
    if state.documents is not None:
        number = f"{state.documents:,}"
    time = "never synced"
    if state.synced is not None:
        moment = datetime.fromtimestamp(state.synced, UTC)
        time = f"synced {moment.isoformat(sep=' ', timespec='minutes')}"
    return f"{state.name}  {number} {noun}, {time}, {state.location}"
