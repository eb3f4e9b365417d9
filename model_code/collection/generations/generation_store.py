"""The generations of a retriever on disk, with a pointer to the current one.

A generation is an immutable snapshot of the index.

    live/current                              name of the default retriever
    live/RETRIEVER/current                    number of the current generation
    live/RETRIEVER/generations/000000/...     folder of a generation, which never changes

The pointer is a small file. It is replaced atomically, after all files of the new generation are on
the disk. So readers see the old generation or the new one, and never a mixture, even after a crash.
The number of the current generation only rises. A generation with a larger number comes from an
interrupted writer and was never searched. The next writer deletes it.
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

# Names of the folder of all live collections, of the pointer to the current generation, and of the
# folder of a retriever's generations.
LIVE = "live"
CURRENT = "current"
GENERATIONS = "generations"

# Name prefixes of folders that are being written, and of folders that are being deleted.
MAKING = ".making."
REMOVING = ".removing."

# Keys of the provenance that describe only one generation. Later generations do not copy them.
OWN_PROVENANCE_KEYS = ("model_version", "stage_key", "mlflow_run", "events")

# Keys of the manifest that are copied when an older generation is published again.
COPIED_KEYS = (
    "base",
    "build",
    "segments",
    "removed",
    "known",
    "tuned",
    "fingerprint",
    "text",
    "documents",
    "passages",
)


class GenerationStore:
    """The generations of one retriever on disk.

    Any number of processes may read them. Only one may write at a time.
    """

    def __init__(self, live: Path, retriever: str) -> None:
        """Use the generations of a retriever. Nothing is read or written yet.

        Args:
            live: Folder of the live collections of all retrievers.
            retriever: Name of the retriever.
        """
        self.live = live
        self.retriever = retriever
        self.folder = live / retriever

    def generations(self) -> list[Generation]:
        """Return all finished generations, oldest first.

        A generation is finished if it has a manifest. This file describes it, and is written last.

        Raises:
            Damaged: If a manifest is damaged.
            FreshetError: If a generation has another format.
        """
        generations: list[Generation] = []
        # Numbers from 1,000,000 on have more digits than others, so that names have another order.
        numbers = sorted(int(name) for name in self._folder_names() if name.isdigit())
        for number in numbers:
            folder = self._generation_folder(number)
            if (folder / MANIFEST).is_file():
                generations.append(Generation.read(folder))
        return generations

    def next_number(self) -> int:
        """Return the number for a new generation, which is larger than all existing numbers."""
        numbers = [int(name) for name in self._folder_names() if name.isdigit()]
        return max(numbers, default=-1) + 1

    def current_number(self) -> int | None:
        """Return the number of the current generation, or None if there is none.

        The pointer to the current generation is a small file with its number.

        Raises:
            Damaged: If the pointer is truncated. It could name a wrong generation then.
        """
        pointer = self.folder / CURRENT
        if not pointer.is_file():
            return None
        text = pointer.read_bytes()
        if not (text.endswith(b"\n") and text[:-1].isdigit()):
            raise Damaged(f"{pointer} is torn: it names no generation", REPAIR)
        return int(text)

    def current(self) -> Generation:
        """Return the current generation, which searches use.

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
            generations = self.generations()
            numbers = [str(generation.number) for generation in generations if generation.complete]
            existing = ", ".join(numbers) or "none"
            raise FreshetError(
                f"retriever {self.retriever!r} has no generation {number}; there are: {existing}"
            )
        return Generation.read(folder)

    def set_current(self, generation: Generation) -> Generation:
        """Make a generation the current one, and return it.

        Args:
            generation: Generation whose files are known to be undamaged, because it was just made
                or its checksums were compared.
        """
        write_text(self.folder / CURRENT, f"{generation.number}\n")
        return generation

    def publish_again(
        self, generation: Generation, cursor: LedgerCursor, provenance: Mapping[str, Any]
    ) -> Generation:
        """Make an older generation the current one, under a new number.

        The number of the current generation only rises, so the older number cannot be used again.
        The new generation shares all files with the older one.

        Args:
            generation: Older generation to publish.
            cursor: Part of the ledger that the new generation contains.
            provenance: Entries to add to the provenance of the older generation.

        Returns:
            The new generation.

        Raises:
            Damaged: If a file of the older generation is damaged. Nothing is changed then.
        """
        generation.verify_all()
        facts = {key: generation.manifest[key] for key in COPIED_KEYS}
        facts["provenance"] = inherited_provenance(generation)
        facts["provenance"].update(provenance)
        with self.staging_dir() as folder:
            self.write_manifest(folder, facts, cursor, parent=generation.number)
            published = self.commit(folder, self.next_number())
        return self.set_current(published)

    @contextmanager
    def staging_dir(self, after: int | None = None) -> Iterator[Path]:
        """Context manager that creates an empty folder in which a new generation is written.

        The folder is on the same disk as the other generations, so that `commit` can rename it.
        Leftovers of interrupted writers are deleted first. At the end of the block the folder is
        deleted, unless `commit` has turned it into a generation. To save time, files are not forced
        to the disk one by one, but all at once in `commit`.

        Args:
            after: Number of a generation that is not current yet and from which the new one is
                made. It is not deleted as a leftover.

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
        """Delete leftovers of interrupted writers.

        These are unfinished folders, and generations that never became current.

        Args:
            after: Number of a generation to keep, although it is not current yet.

        Raises:
            FreshetError: If a leftover generation has another format. Nothing is deleted then.
        """
        # Numbers only rise, so a generation with a larger number was never current.
        kept_numbers = [number for number in (self.current_number(), after) if number is not None]
        last_kept = max(kept_numbers, default=-1)

        # All folders are found first: reading a generation of another format raises an error.
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
        """Write the manifest of a new generation, and return its content.

        Call this after all other files are written, because the manifest has their checksums.

        Args:
            folder: Folder from `staging_dir`.
            facts: Entries of the manifest.
            cursor: Part of the ledger that the generation contains.
            parent: Number of the generation that it was made from. None for a build.
        """
        content = dict(facts)
        content.update(asdict(cursor))
        content["retriever"] = self.retriever
        content["parent"] = parent
        return write_manifest(folder, FORMAT, content)

    def find_copies(self, manifest: Mapping[str, Any]) -> list[Generation]:
        """Find the undamaged generations that come from the same build.

        So a build that is opened again needs no second copy of its files.

        Args:
            manifest: Manifest of the build. Builds are equal if checksums and text rules are equal.

        Returns:
            Generations of the build and all generations made from them, oldest first. Generations
            with missing or damaged files are left out.
        """
        generations = self.generations()
        same_builds: set[int] = set()
        for generation in generations:
            is_build = generation.build == generation.number
            if is_build and _is_same_build(generation.manifest, manifest):
                same_builds.add(generation.number)

        copies: list[Generation] = []
        for generation in generations:
            if generation.build in same_builds and generation.complete:
                copies.append(generation)
        intact = intact_folders(copies)
        return [generation for generation in copies if generation.needs <= intact]

    def commit(self, folder: Path, number: int) -> Generation:
        """Turn a finished folder into a generation, by forcing it to the disk and renaming it.

        Renaming is atomic, so readers never see a part of a generation.

        Args:
            folder: Folder from `staging_dir`, with its manifest.
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

        The current generation, which searches use, is never among them. Generations whose folders
        are read by a kept generation are not among them either.

        Args:
            keep: Number of newest generations to keep, at least 1.
            registered: Numbers of further generations to keep.

        Raises:
            SettingsError: If `keep` is less than 1.
        """
        require(keep >= 1, f"keep is {keep}, but at least the newest generation stays: 1 or more")
        generations = self.generations()
        current = self.current_number()
        kept = {generation.number for generation in generations[-keep:]}
        kept.update(registered)
        # A kept generation also needs the folders of older ones, whose files it shares.
        needed = {current}
        for generation in generations:
            if generation.number in kept or generation.number == current:
                needed.update(generation.needs)
        return [generation for generation in generations if generation.number not in needed]

    def collect_garbage(self, keep: int, registered: Collection[int] = ()) -> tuple[int, ...]:
        """Delete old generations, except for folders that a reader has open.

        A generation is a snapshot of the index, which shares files with older ones. If a reader has
        a generation open, all folders that this generation reads stay as well. The newest
        generation is deleted first. A generation reads only its own folder and folders of older
        ones. So an interruption leaves no generation without a folder that it reads.

        Args:
            keep: Number of newest generations to keep; see `unneeded_generations`.
            registered: Numbers of further generations to keep.

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
        """Delete the folder of a generation, unless a reader has it open.

        Return whether the folder was deleted.
        """
        with exclusive_lock_if_unused(generation.folder) as is_unused:
            if is_unused:
                self.delete(generation.folder)
            return is_unused

    def delete(self, folder: Path) -> None:
        """Delete the folder of a generation.

        The folder is renamed first. If the deletion is interrupted, the next writer recognises it
        by its name and deletes the rest.
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
    """Return the entries about a generation's origin that later generations made from it copy."""
    provenance: dict[str, Any] = {}
    for key, value in generation.manifest["provenance"].items():
        if key not in OWN_PROVENANCE_KEYS:
            provenance[key] = value
    return provenance


