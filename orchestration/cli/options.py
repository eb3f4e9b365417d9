"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

LOCAL_HOST = "127.0.0.1"

DocumentFiles = Annotated[
    list[Path],
    typer.Argument(
        help="Files of rows (.jsonl, .ndjson, .json, .csv, .tsv, .parquet), documents (.md, .html, "
        ".txt, .rst, .rtf, .pdf, .docx, .pptx, .xlsx, .odt, .ods, .odp, .epub, .eml, .ipynb) or "
        "folders; - reads standard input."
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
