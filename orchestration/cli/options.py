"""Options and arguments that several commands share, and the form in which the help shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

LOCAL_HOST = "127.0.0.1"

DocumentFiles = Annotated[
    list[Path],
    typer.Argument(
        help="Files of rows (.jsonl, .ndjson, .json, .csv, .tsv, .parquet), documents (.md, .html, "
        ".txt, .rst, .rtf, .pdf, .docx, .pptx, .xlsx, .odt, .ods, .odp, .epub, .eml, .ipynb and "
        "similar formats) or folders; - reads standard input."
    ),
]
RowFormat = Literal["jsonl", "ndjson", "json", "csv", "tsv", "parquet"]
InputFormat = Annotated[RowFormat, typer.Option("--format", help="Format of standard input.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would happen, change nothing.")]
Retriever = Annotated[
    str | None,
    typer.Option("--retriever", metavar="NAME", help="A live retriever; the champion by default."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


class Command(TyperCommand):
    """A command whose help shows no type for options without a value."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options and arguments, also `--help`, for the help and for parsing."""
        return _hide_types_of_flags(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands whose help shows no type for options without a value."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of the group, such as `--version`, for the help and for parsing."""
        return _hide_types_of_flags(super().get_params(ctx))


def _hide_types_of_flags(parameters: list[Any]) -> list[Any]:
    """Remove the type of each option without a value, and return all parameters.

    By default, Typer prints `--json <bool>`, which looks as if the option needed a value.
    """
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters
