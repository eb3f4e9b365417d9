"""A live collection on disk: numbered generations and one pointer to the current one.

    live/current                              the default retriever's name
    live/RETRIEVER/current                    the current generation's number
    live/RETRIEVER/generations/000000/...     immutable

Pointers are replaced atomically, and only after the generation is whole on the disk. So a reader, or whoever looks
after a crash, finds the old generation or the new one, never a mixture.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from model_code.errors import FreshetError
from model_code.files import fsync, fsync_tree, write_text
from model_code.index.manifest import seal
from model_code.live.generation import FORMAT, Generation

LIVE, CURRENT, GENERATIONS = "live", "current", "generations"


def open_generation_zero(
    root: Path,
    retriever: str,
    *,
    encoder: Path,
    index: Path,
    documents: Path,
    hierarchy: Path,
    provenance: Mapping[str, Any],
) -> Generation:
    """Make a finished build the current generation of `retriever` under `root`/live, and `retriever` the default one.

    encoder, index, hierarchy: the stages' output folders; documents: the corpus's `documents.parquet`; provenance: what
    the manifest shall say of the build (model version, run id, stage key). The files are copied, so that no later build
    changes what is searched. The first build is generation 0, others get the next number, and one that was opened
    before gets its old one again. FreshetError if the parts do not belong together; then nothing is changed.
    """
    from model_code.live.build_copy import copy_build

    collection = Collection(root / LIVE, retriever)
    with collection.aside() as folder:
        facts = copy_build(folder, encoder, index, documents, hierarchy)
        facts |= {"retriever": retriever, "parent": collection.current_number(), "provenance": dict(provenance)}
        seal(folder, FORMAT, facts)
        generation = collection.keep(folder)
    collection.switch(generation.number)
    set_default_retriever(root / LIVE, retriever)
    return generation


class Collection:
    """The generations of one retriever under the folder `live`. Any number of readers; one writer at a time."""

    def __init__(self, live: Path, retriever: str) -> None:
        self.live, self.retriever = live, retriever
        self.folder = live / retriever

    def generations(self) -> list[Generation]:
        """All finished generations, oldest first."""
        folders = sorted(path for path in (self.folder / GENERATIONS).glob("[0-9]*") if path.is_dir())
        return [Generation.read(folder) for folder in folders]

    def current_number(self) -> int | None:
        """The number of the generation that is searched, None if the collection was never opened."""
        pointer = self.folder / CURRENT
        return int(pointer.read_text(encoding="utf-8")) if pointer.is_file() else None

    def current(self) -> Generation:
        """The generation that is searched; FreshetError if the collection was never opened."""
        number = self.current_number()
        if number is None:
            known = ", ".join(retrievers(self.live)) or "none"
            raise FreshetError(f"retriever {self.retriever!r} is not live (live: {known}); open it: freshet promote")
        return self._read(number)

    def switch(self, number: int) -> Generation:
        """Make generation `number` the current one, forwards or back; FreshetError if it is missing or damaged."""
        generation = self._read(number)
        generation.verify()
        write_text(self.folder / CURRENT, f"{number}\n")
        return generation

    def rollback(self) -> Generation:
        """Make the current generation's parent the current one; FreshetError if it has none."""
        current = self.current()
        if current.manifest["parent"] is None:
            raise FreshetError(f"generation {current.number} of {self.retriever!r} has no parent to go back to")
        return self.switch(current.manifest["parent"])

    @contextmanager
    def aside(self) -> Iterator[Path]:
        """An empty folder on the collection's own disk to make a generation in; what is left of it is removed."""
        parent = self.folder / GENERATIONS
        parent.mkdir(parents=True, exist_ok=True)
        for abandoned in parent.glob(".making.*"):
            shutil.rmtree(abandoned)
        path = Path(tempfile.mkdtemp(prefix=".making.", dir=parent))
        path.chmod(0o755)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def keep(self, made: Path) -> Generation:
        """Give the sealed folder `made` the next number; a generation that has the same files is returned instead."""
        existing = self.generations()
        checksums = Generation.read(made).manifest["checksums"]
        for generation in reversed(existing):
            if generation.manifest["checksums"] == checksums:
                return generation
        fsync_tree(made)
        target = made.with_name(f"{existing[-1].number + 1 if existing else 0:06d}")
        made.rename(target)
        fsync(target.parent)
        return Generation.read(target)

    def _read(self, number: int) -> Generation:
        folder = self.folder / GENERATIONS / f"{number:06d}"
        if not folder.is_dir():
            known = ", ".join(str(generation.number) for generation in self.generations()) or "none"
            raise FreshetError(f"retriever {self.retriever!r} has no generation {number}; there are: {known}")
        return Generation.read(folder)


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
