"""`freshet search`: documents for a text, from the live collection."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from orchestration.project import Project


def search(
    text: Annotated[str, typer.Argument(help="What you are looking for.")],
    k: Annotated[int, typer.Option("-k", min=1, help="How many documents.")] = 10,
    retriever: Annotated[str | None, typer.Option(help="Another retriever that is live than the champion.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Hits as a JSON list.")] = False,
) -> None:
    """Search the live collection."""
    from model_code.live.searcher import Searcher
    from orchestration.hits import hits_text

    hits = Searcher.open(Project.find().live, retriever).search(text, k)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(hit) for hit in hits], indent=2, ensure_ascii=False))
    else:
        typer.echo(hits_text(hits))


def add_to(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command()(search)
