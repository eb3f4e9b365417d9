"""`freshet search`: documents for a text, from the live collection."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from orchestration.project import Project

if TYPE_CHECKING:
    from model_code.live.hybrid import HybridSettings


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
    """Search the live collection."""
    from model_code.live.searcher import Searcher
    from orchestration.hits import hits_text

    project = Project.find()
    searcher = Searcher.open(project.live, retriever)
    hits = searcher.search(text, k, filters or (), _hybrid_settings(project) if hybrid else None)
    matches = [searcher.explain(text, hit.document_id) for hit in hits] if explain else None
    if not as_json:
        typer.echo(hits_text(hits, matches))
        return
    rows = [dataclasses.asdict(hit) for hit in hits]
    if matches is not None:
        tokens = [{"tokens": [dataclasses.asdict(token) for token in found]} for found in matches]
        rows = [row | own for row, own in zip(rows, tokens, strict=True)]
    typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))


def _hybrid_settings(project: Project) -> HybridSettings:
    """As the evaluation's `rrf`: BM25, depth and constant of `params.yaml`."""
    from model_code.live.hybrid import HybridSettings
    from orchestration import parameters

    settings = parameters.load(project.params_file)
    return HybridSettings(settings.bm25, settings.evaluation.depth, settings.evaluation.fusion_constant)


def add_to(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command()(search)
