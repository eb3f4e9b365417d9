"""`freshet add`, `update`, `delete` and `compact`: what is searched, kept up to date."""

from __future__ import annotations

import dataclasses
import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestration.project import Project

if TYPE_CHECKING:
    from orchestration.live.commands import Outcome


class Format(StrEnum):
    """What standard input holds."""

    JSONL = "jsonl"
    CSV = "csv"
    TSV = "tsv"
    PARQUET = "parquet"


Files = Annotated[
    list[Path], typer.Argument(help="Documents: .jsonl, .csv, .tsv or .parquet, also .gz; - for standard input.")
]
InputFormat = Annotated[Format, typer.Option("--format", help="Of standard input.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")]
Retriever = Annotated[str | None, typer.Option(help="Another retriever that is live than the one searched by default.")]
AsJson = Annotated[bool, typer.Option("--json", help="As one JSON object.")]


def add(
    files: Files,
    input_format: InputFormat = Format.JSONL,
    dry_run: DryRun = False,
    retriever: Retriever = None,
    as_json: AsJson = False,
) -> None:
    """Add documents, or update those whose id is there; the same again changes nothing."""
    _put(files, input_format, dry_run, retriever, as_json, only_known=False)


def update(
    files: Files,
    input_format: InputFormat = Format.JSONL,
    dry_run: DryRun = False,
    retriever: Retriever = None,
    as_json: AsJson = False,
) -> None:
    """Update documents; unknown ids are refused."""
    _put(files, input_format, dry_run, retriever, as_json, only_known=True)


def delete(
    ids: Annotated[list[str], typer.Argument(help="Ids of documents.")],
    retriever: Retriever = None,
    as_json: AsJson = False,
) -> None:
    """Delete documents; `freshet rollback --generation` brings them back."""
    from orchestration.live.collection import LiveCollection
    from orchestration.live.commands import delete_documents

    _show(delete_documents(LiveCollection(Project.find(), retriever), ids), as_json)


def compact(retriever: Retriever = None) -> None:
    """Merge what was added into one segment, without what was deleted; searches find the same, faster."""
    from orchestration.live.collection import LiveCollection

    generation = LiveCollection(Project.find(), retriever).compact()
    typer.echo(f"{generation.retriever} generation {generation.number}, {generation.manifest['documents']:,} documents")


def _put(
    files: list[Path], input_format: Format, dry_run: bool, retriever: str | None, as_json: bool, only_known: bool
) -> None:
    from orchestration.live.collection import LiveCollection
    from orchestration.live.commands import add_files

    live = LiveCollection(Project.find(), retriever)
    _show(add_files(live, files, f".{input_format}", only_known, dry_run), as_json, dry_run)


def _show(outcome: Outcome, as_json: bool, dry_run: bool = False) -> None:
    plain = dataclasses.asdict(outcome) | {"dry_run": dry_run}
    typer.echo(json.dumps(plain, indent=2, ensure_ascii=False) if as_json else f"{'would be: ' * dry_run}{outcome}")
    if outcome.failed:
        raise typer.Exit(1)


def add_to(app: typer.Typer) -> None:
    """Register the commands of this file."""
    for command in (add, update, delete, compact):
        app.command()(command)
