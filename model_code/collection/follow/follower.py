"""Follow a published collection: keep a local copy that changes only by following its writer.

A follower downloads the folders that it lacks into `.making.` folders. It compares every file with
its checksum, and renames each finished folder. Then it replaces the pointer to the current
generation. A search therefore sees either the old or the new generation, even if the process dies.

    FOLDER/params.yaml                 the writer's settings, without its private groups
    FOLDER/live/...                    the folders of the generation
    FOLDER/.freshet/following.json     the `FollowerState`; its presence marks the folder as a copy
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from model_code.collection.follow.head import (
    FollowerRegistration,
    PublishedHead,
    format_time,
    read_head,
    register,
)
from model_code.collection.follow.storage import SharedStorage
from model_code.collection.generations.generation_store import (
    CURRENT,
    GENERATIONS,
    MAKING,
    REMOVING,
    GenerationStore,
    retrievers,
    set_default_retriever,
)
from model_code.collection.segments.folder_lock import exclusive_lock_if_unused
from model_code.errors import Damaged, FreshetError, SettingsError
from model_code.files import (
    MANIFEST,
    deferred_fsync,
    fsync,
    fsync_tree,
    hash_path,
    hash_text,
    read_json,
    write_json,
    write_text,
)
from model_code.project import FOLLOWING, PARAMS, Project, file_lock

# Last part of the error message about a damaged file, such as "FILE was changed; it is fetched
# again by itself". The user has nothing to do: the next update downloads the folder of the file.
FETCH_AGAIN = "it is fetched again by itself"

# Names that a follower may have.
# A name that begins with a dot would be that of a temporary file in the shared place.
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class FollowerState:
    """The published head that a follower's copy equals, as `following.json` stores it.

    A head is the signed description of one published generation. The state is written after the
    switch to a new generation.

    Attributes:
        target: Where the collection is published.
        name: Name of the follower.
        epoch: Identity of the writer; "" before the first head.
        sequence: Number of the head that the follower holds; 0 before the first one.
        erasures: Number of publications that followed an erasure of documents, as that head states
            it.
        erasures_gone: Number of these erasures whose texts were deleted from this disk.
        published: Time at which the head was published, in seconds since 1970.
        head_hash: Hash of the head. It distinguishes two heads with the same number.
    """

    target: str
    name: str
    epoch: str = ""
    sequence: int = 0
    erasures: int = 0
    erasures_gone: int = 0
    published: float = 0.0
    head_hash: str = ""


@dataclass(frozen=True)
class FollowerLag:
    """How far a follower is behind its writer.

    A head is the signed description of one published generation.

    Attributes:
        sequence: Number of the head that is searched.
        behind: Number of heads that were published after it.
        seconds: Seconds since the copy is known to be behind; 0 if it is not.
        unchecked_seconds: Time since the head was read for the last time.
        failure: Why the last attempt failed; None if it did not.
    """

    sequence: int
    behind: int
    seconds: float
    unchecked_seconds: float
    failure: str | None


class Follower:
    """A local copy of a collection that another machine publishes.

    Only one process at a time changes it.
    """

    def __init__(
        self,
        root: Path,
        target: str,
        key: bytes,
        name: str,
        accept_epoch: str | None = None,
    ) -> None:
        """Open the folder of the copy. The first `update` fills a new folder.

        Args:
            root: Folder of the copy.
            target: Where the collection is published.
            key: The shared key.
            name: Name under which the follower registers.
            accept_epoch: Epoch, which is the identity of a writer, of a new writer to accept in
                place of the present one.

        Raises:
            SettingsError: If the name has other characters than letters, digits, `.`, `_` and `-`,
                or begins with a dot.
            FreshetError: If the folder is not empty and not a copy, or follows another collection.
        """
        if NAME.fullmatch(name) is None:
            raise SettingsError(
                f"the name of the follower is {name!r}, but has to consist of 1 to 64 letters, "
                "digits, dots, hyphens and underscores, and must not begin with a dot: "
                "--follow-name NAME"
            )
        self.project = Project(root)
        self.storage = SharedStorage(target)
        self.key = key
        self.accept_epoch = accept_epoch
        self.state = self._read_state(target, name)
        # Why the registration failed. The writer then does not wait for this follower.
        self.registration_failure: str | None = None
        # Why the last update failed.
        self._failure: str | None = None
        # Number of the newest head that is known. A head describes a published generation.
        self._newest = self.state.sequence
        # Times in seconds since 1970: since when the copy is behind, and when it looked last.
        self._behind_since: float | None = None
        self._checked = time.time()

    @property
    def has_copy(self) -> bool:
        """Whether a published generation was copied completely, so that it can be searched."""
        return self.state.sequence > 0

    def update(self) -> bool:
        """Fetch the published generation, and switch to it. Return whether anything changed.

        A generation is a snapshot of the writer's index.

        Raises:
            FreshetError: If nothing is published, the head (signed description) of the publication
                is refused, or a file is damaged. The copy then keeps its present generation.
        """
        with file_lock(self.project.state / "following.lock"):
            try:
                has_changed = self._update()
            except FreshetError as error:
                self._failure = str(error)
                raise
            self._failure = None
            return has_changed

    def lag(self) -> FollowerLag:
        """Return how far the copy is behind the writer, as far as it is known."""
        now = time.time()
        seconds = 0.0
        if self._behind_since is not None:
            seconds = max(0.0, now - self._behind_since)
        return FollowerLag(
            sequence=self.state.sequence,
            behind=self._newest - self.state.sequence,
            seconds=seconds,
            unchecked_seconds=max(0.0, now - self._checked),
            failure=self._failure,
        )

    def _update(self) -> bool:
        """Read the published head, and switch to it if the copy does not equal it yet.

        The head is the signed description of the newest published generation. The caller holds the
        lock. Return whether anything changed.
        """
        head = read_head(self.storage, self.key)
        if head is None:
            raise FreshetError(
                f"nothing is published at {self.storage.target}; do it on the writer's machine: "
                f"freshet publish {self.storage.target}"
            )
        self._require_acceptable(head)
        self._checked = time.time()
        self._newest = head.sequence
        if self._holds(head):
            self._behind_since = None
            self._clean_up(head)
            self._register(self.state.sequence)
            return False

        if self._behind_since is None:
            self._behind_since = head.published
        # The writer deletes no folder of a registered head or a later one. So the head of the copy,
        # or for a first copy the new head, is registered before the download.
        oldest_needed = self.state.sequence if self.has_copy else head.sequence
        self._register(oldest_needed)
        self._fetch(head)
        self._switch(head)
        self._behind_since = None
        self._clean_up(head)
        self._register(self.state.sequence)
        return True

    def _require_acceptable(self, head: PublishedHead) -> None:
        """Refuse a head of another writer, an older head, and one from before texts were erased.

        A head is the signed description of a published generation. Its epoch identifies the writer,
        and its sequence number rises with every publication.

        Raises:
            FreshetError: If the head is refused.
        """
        state = self.state
        accepted_epochs = (state.epoch, self.accept_epoch)
        is_first = state.epoch == ""
        if not is_first and head.epoch not in accepted_epochs:
            raise FreshetError(
                f"{state.target} is published by another writer (epoch {head.epoch}) than before "
                f"({state.epoch}); if that is intended, start the follower with --accept-epoch "
                f"{head.epoch}"
            )
        if head.sequence < state.sequence:
            raise FreshetError(
                f"{state.target} has number {head.sequence}, which is older than {state.sequence}, "
                "which is searched here; nothing is taken back: publish again"
            )
        if head.erasures < state.erasures:
            raise FreshetError(
                f"number {head.sequence} of {state.target} is from before an erasure, and may hold "
                "erased documents; nothing of it is used: publish again"
            )
        is_other_head = head.sequence == state.sequence and _hash(head) != state.head_hash
        if is_other_head:
            raise FreshetError(
                f"{state.target} has two heads with number {head.sequence}, so two writers publish "
                "there; end one of them, and publish again"
            )

    def _holds(self, head: PublishedHead) -> bool:
        """Return whether the copy is complete, and equals the generation that a head describes."""
        if self.state.sequence != head.sequence:
            return False
        store = GenerationStore(self.project.live, head.retriever)
        if store.current_number() != head.generation:
            return False
        return not self._missing_folders(head)

    def _missing_folders(self, head: PublishedHead) -> list[str]:
        """Return the numbers of folders that the copy lacks, or has with other files.

        A folder has the number of its generation, a snapshot of the index.
        """
        missing: list[str] = []
        for number, manifest_hash in head.folders.items():
            manifest = self._folder(head.retriever, number) / MANIFEST
            if not manifest.is_file() or hash_path(manifest) != manifest_hash:
                missing.append(number)
        return missing

    def _fetch(self, head: PublishedHead) -> None:
        """Download the folders of a published generation that the copy lacks."""
        names = head.folder_names()
        for number in self._missing_folders(head):
            self._fetch_folder(head, number, names[number])

    def _fetch_folder(self, head: PublishedHead, number: str, name: str) -> None:
        """Download a folder to a temporary one, and rename that when it is complete.

        Args:
            head: Head that names the folder.
            number: Number of the folder's generation.
            name: Name of the folder in the storage.
        """
        target = self._folder(head.retriever, number)
        parent = target.parent
        parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=MAKING, dir=parent))
        staging.chmod(0o755)
        try:
            with deferred_fsync(staging):
                self._download(staging, name, head.folders[number])
            fsync_tree(staging)
            if target.exists():
                # The copy has this folder with other files, such as after the writer began a new
                # collection.
                _delete_folder(target)
            staging.rename(target)
            fsync(parent)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _download(self, folder: Path, name: str, manifest_hash: str) -> None:
        """Download the files of a folder, and compare each with its checksum."""
        manifest = folder / MANIFEST
        self.storage.download(f"{name}/{MANIFEST}", manifest)
        if hash_path(manifest) != manifest_hash:
            raise Damaged(f"{self.storage.target}/{name}/{MANIFEST} was changed", FETCH_AGAIN)

        for file_name, checksum in sorted(read_json(manifest)["checksums"].items()):
            path = folder / file_name
            if not path.resolve().is_relative_to(folder.resolve()):
                raise Damaged(f"{self.storage.target}/{name} names {file_name}", FETCH_AGAIN)
            path.parent.mkdir(parents=True, exist_ok=True)
            self.storage.download(f"{name}/{file_name}", path)
            if hash_path(path) != checksum:
                raise Damaged(f"{self.storage.target}/{name}/{file_name} was changed", FETCH_AGAIN)

    def _switch(self, head: PublishedHead) -> None:
        """Make the fetched generation the current one. Each pointer is replaced atomically.

        A generation is a snapshot of the writer's index. Searches of this copy use the current one.
        """
        root = self.project.root
        write_text(root / PARAMS, head.settings)
        if not (root / "dvc.yaml").exists():
            write_text(root / "dvc.yaml", "stages: {}\n")

        store = GenerationStore(self.project.live, head.retriever)
        generation = store.read(head.generation)
        if not generation.complete:
            raise Damaged(f"{generation.folder} lacks a folder that it reads", FETCH_AGAIN)
        store.set_current(generation)
        set_default_retriever(self.project.live, head.retriever)

        self.state = replace(
            self.state,
            epoch=head.epoch,
            sequence=head.sequence,
            erasures=head.erasures,
            published=head.published,
            head_hash=_hash(head),
        )
        self._write_state()

    def _clean_up(self, head: PublishedHead) -> None:
        """Delete the folders that the head does not name, unless a search still reads them.

        The head is the signed description of the published generation, which this copy equals.
        """
        has_leftovers = False
        # Only the published retriever is searched. Without its pointer, any other retriever is not
        # live.
        for retriever in retrievers(self.project.live):
            if retriever != head.retriever:
                (self.project.live / retriever / CURRENT).unlink()
        for folder in sorted(self.project.live.glob(f"*/{GENERATIONS}/*")):
            retriever = folder.parent.parent.name
            is_needed = retriever == head.retriever and folder.name in head.folders
            if is_needed:
                continue
            with _removable(folder) as is_removable:
                if is_removable:
                    _delete_folder(folder)
                else:
                    has_leftovers = True
        # Without older folders, no erased text is left on this disk. The writer is told so.
        if not has_leftovers and self.state.erasures_gone != self.state.erasures:
            self.state = replace(self.state, erasures_gone=self.state.erasures)
            self._write_state()

    def _register(self, sequence: int) -> None:
        """Tell the writer which publication this follower reads, so that its folders are kept.

        If this fails, the update of the follower continues.

        Args:
            sequence: Number of the publication.
        """
        registration = FollowerRegistration(
            name=self.state.name,
            epoch=self.state.epoch,
            sequence=sequence,
            erasures=self.state.erasures_gone,
            seen=time.time(),
        )
        try:
            register(self.storage, self.key, registration)
            self.registration_failure = None
        except FreshetError as error:
            self.registration_failure = str(error)

    def _folder(self, retriever: str, number: str) -> Path:
        """Return the local folder of a generation."""
        return self.project.live / retriever / GENERATIONS / number

    def _read_state(self, target: str, name: str) -> FollowerState:
        """Read the state of the copy, or begin a new copy in an empty folder.

        Args:
            target: Where the collection is published.
            name: Name under which the follower registers.

        Raises:
            FreshetError: If the folder follows another collection, or is not empty and not a copy.
        """
        path = self.project.state / FOLLOWING
        if path.is_file():
            state = FollowerState(**read_json(path))
            if state.target != target:
                raise FreshetError(
                    f"{self.project.root} follows {state.target}, not {target}; name another "
                    "folder for this copy: --copy FOLDER"
                )
            return replace(state, name=name)

        root = self.project.root
        if root.exists() and any(root.iterdir()):
            raise FreshetError(
                f"{root} is no copy of a published collection, and is not empty; name a new folder "
                "for the copy: --copy FOLDER"
            )
        # The state file is written before any download, so that an interrupted first copy is still
        # recognised as a copy.
        state = FollowerState(target, name)
        write_json(path, asdict(state))
        return state

    def _write_state(self) -> None:
        write_json(self.project.state / FOLLOWING, asdict(self.state))

    def __str__(self) -> str:
        """Return which publication the copy holds, as one line for the terminal."""
        if not self.has_copy:
            return f"{self.state.name} holds nothing of {self.state.target} yet"
        return (
            f"{self.state.name} holds number {self.state.sequence} of {self.state.target}, "
            f"published {format_time(self.state.published)}"
        )


def _hash(head: PublishedHead) -> str:
    """Return the hash of a head, the signed description of a published generation.

    The hashes differ if two writers publish heads with the same number.
    """
    return hash_text(repr(sorted(asdict(head).items())))


def _delete_folder(folder: Path) -> None:
    """Delete a folder, renamed first.

    After a crash the folder is either complete, or has a name that the next clean-up deletes.
    """
    removed = folder
    if not folder.name.startswith((MAKING, REMOVING)):
        removed = folder.with_name(f"{REMOVING}{folder.name}")
        folder.rename(removed)
    shutil.rmtree(removed)


@contextmanager
def _removable(folder: Path) -> Iterator[bool]:
    """Hold an exclusive lock on a folder, and yield whether it may be deleted."""
    if folder.name.startswith((MAKING, REMOVING)):
        yield True
        return
    with exclusive_lock_if_unused(folder) as is_unused:
        yield is_unused
