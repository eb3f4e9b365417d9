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
    from orchestration.outcome import Outcome


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
    _put(files, input_format, dry_run, retriever, as_json, known_only=False)


def update(
    files: Files,
    input_format: InputFormat = Format.JSONL,
    dry_run: DryRun = False,
    retriever: Retriever = None,
    as_json: AsJson = False,
) -> None:
    """Update documents; unknown ids are refused."""
    _put(files, input_format, dry_run, retriever, as_json, known_only=True)


def delete(
    ids: Annotated[list[str], typer.Argument(help="Ids of documents.")],
    retriever: Retriever = None,
    as_json: AsJson = False,
) -> None:
    """Delete documents; `freshet rollback --generation` brings them back."""
    from orchestration.changing import delete_documents
    from orchestration.freshening import Freshener

    _show(delete_documents(Freshener(Project.find(), retriever), ids), as_json)


def compact(retriever: Retriever = None) -> None:
    """Merge what was added into one segment, without what was deleted; searches find the same, faster."""
    from orchestration.freshening import Freshener

    generation = Freshener(Project.find(), retriever).compact()
    typer.echo(f"{generation.retriever} generation {generation.number}, {generation.manifest['documents']:,} documents")


def _put(
    files: list[Path], input_format: Format, dry_run: bool, retriever: str | None, as_json: bool, known_only: bool
) -> None:
    from orchestration.changing import add_files, preview_files
    from orchestration.freshening import Freshener

    act = preview_files if dry_run else add_files
    _show(act(Freshener(Project.find(), retriever), files, f".{input_format}", known_only), as_json, dry_run)


def _show(outcome: Outcome, as_json: bool, dry_run: bool = False) -> None:
    from orchestration.outcome import outcome_text

    text = outcome_text(outcome)
    plain = dataclasses.asdict(outcome) | {"dry_run": dry_run}
    typer.echo(json.dumps(plain, indent=2, ensure_ascii=False) if as_json else f"{'would be: ' * dry_run}{text}")
    if outcome.failed:
        raise typer.Exit(1)


def add_to(app: typer.Typer) -> None:
    """Register the commands of this file."""
    for command in (add, update, delete, compact):
        app.command()(command)
