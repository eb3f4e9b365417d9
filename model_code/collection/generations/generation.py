"""A generation: an immutable folder with what it added, and a manifest that names the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_code.collection.ledger.events import LedgerCursor, Position
from model_code.collection.segments.documents import (
    COLUMNS,
    DOCUMENTS,
    DocumentFile,
    any_document_expires,
    read_columns,
)
from model_code.collection.segments.known_overrides import load_overrides
from model_code.errors import Damaged, FreshetError
from model_code.files import (
    MANIFEST,
    read_json,
    read_manifest,
    verify_checksums,
    verify_file_checksum,
    write_json,
)
from model_code.text.known_queries import KnownQuery
from model_code.text.passages import TextRules

FORMAT = 6
REMOVED = "removed.json"
REPAIR = "mend it: freshet repair"
OTHER_FORMAT_REMEDY = (
    "write all documents to a file with the version of Freshet that made it: freshet export --all, "
    "and read that file into a new project: freshet import"
)


@dataclass(frozen=True)
class Generation:
    """A generation, whose folder is never written to again.

    The folder of a build holds encoder, index, documents and hierarchy. The folder of an addition
    holds index and documents of the added documents. A generation that removed documents has a file
    `removed.json`, and one that changed known queries a file `known_overrides.json`.

    Besides the attributes below, the manifest holds: the format; `parent`, the number of the
    generation that this one was made from, or None; `documents` and `passages`, the numbers of all
    that can be found; `text`, the rules by which documents are cut into passages, or None if
    unknown; `provenance`, which tells where the generation comes from; and a checksum of each file
    in the folder.

    Attributes:
        folder: Folder of the generation.
        manifest: Content of its manifest.
        number: Number of the generation, from 0.
        retriever: Retriever that the generation belongs to.
        fingerprint: Fingerprint of the encoder that made the vectors and has to encode queries.
        base: Number of the generation that holds the base segment: encoder, hierarchy and the
            documents of the build.
        build: Number of the generation as which the build was opened.
        segments: Numbers of the generations whose added documents are searched, oldest first.
        removed: Number of the generation whose `removed.json` applies; None if no document is
            removed.
        known: Number of the generation whose `known_overrides.json` applies; None if no known
            query changed since the segments were written.
        cursor: Ledger position up to which the generation holds all documents.
    """

    folder: Path
    manifest: dict[str, Any]
    number: int
    retriever: str
    fingerprint: str
    base: int
    build: int
    segments: tuple[int, ...]
    removed: int | None
    known: int | None
    cursor: LedgerCursor

    @classmethod
    def read(cls, folder: Path) -> Generation:
        """Read the manifest of a generation.

        Args:
            folder: Folder of the generation.

        Raises:
            Damaged: If the manifest is missing or damaged.
            FreshetError: If the generation has another format.
        """
        manifest = read_manifest(
            folder, FORMAT, remedy=REPAIR, other_format_remedy=OTHER_FORMAT_REMEDY
        )
        cursor = LedgerCursor(
            Position(**manifest["position"]), manifest["trained"], manifest["replay"]
        )
        return cls(
            folder=folder,
            manifest=manifest,
            number=int(folder.name),
            retriever=manifest["retriever"],
            fingerprint=manifest["fingerprint"],
            base=manifest["base"],
            build=manifest["build"],
            segments=tuple(manifest["segments"]),
            removed=manifest["removed"],
            known=manifest["known"],
            cursor=cursor,
        )

    @property
    def watermark(self) -> int:
        """Id of the last ledger event that the generation holds; 0 before the first event."""
        return self.cursor.position.event

    @property
    def text(self) -> TextRules:
        """The rules by which documents are cut into passages.

        Raises:
            FreshetError: If the build did not record them, so that no document can be added.
        """
        if self.manifest["text"] is None:
            raise FreshetError(
                f"generation {self.number} of {self.retriever!r} does not say how its documents "
                "were cut into passages, so none can be added; open it again: freshet promote"
            )
        return TextRules(**self.manifest["text"])

    @property
    def needs(self) -> frozenset[int]:
        """Numbers of all generations whose folders this one reads, its own included."""
        numbers = {self.number, self.base, *self.segments}
        for shared in (self.removed, self.known):
            if shared is not None:
                numbers.add(shared)
        return frozenset(numbers)

    @property
    def complete(self) -> bool:
        """Whether all folders that it reads exist.

        Garbage collection leaves of some generations only the folders that newer ones share.
        """
        return all((self.sibling(number) / MANIFEST).is_file() for number in self.needs)

    def sibling(self, number: int) -> Path:
        """Return the folder of another generation of the same retriever."""
        if number == self.number:
            return self.folder
        return self.folder.with_name(f"{number:06d}")

    def verify(self) -> None:
        """Compare the files in the generation's own folder with their checksums.

        Raises:
            Damaged: If a file differs; the message names the first one.
        """
        verify_checksums(self.folder, self.manifest, REPAIR)

    def verify_all(self) -> None:
        """Compare the files in all folders that the generation reads with their checksums.

        Raises:
            Damaged: If a folder is missing or a file differs.
        """
        for number in sorted(self.needs):
            self._read_needed(number).verify()

    def verify_documents(self) -> None:
        """Compare only the files that tell which documents there are with their checksums.

        Call this before texts are copied out of the generation.

        Raises:
            Damaged: If a folder is missing or a file differs.
        """
        for number in (self.base, *self.segments):
            segment = self._read_needed(number)
            verify_file_checksum(segment.folder, segment.manifest, DOCUMENTS, REPAIR)
        if self.removed is not None:
            owner = self._read_needed(self.removed)
            verify_file_checksum(owner.folder, owner.manifest, REMOVED, REPAIR)

    def _read_needed(self, number: int) -> Generation:
        folder = self.sibling(number)
        if not (folder / MANIFEST).is_file():
            raise Damaged(
                f"generation {self.number} of {self.retriever!r} needs {folder}, which is gone",
                REPAIR,
            )
        return Generation.read(folder)


@dataclass(frozen=True)
class verify_checksums_on_error(AbstractContextManager[None]):
    """Context manager that explains an error by a damaged file, if there is one.

    Libraries fail in many ways on a truncated file. Checksums take long to compare, so they are
    only compared after an error. Errors that explain themselves are left alone.

    Attributes:
        generation: Generation that is read in the block.
    """

    generation: Generation

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise `Damaged` in place of an error if a file of the generation is damaged."""
        is_explained = isinstance(error, FreshetError) and not isinstance(error, Damaged)
        if isinstance(error, Exception) and not is_explained:
            self.generation.verify_all()


