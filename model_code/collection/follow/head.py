"""The head of a published collection, and the registrations of its followers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from model_code.collection.follow.signature import sign, verify
from model_code.collection.follow.storage import FOLLOWERS, GENERATIONS, HEAD, HEADS, SharedStorage
from model_code.errors import FreshetError

# Version of the format of heads and registrations.
PUBLISH_FORMAT = 1

# Number of characters of the manifest's hash in the name of a published folder.
HASH_CHARACTERS = 12

# The writer keeps no folders for a follower that has not registered for this time.
FOLLOWER_EXPIRY_SECONDS = 7 * 24 * 3600.0


@dataclass(frozen=True)
class PublishedHead:
    """The signed description of a published generation. Its hashes cover every file.

    Attributes:
        epoch: Identity of the one writer. Another writer has another epoch.
        sequence: Number of this head. It rises with every publication.
        erasures: Number of publications that followed an erasure of documents. It only rises.
        erasure: Mark of the writer's last erasure; "" if nothing was erased.
        published: Time in seconds since 1970.
        retriever: Retriever that is searched.
        generation: Number of its generation.
        folders: SHA-256 of the manifest of each folder that the generation reads, by number. That
            manifest has the checksums of the folder's files.
        settings: Text of `params.yaml` for followers.
    """

    epoch: str
    sequence: int
    erasures: int
    erasure: str
    published: float
    retriever: str
    generation: int
    folders: dict[str, str]
    settings: str

    def folder_names(self) -> dict[str, str]:
        """Return the name of each folder in the storage, by the number of its generation."""
        names: dict[str, str] = {}
        for number, manifest_hash in self.folders.items():
            names[number] = published_folder(self.retriever, number, manifest_hash)
        return names

    def has_same_content(self, other: PublishedHead) -> bool:
        """Return whether this head and `other` give followers the same files and settings."""
        return (
            self.retriever == other.retriever
            and self.generation == other.generation
            and self.folders == other.folders
            and self.settings == other.settings
            and self.erasures == other.erasures
        )


@dataclass(frozen=True)
class FollowerRegistration:
    """The message of a follower, a copy on another machine, about the folders that it needs.

    Attributes:
        name: Name of the follower.
        epoch: Identity of the writer that it follows.
        sequence: Number of the publication whose folders it needs. The writer keeps the folders of
            this publication and of all later ones.
        erasures: Number of erasures whose texts were deleted from the follower's disk.
        seen: Time of the registration in seconds since 1970.
    """

    name: str
    epoch: str
    sequence: int
    erasures: int
    seen: float


def published_folder(retriever: str, number: str, manifest_hash: str) -> str:
    """Return the name of a generation's folder in the storage.

    It contains a hash of the folder's manifest, which lists the checksums of the files. The number
    is not enough, because numbers start again after a collection was deleted.
    """
    return f"{GENERATIONS}/{retriever}/{number}-{manifest_hash[:HASH_CHARACTERS]}"


def read_head(storage: SharedStorage, key: bytes, name: str = HEAD) -> PublishedHead | None:
    """Return a head; None if nothing was published.

    A head is the signed description of a published generation, which is a snapshot of the index.

    Args:
        storage: Where it was published.
        key: The shared key.
        name: Name of the file.

    Raises:
        FreshetError: If the signature is wrong, or the head has another format.
    """
    text = storage.read(name)
    if text is None:
        return None
    content = verify(text, key, f"{storage.target}/{name}")
    _require_format(content, storage)
    return PublishedHead(**content)


def write_head(storage: SharedStorage, key: bytes, head: PublishedHead) -> None:
    """Write a head under its number, and then as the current head that followers read.

    A head is the signed description of a published generation. Followers are copies elsewhere.
    """
    signed = _sign_with_format(head, key)
    storage.write(f"{HEADS}/{head.sequence:08d}.json", signed)
    storage.write(HEAD, signed)


def register(storage: SharedStorage, key: bytes, registration: FollowerRegistration) -> None:
    """Write a follower's registration, which tells the writer which folders it still needs."""
    signed = _sign_with_format(registration, key)
    storage.write(f"{FOLLOWERS}/{registration.name}.json", signed)


def read_registrations(storage: SharedStorage, key: bytes) -> list[FollowerRegistration]:
    """Return the registrations of all followers, the copies on other machines, by ascending name.

    By a registration, a follower tells the writer which folders it still needs.

    Raises:
        FreshetError: If a registration is torn or signed with another key.
    """
    registrations: list[FollowerRegistration] = []
    for name in storage.names(FOLLOWERS):
        text = storage.read(f"{FOLLOWERS}/{name}")
        if text is not None:
            content = verify(text, key, f"{storage.target}/{FOLLOWERS}/{name}")
            _require_format(content, storage)
            registrations.append(FollowerRegistration(**content))
    return registrations


def is_active(registration: FollowerRegistration, epoch: str, now: float) -> bool:
    """Return whether the writer keeps folders for a follower.

    A follower is a copy on another machine. Its folders are kept if it follows this writer and has
    registered recently.
    """
    is_recent = now - registration.seen < FOLLOWER_EXPIRY_SECONDS
    return is_recent and registration.epoch == epoch


def _sign_with_format(content: PublishedHead | FollowerRegistration, key: bytes) -> bytes:
    """Return a head or a registration as signed JSON, with the number of the format."""
    values: dict[str, Any] = {"format": PUBLISH_FORMAT}
    values.update(asdict(content))
    return sign(values, key)


def format_time(seconds: float) -> str:
    """Return a time in seconds since 1970 for a message.

    >>> format_time(0)
    '1970-01-01 00:00:00 UTC'
    """
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _require_format(content: dict[str, Any], storage: SharedStorage) -> None:
    """Raise an error unless a head or a registration has the format that this version reads.

    A head describes a publication, and a registration tells which one a follower needs. The number
    of the format is removed from the content, so that the rest are its attributes.
    """
    found = content.pop("format", None)
    if found != PUBLISH_FORMAT:
        raise FreshetError(
            f"{storage.target} has format {found}, but this version reads {PUBLISH_FORMAT}; use "
            "the same version of Freshet for the writer and all followers"
        )
