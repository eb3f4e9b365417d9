"""Generations: immutable snapshots of a retriever's index.

A generation lists the segments that a search reads, and the documents that are removed from them. A
segment is an index of some documents. The folder of a generation contains only new files. Its
manifest names the earlier generations whose files it shares.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
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
    hash_text,
    read_json,
    read_manifest,
    verify_checksums,
    verify_file_checksum,
    write_json,
)
from model_code.text.known_queries import KnownQuery
from model_code.text.passages import TextRules

# Version of the format of a generation's folder.
FORMAT = 8
# Name of the file in it that lists the removed documents of each segment.
REMOVED = "removed.json"
# Name of the file in it that has the weights of a fusion which a retune chose. The file belongs to
# a generation, so a rewind to an older generation also restores the older weights.
TUNED_WEIGHTS = "tuned_weights.json"
REPAIR = "run freshet repair"
OTHER_FORMAT_REMEDY = (
    "write all documents to a file with the version of Freshet that made it: freshet export --all, "
    "and read that file into a new project: freshet import"
)


@dataclass(frozen=True)
class Generation:
    """A generation. Its folder never changes after it was written.

    The folder of a build has an encoder, an index, documents and a hierarchy. The folder of an
    addition has a segment: the index and the documents that were added. A folder can also have the
    files `removed.json`, the removed documents of all segments, `known_overrides.json`, the known
    queries that changed later, and `tuned_weights.json`, the weights that a retune chose.

    The manifest has the following entries besides the attributes below:

    - the number of its format
    - `parent`: number of the generation that this one was made from, or None
    - `documents` and `passages`: numbers of live documents and of their passages
    - `text`: rules by which documents are cut into passages, or None if they are unknown
    - `provenance`: origin of the generation
    - a checksum of each file in the folder

    Attributes:
        folder: Folder of the generation.
        manifest: Content of the manifest.
        number: Number of the generation, from 0.
        retriever: Name of the retriever.
        fingerprint: Fingerprint of the encoder that made the vectors and must encode queries.
        base: Number of the generation whose folder has the base segment: the documents of the
            build, with encoder and hierarchy.
        build: Number of the generation that the build was copied to.
        segments: Numbers of the generations whose folders have the added segments, oldest first.
        removed: Number of the generation whose `removed.json` applies. None if no document is
            removed.
        known: Number of the generation whose `known_overrides.json` applies. None if no known query
            changed after the segments were written.
        tuned: Number of the generation whose `tuned_weights.json` applies. None if the fusion has
            the weights of its build.
        cursor: Part of the ledger that the generation contains.
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
    tuned: int | None
    cursor: LedgerCursor

    @classmethod
    def read(cls, folder: Path) -> Generation:
        """Read the manifest of a generation.

        The manifest describes the generation, and has checksums of the other files.

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
            tuned=manifest["tuned"],
            cursor=cursor,
        )

    @cached_property
    def manifest_hash(self) -> str:
        """Hash of the manifest, by which processes tell generations apart.

        The number is not enough, because numbers start from 0 again after a live collection was
        deleted.
        """
        return hash_text(json.dumps(self.manifest, sort_keys=True))

    @property
    def watermark(self) -> int:
        """Id of the last ledger event that the generation contains. 0 if it contains none."""
        return self.cursor.position.event

    @property
    def text(self) -> TextRules:
        """The rules by which documents are cut into passages.

        Raises:
            FreshetError: If the build did not record the rules. Then no document can be added.
        """
        if self.manifest["text"] is None:
            raise FreshetError(
                f"generation {self.number} of {self.retriever!r} does not say how its documents "
                "were cut into passages, so none can be added; open it again: freshet promote"
            )
        return TextRules(**self.manifest["text"])

    @property
    def needs(self) -> frozenset[int]:
        """Numbers of all generations whose folders this one reads, including its own number."""
        numbers = {self.number, self.base, *self.segments}
        for shared in (self.removed, self.known, self.tuned):
            if shared is not None:
                numbers.add(shared)
        return frozenset(numbers)

    @property
    def complete(self) -> bool:
        """Whether all folders that this generation reads exist.

        Garbage collection deletes folders of old generations, but keeps folders that newer
        generations share. So the folder of an old generation may exist although it is incomplete.
        """
        return all((self.sibling(number) / MANIFEST).is_file() for number in self.needs)

    def sibling(self, number: int) -> Path:
        """Return the folder of another generation of the same retriever."""
        if number == self.number:
            return self.folder
        return self.folder.with_name(f"{number:06d}")

    def verify(self) -> None:
        """Compare the files in the folder of this generation with their checksums.

        Files of other generations that this one shares are not compared; see `verify_all`.

        Raises:
            Damaged: If a file differs. The message names the first such file.
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
        """Compare the files that define the live documents with their checksums.

        These are the documents of each segment and the list of removed documents. It takes less
        time than `verify_all`. Call this before you copy documents out of the generation.

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
        """Read a generation whose folder this one needs.

        A generation shares files with older ones, so it also reads their folders.

        Raises:
            Damaged: If the folder is missing.
        """
        folder = self.sibling(number)
        if not (folder / MANIFEST).is_file():
            raise Damaged(
                f"generation {self.number} of {self.retriever!r} needs {folder}, which is gone",
                REPAIR,
            )
        return Generation.read(folder)


@dataclass(frozen=True)
class verify_checksums_on_error(AbstractContextManager[None]):
    """Context manager that finds damaged files after an error.

    Libraries raise many kinds of errors for a truncated file. If the block raises one, the
    checksums of the generation are compared, and `Damaged` replaces the error if a file differs.
    Checksums are not compared without an error, because that takes long. A `FreshetError` other
    than `Damaged` is not replaced, because it explains itself.

    Attributes:
        generation: Generation that the block reads.
    """

    generation: Generation

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise `Damaged` in place of an error if a file of the generation is damaged."""
        is_explained = isinstance(error, FreshetError) and not isinstance(error, Damaged)
        if isinstance(error, Exception) and not is_explained:
            self.generation.verify_all()


