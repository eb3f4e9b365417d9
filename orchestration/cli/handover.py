"""Commands that hand documents over to another search engine."""

from __future__ import annotations

from typing import Annotated

import typer

from model_code.collection.handover.engines import EngineName
from model_code.errors import SettingsError
from model_code.project import Project
from model_code.text.words import print_message

# Name of the collection, table or index in the other engine.
DEFAULT_NAME = "freshet"
# An address or a folder for each engine, as an example in error messages.
EXAMPLE_TARGETS: dict[EngineName, str] = {
    "qdrant": "http://127.0.0.1:6333",
    "lancedb": "lance",
    "opensearch": "opensearch",
}

CollectionName = Annotated[
    str, typer.Option("--name", help="Name of the collection, the table or the index.")
]


def sync_to(
    engine: Annotated[EngineName, typer.Argument(help="The engine that holds the documents.")],
    target: Annotated[str, typer.Argument(help="The address or folder given to freshet export.")],
    name: CollectionName = DEFAULT_NAME,
) -> None:
    """Write to another engine what changed since freshet export --to.

    Use it after documents were added, changed, deleted or erased. Only documents that differ are
    sent. Repeating it, also after an interruption, changes nothing.

    Example: freshet sync-to qdrant http://127.0.0.1:6333
    """
    from model_code.collection.handover.handover import HandoverTarget, sync_handover

    report = sync_handover(Project.find(), HandoverTarget(engine, target, name))
    print_message(str(report))


def export_to_engine(
    engine: EngineName, target: str | None, name: str, retriever: str | None, replace: bool
) -> None:
    """Hand all live documents over to an engine, and print the outcome.

    Raises:
        SettingsError: If no target is named.
    """
    from model_code.collection.handover.handover import HandoverTarget, hand_over

    if target is None:
        raise SettingsError(
            f"--to {engine} needs an address or a folder, such as "
            f"freshet export --to {engine} {EXAMPLE_TARGETS[engine]}"
        )
    handover_target = HandoverTarget(engine, target, name)
    report = hand_over(Project.find(), handover_target, retriever, replace)
    print_message(str(report))
