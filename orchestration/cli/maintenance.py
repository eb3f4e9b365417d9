"""Commands that maintain the live index: verify, repair, backup, restore, compact, gc."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from model_code.project import Project
from model_code.text.words import print_message
from orchestration.cli.options import Retriever


def verify() -> None:
    """Check everything that is live.

    Use it after a disk error or a crash. It reads every file, which takes about a second per
    gigabyte, and compares checksums, the ledger and the index with the documents. Each problem is
    one line that names the command to fix it; the exit code is then 1.

    Example: freshet verify
    """
    from model_code.collection.backup.repair import find_damage

    lines = list(find_damage(Project.find()))
    if not lines:
        print_message("no problems found")
        return
    print_message("\n".join(lines))
    raise typer.Exit(1)


def repair(
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt", help="Use the ledger even if the live index belongs to another ledger."
        ),
    ] = False,
) -> None:
    """Repair damaged files, or a lost ledger.

    Use it if freshet verify or another command says so. It deletes nothing, and loses no document.

    Example: freshet repair
    """
    from model_code.collection.backup.repair import repair as repair_project
    from orchestration.registry import versions

    project = Project.find()
    champion = versions.version_with_alias(project)
    champion_retriever = None
    if champion is not None:
        champion_retriever = champion.retriever
    actions = repair_project(project, champion_retriever, adopt)
    if actions:
        print_message("\n".join(actions))
    else:
        print_message("nothing had to be repaired")


def backup(folder: Annotated[Path, typer.Argument(help="A new folder for the copy.")]) -> None:
    """Copy the live index, the ledger and the settings into a folder.

    Use it regularly. The project can be used meanwhile.

    Example: freshet backup /mnt/backup/2026-01-31
    """
    from model_code.collection.backup.backup import backup as backup_project

    advice = backup_project(Project.find(), folder)
    if advice is None:
        print_message(f"{folder} holds the live index, the ledger and the settings")
    else:
        print_message(advice)


def restore(
    folder: Annotated[Path, typer.Argument(help="A folder that freshet backup wrote.")],
    into: Annotated[
        Path, typer.Option(help="Folder of the project. It must have no live index.")
    ] = Path("."),
) -> None:
    """Restore a backup into a project without a live index, and check it.

    Use it after the loss of a disk.

    Example: freshet restore /mnt/backup/2026-01-31 --into project
    """
    from model_code.collection.backup.backup import restore as restore_project

    project = restore_project(folder, into.resolve())
    print_message(
        f"{project.live} is restored and whole, as it was at the time of the backup; documents "
        "erased since then are back, so erase them again"
    )


def compact(retriever: Retriever = None) -> None:
    """Merge all added segments into one, without the deleted documents.

    Use it if searches have become slow after many additions. Search results do not change.

    Example: freshet tools compact
    """
    from model_code.collection.index.live_index import LiveIndex

    generation = LiveIndex(Project.find(), retriever).compact()
    print_message(
        f"{generation.retriever} generation {generation.number}, "
        f"{generation.manifest['documents']:,} documents"
    )


def gc(
    delete: Annotated[
        bool,
        typer.Option(
            "--delete", help="Delete the files. Without it, only show what could be deleted."
        ),
    ] = False,
    keep: Annotated[
        int, typer.Option(min=1, help="Number of model versions and live generations to keep.")
    ] = 3,
) -> None:
    """Delete old models, caches and checkpoints.

    Use it to free disk space. Without --delete it only shows what could be freed.

    Example: freshet tools gc --delete
    """
    from orchestration.cli.garbage import delete_garbage, find_garbage

    project = Project.find()
    garbage = find_garbage(project, keep)
    if delete:
        delete_garbage(project, garbage)

    for item in garbage:
        print_message(f"{item.megabytes:10.1f} MB  {item.label}")
    total = sum(item.megabytes for item in garbage)
    label = "freed" if delete else "could be freed with freshet tools gc --delete"
    print_message(f"{total:10.1f} MB  {label}")