Removed = dict[int, frozenset[str]]
"""Ids of the removed documents of each segment, by the number of the segment."""


def removed_by_segment(generation: Generation) -> Removed:
    """Return the removed documents of each segment of a generation.

    A segment never changes. So each generation lists the documents that were removed from it.

    Returns:
        Removed ids by the number of the segment, the base segment first. There is an entry for each
        segment, also if nothing is removed from it.
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
    """Return the known queries of the documents whose known queries changed after indexing.

    A known query is one that a document is known to answer. Feedback can add it, and a request can
    forget it. The index of the document does not change then. Instead, the queries returned here
    take the place of all known queries that the document had when it was indexed.

    Returns:
        For each changed document, the evidence about all its known queries, also the unchanged
        ones. The key is the document id. Documents without a change are left out.
    """
    if generation.known is None:
        return {}
    with verify_checksums_on_error(generation):
        return load_overrides(generation.sibling(generation.known))


def tuned_weights(generation: Generation) -> dict[str, float] | None:
    """Return the weights of a fusion that a retune chose; None if those of the build apply."""
    if generation.tuned is None:
        return None
    with verify_checksums_on_error(generation):
        return dict(read_json(generation.sibling(generation.tuned) / TUNED_WEIGHTS))


def save_tuned_weights(folder: Path, weights: Mapping[str, float]) -> None:
    """Write the weights that a retune chose, by component, to the folder of a generation."""
    # JSON objects do not preserve the order of the weights, so they are written as pairs.
    write_json(folder / TUNED_WEIGHTS, list(weights.items()))


def document_rows(
    generation: Generation, ids: Iterable[str], columns: Sequence[str] = COLUMNS
) -> dict[str, Any]:
    """Read documents of a generation from its files.

    Neither the index nor the encoder is loaded.

    Args:
        generation: Generation to read.
        ids: Ids of the documents. Documents that are not live are left out.
        columns: Columns to read besides the id.

    Returns:
        Rows by document id.
    """
    wanted = set(ids)
    documents: dict[str, Any] = {}
    if not wanted:
        return documents
    with verify_checksums_on_error(generation):
        for number, removed in removed_by_segment(generation).items():
            rows = DocumentFile(generation.sibling(number) / DOCUMENTS).read(wanted, columns)
            for document_id, row in rows.items():
                if document_id not in removed:
                    documents[document_id] = row
    return documents


def may_expire(generation: Generation) -> bool:
    """Return whether some document of a generation may have the field `expires`."""
    numbers = removed_by_segment(generation)
    return any(any_document_expires(generation.sibling(number) / DOCUMENTS) for number in numbers)


def write_removed(folder: Path, removed: Mapping[int, frozenset[str]]) -> None:
    """Write `removed.json` to the folder of a generation. Equal sets give equal bytes."""
    removed_ids = {str(number): sorted(removed[number]) for number in sorted(removed)}
    write_json(folder / REMOVED, removed_ids, lines=False)


def trained_documents(generation: Generation) -> set[str]:
    """Return the ids of the documents in the build. Training has seen no other documents."""
    base = generation.sibling(generation.base)
    (ids,) = read_columns(base / DOCUMENTS, "document_id")
    return set(ids)


def added_since_training(generation: Generation) -> set[str]:
    """Return the ids of the live documents that training has not seen."""
    with verify_checksums_on_error(generation):
        return document_hashes(generation).keys() - trained_documents(generation)


def document_hashes(generation: Generation) -> dict[str, str]:
    """Return the content hash of each live document, by document id."""
    return dict(live_rows(generation, "document_id", "content_hash"))


def live_rows(generation: Generation, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each live document of a generation.

    A document is live if a segment of the generation has it, and it is not removed there.

    Args:
        generation: Generation to read.
        *columns: Columns of the rows. The first one must be `document_id`.
    """
    for number, removed in removed_by_segment(generation).items():
        values = read_columns(generation.sibling(number) / DOCUMENTS, *columns)
        for row in zip(*values, strict=True):
            document_id = row[0]
            if document_id not in removed:
                yield row
