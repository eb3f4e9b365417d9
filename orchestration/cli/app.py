"""All commands under one name: the everyday ones, and the rarer ones as `freshet tools NAME`."""

from __future__ import annotations

import typer

from model_code.errors import FreshetError
from orchestration.cli import build, live, release, serve

ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}
GONE = {  # by the command's name: what to do in its place, told for one release
    "documents": "`freshet sync` follows the packages that `corpus.packages` names",
    "adopt": "`freshet repair` does that for every live retriever",
    "compare": "`freshet results --costs 100` sets costs beside effectiveness",
    "recluster": "it changed no ranking; a retrain clusters all that is live anew",
    "tune-additions": "docs/incdsi.md names the settings of `additions` that did best",
    "sweep": "`dvc exp show` is the table of experiments: docs/operations.md",
    "write-queries": "write queries yourself, in each document's `queries`, and `freshet update` them",
}
MOVED = ("compact", "gc", "drift")

app = typer.Typer(
    name="freshet",
    help="A retrieval system that keeps itself fresh: train, prove, promote and search retrievers over your corpus.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Every command takes --debug, which shows the traceback of an error.",
)
tools = typer.Typer(help="Rarer work: measure, list, clean up.", no_args_is_help=True)

for command in (
    build.init,
    build.demo,
    build.ingest,
    build.run,
    build.plan,
    build.results,
    build.settings,
    live.search,
    live.add,
    live.update,
    live.delete,
    live.sync,
    release.register,
    release.promote,
    release.rollback,
    release.retrain,
    release.status,
    release.rewind,
    live.verify,
    live.repair,
    live.export,
    live.backup,
    live.restore,
    serve.serve,
    serve.ui,
):
    app.command()(command)
for command in (release.drift, live.compact, live.gc):
    tools.command()(command)
app.command("import")(live.import_)
app.add_typer(tools, name="tools")
app.command(context_settings=ANY_ARGUMENTS, add_help_option=False)(build.bench)


def _refuse(name: str, reason: str, group: typer.Typer = app) -> None:
    """Let `freshet NAME` say what took its place."""

    @group.command(name, hidden=True, context_settings=ANY_ARGUMENTS)
    def refuse() -> None:
        raise FreshetError(f"freshet {name} {reason}")


for _name, _remedy in GONE.items():
    _refuse(_name, f"is gone: {_remedy}")
for _name in ("tune", "sweep", "documents", "compare"):
    _refuse(_name, f"is gone: {GONE['tune-additions' if _name == 'tune' else _name]}", tools)
for _name in MOVED:
    _refuse(_name, f"is `freshet tools {_name}` now")
