"""A generation of a live collection: an immutable folder with what it added, and a manifest that
names the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_code.collection.ledger.events import LedgerCursor, Position
from model_code.collection.segments.documents import COLUMNS, DOCUMENTS, DocumentFile, read_columns
from model_code.errors import Damaged, FreshetError
from model_code.files import (
    MANIFEST,
    read_json,
    read_manifest,
    verify_checksums,
    verify_file_checksum,
    write_json,
)
from model_code.text.passages import TextRules

FORMAT = 4
FORMATS = (FORMAT, 3)  # those of 3 do not say where they stand; the log does
REMOVED = "removed.json"
REPAIR = "mend it: freshet repair"


@dataclass(frozen=True)
class Generation:
    """One generation, whose `folder` is never written to again.

    The folder of a build holds encoder, index, documents and hierarchy; that of an addition the
    same of its documents, without encoder and tree; `removed.json` is in those that took documents
    out. Beside the fields below the manifest states format, `parent` (the generation that it was
    made of, or None), the counts `documents` and `passages` of all that can be found, `text` (how
    documents become passages, None: unknown), `provenance` (what its maker said of where it comes
    from), and a checksum per file of the folder.
    """

    folder: Path
    manifest: dict[str, Any]
    number: int  # within its collection: 0, 1, 2, ...
    retriever: str  # whom it serves
    fingerprint: str  # of the encoder that made the vectors, and that queries must be encoded with
    base: int  # the number of the generation that is a build: encoder, tree, and most documents
    # of the build that was opened, which `base` is, unless an earlier Freshet clustered all anew
    build: int
    # the numbers of the generations whose added documents are searched too, oldest first
    segments: tuple[int, ...]
    # that of the one that lists which documents of the parts are no more; None: all are there
    removed: int | None
    # where it stands in the log; None if a version made it that did not say so
    cursor: LedgerCursor | None

    @classmethod
    def read(cls, folder: Path) -> Generation:
        """Read the manifest; FreshetError if `folder` is no finished generation of a format that is
        known.
        """
        manifest = read_manifest(folder, *FORMATS, remedy=REPAIR)
        base, place, cursor = manifest["base"], manifest.get("position"), None
        if place is not None:
            cursor = LedgerCursor(Position(**place), manifest["trained"], manifest["replay"])
        parts = base, manifest.get("build", base), tuple(manifest["segments"]), manifest["removed"]
        facts = int(folder.name), manifest["retriever"], manifest["fingerprint"]
        return cls(folder, manifest, *facts, *parts, cursor)

    @property
    def watermark(self) -> int:
        """The last event of the log that the generation contains; 0 before the first."""
        return (
            self.manifest["ledger"]["watermark"]
            if self.cursor is None
            else self.cursor.position.event
        )

    @property
    def text(self) -> TextRules:
        """How documents become passages; FreshetError if the build did not say, so that nothing can
        be added.
        """
        if self.manifest["text"] is None:
            raise FreshetError(
                f"generation {self.number} of {self.retriever!r} does not say how its documents were cut into "
                "passages, so none can be added; open it again: freshet promote"
            )
        return TextRules(**self.manifest["text"])

    @property
    def needs(self) -> frozenset[int]:
        """The numbers of all generations whose folders this one reads, its own included."""
        removed = () if self.removed is None else (self.removed,)
        return frozenset((self.number, self.base, *self.segments, *removed))

    @property
    def complete(self) -> bool:
        """Whether all that it reads is there; garbage collection leaves of some only what newer
        ones share.
        """
        return all((self.sibling(number) / MANIFEST).is_file() for number in self.needs)

    def sibling(self, number: int) -> Path:
        """The folder of another generation of the collection."""
        return self.folder if number == self.number else self.folder.with_name(f"{number:06d}")

    def verify(self) -> None:
        """Compare every file of the own folder with its checksum; Damaged names the first that
        differs.
        """
        verify_checksums(self.folder, self.manifest, REPAIR)

    def verify_all(self) -> None:
        """`verify_checksums`, for every folder that this generation reads."""
        for number in sorted(self.needs):
            self._needed(number).verify()

    def verify_documents(self) -> None:
        """The same for the files alone that say which documents it holds: whoever copies texts asks
        first.
        """
        for number in removed_by_segment(self):
            part = self._needed(number)
            verify_file_checksum(part.folder, part.manifest, DOCUMENTS, REPAIR)
        if self.removed is not None:
            lists = self._needed(self.removed)
            verify_file_checksum(lists.folder, lists.manifest, REMOVED, REPAIR)

    def _needed(self, number: int) -> Generation:
        folder = self.sibling(number)
        if not (folder / MANIFEST).is_file():
            raise Damaged(
                f"generation {self.number} of {self.retriever!r} needs {folder}, which is gone",
                REPAIR,
            )
        return Generation.read(folder)


@dataclass(frozen=True)
class verify_checksums_on_error(AbstractContextManager[None]):
    """In this block a generation's files are read: where that fails as one is damaged, this is what
    is said.

    Libraries fail in a hundred ways on what was cut off. The checksums are only compared once one
    has.
    """

    generation: Generation

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Damaged, in place of an error that this may be the cause of."""
        explained = isinstance(error, FreshetError) and not isinstance(error, Damaged)
        if isinstance(error, Exception) and not explained:
            self.generation.verify_all()


