"""The command `freshet search`, and hits as text."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from model_code.project import Project
from model_code.text.words import print_message
from orchestration.cli.options import Retriever
from orchestration.running_service import find_running_service

if TYPE_CHECKING:
    from freshet.results import Hit
    from model_code.retrieval.protocol import TokenMatch

MAX_SHOWN_TOKENS = 12
# Titles begin at this column; the lines below them are indented by as much.
TITLE_COLUMN = 12


def search(
    text: Annotated[str, typer.Argument(help="The query.")],
    k: Annotated[int, typer.Option("-k", min=1, help="Number of documents.")] = 10,
    retriever: Retriever = None,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            help="Only documents with these fields: package=numpy, year>=2020, or JSON. "
            "Can be repeated.",
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Show which tokens matched (lexical and fused retrievers)."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print hits as a JSON list.")] = False,
) -> None:
    """Search the documents.

    Use it for single queries. A running service (freshet serve) answers them at once; without one,
    each command loads the encoder first.

    Example: freshet search "sort an array" -k 5 --filter package=numpy
    """
    project = Project.find()
    filters = filters or []
    service = find_running_service(project)
    if service is not None:
        result = service.search(text, k, retriever=retriever, filters=filters, explain=explain)
        hits = result.hits
    else:
        # Importing torch takes seconds, which a search by a running service does not need.
        from model_code.collection.generations.searcher import Searcher

        hits = Searcher.open(project.live, retriever).search(text, k, filters, explain)

    if as_json:
        records = [hit_record(hit) for hit in hits]
        print_message(json.dumps(records, indent=2, ensure_ascii=False))
    else:
        print_message(hits_text(hits))


def hits_text(hits: Sequence[Hit]) -> str:
    """Return hits as text: rank, score, title, id, topics, snippet and matched tokens."""
    if not hits:
        return "no documents found"
    return "\n".join(_hit_text(hit) for hit in hits)


def _hit_text(hit: Hit) -> str:
    path = " › ".join(hit.topics)
    if not path:
        path = "/".join(str(node) for node in hit.path)
    lines = [
        f"{hit.rank:3}  {hit.score:.3f}  {hit.title}",
        f"{hit.document_id}  [{path}]",
        hit.snippet,
    ]
    if hit.tokens is not None:
        lines.append(tokens_text(hit.tokens))
    indent = " " * TITLE_COLUMN
    return f"\n{indent}".join(lines)


def tokens_text(tokens: Sequence[TokenMatch]) -> str:
    """Return matched tokens with their weights; + marks a token that the encoder added.

    >>> from model_code.retrieval.protocol import TokenMatch
    >>> tokens_text([TokenMatch("split", 1.25), TokenMatch("divide", 0.5, expanded=True)])
    'split 1.25  +divide 0.50'
    """
    if not tokens:
        return "no token matched"
    parts = []
    for token in tokens[:MAX_SHOWN_TOKENS]:
        sign = "+" if token.expanded else ""
        parts.append(f"{sign}{token.token} {token.weight:.2f}")

    omitted = len(tokens) - len(parts)
    if omitted:
        parts.append(f"and {omitted} more")
    return "  ".join(parts)


def hit_record(hit: Hit) -> dict[str, Any]:
    """Return a hit as a JSON object, with `tokens` only if an explanation was requested."""
    record = dataclasses.asdict(hit)
    if record["tokens"] is None:
        del record["tokens"]
    return record