Removed = dict[int, frozenset[str]]
"""Ids of removed documents, by the number of the segment that holds them."""


def removed_by_segment(generation: Generation) -> Removed:
    """Return the removed documents of each segment that a generation searches, base first.

    Args:
        generation: Generation whose segments are listed.

    Returns:
        One entry for each segment, also if nothing is removed from it.
    """
    removed_ids: dict[str, list[str]] = {}
    if generation.removed is not None:
        with verify_checksums_on_error(generation):
            removed_ids = read_json(generation.sibling(generation.removed) / REMOVED)
    removed: Removed = {}
    for number in (generation.base, *generation.segments):
        removed[number] = frozenset(removed_ids.get(str(number), ()))
    return removed


def known_overrides(generation: Generation) -> dict[str, list[KnownQuery]]:
    """Return all known queries of the documents whose queries changed, by document id."""
    if generation.known is None:
        return {}
    with verify_checksums_on_error(generation):
        return load_overrides(generation.sibling(generation.known))


def document_rows(
    generation: Generation, ids: Iterable[str], columns: Sequence[str] = COLUMNS
) -> dict[str, Any]:
    """Read documents of a generation from its files.

    Args:
        generation: Generation to read.
        ids: Documents to look up. Documents that cannot be found are left out.
        columns: Columns to read besides the id.

    Returns:
        Rows by document id.
    """
    wanted = set(ids)
    documents: dict[str, Any] = {}
    with verify_checksums_on_error(generation):
        for number, removed in removed_by_segment(generation).items():
            rows = DocumentFile(generation.sibling(number) / DOCUMENTS).read(wanted, columns)
            for document_id, row in rows.items():
                if document_id not in removed:
                    documents[document_id] = row
    return documents


def may_expire(generation: Generation) -> bool:
    """Return whether a document of a generation may have the field `expires`."""
    numbers = removed_by_segment(generation)
    return any(any_document_expires(generation.sibling(number) / DOCUMENTS) for number in numbers)


def write_removed(folder: Path, removed: Mapping[int, frozenset[str]]) -> None:
    """Write `removed.json`; equal sets give equal bytes."""
    removed_ids = {str(number): sorted(removed[number]) for number in sorted(removed)}
    write_json(folder / REMOVED, removed_ids, lines=False)


def trained_documents(generation: Generation) -> set[str]:
    """Return the ids of the documents in the build, which are all that training has seen."""
    base = generation.sibling(generation.base)
    (ids,) = read_columns(base / DOCUMENTS, "document_id")
    return set(ids)


def added_since_training(generation: Generation) -> set[str]:
    """Return the ids of documents that can be found and that training has not seen."""
    with verify_checksums_on_error(generation):
        return document_hashes(generation).keys() - trained_documents(generation)


def document_hashes(generation: Generation) -> dict[str, str]:
    """Return the content hash of each document that can be found, by document id."""
    return dict(live_rows(generation, "document_id", "content_hash"))


def live_rows(generation: Generation, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Yield these columns of each document that can be found; the first has to be the id."""
    for number, removed in removed_by_segment(generation).items():
        values = read_columns(generation.sibling(number) / DOCUMENTS, *columns)
        for row in zip(*values, strict=True):
            if row[0] not in removed:
                yield row