Removed = dict[int, frozenset[str]]
"""Number of a part -> ids of its documents that are no more."""


def removed_by_segment(generation: Generation) -> Removed:
    """The numbers of the parts that a generation searches, the base first, and what is removed from
    each.
    """
    table: dict[str, list[str]] = {}
    if generation.removed is not None:
        with verify_checksums_on_error(generation):
            table = read_json(generation.sibling(generation.removed) / REMOVED)
    return {
        number: frozenset(table.get(str(number), ()))
        for number in (generation.base, *generation.segments)
    }


def document_rows(
    generation: Generation, ids: Iterable[str], columns: Sequence[str] = COLUMNS
) -> dict[str, Any]:
    """The rows of those documents that the generation finds, by id, with these columns of its
    files.
    """
    keys, documents = set(ids), {}
    with verify_checksums_on_error(generation):
        for number, removed in removed_by_segment(generation).items():
            rows = DocumentFile(generation.sibling(number) / DOCUMENTS).read(keys, columns)
            documents |= {id_: row for id_, row in rows.items() if id_ not in removed}
    return documents


def write_removed(folder: Path, removed: Mapping[int, frozenset[str]]) -> None:
    """Write `removed.json`; equal sets give equal bytes."""
    table = {str(number): sorted(removed[number]) for number in sorted(removed)}
    write_json(folder / REMOVED, table, lines=False)


def trained_documents(generation: Generation) -> set[str]:
    """The documents of the build that was opened: its retriever was trained with them, and knows no
    others.
    """
    return set(read_columns(generation.sibling(generation.base) / DOCUMENTS, "document_id")[0])


def added_since_training(generation: Generation) -> set[str]:
    """The documents that the generation finds and that its retriever was not trained on."""
    with verify_checksums_on_error(generation):
        return document_hashes(generation).keys() - trained_documents(generation)


def document_hashes(generation: Generation) -> dict[str, str]:
    """The content hash of each document that the generation finds, by id."""
    return dict(live_rows(generation, "document_id", "content_hash"))


def live_rows(generation: Generation, *columns: str) -> Iterator[tuple[Any, ...]]:
    """These columns of every document that the generation finds; the first one is the id."""
    for number, gone in removed_by_segment(generation).items():
        for row in zip(
            *read_columns(generation.sibling(number) / DOCUMENTS, *columns), strict=True
        ):
            if row[0] not in gone:
                yield row
