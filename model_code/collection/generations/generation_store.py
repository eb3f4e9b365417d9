"""The generations of a retriever on disk, with a pointer to the current one.

    live/current                              name of the default retriever
    live/RETRIEVER/current                    number of the current generation, which only rises
    live/RETRIEVER/generations/000000/...     immutable

The pointer is replaced atomically, and only after the whole generation is on the disk. So readers
see the old generation or the new one, and never a mixture, also after a crash. A generation with a
larger number than the current one was never searched. The next writer deletes it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from model_code.collection.generations.generation import FORMAT, REPAIR, Generation
from model_code.collection.ledger.events import LedgerCursor
from model_code.collection.segments.folder_lock import exclusive_lock_if_unused
from model_code.errors import Damaged, FreshetError
from model_code.files import MANIFEST, deferred_fsync, fsync, fsync_tree, write_manifest, write_text
from model_code.settings import require

LIVE, CURRENT, GENERATIONS = "live", "current", "generations"

# Prefixes of folders that are being written or deleted.
MAKING, REMOVING = ".making.", ".removing."

# Keys of the provenance that belong to one generation, and are not copied to later ones.
OWN_PROVENANCE_KEYS = ("model_version", "stage_key", "mlflow_run", "events")

# Keys of the manifest that a generation shares with the generation that is published again.
COPIED_KEYS = (
    "base",
    "build",
    "segments",
    "removed",
    "known",
    "fingerprint",
    "text",
    "documents",
    "passages",
)


class GenerationStore:
    """The generations of one retriever, with any number of readers and one writer at a time."""

    def __init__(self, live: Path, retriever: str) -> None:
        """Use the generations below a folder; nothing is read or written yet.

        Args:
            live: Folder of all live collections.
            retriever: Name of the retriever.
        """
        self.live = live
        self.retriever = retriever
        self.folder = live / retriever

    def generations(self) -> list[Generation]:
        """Return all finished generations, oldest first.

        Raises:
            Damaged: If a manifest is damaged.
            FreshetError: If a generation has another format.
        """
        generations: list[Generation] = []
        for folder in sorted((self.folder / GENERATIONS).glob("[0-9]*")):
            if (folder / MANIFEST).is_file():
                generations.append(Generation.read(folder))
        return generations

    def next_number(self) -> int:
        """Return the number of the next generation."""
        numbers = [int(name) for name in self._folder_names() if name.isdigit()]
        return max(numbers, default=-1) + 1

    def current_number(self) -> int | None:
        """Return the number of the generation that is searched, or None if there is none.

        Raises:
            Damaged: If the pointer is truncated, since it could name another generation.
        """
        pointer = self.folder / CURRENT
        if not pointer.is_file():
            return None
        text = pointer.read_bytes()
        if not (text.endswith(b"\n") and text[:-1].isdigit()):
            raise Damaged(f"{pointer} is torn: it names no generation", REPAIR)
        return int(text)

    def current(self) -> Generation:
        """Return the generation that is searched.

        Raises:
            FreshetError: If the retriever is not live, or the generation has another format.
            Damaged: If the generation is missing or damaged.
        """
        number = self.current_number()
        if number is None:
            names = ", ".join(retrievers(self.live)) or "none"
            raise FreshetError(
                f"retriever {self.retriever!r} is not live (live: {names}); take one of these, or "
                "make a retriever of params.yaml live: freshet register NAME, then freshet promote"
            )
        folder = self._generation_folder(number)
        if not folder.is_dir():
            pointer = self.folder / CURRENT
            raise Damaged(f"{pointer} names generation {number}, which is gone", REPAIR)
        return Generation.read(folder)

    def read(self, number: int) -> Generation:
        """Return the generation with a number.

        Raises:
            FreshetError: If there is no such generation.
        """
        folder = self._generation_folder(number)
        if not folder.is_dir():
            complete = [str(each.number) for each in self.generations() if each.complete]
            raise FreshetError(
                f"retriever {self.retriever!r} has no generation {number}; "
                f"there are: {', '.join(complete) or 'none'}"
            )
        return Generation.read(folder)

    def set_current(self, generation: Generation) -> Generation:
        """Make a generation the current one, and return it.

        The generation must be whole: it was just made, or its checksums were compared.
        """
        write_text(self.folder / CURRENT, f"{generation.number}\n")
        return generation

    def publish_again(
        self, generation: Generation, cursor: LedgerCursor, provenance: Mapping[str, Any]
    ) -> Generation:
        """Make an older generation the current one, under a new number.

        The new generation shares all files with the older one.

        Args:
            generation: Generation to publish again.
            cursor: Ledger cursor of the new generation.
            provenance: Entries to add to the provenance of the older generation.

        Returns:
            The new generation.

        Raises:
            Damaged: If a file of the generation is damaged; then nothing is changed.
        """
        generation.verify_all()
        facts = {key: generation.manifest[key] for key in COPIED_KEYS}
        facts["provenance"] = {**inherited_provenance(generation), **provenance}
        with self.staging_dir() as folder:
            self.write_manifest(folder, facts, cursor, parent=generation.number)
            published = self.commit(folder, self.next_number())
        return self.set_current(published)

    @contextmanager
    def staging_dir(self, after: int | None = None) -> Iterator[Path]:
        """Create an empty folder for a new generation, on the disk of the other generations.

        What an interrupted writer left is deleted first. The folder is deleted at the end of the
        block, unless `commit` has made it a generation. Its files reach the disk in `commit`, all
        at once.

        Args:
            after: Number of a generation that is not current yet, and that the new one continues.
                It is not deleted as a leftover.

        Yields:
            The folder.
        """
        parent = self.folder / GENERATIONS
        parent.mkdir(parents=True, exist_ok=True)
        self.remove_uncommitted(after)
        folder = Path(tempfile.mkdtemp(prefix=MAKING, dir=parent))
        folder.chmod(0o755)
        try:
            with deferred_fsync(folder):
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def remove_uncommitted(self, after: int | None = None) -> None:
        """Delete what interrupted writers left: generations that were never current, and others.

        Args:
            after: Number of a generation to keep although it is not current yet.

        Raises:
            FreshetError: If a leftover generation has another format; then nothing is deleted.
        """
        numbers = [number for number in (self.current_number(), after) if number is not None]
        last_kept = max(numbers, default=-1)

        unfinished: list[Path] = []
        uncommitted: list[Path] = []
        for name in self._folder_names():
            folder = self.folder / GENERATIONS / name
            if name.startswith((MAKING, REMOVING)):
                unfinished.append(folder)
            elif name.isdigit() and int(name) > last_kept and (folder / MANIFEST).is_file():
                uncommitted.append(Generation.read(folder).folder)

        for folder in unfinished:
            shutil.rmtree(folder)
        for folder in uncommitted:
            self.delete(folder)

    def write_manifest(
        self,
        folder: Path,
        facts: Mapping[str, Any],
        cursor: LedgerCursor,
        parent: int | None = None,
    ) -> dict[str, Any]:
        """Write the manifest of a new generation, whose files are finished, and return it.

        Args:
            folder: Staging folder of the generation.
            facts: Entries of the manifest.
            cursor: Ledger cursor of the generation.
            parent: Number of the generation that it was made from; None for a build.
        """
        content = {
            **facts,
            **asdict(cursor),
            "retriever": self.retriever,
            "parent": parent,
        }
        return write_manifest(folder, FORMAT, content)

    def find_copies(self, manifest: Mapping[str, Any]) -> list[Generation]:
        """Return the intact generations of the build that has the files of a manifest.

        Args:
            manifest: Manifest of a build, whose checksums and text rules are compared.

        Returns:
            All generations of the same build whose files are all undamaged, oldest first.
        """
        generations = self.generations()
        same_builds: set[int] = set()
        for generation in generations:
            is_build = generation.build == generation.number
            if is_build and _is_same_build(generation.manifest, manifest):
                same_builds.add(generation.number)

        copies = [each for each in generations if each.build in same_builds and each.complete]
        if not copies:
            return []
        intact = intact_folders(copies)
        return [generation for generation in copies if generation.needs <= intact]

    def commit(self, folder: Path, number: int) -> Generation:
        """Turn a staging folder with its manifest into a generation.

        Args:
            folder: Folder from `staging_dir`.
            number: Number from `next_number`.

        Returns:
            The generation, which is not current yet.
        """
        fsync_tree(folder)
        target = folder.with_name(f"{number:06d}")
        folder.rename(target)
        fsync(target.parent)
        return Generation.read(target)

    def unneeded_generations(self, keep: int, registered: Collection[int] = ()) -> list[Generation]:
        """Return the generations that garbage collection may delete, oldest first.

        Args:
            keep: Number of newest generations that stay, at least 1.
            registered: Numbers of further generations that stay. The current generation always
                stays, and so does what the others read.
        """
        require(keep >= 1, f"keep is {keep}, but at least the newest generation stays: 1 or more")
        generations = self.generations()
        kept = {generation.number for generation in generations[-keep:]}
        kept.update(registered)
        needed = {self.current_number()}
        for generation in generations:
            if generation.number in kept or generation.number == self.current_number():
                needed.update(generation.needs)
        return [generation for generation in generations if generation.number not in needed]

    def collect_garbage(self, keep: int, registered: Collection[int] = ()) -> tuple[int, ...]:
        """Delete `unneeded_generations`, except for folders that are being read and their needs.

        The newest is deleted first. A generation reads folders of older ones only, so that none is
        left without what it needs, wherever the process is interrupted.

        Args:
            keep: See `unneeded_generations`.
            registered: See `unneeded_generations`.

        Returns:
            Numbers of the deleted generations, ascending.
        """
        deleted: list[int] = []
        in_use: set[int] = set()
        for generation in reversed(self.unneeded_generations(keep, registered)):
            if generation.number not in in_use and self._delete_if_unused(generation):
                deleted.append(generation.number)
            else:
                in_use.update(generation.needs)
        deleted.reverse()
        return tuple(deleted)

    def _delete_if_unused(self, generation: Generation) -> bool:
        with exclusive_lock_if_unused(generation.folder) as is_unused:
            if is_unused:
                self.delete(generation.folder)
            return is_unused

    def delete(self, folder: Path) -> None:
        """Delete the folder of a generation.

        A crash leaves it whole, or in a state that the next writer deletes.
        """
        renamed = folder.with_name(f"{REMOVING}{folder.name}")
        folder.rename(renamed)
        shutil.rmtree(renamed)

    def _generation_folder(self, number: int) -> Path:
        return self.folder / GENERATIONS / f"{number:06d}"

    def _folder_names(self) -> list[str]:
        parent = self.folder / GENERATIONS
        return os.listdir(parent) if parent.is_dir() else []


def inherited_provenance(generation: Generation) -> dict[str, Any]:
    """Return the provenance that generations made from this one inherit."""
    provenance: dict[str, Any] = {}
    for key, value in generation.manifest["provenance"].items():
        if key not in OWN_PROVENANCE_KEYS:
            provenance[key] = value
    return provenance


def retrievers(live: Path) -> list[str]:
    """Return the names of the live retrievers, ascending."""
    return sorted(path.parent.name for path in live.glob(f"*/{CURRENT}"))


def default_retriever(live: Path) -> str:
    """Return the retriever that is searched by default.

    Raises:
        FreshetError: If nothing is live.
        Damaged: If the pointer is truncated.
    """
    pointer = live / CURRENT
    if not pointer.is_file():
        raise FreshetError(
            "nothing is live yet: `freshet demo` makes it so, or `freshet register` and "
            "`freshet promote`"
        )
    name = pointer.read_bytes().decode("utf-8", "replace")
    if not name.endswith("\n") or not name.strip():
        raise Damaged(f"{pointer} is torn: it names no retriever", REPAIR)
    return name.strip()


def set_default_retriever(live: Path, retriever: str) -> None:
    """Search a retriever by default.

    Raises:
        FreshetError: If the retriever is not live.
    """
    GenerationStore(live, retriever).current()
    write_text(live / CURRENT, f"{retriever}\n")


def intact_folders(generations: Iterable[Generation]) -> set[int]:
    """Return the numbers of the undamaged folders among all that these generations read."""
    folders = {each.sibling(number) for each in generations for number in each.needs}
    intact: set[int] = set()
    for folder in folders:
        with suppress(Damaged):
            Generation.read(folder).verify()
            intact.add(int(folder.name))
    return intact


def _is_same_build(manifest: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two manifests have the same files and the same text rules."""
    return manifest["checksums"] == other["checksums"] and manifest["text"] == other["text"]
