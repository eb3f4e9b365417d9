"""All commands under one name, one file per job to be done."""

from __future__ import annotations

import typer

from model_code.errors import FreshetError
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
REMOVED = {  # by the command's name: what to do in its place, told for one release
    "recluster": "it changed no ranking; a retrain clusters all that is live anew",
    "write-queries": "write queries yourself, in each document's `queries`, and `freshet update` them",
}


def _removed(name: str) -> None:
    @app.command(name, hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
    def refuse() -> None:
        raise FreshetError(f"freshet {name} is gone: {REMOVED[name]}")


for module in (build, results, sweep, compare, *everyday, release, status, ui, gc, bench):
    module.add_to(app)
for removed in REMOVED:
    _removed(removed)
