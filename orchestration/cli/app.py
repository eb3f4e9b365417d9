"""All commands under one name, one file per job to be done."""

from __future__ import annotations

import typer

from orchestration.cli import (
    additions,
    bench,
    build,
    compare,
    documents,
    freshness,
    gc,
    live,
    release,
    results,
    search,
    serve,
    status,
    sweep,
    ui,
)

app = typer.Typer(
    name="freshet",
    help="A retrieval system that keeps itself fresh: train, prove, promote and search retrievers over your corpus.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Every command takes --debug, which shows the traceback of an error.",
)
everyday = (search, documents, live, serve, freshness, additions)
for module in (build, results, sweep, compare, *everyday, release, status, ui, gc, bench):
    module.add_to(app)
