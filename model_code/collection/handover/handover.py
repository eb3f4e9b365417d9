"""Copy all live documents to another search engine, and later only the changes.

Each copy is called a hand-over. For each collection of an engine, a file in the project's state
records which version of which document the collection has:

    .freshet/handovers/KEY.json

Changes since then are found without asking the engine. They can be additions, deletions, erased
documents, compaction or a revert.

The ids of changed documents are recorded before they are sent. After a crash, they are sent again.
So the engine has exactly the live documents in the end.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from model_code.collection.generations.generation_store import GenerationStore, default_retriever
from model_code.collection.generations.searcher import Searcher
from model_code.collection.handover.engines import EngineName, open_engine
from model_code.collection.handover.passages import (
    document_digests,
    read_encoded_documents,
    vector_dimension,
)
from model_code.errors import FreshetError
from model_code.files import hash_text, read_json, write_json
from model_code.project import Project, file_lock

# Name of the folder, in the project's state, with the records of all hand-overs.
HANDOVERS = "handovers"

# Number of the record's format. A record of another format is refused.
HANDOVER_FORMAT = 1

# Number of hexadecimal digits in the name of a record.
KEY_CHARACTERS = 24


@dataclass(frozen=True)
class HandoverTarget:
    """The collection to which documents are copied.

    Attributes:
        engine: Name of the engine.
        target: Address or folder of the engine.
        name: Name of the collection, the table or the index.
    """

    engine: EngineName
    target: str
    name: str

    def __post_init__(self) -> None:
        """Raise an error if the address contains a password, because addresses are stored."""
        try:
            password = urlsplit(self.target).password
        except ValueError as error:
            raise FreshetError(
                f"the address {self.target!r} cannot be read ({error}); write it as "
                "http://127.0.0.1:6333, or name a folder"
            ) from None
        if password is not None:
            raise FreshetError(
                "the address contains a password, which would be stored and printed; "
                "leave it out, and set the variable of the engine, such as QDRANT_API_KEY"
            )

    @property
    def key(self) -> str:
        """Name, without its suffix, of the file that records the hand-over."""
        target = self.target
        if "://" not in target:
            target = str(Path(target).resolve())
        return hash_text("\0".join((self.engine, target, self.name)))[:KEY_CHARACTERS]

    @property
    def export_command(self) -> str:
        """The command that writes all documents to the collection, for a message."""
        words = ["freshet", "export", "--to", self.engine, self.target, "--name", self.name]
        return shlex.join(words)

    def __str__(self) -> str:
        """Return the engine, its address and the collection as text for a message."""
        return f"{self.name!r} of {self.engine} at {self.target}"


@dataclass
class HandoverRecord:
    """The contents of a collection, as far as hand-overs have written them.

    Attributes:
        retriever: Name of the retriever whose documents were copied.
        fingerprint: Fingerprint of the encoder that made the vectors. It identifies the encoder's
            weights and settings.
        generation: Number of the generation that was copied last.
        event: Id of the last ledger event that this generation contains.
        change_sets: Number of finished hand-overs, each of which copied documents to the
            collection.
        documents: Digest of the version of each document in the collection, by document id.
        pending: Ids of documents that were being sent. If this list is not empty, the hand-over was
            interrupted, and it is unknown which of them arrived.
        complete: Whether the first hand-over was finished.
    """

    retriever: str
    fingerprint: str
    generation: int
    event: int
    change_sets: int = 0
    documents: dict[str, str] = field(default_factory=dict)
    pending: list[str] = field(default_factory=list)
    complete: bool = False


@dataclass(frozen=True)
class HandoverReport:
    """The outcome of a hand-over.

    Attributes:
        target: Description of the collection.
        retriever: Name of the retriever whose documents were copied.
        generation: Number of the generation whose documents the collection has now.
        written: Number of documents that were written.
        deleted: Number of documents that were deleted.
        unchanged: Number of documents that the collection had already.
    """

    target: str
    retriever: str
    generation: int
    written: int
    deleted: int
    unchanged: int

    def __str__(self) -> str:
        """Return how many documents changed in the engine's collection, as one line."""
        return (
            f"{self.target} equals generation {self.generation} of {self.retriever}: "
            f"{self.written:,} written, {self.deleted:,} deleted, {self.unchanged:,} unchanged"
        )


def hand_over(
    project: Project, target: HandoverTarget, retriever: str | None = None, replace: bool = False
) -> HandoverReport:
    """Copy all live documents to a new collection of an engine: another search engine.

    A record of the copied versions is kept, so that `sync_handover` can later send only changes.

    Args:
        project: Project with a live collection.
        target: Collection to create.
        retriever: Name of a live retriever with vectors. None means the default retriever.
        replace: Whether to delete an existing collection with this name.

    Raises:
        FreshetError: If the collection exists and `replace` is False, the retriever has no vectors,
            or the engine cannot be used.
    """
    with _locked_record(project, target) as path:
        searcher = _open_searcher(project, retriever or default_retriever(project.live))
        engine = open_engine(target.engine, target.target, target.name, change_set=0)
        was_interrupted = path.is_file() and not _read_record(path).complete
        if engine.exists() and not replace and not was_interrupted:
            raise FreshetError(
                f"{target} exists; add its later changes with freshet sync-to, choose another "
                "--name, or delete and write it again with --replace"
            )

        digests = document_digests(searcher)
        record = _new_record(searcher)
        # The record is written before the collection is created. After a crash, it shows that the
        # collection is incomplete.
        _write_record(path, record)
        engine.create(vector_dimension(searcher))
        for documents in read_encoded_documents(searcher, digests.keys()):
            engine.write(documents)
        engine.finish()

        record.documents = digests
        record.complete = True
        record.change_sets = 1
        _write_record(path, record)
        return _report(target, record, len(digests), 0)


