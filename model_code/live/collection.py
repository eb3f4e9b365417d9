"""A live collection on disk: numbered generations and one pointer to the current one.

    live/current                              the default retriever's name
    live/RETRIEVER/current                    the current generation's number
    live/RETRIEVER/candidate                  the number of one that is made ready, as if it were current
    live/RETRIEVER/pending                    the number of a generation that is about to become current
    live/RETRIEVER/generations/000000/...     immutable

Pointers are replaced atomically, and only after the generation is whole on the disk. So a reader, or whoever looks
after a crash, finds the old generation or the new one, never a mixture.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from model_code.errors import FreshetError
from model_code.files import fsync, fsync_tree, read_json, syncing_later, write_text
from model_code.live.generation import FORMAT, Generation
from model_code.live.text_rules import TextRules
from model_code.manifest import MANIFEST, seal

LIVE, CURRENT, GENERATIONS, PENDING, CANDIDATE = "live", "current", "generations", "pending", "candidate"
MAKING, REMOVING = ".making.", ".removing."
SAME = ("checksums", "text")  # equal in the manifests of two copies of one build


def open_generation_zero(
    root: Path,
    retriever: str,
    *,
    encoder: Path,
    index: Path,
    documents: Path,
    hierarchy: Path,
    provenance: Mapping[str, Any],
    text: TextRules | None = None,
    watermark: int = 0,
    switch: bool = True,
    first: int = 0,
) -> Generation:
    """Make a finished build the current generation of `retriever` under `root`/live, and `retriever` the default one.

    encoder, index, hierarchy: the stages' output folders; documents: the corpus's `documents.parquet`; provenance: what
    the manifest shall say of the build (model version, run id, stage key); text: how the build cut documents into
    passages, without which nothing can be added; watermark: the last event of the ledger that the build contains. The
    files are copied, so that no later build changes what is searched. A build that was opened before gets its newest
    generation again, with what was added to it. switch: else the generation is only made the candidate, which nobody
    searches, and becomes current by a later `Collection.switch`. first: the least number that a new one gets, where
    smaller ones meant others once, which a ledger remembers. FreshetError if the parts do not belong together; then
    nothing is changed.
    """
    from model_code.live.build_copy import copy_build

    collection = Collection(root / LIVE, retriever, first=first)
    with collection.aside() as folder:
        facts = copy_build(folder, encoder, index, documents, hierarchy, text)
        facts |= {"base": collection.next_number(), "segments": [], "removed": None}
        facts |= {"ledger": {"watermark": watermark}, "provenance": dict(provenance)}
        collection.seal(folder, facts)
        generation = collection.newest_of(folder)
        if generation is None:
            generation = collection.keep(folder)
    if switch:
        collection.switch(generation.number)
        set_default_retriever(root / LIVE, retriever)
    else:
        Collection(root / LIVE, retriever, CANDIDATE).switch(generation.number)
    return generation


class Collection:
    """The generations of one retriever under the folder `live`. Any number of readers; one writer at a time."""

    def __init__(self, live: Path, retriever: str, pointer: str = CURRENT, first: int = 0) -> None:
        """pointer: `CANDIDATE` to change a generation that is made ready, beside the one that is searched; first: the
        least number that a new generation gets.
        """
        self.live, self.retriever, self.pointer, self.first = live, retriever, pointer, first
        self.folder = live / retriever

    def generations(self) -> list[Generation]:
        """All finished generations of this format, oldest first."""
        return [Generation.read(folder) for folder in self._folders() if _format(folder) == FORMAT]

    def next_number(self) -> int:
        """The number that the next generation gets."""
        parent = self.folder / GENERATIONS
        names = os.listdir(parent) if parent.is_dir() else []
        return max(self.first, *(int(name) + 1 for name in names if name.isdigit()), 0)

    def current_number(self) -> int | None:
        """The number of the generation that is searched, None if the collection was never opened."""
        pointer = self.folder / self.pointer
        return int(pointer.read_text(encoding="utf-8")) if pointer.is_file() else None

    def current(self) -> Generation:
        """The generation that is searched; FreshetError if the collection was never opened."""
        number = self.current_number()
        if number is None:
            known = ", ".join(retrievers(self.live)) or "none"
            raise FreshetError(
                f"retriever {self.retriever!r} is not live (live: {known}); take one of these, or make a retriever of "
                "params.yaml live: freshet register NAME, then freshet promote"
            )
        return self.read(number)

    def read(self, number: int) -> Generation:
        """The generation with a number; FreshetError if there is none."""
        folder = self.folder / GENERATIONS / f"{number:06d}"
        if not folder.is_dir():
            whole = (generation.number for generation in self.generations() if generation.whole)
            known = ", ".join(map(str, whole)) or "none"
            raise FreshetError(f"retriever {self.retriever!r} has no generation {number}; there are: {known}")
        return Generation.read(folder)

    def switch(self, number: int, check_shared: bool = True) -> Generation:
        """Make generation `number` the current one, forwards or back; FreshetError if it is missing or damaged.

        check_shared: read the folders that it shares with others, too, to compare their checksums.
        """
        generation = self.read(number)
        if check_shared:
            generation.verify_all()
        else:
            generation.verify()
        write_text(self.folder / self.pointer, f"{number}\n")
        if self.pointer == CURRENT:
            (self.folder / CANDIDATE).unlink(missing_ok=True)
        if self.pointer == CURRENT or generation.build == number:  # an addition that nobody ever searched shall go
            (self.folder / PENDING).unlink(missing_ok=True)
        return generation

    def rollback(self) -> Generation:
        """Make the current generation's parent the current one; FreshetError if it has none."""
        current = self.current()
        if current.manifest["parent"] is None:
            raise FreshetError(f"generation {current.number} of {self.retriever!r} has no parent to go back to")
        return self.switch(current.manifest["parent"])

    @contextmanager
    def aside(self) -> Iterator[Path]:
        """An empty folder on the collection's own disk to make a generation in; what is left of it is removed.

        `keep` forces its files to the disk, all at once. What a writer left that was killed, at any point before the
        switch, is removed first.
        """
        parent = self.folder / GENERATIONS
        parent.mkdir(parents=True, exist_ok=True)
        self._tidy()
        path = Path(tempfile.mkdtemp(prefix=MAKING, dir=parent))
        path.chmod(0o755)
        try:
            with syncing_later(path):
                yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def seal(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Write the manifest of a new generation over its finished files."""
        seal(folder, FORMAT, {**facts, "retriever": self.retriever, "parent": self.current_number()})

    def newest_of(self, made: Path) -> Generation | None:
        """The generation to search for a build that has the files of the sealed folder `made`, None for a new one.

        It is the current one if that goes back to this build, else the newest that does.
        """
        existing, stated = self.generations(), read_json(made / MANIFEST)
        builds = [generation for generation in existing if generation.build == generation.number]
        bases = {build.number for build in builds if all(build.manifest[key] == stated[key] for key in SAME)}
        related = [generation for generation in existing if generation.build in bases]
        current = [generation for generation in related if generation.number == self.current_number()]
        return (current or related or [None])[-1]

    def keep(self, made: Path) -> Generation:
        """Give the sealed folder `made` the next number."""
        fsync_tree(made)
        number = self.next_number()
        (self.folder / PENDING).write_text(f"{number}\n", encoding="utf-8")
        target = made.with_name(f"{number:06d}")
        made.rename(target)
        fsync(target.parent)
        return Generation.read(target)

    def refuse(self, generation: Generation) -> None:
        """Delete a generation that was kept and shall never become current."""
        self.delete(generation)
        (self.folder / PENDING).unlink(missing_ok=True)

    def delete(self, generation: Generation) -> None:
        """Delete a generation's folder; a crash leaves it whole or for the next writer to remove."""
        doomed = generation.folder.with_name(f"{REMOVING}{generation.folder.name}")
        generation.folder.rename(doomed)
        shutil.rmtree(doomed)

    def _folders(self) -> list[Path]:
        return sorted(path for path in (self.folder / GENERATIONS).glob("[0-9]*") if path.is_dir())

    def _tidy(self) -> None:
        """Remove what was never switched to, and what was half deleted."""
        parent, pending = self.folder / GENERATIONS, self.folder / PENDING
        number = pending.read_text(encoding="utf-8").strip() if pending.is_file() else ""
        if number.isdigit() and int(number) != self.current_number():
            shutil.rmtree(parent / f"{int(number):06d}", ignore_errors=True)
        pending.unlink(missing_ok=True)
        for abandoned in (*parent.glob(f"{MAKING}*"), *parent.glob(f"{REMOVING}*")):
            shutil.rmtree(abandoned)


def retrievers(live: Path) -> list[str]:
    """The names of the retrievers that have a live collection."""
    return sorted(path.parent.name for path in live.glob(f"*/{CURRENT}"))


def default_retriever(live: Path) -> str:
    """The retriever that is searched when none is named; FreshetError if nothing is live."""
    pointer = live / CURRENT
    if not pointer.is_file():
        raise FreshetError("nothing is live yet; build and promote a retriever first: make demo, or freshet promote")
    return pointer.read_text(encoding="utf-8").strip()


def set_default_retriever(live: Path, retriever: str) -> None:
    """Search `retriever` when none is named; FreshetError if it has no live collection."""
    Collection(live, retriever).current()
    write_text(live / CURRENT, f"{retriever}\n")


def _format(folder: Path) -> int | None:
    return read_json(folder / MANIFEST).get("format") if (folder / MANIFEST).is_file() else None
