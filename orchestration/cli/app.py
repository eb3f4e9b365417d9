"""All commands of `freshet`, grouped into the panels of its help.

Commands import what they need inside their functions. `--help`, shell completion and a search by a
running service therefore start without torch, pandas, MLflow and Dagster.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import Annotated, Any

import typer

from orchestration.cli import (
    audit,
    build,
    demo,
    documents,
    follow,
    freshness,
    handover,
    judge,
    maintenance,
    release,
    results,
    search,
    serve,
    sources,
)
from orchestration.cli.options import Command, Group

IMPORT_NAME = "freshet"
# Settings of the command `bench`, which passes unknown arguments on to the benchmarks.
PASS_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}
# Functions of the commands, by the panel of the help that lists them.
COMMANDS: dict[str, list[Callable[..., Any]]] = {
    "Start": [build.init, demo.demo],
    "Search": [search.search],
    "Documents": [
        documents.add,
        documents.update,
        documents.delete,
        documents.forget,
        documents.sync,
        documents.export,
        documents.import_,
        handover.sync_to,
    ],
    "Build and compare": [build.ingest, build.run, build.plan, results.results, build.settings],
    "Judgements": [judge.judge],
    "Release": [release.register, release.promote, release.rollback, release.rewind],
    "Freshness": [freshness.status, freshness.retrain],
    "Service": [serve.serve, serve.ui, follow.publish],
    "Maintenance": [
        audit.audit,
        maintenance.verify,
        maintenance.repair,
        maintenance.backup,
        maintenance.restore,
    ],
}
# Functions of the subcommands of `freshet tools`.
TOOLS = [freshness.drift, maintenance.compact, maintenance.gc]

app = typer.Typer(
    name="freshet",
    cls=Group,
    help="Search your documents, keep the index correct while they change, and train it on "
    "your judgements.\n\nStart: freshet init my-project --from ~/notes, then freshet demo in "
    "my-project.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Every command accepts --debug, which shows the traceback of an error.",
)
tools = typer.Typer(
    cls=Group,
    help="Less frequent work: measure drift, compact the index, free disk space.",
    no_args_is_help=True,
)


def installed_version() -> str:
    """Return the version of the distribution that contains the package `freshet`.

    The distribution and the package have different names. The name of the distribution is looked
    up, so that it is written only in pyproject.toml.
    """
    distributions = metadata.packages_distributions().get(IMPORT_NAME)
    if not distributions:
        return "not installed"
    return metadata.version(distributions[0])


def _print_version(requested: bool) -> None:
    """Print the version and end the command, if the option `--version` is given."""
    if requested:
        typer.echo(f"freshet {installed_version()}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Declare the options of `freshet` that need no command, such as `--version`."""


def command_name(function: Callable[..., Any]) -> str:
    """Return the name of the command that a function implements.

    The function of the command `import` is called `import_`, because `import` is a Python keyword.
    """
    return function.__name__.removesuffix("_").replace("_", "-")


def _add_commands() -> None:
    """Add all commands to the application `freshet`, and the less frequent ones to `tools`."""
    for panel, commands in COMMANDS.items():
        for command in commands:
            name = command_name(command)
            app.command(name, cls=Command, rich_help_panel=panel)(command)
    for command in TOOLS:
        tools.command(cls=Command)(command)

    # `freshet bench --help` shows the help of the benchmarks, so it is passed on as well.
    add_benchmark = app.command(
        context_settings=PASS_ARGUMENTS,
        add_help_option=False,
        rich_help_panel="Build and compare",
    )
    add_benchmark(build.bench)
    app.add_typer(sources.sources, name="sources", rich_help_panel="Documents")
    app.add_typer(tools, name="tools", rich_help_panel="Maintenance")


_add_commands()