def sync_handover(project: Project, target: HandoverTarget) -> HandoverReport:
    """Send the documents that changed since the last hand-over to their engine.

    The engine is another search engine, which already has a copy of the other documents.

    Repeating the call changes nothing.

    Args:
        project: Project with a live collection.
        target: Collection that `hand_over` wrote.

    Raises:
        FreshetError: If `hand_over` was not finished, the collection does not exist any more, or
            the documents have vectors of another encoder now.
    """
    with _locked_record(project, target) as path:
        record = _read_complete_record(path, target)
        searcher = _open_searcher(project, record.retriever)
        _require_same_encoder(record, searcher, target)
        engine = open_engine(target.engine, target.target, target.name, record.change_sets)
        if not engine.exists():
            raise FreshetError(f"{target} is gone; write it again: {target.export_command}")

        # A digest identifies the version of a document. The collection may also hold documents that
        # an interrupted hand-over was sending.
        digests = document_digests(searcher)
        possibly_held = record.documents.keys() | set(record.pending)
        removed = possibly_held - digests.keys()
        changed = _changed_documents(record, digests)
        if changed or removed:
            # The ids are recorded before the documents are sent. After a crash, all of them are
            # sent again.
            record.pending = sorted(changed | removed | set(record.pending))
            _write_record(path, record)
            engine.delete(removed)
            for documents in read_encoded_documents(searcher, changed):
                engine.write(documents)
            record.change_sets += 1
        engine.finish()

        record.documents = digests
        record.pending = []
        record.generation = searcher.generation.number
        record.event = searcher.generation.watermark
        _write_record(path, record)
        return _report(target, record, len(changed), len(removed))


def _changed_documents(record: HandoverRecord, digests: dict[str, str]) -> set[str]:
    """Return the ids of the live documents whose present version the collection may not have.

    A digest identifies a version of a document together with its vectors.

    Args:
        record: Record of the collection.
        digests: Digest of the present version of each live document, by document id.
    """
    changed = digests.keys() & set(record.pending)
    for document_id, digest in digests.items():
        if record.documents.get(document_id) != digest:
            changed.add(document_id)
    return changed


def _require_same_encoder(
    record: HandoverRecord, searcher: Searcher, target: HandoverTarget
) -> None:
    """Raise an error if the collection holds vectors of another encoder than the generation."""
    fingerprint = searcher.generation.fingerprint
    if fingerprint != record.fingerprint:
        raise FreshetError(
            f"{target} holds vectors of encoder {record.fingerprint[:12]}, but {record.retriever} "
            f"now has {fingerprint[:12]}, and both cannot be searched together; write all "
            f"documents again: {target.export_command} --replace"
        )


def _open_searcher(project: Project, retriever: str) -> Searcher:
    """Open the current generation of a retriever, after checking its documents for damage."""
    GenerationStore(project.live, retriever).current().verify_documents()
    return Searcher.open(project.live, retriever)


def _new_record(searcher: Searcher) -> HandoverRecord:
    """Return the record of a collection to which nothing was written yet."""
    generation = searcher.generation
    return HandoverRecord(
        retriever=generation.retriever,
        fingerprint=generation.fingerprint,
        generation=generation.number,
        event=generation.watermark,
    )


@contextmanager
def _locked_record(project: Project, target: HandoverTarget) -> Iterator[Path]:
    """Context manager that locks the copying to a collection, and yields the path of its record."""
    path = project.state / HANDOVERS / f"{target.key}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(path.with_suffix(".lock"), f"waiting for another hand-over to {target}"):
        yield path


def _read_complete_record(path: Path, target: HandoverTarget) -> HandoverRecord:
    """Read the record of a collection to which all documents were copied.

    Raises:
        FreshetError: If no documents were copied, or the first copying was interrupted.
    """
    if not path.is_file():
        raise FreshetError(
            f"nothing was handed over to {target}; do it first: {target.export_command}"
        )
    record = _read_record(path)
    if not record.complete:
        raise FreshetError(
            f"the hand-over to {target} was interrupted; repeat it: {target.export_command}"
        )
    return record


def _read_record(path: Path) -> HandoverRecord:
    """Read the record of a collection.

    Raises:
        FreshetError: If the record has another format.
    """
    content = read_json(path)
    if content.pop("format", None) != HANDOVER_FORMAT:
        raise FreshetError(
            f"{path} has another format than this version of Freshet writes; delete it, and "
            "hand the documents over again: freshet export --to"
        )
    return HandoverRecord(**content)


def _write_record(path: Path, record: HandoverRecord) -> None:
    content = {"format": HANDOVER_FORMAT}
    content.update(asdict(record))
    write_json(path, content, lines=False)


def _report(
    target: HandoverTarget, record: HandoverRecord, written: int, deleted: int
) -> HandoverReport:
    """Return the report of a finished hand-over, given how many documents it wrote and deleted."""
    return HandoverReport(
        target=str(target),
        retriever=record.retriever,
        generation=record.generation,
        written=written,
        deleted=deleted,
        unchanged=len(record.documents) - written,
    )