def retrievers(live: Path) -> list[str]:
    """Return the names of the live retrievers, ascending."""
    return sorted(path.parent.name for path in live.glob(f"*/{CURRENT}"))


def default_retriever(live: Path) -> str:
    """Return the name of the retriever that is searched by default.

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
    """Make a live retriever the one that is searched by default.

    Args:
        live: Folder of the live collections of all retrievers.
        retriever: Name of the retriever.

    Raises:
        FreshetError: If the retriever is not live.
    """
    # Reading the current generation raises an error if the retriever is not live.
    GenerationStore(live, retriever).current()
    write_text(live / CURRENT, f"{retriever}\n")


def intact_folders(generations: Iterable[Generation]) -> set[int]:
    """Return the numbers of all undamaged folders that some generations read.

    Each folder is checked once, also if several generations share it.
    """
    folders: set[Path] = set()
    for generation in generations:
        folders.update(generation.sibling(number) for number in generation.needs)
    intact: set[int] = set()
    for folder in folders:
        with suppress(Damaged):
            Generation.read(folder).verify()
            intact.add(int(folder.name))
    return intact


def _is_same_build(manifest: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two manifests of builds have equal checksums and equal text rules."""
    return manifest["checksums"] == other["checksums"] and manifest["text"] == other["text"]
