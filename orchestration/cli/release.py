"""Commands that decide which version is searched: register, promote, rollback, rewind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from model_code.project import Project
from model_code.text.words import print_message
from orchestration.cli.options import Retriever

if TYPE_CHECKING:
    from model_code.collection.generations.generation import Generation


def register(
    retriever: Annotated[
        str | None,
        typer.Argument(help="A trained retriever; the best on dev queries by default."),
    ] = None,
) -> None:
    """Register a built retriever in MLflow as challenger.

    Use it after a build, before freshet promote. The challenger is the version that asks to
    become champion, which is searched by default.

    Example: freshet register hce
    """
    from orchestration.registry import release, versions

    project = Project.find()
    version = release.register(project, retriever)
    if versions.version_with_alias(project) == version:
        print_message(f"{version} is the champion already")
    else:
        print_message(f"{version} is the challenger")


def promote(
    by_hand: Annotated[
        bool,
        typer.Option(
            "--by-hand",
            help="Promote even if the gate rejects it. Setting promotion.by_hand can forbid this.",
        ),
    ] = False,
) -> None:
    """Make the challenger the champion if the gate accepts it.

    Use it to search with a new version. The gate is a statistical test on queries that are used
    for nothing else. The challenger's index is opened before it becomes champion, so that searches
    are answered all the time. The exit code is 1 if the gate rejects the challenger.

    Example: freshet promote
    """
    from orchestration.registry import release

    project = Project.find()
    if by_hand:
        promotion = release.promote_manually(project)
    else:
        promotion = release.promote(project)
    print_message(promotion.summary)
    if not promotion.passed:
        raise typer.Exit(1)


def rollback(
    generation: Annotated[
        int | None,
        typer.Option(
            "--generation",
            min=0,
            help="Take all documents back to this live generation. The champion stays.",
        ),
    ] = None,
) -> None:
    """Make the previous champion the champion again, or take documents back.

    Use it if a promotion was a mistake. With --generation, all changes of documents since that
    generation are reverted, in every retriever.

    Example: freshet rollback --generation 12
    """
    # The index is only imported if documents are reverted: importing takes half a second.
    project = Project.find()
    if generation is None:
        from orchestration.registry import release

        print_message(release.rollback(project).summary)
        return

    from model_code.collection.index.live_index import LiveIndex
    from model_code.collection.index.maintenance import BackgroundMaintenance

    _print_generation(LiveIndex(project).revert(generation))
    for name, reason in BackgroundMaintenance(project).run_all().items():
        print_message(f"{name} is not up to date: {reason}")


def rewind(
    generation: Annotated[
        int,
        typer.Option("--generation", min=0, help="Number of an older generation of the retriever."),
    ],
    retriever: Retriever = None,
) -> None:
    """Search an older index of one retriever.

    Use it if the newest index of a retriever is damaged or bad. Its documents catch up afterwards;
    to take documents back, use freshet rollback --generation.

    Example: freshet rewind --retriever hce --generation 12
    """
    from model_code.collection.index.live_index import LiveIndex

    _print_generation(LiveIndex(Project.find(), retriever).rewind(generation))


def _print_generation(generation: Generation) -> None:
    print_message(
        f"{generation.retriever} is at generation {generation.number}, "
        f"{generation.manifest['documents']:,} documents"
    )
