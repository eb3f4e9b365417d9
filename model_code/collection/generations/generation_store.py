"""A live collection on disk: numbered generations and one pointer to the current one.

    live/current                              the default retriever's name
    live/RETRIEVER/current                    the current generation's number, which only rises
    live/RETRIEVER/generations/000000/...     immutable

The pointer is replaced atomically, and only after the generation is whole on the disk. So a reader,
or whoever looks after a crash, finds the old generation or the new one, never a mixture. What has a
number above the current one was never searched, and the next writer deletes it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection as Ids
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from model_code.collection.generations.generation import FORMAT, REPAIR, Generation
from model_code.collection.ledger.events import LedgerCursor
from model_code.collection.segments.documents import DOCUMENTS
from model_code.collection.segments.folder_lock import exclusive_lock_if_unused
from model_code.errors import Damaged, FreshetError
from model_code.files import MANIFEST, deferred_fsync, fsync, fsync_tree, write_manifest, write_text
from model_code.settings import require

LIVE, CURRENT, GENERATIONS = "live", "current", "generations"
MAKING, REMOVING = ".making.", ".removing."
# what provenance says of one build or batch alone
ONCE = ("model_version", "stage_key", "mlflow_run", "events")
COPIED = ("base", "build", "segments", "removed", "fingerprint", "text", "documents", "passages")


class GenerationStore:
    """The generations of one retriever under the folder `live`. Any number of readers; one writer
    at a time.
    """

    def __init__(self, live: Path, retriever: str) -> None:
        self.live, self.retriever = live, retriever
        self.folder = live / retriever

    def generations(self) -> list[Generation]:
        """All finished generations that this version reads, oldest first."""
        folders = sorted(
            path for path in (self.folder / GENERATIONS).glob("[0-9]*") if path.is_dir()
        )
        return [generation for folder in folders if (generation := _read(folder)) is not None]

    def next_number(self) -> int:
        """The number that the next generation gets."""
        parent = self.folder / GENERATIONS
        names = os.listdir(parent) if parent.is_dir() else []
        return max(map(int, filter(str.isdigit, names)), default=-1) + 1

    def current_number(self) -> int | None:
        """The number of the generation that is searched, None if the collection was never opened."""
        pointer = self.folder / CURRENT
        if not pointer.is_file():
            return None
        text = pointer.read_bytes()
        # one that was cut off could name another generation
        if not (text.endswith(b"\n") and text[:-1].isdigit()):
            raise Damaged(f"{pointer} is torn: it names no generation", REPAIR)
        return int(text)

    def current(self) -> Generation:
        """The generation that is searched; FreshetError if the collection was never opened."""
        number = self.current_number()
        if number is None:
            names = ", ".join(retrievers(self.live)) or "none"
            raise FreshetError(
                f"retriever {self.retriever!r} is not live (live: {names}); take one of these, or make a retriever of "
                "params.yaml live: freshet register NAME, then freshet promote"
            )
        folder = self.folder / GENERATIONS / f"{number:06d}"
        if not folder.is_dir():
            raise Damaged(
                f"{self.folder / CURRENT} names generation {number}, which is gone", REPAIR
            )
        return Generation.read(folder)

    def read(self, number: int) -> Generation:
        """The generation with a number; FreshetError if there is none."""
        folder = self.folder / GENERATIONS / f"{number:06d}"
        if not folder.is_dir():
            complete = (
                generation.number for generation in self.generations() if generation.complete
            )
            numbers = ", ".join(map(str, complete)) or "none"
            raise FreshetError(
                f"retriever {self.retriever!r} has no generation {number}; there are: {numbers}"
            )
        return Generation.read(folder)

    def set_current(self, generation: Generation) -> Generation:
        """Make a generation the current one that is whole: it was just made, or `verify_all` said
        so.
        """
        write_text(self.folder / CURRENT, f"{generation.number}\n")
        return generation

    def publish_again(
        self, generation: Generation, cursor: LedgerCursor, provenance: Mapping[str, Any]
    ) -> Generation:
        """Make a generation the current one under a new number, which shares all of its files.

        provenance: what is to be said beside what was said of it. FreshetError if it is damaged;
        nothing is changed.
        """
        generation.verify_all()
        stated = {name: generation.manifest[name] for name in COPIED if name in generation.manifest}
        said = {
            name: value
            for name, value in generation.manifest["provenance"].items()
            if name not in ONCE
        }
        with self.staging_dir() as folder:
            facts = {"build": generation.build, **stated, "provenance": {**said, **provenance}}
            self.write_manifest(folder, facts, cursor, parent=generation.number)
            again = self.commit(folder, self.next_number())
        return self.set_current(again)

    @contextmanager
    def staging_dir(self, after: int | None = None) -> Iterator[Path]:
        """An empty folder on the collection's own disk to make a generation in; what is left of it
        is removed.

        `commit` forces its files to the disk, all at once. What a writer left that was killed, at any
        point before the switch, is removed first. after: a generation that was made to be
        continued, though nobody has searched it.
        """
        parent = self.folder / GENERATIONS
        parent.mkdir(parents=True, exist_ok=True)
        self.remove_uncommitted(after)
        path = Path(tempfile.mkdtemp(prefix=MAKING, dir=parent))
        path.chmod(0o755)
        try:
            with deferred_fsync(path):
                yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def remove_uncommitted(self, after: int | None = None) -> None:
        """Remove what was never switched to, and what was half deleted; after: see `staging_dir`.

        Earlier versions went back by the pointer alone: of theirs, what lies above it may have been
        searched.
        """
        searched = max(
            (number for number in (self.current_number(), after) if number is not None), default=-1
        )
        parent = self.folder / GENERATIONS
        for name in os.listdir(parent) if parent.is_dir() else []:
            if name.startswith((MAKING, REMOVING)):
                shutil.rmtree(parent / name)
            elif name.isdigit() and int(name) > searched:
                generation = _read(parent / name)
                if generation is not None and generation.manifest["format"] == FORMAT:
                    self.delete(generation.folder)

    def write_manifest(
        self,
        folder: Path,
        facts: Mapping[str, Any],
        cursor: LedgerCursor,
        parent: int | None = None,
    ) -> dict[str, Any]:
        """Write the manifest of a new generation over its finished files, and return it.

        parent: the generation that it was made of, None for a build.
        """
        return write_manifest(
            folder,
            FORMAT,
            {**facts, **asdict(cursor), "retriever": self.retriever, "parent": parent},
        )

    def find_copies(self, stated: Mapping[str, Any]) -> list[Generation]:
        """The whole generations of the build that has the files which a manifest states, oldest
        first.
        """
        existing = self.generations()
        builds = [generation for generation in existing if generation.build == generation.number]
        same = {build.number for build in builds if _is_same_build(build.manifest, stated)}
        copies = [
            generation
            for generation in existing
            if generation.build in same and generation.complete
        ]
        return (
            [generation for generation in copies if generation.needs <= intact_folders(copies)]
            if copies
            else []
        )

    def commit(self, folder: Path, number: int) -> Generation:
        """Give a folder, which is sealed, its number, the `next_number`."""
        fsync_tree(folder)
        target = folder.with_name(f"{number:06d}")
        folder.rename(target)
        fsync(target.parent)
        return Generation.read(target)

    def unneeded_generations(self, keep: int, registered: Ids[int] = ()) -> list[Generation]:
        """All generations but the `keep` newest, the current one, the `registered` ones and those
        that these read.
        """
        require(keep >= 1, f"keep is {keep}, but at least the newest generation stays: 1 or more")
        generations = self.generations()
        chosen = (
            {generation.number for generation in generations[-keep:]}
            | set(registered)
            | {self.current_number()}
        )
        needed = {
            number
            for generation in generations
            if generation.number in chosen
            for number in generation.needs
        }
        return [generation for generation in generations if generation.number not in needed]

    def collect_garbage(self, keep: int, registered: Ids[int] = ()) -> tuple[int, ...]:
        """Delete `unneeded_generations`, and return the numbers; folders that somebody still reads
        stay until the next time, with what they need.

        The newest goes first. A generation reads folders of older ones alone, so that none that was
        to go is left without what it needs, wherever this is cut off. What stays only because newer
        ones share its folder need not be `complete`.
        """
        deleted: list[int] = []
        read: set[int] = set()
        for generation in reversed(self.unneeded_generations(keep, registered)):
            if generation.number not in read and self._delete_unread(generation):
                deleted.append(generation.number)
            else:
                read |= generation.needs
        return tuple(reversed(deleted))

    def _delete_unread(self, generation: Generation) -> bool:
        with exclusive_lock_if_unused(generation.folder) as free:
            if free:
                self.delete(generation.folder)
            return free

    def delete(self, folder: Path) -> None:
        """Delete a generation's folder; a crash leaves it whole or for the next writer to remove."""
        doomed = folder.with_name(f"{REMOVING}{folder.name}")
        folder.rename(doomed)
        shutil.rmtree(doomed)


