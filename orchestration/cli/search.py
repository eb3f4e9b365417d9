"""`freshet search`: documents for a text, from the live collection."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from orchestration import parameters
from orchestration.project import Project
from orchestration.service.client import ServiceClient


def search(
    text: Annotated[str, typer.Argument(help="What you are looking for.")],
    k: Annotated[int, typer.Option("-k", min=1, help="How many documents.")] = 10,
    retriever: Annotated[str | None, typer.Option(help="Another retriever that is live than the champion.")] = None,
    filters: Annotated[
        list[str] | None, typer.Option("--filter", help="Only documents with this field, package=numpy; repeatable.")
    ] = None,
    hybrid: Annotated[bool, typer.Option("--hybrid", help="Fuse the ranking with BM25's.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show which tokens matched (lexical retrievers).")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Hits as a JSON list.")] = False,
) -> None:
    """Search the live collection: by the running service (freshet serve) if there is one, else in this process."""
    from orchestration.cli.hits import rows_text

    project = Project.find()
    service = ServiceClient.of(project)
    asked = (text, k, retriever, filters or (), hybrid, explain)
    rows = _here(project, *asked) if service is None else _by_service(service, *asked)
    typer.echo(json.dumps(rows, indent=2, ensure_ascii=False) if as_json else rows_text(rows))


def _by_service(
    service: ServiceClient,
    text: str,
    k: int,
    retriever: str | None,
    filters: Sequence[str],
    hybrid: bool,
    explain: bool,
) -> list[dict[str, Any]]:
    options = {"filters": list(filters), "hybrid": hybrid, "explain": explain, "retriever": retriever}
    hits = service.search(text, k, **options)["hits"]
    return [{name: value for name, value in hit.items() if name != "tokens" or explain} for hit in hits]


def _here(
    project: Project, text: str, k: int, retriever: str | None, filters: Sequence[str], hybrid: bool, explain: bool
) -> list[dict[str, Any]]:
    from model_code.live.searcher import Searcher

    searcher = Searcher.open(project.live, retriever)
    hits = searcher.search(text, k, filters, parameters.load(project.params_file).hybrid if hybrid else None)
    rows = [dataclasses.asdict(hit) for hit in hits]
    if explain:
        for row in rows:
            row["tokens"] = [dataclasses.asdict(match) for match in searcher.explain(text, row["document_id"])]
    return rows


def add_to(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command()(search)
