"""Who is champion and what is live: register, promote, rollback, retrain, status; among the tools
drift.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from model_code.errors import FreshetError, SettingsError
from model_code.project import Project
from model_code.text.words import print_message

if TYPE_CHECKING:
    from model_code.collection.generations.generation import Generation

Number = Annotated[
    int, typer.Option("--generation", min=0, help="The number of a generation of it.")
]
ByHand = Annotated[
    bool,
    typer.Option("--by-hand", help="Whatever the gate says, but not promotion.by_hand: refuse."),
]
Live = Annotated[
    str | None,
    typer.Option("--retriever", help="A live one; default: the one searched by default."),
]


def register(
    retriever: Annotated[
        str | None, typer.Argument(help="A trained retriever; the best on dev by default.")
    ] = None,
) -> None:
    """Register a built retriever in MLflow as challenger."""
    from orchestration.registry import release, versions

    project = Project.find()
    version = release.register(project, retriever)
    role = "champion already" if versions.version_with_alias(project) == version else "challenger"
    print_message(f"version {version.version} ({version.retriever}) is the {role}")


def promote(by_hand: ByHand = False) -> None:
    """Make the challenger the champion if it passes the gate, and open its live collection."""
    from orchestration.registry import release

    move = (release.promote_manually if by_hand else release.promote)(Project.find())
    print_message(move.summary)
    if not move.passed:
        raise typer.Exit(1)


def rollback(
    generation: Annotated[
        int | None,
        typer.Option(
            "--generation",
            min=0,
            help="Take all documents back to what this live generation holds.",
        ),
    ] = None,
    retriever: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Make the previous champion the champion again, or take all documents back to an earlier live
    generation.

    With --generation no champion changes: what arrived since is taken back, in every retriever.
    """
    from model_code.collection.index.live_index import LiveIndex
    from model_code.collection.index.maintenance import BackgroundMaintenance
    from orchestration.registry import release

    if retriever is not None:
        raise SettingsError(
            "documents belong to all retrievers and go back in all of them: freshet rollback --generation N; "
            f"freshet rewind --retriever {retriever} --generation {'N' if generation is None else generation} searches "
            "an older index of one of them"
        )
    project = Project.find()
    if generation is None:
        print_message(release.rollback(project).summary)
        return
    _tell(LiveIndex(project).revert(generation))
    for name, reason in BackgroundMaintenance(project).run_all().items():
        print_message(f"behind    {name}  {reason}")


def rewind(generation: Number, retriever: Live = None) -> None:
    """Search an older index of one retriever, as the newest went wrong; its documents follow all
    the same.
    """
    from model_code.collection.index.live_index import LiveIndex

    _tell(LiveIndex(Project.find(), retriever).rewind(generation))


def _tell(generation: Generation) -> None:
    print_message(
        f"{generation.retriever} is at generation {generation.number}, {generation.manifest['documents']:,} documents"
    )


def drift(
    explain: Annotated[
        bool, typer.Option("--explain", help="A dry run: measure and decide, keep nothing.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Report and decision as one JSON object.")
    ] = False,
) -> None:
    """Measure what was added since the last report, and decide what it calls for."""
    from orchestration.freshness.drift import check_drift

    watched = check_drift(Project.find(), record=not explain)
    if watched is None:
        few = "nothing was" if explain else "fewer than drift.minimum_batch documents were"
        raise FreshetError(
            f"{few} added since the last report, so there is nothing to measure; one document is enough for --explain"
        )
    record = watched.as_dict() | {"batch": [watched.batch.first, watched.batch.last]}
    print_message(json.dumps(record, indent=2) if as_json else watched.text, nl=as_json)


def retrain(
    key: Annotated[
        str | None, typer.Option(help="Name of the retrain; one that was cut off goes on.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be trained on, and stop.")
    ] = False,
    pilot: Annotated[
        int | None,
        typer.Option(
            min=20, help="Train on so many documents only, and say whether a retrain is due."
        ),
    ] = None,
) -> None:
    """Train on everything that is live; promote the result if old documents keep and new ones gain."""
    from model_code.collection.index.retrain_plan import plan_retrain
    from orchestration.freshness.retrain import next_key
    from orchestration.freshness.retrain import retrain as run

    project = Project.find()
    if pilot is not None:
        from orchestration.freshness.pilot import run_manual_pilot

        if dry_run or key:
            raise typer.BadParameter(
                "a pilot has no --key and no --dry-run: it is deleted when it has answered"
            )
        print_message(run_manual_pilot(project, pilot, print_message).summary)
        return
    plan = plan_retrain(project, key or "")
    name = key or next_key(project, plan)
    if dry_run:
        print_message(json.dumps(plan.summary() | {"key": name}, indent=2))
        return
    done = run(project, name, print_message)
    print_message(done.summary)
    if done.generation is not None:
        print_message(f"live: {done.challenger.retriever} generation {done.generation}")


def status(
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Show the state of the project."""
    from orchestration.cli.status import project_status, status_text

    state = project_status(Project.find())
    print_message(
        json.dumps(state, indent=2, ensure_ascii=False) if as_json else status_text(state)
    )