def retrievers(live: Path) -> list[str]:
    """The names of the retrievers that have a live collection."""
    return sorted(path.parent.name for path in live.glob(f"*/{CURRENT}"))


def default_retriever(live: Path) -> str:
    """The retriever that is searched when none is named; FreshetError if nothing is live."""
    pointer = live / CURRENT
    if not pointer.is_file():
        raise FreshetError(
            "nothing is live yet: `freshet demo` makes it so, or `freshet register` and `freshet promote`"
        )
    name = pointer.read_bytes().decode("utf-8", "replace")
    if not name.endswith("\n") or not name.strip():
        raise Damaged(f"{pointer} is torn: it names no retriever", REPAIR)
    return name.strip()


def set_default_retriever(live: Path, retriever: str) -> None:
    """Search `retriever` when none is named; FreshetError if it has no live collection."""
    GenerationStore(live, retriever).current()
    write_text(live / CURRENT, f"{retriever}\n")


def intact_folders(generations: Iterable[Generation]) -> set[int]:
    """The numbers of those folders that these generations read which have every file as it was."""
    intact = set()
    for folder in {
        generation.sibling(number) for generation in generations for number in generation.needs
    }:
        with suppress(Damaged):
            Generation.read(folder).verify()
            intact.add(int(folder.name))
    return intact


def _read(folder: Path) -> Generation | None:
    """A finished generation; None if a later version made it, or if it is no generation."""
    try:
        return Generation.read(folder) if (folder / MANIFEST).is_file() else None
    except Damaged:
        raise
    except FreshetError:
        return None


def _is_same_build(manifest: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two manifests have the same files and rules; formats differ in how they write
    documents.
    """
    ignored = set() if manifest["format"] == other["format"] else {DOCUMENTS}
    files, others = (
        {name: each["checksums"][name] for name in each["checksums"].keys() - ignored}
        for each in (manifest, other)
    )
    return files == others and manifest["text"] == other["text"]
