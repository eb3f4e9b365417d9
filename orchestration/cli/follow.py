"""The command that publishes a live collection, and the opening of a follower.

To publish is to copy a snapshot of the index to a shared place. A follower is a copy of the
collection on another machine, which is brought up to date from there.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from model_code.errors import FreshetError
from model_code.project import Project
from model_code.text.words import print_message

if TYPE_CHECKING:
    from model_code.collection.follow.follower import Follower


def publish(
    target: Annotated[
        str, typer.Argument(help="A folder, or an address such as s3://bucket/notes.")
    ],
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Publish where another project did, and become the writer of this place.",
        ),
    ] = False,
) -> None:
    """Publish the live index, so that other machines can search it.

    Use it after changes, or set live.publish, and the service does it. Only new files are
    uploaded. FRESHET_FOLLOW_KEY must hold a key that the followers know.

    Example: freshet publish s3://bucket/notes
    """
    from model_code.collection.follow.publish import publish as publish_index
    from model_code.collection.follow.signature import read_key

    report = publish_index(Project.find(), target, read_key(), take_over)
    print_message(str(report))


def open_follower(target: str, copy: Path, name: str | None, accept_epoch: str | None) -> Follower:
    """Open the copy of a published collection, and bring it up to date.

    Args:
        target: Address of the shared place where the collection is published.
        copy: Folder of the copy.
        name: Name of the follower. None: the name of this machine.
        accept_epoch: Epoch (identity) of a new writer to accept.

    Raises:
        FreshetError: If there is no copy, and none can be made.
    """
    from model_code.collection.follow.follower import Follower
    from model_code.collection.follow.signature import read_key

    key = read_key()
    follower = Follower(copy.resolve(), target, key, name or socket.gethostname(), accept_epoch)
    try:
        follower.update()
    except FreshetError as error:
        if not follower.has_copy:
            raise
        print_message(f"note: the copy is searched as it is: {error}")
    print_message(str(follower))
    if follower.registration_failure is not None:
        print_message(
            "note: the writer does not wait for this follower before it deletes files: "
            f"{follower.registration_failure}"
        )
    return follower
