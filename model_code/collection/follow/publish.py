"""Publish the current generation, so that other machines can follow it.

The folder of a generation never changes. Publishing uploads new folders, then writes the head, and
then deletes the folders that no follower needs. The head is the signed file that names the folders.
After a crash before the head is written, followers still read the previous head.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from model_code.collection.follow.head import (
    FollowerRegistration,
    PublishedHead,
    is_active,
    read_head,
    read_registrations,
    write_head,
)
from model_code.collection.follow.storage import GENERATIONS, HEADS, SharedStorage
from model_code.collection.generations.generation import Generation
from model_code.collection.generations.generation_store import GenerationStore, default_retriever
from model_code.collection.segments.folder_lock import SharedFolderLock
from model_code.errors import FreshetError
from model_code.files import MANIFEST, hash_path, hash_text, read_json, write_json, write_text
from model_code.project import Project, file_lock, load_yaml_mapping, plain_yaml, read_utf8

# Folder in the project's state. It has a `WriterState` for each target, and a file that marks the
# last erasure of documents.
PUBLISHING = "publishing"
ERASURE_FILE = "erasure"

# Number of characters of the target's hash in the name of its state file.
KEY_CHARACTERS = 24

# Groups of settings that followers do not get: addresses of people, and other machines.
PRIVATE_GROUPS = ("live", "scale")


@dataclass(frozen=True)
class WriterState:
    """A writer's local record of its publications to one target.

    Attributes:
        epoch: Identity of the writer, which changes if another writer takes over.
        sequence: Highest number of a publication that the writer may have begun.
    """

    epoch: str
    sequence: int


@dataclass(frozen=True)
class PublishReport:
    """The outcome of a publication.

    Attributes:
        target: Where it was published.
        head: Signed description of the generation that followers fetch now.
        uploaded: Number of folders that were uploaded.
        deleted: Number of folders that were deleted.
        is_new: Whether this publication wrote a new head.
        followers: For each copy on another machine, which publication it needs.
    """

    target: str
    head: PublishedHead
    uploaded: int
    deleted: int
    is_new: bool
    followers: tuple[FollowerRegistration, ...]

    def __str__(self) -> str:
        """Return the outcome, and how far each follower is behind, as lines of text."""
        verb = "now has" if self.is_new else "already had"
        lines = [
            f"{self.target} {verb} generation {self.head.generation} of {self.head.retriever} "
            f"(number {self.head.sequence}); folders: {self.uploaded} uploaded, "
            f"{self.deleted} deleted"
        ]
        for follower in self.followers:
            behind = self.head.sequence - follower.sequence
            line = f"  follower {follower.name}: "
            line += "up to date" if behind == 0 else f"{behind} behind"
            if follower.erasures < self.head.erasures:
                line += ", and still holds erased documents"
            lines.append(line)
        return "\n".join(lines)


def record_erasure(project: Project) -> None:
    """Record that texts were erased.

    The next publication then deletes all published folders that it does not need itself.

    A random text, the mark, records the erasure. A count could repeat an old value after the state
    was deleted.
    """
    write_text(project.state / PUBLISHING / ERASURE_FILE, f"{uuid.uuid4().hex}\n")


def last_erasure(project: Project) -> str:
    """Return the random text that marks the last erasure of documents; "" if nothing was erased."""
    path = project.state / PUBLISHING / ERASURE_FILE
    return path.read_text(encoding="ascii").strip() if path.is_file() else ""


def publish(project: Project, target: str, key: bytes, take_over: bool = False) -> PublishReport:
    """Publish the current generation of the default retriever.

    A generation is a snapshot of the index. Followers, which are copies on other machines, fetch it
    from the target.

    Args:
        project: The writer's project.
        target: A folder, or an address that the library fsspec opens, such as `s3://bucket/notes`.
        key: The shared key.
        take_over: Whether to become the writer of a target that another project writes to.

    Raises:
        FreshetError: If another project writes there, a file is damaged, or the storage fails.
    """
    with _locked_state(project, target) as path:
        storage = SharedStorage(target)
        before = read_head(storage, key)
        state = _writer_state(path, before, take_over, target)

        generation = GenerationStore(project.live, default_retriever(project.live)).current()
        with _keep_folders(generation):
            head = _next_head(project, generation, state, before)
            uploaded = _upload_folders(storage, generation, head)
            is_new = head != before
            if is_new:
                # The state is written before the head. After a crash between the two, the next
                # publication recognises a head with this number as its own.
                write_json(path, asdict(WriterState(head.epoch, head.sequence)))
                write_head(storage, key, head)

        followers = read_registrations(storage, key)
        deleted = _delete_unneeded(storage, key, head, followers)
        return PublishReport(target, head, uploaded, deleted, is_new, tuple(followers))


@contextmanager
def _locked_state(project: Project, target: str) -> Iterator[Path]:
    """Keep other processes from publishing to a target, and yield the file of its `WriterState`."""
    # A folder can be named by several paths, but an address such as s3://bucket cannot.
    address = target
    if "://" not in target:
        address = str(Path(target).resolve())
    key = hash_text(address)[:KEY_CHARACTERS]
    path = project.state / PUBLISHING / f"{key}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(path.with_suffix(".lock")):
        yield path


def _writer_state(
    path: Path, before: PublishedHead | None, take_over: bool, target: str
) -> WriterState:
    """Return the state of this writer, after checking that it is the only one.

    Args:
        path: File of the state. It does not exist before the first publication to this target.
        before: Head that the target has now. None if nothing was published to it.
        take_over: Whether to become the writer in place of another project.
        target: The target, for the error message.

    Raises:
        FreshetError: If another project wrote the head.
    """
    # A writer takes a new epoch, so that followers notice that the writer has changed.
    if take_over and before is not None:
        return WriterState(uuid.uuid4().hex, before.sequence)
    if take_over or (before is None and not path.is_file()):
        return WriterState(uuid.uuid4().hex, 0)

    if before is not None and not path.is_file():
        raise FreshetError(
            f"{target} is written by another project (epoch {before.epoch}); publish to another "
            "place, or end that writer and become the writer with --take-over"
        )
    state = WriterState(**read_json(path))
    if before is not None:
        is_foreign = before.epoch != state.epoch or before.sequence > state.sequence
        if is_foreign:
            raise FreshetError(
                f"another writer has published number {before.sequence} (epoch {before.epoch}) "
                f"to {target}, but one machine writes; end that writer, and become the writer with "
                "--take-over"
            )
    return state


def _next_head(
    project: Project, generation: Generation, state: WriterState, before: PublishedHead | None
) -> PublishedHead:
    """Return the head to write, or the published head if its content would be the same.

    A head is the signed description of a published generation, which is a snapshot of the index.

    Args:
        project: The writer's project.
        generation: Generation to publish.
        state: State of the writer.
        before: Head that the target has now, or None.
    """
    folders: dict[str, str] = {}
    for number in sorted(generation.needs):
        folders[f"{number:06d}"] = hash_path(generation.sibling(number) / MANIFEST)

    erasures = 0
    erasure = ""
    if before is not None:
        erasures = before.erasures
        erasure = before.erasure
    # The mark is a random text, which every erasure of documents replaces.
    mark = last_erasure(project)
    has_new_erasure = mark not in ("", erasure)
    if has_new_erasure:
        erasures += 1
        erasure = mark

    head = PublishedHead(
        epoch=state.epoch,
        sequence=state.sequence + 1,
        erasures=erasures,
        erasure=erasure,
        published=time.time(),
        retriever=generation.retriever,
        generation=generation.number,
        folders=folders,
        settings=follower_settings(project),
    )
    if before is not None and before.epoch == state.epoch and before.has_same_content(head):
        return before
    return head


def follower_settings(project: Project) -> str:
    """Return the text of `params.yaml` without the groups that are private to the writer."""
    from io import StringIO

    yaml = plain_yaml()
    groups = load_yaml_mapping(yaml, read_utf8(project.params_file))
    public = {name: value for name, value in groups.items() if name not in PRIVATE_GROUPS}
    stream = StringIO()
    yaml.dump(public, stream)
    return stream.getvalue()


@contextmanager
def _keep_folders(generation: Generation) -> Iterator[None]:
    """Keep garbage collection from deleting the folders of a generation."""
    locks = [SharedFolderLock(generation.sibling(number)) for number in generation.needs]
    try:
        yield
    finally:
        locks.clear()


def _upload_folders(storage: SharedStorage, generation: Generation, head: PublishedHead) -> int:
    """Upload the folders that the storage lacks, and return their number.

    The manifest, a folder's list of checksums, is uploaded last. So a folder with a manifest is
    complete.
    """
    uploaded = 0
    for number, name in head.folder_names().items():
        if storage.read(f"{name}/{MANIFEST}") is not None:
            continue
        source = Generation.read(generation.sibling(int(number)))
        # A damaged file is found here, before a follower downloads it.
        source.verify()
        for file_name in sorted(source.manifest["checksums"]):
            storage.upload(source.folder / file_name, f"{name}/{file_name}")
        storage.write(f"{name}/{MANIFEST}", (source.folder / MANIFEST).read_bytes())
        uploaded += 1
    return uploaded


def _delete_unneeded(
    storage: SharedStorage, key: bytes, head: PublishedHead, followers: list[FollowerRegistration]
) -> int:
    """Delete folders and heads that no active follower needs, and return the number of folders.

    A head names the folders of one publication. Folders that are named only by heads from before an
    erasure may hold erased documents. They are deleted even if a follower still needs them. The
    follower then fetches the current head.
    """
    now = time.time()
    # The oldest head that an active follower may still read.
    oldest_sequence = head.sequence
    for follower in followers:
        has_seen_erasures = follower.erasures >= head.erasures
        if is_active(follower, head.epoch, now) and has_seen_erasures:
            oldest_sequence = min(oldest_sequence, follower.sequence)

    needed = set(head.folder_names().values())
    outdated: list[str] = []
    for file_name in storage.names(HEADS):
        name = f"{HEADS}/{file_name}"
        older = read_head(storage, key, name)
        is_needed = (
            older is not None
            and older.epoch == head.epoch
            and older.sequence >= oldest_sequence
            and older.erasures == head.erasures
        )
        if older is not None and is_needed:
            needed.update(older.folder_names().values())
        else:
            outdated.append(name)

    unneeded: list[str] = []
    for retriever in storage.names(GENERATIONS):
        for folder_name in storage.names(f"{GENERATIONS}/{retriever}"):
            name = f"{GENERATIONS}/{retriever}/{folder_name}"
            if name not in needed:
                unneeded.append(name)
    # A folder without a manifest counts as incomplete, wherever the deletion is interrupted.
    storage.delete(f"{name}/{MANIFEST}" for name in unneeded)
    storage.delete(unneeded)
    storage.delete(outdated)
    return len(unneeded)
