"""Check and repair the live collections of a project and its ledger.

A live collection consists of generations, which are snapshots of a retriever's index. They are made
from the ledger, the log of all changes.

`freshet verify` checks that all files are undamaged, and that index, documents and ledger agree.
It only reads. It takes about a second per gigabyte, and memory for the ids of all documents.

`freshet repair` makes the collections usable again from the undamaged files. It deletes nothing:
damaged folders and databases are moved away.

- If files of a generation are damaged, the retriever returns to an older generation, and applies
  the later events of the ledger again.
- If the ledger is damaged or missing, or is an older copy, its missing events are written again
  from the documents in the generations. If retrievers differ, the retriever that contains the
  latest event decides about a document. Documents that only another retriever or the ledger has
  are added again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from model_code.collection.generations.generation import (
    REPAIR,
    Generation,
    document_hashes,
    removed_by_segment,
)
from model_code.collection.generations.generation_store import (
    CURRENT,
    GENERATIONS,
    GenerationStore,
    default_retriever,
    set_default_retriever,
)
from model_code.collection.index.live_index import DAMAGED, LiveIndex
from model_code.collection.index.project_ledger import (
    LEDGER_URL_VARIABLE,
    WRITER_LOCK,
    ledger_file,
    ledger_url,
    open_ledger,
    open_ledger_if_exists,
    open_matching_ledger,
    read_contents,
)
from model_code.collection.ledger.events import ANOTHER, LedgerCursor
from model_code.collection.ledger.ledger import Ledger
from model_code.collection.ledger.salvage import (
    salvage_changes,
    salvage_document_sources,
    salvage_feedback,
    salvage_forgotten_queries,
)
from model_code.collection.segments.documents import DOCUMENTS, INDEX, PASSAGES, read_columns
from model_code.errors import Damaged, FreshetError
from model_code.files import MANIFEST, read_json, write_text
from model_code.project import Project, file_lock
from model_code.text.documents import Change, Document, Remove

# Origin that the ledger records for the events that a repair appends.
SOURCE = "freshet repair"

# Suffix of the file that names the damaged ledger which a repair replaces just now. It is deleted
# when the repair is complete, so that a repair after a crash reads the damaged ledger again.
REPLACEMENT_SUFFIX = ".repairing"


def find_damage(project: Project) -> Iterator[str]:
    """Yield a message for each fault in the live collections and the ledger.

    A message names the command that repairs the fault. The project is only read.

    Args:
        project: The project.
    """
    yield from _error_messages(default_retriever, project.live)
    yield from _error_messages(_require_intact_ledger, project)
    for store in _existing_stores(project):
        damaged: list[str] = []
        for folder in _generation_folders(store):
            damaged.extend(_error_messages(_verify_generation, folder))
        yield from damaged
        # Whether files agree is only checked if all of them are undamaged.
        if damaged:
            yield from _error_messages(store.current)
        else:
            yield from _error_messages(_require_agreement, project, store)


def _error_messages(check: Callable[..., object], *arguments: object) -> list[str]:
    """Call a check, and return a list with the message of its error, or an empty list."""
    try:
        check(*arguments)
    except FreshetError as error:
        return [str(error)]
    return []


def _existing_stores(project: Project) -> list[GenerationStore]:
    """Return the stored generations of each retriever that has any, or has a current pointer."""
    names: set[str] = set()
    for entry in (CURRENT, GENERATIONS):
        names.update(path.parent.name for path in project.live.glob(f"*/{entry}"))
    return [GenerationStore(project.live, name) for name in sorted(names)]


def _generation_folders(store: GenerationStore) -> list[Path]:
    """Return the folders of all generations, including damaged ones, oldest first."""
    folders = (store.folder / GENERATIONS).glob("[0-9]*")
    # A longer number is a larger one.
    return sorted(folders, key=lambda folder: (len(folder.name), folder.name))


def _verify_generation(folder: Path) -> None:
    """Raise an error if a file in the folder of a generation is damaged."""
    Generation.read(folder).verify()


def _require_intact_ledger(project: Project) -> None:
    """Raise an error if the ledger is damaged. A project without a ledger passes."""
    ledger = open_ledger_if_exists(project)
    if ledger is None:
        return
    with ledger:
        damage = ledger.damage()
    if damage is not None:
        raise Damaged(f"the ledger is damaged ({damage})", REPAIR)


def _require_agreement(project: Project, store: GenerationStore) -> None:
    """Raise an error unless the files of the current generation and the ledger agree.

    The ledger is the log of changes, from which generations, the snapshots of the index, are made.

    Args:
        project: The project.
        store: Generations of a retriever, whose files are undamaged.

    Raises:
        FreshetError: If index, documents, counts or ledger disagree.
    """
    generation = store.current()
    for number in removed_by_segment(generation):
        _require_segment_agreement(generation.sibling(number))

    documents = len(document_hashes(generation))
    expected = generation.manifest["documents"]
    # A generation that only removes documents has no segment of its own, but it has a count.
    if documents != expected:
        raise Damaged(
            f"{generation.folder} holds {documents} documents, but its manifest states {expected}",
            REPAIR,
        )
    _require_ledger_agreement(project, generation)


def _require_segment_agreement(folder: Path) -> None:
    """Raise an error unless documents file, passages and index have the same documents.

    Args:
        folder: Folder of a segment.
    """
    if not (folder / INDEX / MANIFEST).is_file():
        return
    (ids,) = read_columns(folder / DOCUMENTS, "document_id")
    indexed = read_json(folder / INDEX / MANIFEST)["documents"]
    passage_ids = read_json(folder / PASSAGES)
    if set(ids) != set(passage_ids) or len(ids) != indexed:
        raise Damaged(
            f"{folder} keeps {len(ids)} documents, but its index holds others ({indexed})", REPAIR
        )


def _require_ledger_agreement(project: Project, generation: Generation) -> None:
    """Raise an error unless a generation has the contents that the ledger has at its position.

    The position is the last event of the ledger, the log of changes, that the generation contains.

    Args:
        project: The project.
        generation: Current generation of a retriever.

    Raises:
        FreshetError: If the generation was made from another ledger, or a document has another
            content.
    """
    ledger = open_matching_ledger(project, generation)
    if ledger is None:
        return
    wrong: list[str] = []
    with ledger:
        hashes = document_hashes(generation)
        for document in ledger.view_at(generation.cursor).snapshot():
            if hashes.get(document.document_id) != document.content_hash:
                wrong.append(document.document_id)
    if wrong:
        raise Damaged(
            f"generation {generation.number} of {generation.retriever!r} lacks or differs in "
            f"{len(wrong)} documents that its ledger holds, first {wrong[0]!r}",
            "search an older index, which takes them in: freshet rewind "
            f"--retriever {generation.retriever} --generation {generation.build}",
        )


@dataclass(frozen=True)
class RetrieverInspection:
    """The result of checking all files of a live retriever.

    Generations that are newer than the current one were never searched. So they count neither as
    `readable` nor as `whole`.

    Attributes:
        store: Generations of the retriever.
        number: Number of the current generation. None if the pointer is damaged or missing.
        readable: Newest generation whose documents can be read. None if there is none.
        whole: Newest generation without any damaged file. None if there is none.
        damaged: Folders with damaged files, oldest first.
        builds: Readable generations that are copies of a finished build, oldest first.
    """

    store: GenerationStore
    number: int | None
    readable: Generation | None
    whole: Generation | None
    damaged: tuple[Path, ...]
    builds: tuple[Generation, ...]

    @classmethod
    def inspect(cls, store: GenerationStore) -> RetrieverInspection:
        """Check every file of a retriever.

        Args:
            store: Generations of the retriever.
        """
        number = None
        with suppress(Damaged):
            number = store.current_number()

        generations: list[Generation] = []
        damaged: list[Path] = []
        undamaged_numbers: set[int] = set()
        for folder in _generation_folders(store):
            try:
                generation = Generation.read(folder)
                generations.append(generation)
                generation.verify()
                undamaged_numbers.add(int(folder.name))
            except Damaged:
                damaged.append(folder)

        readable: list[Generation] = []
        whole: Generation | None = None
        for generation in generations:
            # A generation that is newer than the current one was never searched.
            if number is not None and generation.number > number:
                continue
            if not _error_messages(generation.verify_documents):
                readable.append(generation)
            if generation.needs <= undamaged_numbers:
                whole = generation

        builds = [generation for generation in readable if generation.number == generation.build]
        newest_readable = readable[-1] if readable else None
        return cls(store, number, newest_readable, whole, tuple(damaged), tuple(builds))

    @property
    def retriever(self) -> str:
        """Name of the retriever."""
        return self.store.retriever

    @property
    def watermark(self) -> int:
        """Id of the last ledger event that the newest readable generation contains.

        It is -1 if no generation is readable.
        """
        if self.readable is None:
            return -1
        return self.readable.watermark


@dataclass(frozen=True)
class DocumentSource:
    """A document source of a repair: a retriever, the ledger, or a damaged ledger.

    Attributes:
        name: Name of the document source in messages.
        hashes: Content hash of each document, by document id. "" if the document was removed.
        read: Function that reads documents by their ids.
    """

    name: str
    hashes: Mapping[str, str]
    read: Callable[[Collection[str]], Iterable[Document]]

    @classmethod
    def from_retriever(cls, inspection: RetrieverInspection) -> DocumentSource:
        """Use the newest readable generation of a retriever as a document source.

        Args:
            inspection: Checked files of the retriever.
        """
        generation = inspection.readable
        if generation is None:
            return cls(inspection.retriever, {}, _read_nothing)

        def read(ids: Collection[str]) -> Iterable[Document]:
            return read_contents(generation, ids).values()

        return cls(inspection.retriever, document_hashes(generation), read)

    @classmethod
    def from_ledger(cls, ledger: Ledger) -> DocumentSource:
        """Use the ledger that the repair writes to as a document source.

        It cannot read documents, because they are in this ledger already.

        Args:
            ledger: The ledger.
        """
        return cls("the ledger", ledger.content_hashes(), _read_nothing)

    @classmethod
    def from_changes(cls, changes: Mapping[str, Change]) -> DocumentSource:
        """Use the changes that were read from a damaged ledger as a document source.

        Args:
            changes: Last change of each document, by document id.
        """
        documents: dict[str, Document] = {}
        hashes: dict[str, str] = {}
        for document_id, change in changes.items():
            if isinstance(change, Document):
                documents[document_id] = change
                hashes[document_id] = change.content_hash
            else:
                hashes[document_id] = ""

        def read(ids: Collection[str]) -> Iterable[Document]:
            return [documents[document_id] for document_id in ids]

        return cls("the damaged ledger", hashes, read)


def _read_nothing(ids: Collection[str]) -> Iterable[Document]:
    """Return no document. A source without readable documents uses this function."""
    return ()


@dataclass(frozen=True)
class _OpenedLedger:
    """The ledger that a repair writes to, and the data that was read from a damaged ledger.

    Attributes:
        ledger: Ledger of the project, or a new ledger that replaces a damaged one.
        changes: Changes from the damaged ledger that no generation contains, by document id. Empty
            if the ledger was not damaged.
        origins: Origin of each document, such as "api", by document id. It is read from the damaged
            ledger.
        is_replacement: Whether the ledger replaces a damaged one.
    """

    ledger: Ledger
    changes: Mapping[str, Change]
    origins: Mapping[str, str]
    is_replacement: bool = False


def repair(
    project: Project,
    champion: str | None = None,
    adopt: bool = False,
    open_index: Callable[[Project, str], LiveIndex] = LiveIndex,
) -> list[str]:
    """Repair the live collections of a project and its ledger.

    A retriever with damaged files goes back to an older generation, a snapshot of its index. A
    damaged ledger, the log of changes, is written again from the documents.

    Args:
        project: The project.
        champion: Name of the retriever to search by default, if the pointer to the default
            retriever is damaged.
        adopt: Whether to continue with a ledger that may belong to another project.
        open_index: Function that opens the live index of a retriever.

    Returns:
        A message for each change. Empty if nothing was damaged.

    Raises:
        FreshetError: If the ledger may belong to another project and `adopt` is False. Nothing is
            changed then.
    """
    done: list[str] = []
    with file_lock(project.live / WRITER_LOCK):
        # Check all files of all retrievers.
        inspections: list[RetrieverInspection] = []
        for store in _existing_stores(project):
            inspection = RetrieverInspection.inspect(store)
            if inspection.whole is not None or inspection.damaged:
                inspections.append(inspection)

        # Make the ledger complete. A mismatch is a retriever that was not made from this ledger.
        watermarks = [inspection.watermark for inspection in inspections]
        last_event = max(watermarks, default=0)
        opened = _open_or_replace_ledger(project, max(last_event, 0), done)
        with opened.ledger as ledger:
            mismatches = _find_mismatches(ledger, inspections)
            if mismatches or opened.changes:
                # A ledger that replaces a damaged one of this project belongs to the project.
                is_accepted = adopt or opened.is_replacement
                _require_consent(project, ledger, inspections, mismatches, is_accepted)
                sources = _rank_sources(ledger, inspections, mismatches, opened.changes)
                done.extend(append_missing_events(ledger, sources, inspections, opened.origins))

            # Search undamaged generations only.
            for inspection in inspections:
                is_mismatch = inspection.retriever in mismatches
                done.extend(_set_damage_aside(inspection))
                done.extend(_publish_whole_generation(ledger, inspection, is_mismatch))
        if opened.is_replacement:
            _replacement_file(project).unlink(missing_ok=True)
        done.extend(_repair_default_retriever(project, champion))

    # Apply the events that older generations lack. `apply` takes the lock itself.
    for inspection in inspections:
        if inspection.whole is None:
            continue
        index = open_index(project, inspection.retriever)
        applied = index.apply()
        if applied is not None:
            number = len(applied.added) + len(applied.updated) + len(applied.deleted)
            done.append(
                f"{index.retriever} took in {number:,} changes, as generation "
                f"{applied.generation.number}"
            )
    return done


def _open_or_replace_ledger(project: Project, after: int, done: list[str]) -> _OpenedLedger:
    """Open the ledger of a project. If it is damaged, replace it by a new one.

    A damaged ledger is moved away. Feedback, forgotten queries and changes that can be read from it
    are kept.

    Args:
        project: The project.
        after: Id of the last event that a generation contains. Only later changes are read from a
            damaged ledger, because generations have the earlier ones.
        done: Receives a message if a ledger is replaced.
    """
    # A crash may have ended an earlier repair before it had written the new ledger.
    damaged_path = _finish_setting_aside(project)
    ledger = _open_if_intact(project)
    if ledger is not None and damaged_path is None:
        return _OpenedLedger(ledger, {}, {})

    if ledger is None:
        path = ledger_file(project)
        assert path is not None, "only an SQLite file can be found damaged"
        new_path = _free_path(path.with_name(f"{path.name}.{DAMAGED}"))
        if damaged_path is None:
            damaged_path = new_path
            write_text(_replacement_file(project), f"{damaged_path.name}\n")
        _set_ledger_aside(path, new_path)
        ledger = open_ledger(project)
    assert damaged_path is not None
    done.append(
        f"the ledger was damaged: it is set aside as {damaged_path}, and a new one is written"
    )

    recorded_keys = {feedback.key for feedback in ledger.feedback()}
    for feedback in salvage_feedback(damaged_path):
        if feedback.key not in recorded_keys:
            ledger.record_feedback(feedback, feedback.received)
    for forgotten, received in salvage_forgotten_queries(damaged_path).items():
        ledger.record_forgotten(forgotten, received)
    changes = salvage_changes(damaged_path, after)
    # The new ledger has events already if a crash ended an earlier repair. They count.
    for document_id, event in ledger.latest(changes).items():
        changes[document_id] = event.document or Remove(document_id)
    origins = salvage_document_sources(damaged_path)
    return _OpenedLedger(ledger, changes, origins, is_replacement=True)


def _open_if_intact(project: Project) -> Ledger | None:
    """Open the ledger of a project, or return None if it is damaged."""
    # A ledger can be so damaged that it cannot even be opened.
    with suppress(Damaged):
        ledger = open_ledger(project)
        if ledger.damage() is None:
            return ledger
        ledger.close()
    return None


def _replacement_file(project: Project) -> Path:
    """Return the file that names the damaged ledger which a repair replaces; see its suffix."""
    path = ledger_file(project)
    assert path is not None, "only an SQLite file can be replaced"
    return path.with_name(path.name + REPLACEMENT_SUFFIX)


def _finish_setting_aside(project: Project) -> Path | None:
    """Complete the move of a damaged ledger that an interrupted repair has begun.

    Returns:
        Path of the damaged ledger. None if no repair was interrupted, or if the user has deleted
        the damaged ledger.
    """
    path = ledger_file(project)
    if path is None or not _replacement_file(project).is_file():
        return None
    name = _replacement_file(project).read_text(encoding="utf-8").strip()
    damaged_path = path.with_name(name)
    if not damaged_path.exists():
        # The database itself is moved last, so the file at its place is still the damaged one.
        _set_ledger_aside(path, damaged_path)
    return damaged_path if damaged_path.exists() else None


def _set_ledger_aside(path: Path, damaged_path: Path) -> None:
    """Move a damaged ledger, with the two files in which SQLite keeps recent changes.

    These files are moved first, so that a new database never meets the files of an old one.

    Args:
        path: File of the ledger.
        damaged_path: Path to which it is moved.
    """
    for suffix in ("-wal", "-shm", ""):
        file = path.with_name(path.name + suffix)
        if file.exists():
            file.rename(damaged_path.with_name(damaged_path.name + suffix))


def _free_path(path: Path) -> Path:
    """Return a path that does not exist: the given one, or the given one with a number added."""
    free_path = path
    number = 0
    while free_path.exists():
        number += 1
        free_path = path.with_name(f"{path.name}-{number}")
    return free_path


def _find_mismatches(ledger: Ledger, inspections: Sequence[RetrieverInspection]) -> dict[str, str]:
    """Return the retrievers whose generations were not made from the ledger.

    A generation is a snapshot of the index. It names the ledger, and the event up to which it
    contains the changes.

    Returns:
        Results of `Ledger.mismatch` by the name of the retriever.
    """
    mismatches: dict[str, str] = {}
    for inspection in inspections:
        for generation in (inspection.readable, inspection.whole):
            if generation is None:
                continue
            reason = ledger.mismatch(generation.cursor.position)
            if reason is not None:
                mismatches.setdefault(inspection.retriever, reason)
    return mismatches


def _require_consent(
    project: Project,
    ledger: Ledger,
    inspections: Sequence[RetrieverInspection],
    mismatches: Mapping[str, str],
    adopt: bool,
) -> None:
    """Raise an error if the ledger may belong to another project and the user did not adopt it.

    Otherwise, the documents of two projects could be mixed.

    Args:
        project: The project.
        ledger: The ledger.
        inspections: Checked files of all retrievers.
        mismatches: Retrievers that were not made from the ledger; see `_find_mismatches`.
        adopt: Whether the user wants to continue with this ledger.

    Raises:
        FreshetError: If no retriever was made from the ledger, the ledger has events, and `adopt`
            is False.
    """
    is_foreign = len(mismatches) == len(inspections) and ANOTHER in mismatches.values()
    if is_foreign and ledger.position().event > 0 and not adopt:
        raise FreshetError(
            f"{ledger_url(project)} is another ledger, which may be another project's: name the "
            f"right one in {LEDGER_URL_VARIABLE}, or go on with this one, to which all documents "
            "of this project are added: freshet repair --adopt"
        )


def _rank_sources(
    ledger: Ledger,
    inspections: Sequence[RetrieverInspection],
    mismatches: Mapping[str, str],
    salvaged: Mapping[str, Change],
) -> list[DocumentSource]:
    """Return the document sources, the one with the newest contents first.

    The order is:

    1. Changes from a damaged ledger, which are newer than any generation.
    2. Generations that were made from a newer copy of the ledger.
    3. The ledger, which has all events of the generations that were made from it.
    4. Generations that were made from the ledger.
    5. Generations that were made from another ledger, whose age is unknown.

    If no retriever was made from the ledger, the ledger comes last.

    Args:
        ledger: The ledger that the repair writes to.
        inspections: Checked files of all retrievers.
        mismatches: Retrievers that were not made from the ledger; see `_find_mismatches`.
        salvaged: Changes from a damaged ledger, by document id.
    """
    newest_first = sorted(inspections, key=lambda inspection: -inspection.watermark)
    newer_than_ledger: list[DocumentSource] = []
    matching: list[DocumentSource] = []
    foreign: list[DocumentSource] = []
    for inspection in newest_first:
        source = DocumentSource.from_retriever(inspection)
        mismatch = mismatches.get(inspection.retriever)
        if mismatch is None:
            matching.append(source)
        elif mismatch == ANOTHER:
            foreign.append(source)
        else:
            newer_than_ledger.append(source)

    sources: list[DocumentSource] = []
    if salvaged:
        sources.append(DocumentSource.from_changes(salvaged))
    sources.extend(newer_than_ledger)
    ledger_source = DocumentSource.from_ledger(ledger)
    if matching:
        sources.append(ledger_source)
        sources.extend(matching)
        sources.extend(foreign)
    else:
        sources.extend(foreign)
        sources.append(ledger_source)
    return sources


def append_missing_events(
    ledger: Ledger,
    sources: Sequence[DocumentSource],
    inspections: Sequence[RetrieverInspection],
    origins: Mapping[str, str],
) -> Iterator[str]:
    """Append events to the ledger, so that all retrievers get the newest contents of documents.

    The first document source with an entry for a document decides about it. An entry can also state
    that the document was removed. An event is appended unless the ledger, or each generation to
    start from, has this content already.

    Args:
        ledger: The ledger to append to.
        sources: Document sources, the one with the newest contents first.
        inspections: Checked files of the live retrievers.
        origins: Origin of each document, such as "api", by document id. The new events keep it, so
            that a later sync can still delete documents that it has added.

    Yields:
        A message for each change.
    """
    logged_hashes = ledger.content_hashes()
    start_hashes = _starting_points(inspections)
    newest = next((source for source in sources if source.hashes), None)

    decided_ids: set[str] = set()
    for source in sources:
        # An earlier source has decided about all other documents.
        ids = sorted(source.hashes.keys() - decided_ids)
        decided_ids.update(ids)
        existing: list[str] = []
        to_put: list[str] = []
        to_remove: list[str] = []
        for document_id in ids:
            content_hash = source.hashes[document_id]
            is_removed = content_hash == ""
            is_known = _is_known(document_id, content_hash, logged_hashes, start_hashes)
            if not is_removed:
                existing.append(document_id)
            if is_removed and not is_known:
                to_remove.append(document_id)
            elif not is_known:
                to_put.append(document_id)

        _put_documents(ledger, source, to_put, origins)
        ledger.remove(to_remove, SOURCE)
        if source is not newest and existing:
            yield f"put again, as only {source.name} held them: {', '.join(existing)}"
        elif to_put:
            yield f"{len(to_put):,} documents of {source.name} are written to the ledger again"

    # Documents of the starting generations that no source has are removed. But if the documents of
    # some retriever cannot be read, that retriever may have them, and they stay.
    if all(inspection.readable for inspection in inspections):
        started_ids: set[str] = set()
        for hashes in start_hashes:
            started_ids.update(hashes)
        ledger.remove(sorted(started_ids - decided_ids), SOURCE)


def _starting_points(inspections: Sequence[RetrieverInspection]) -> list[dict[str, str]]:
    """Return the content hashes of all generations to which later events may be applied.

    These are the newest undamaged generation of each retriever, and all builds, which may be made
    live again.

    Returns:
        Content hashes by document id, for each generation.
    """
    starting_points: list[dict[str, str]] = []
    for inspection in inspections:
        for build in inspection.builds:
            starting_points.append(document_hashes(build))
        if inspection.whole is not None:
            starting_points.append(document_hashes(inspection.whole))
    return starting_points


def _is_known(
    document_id: str,
    content_hash: str,
    logged_hashes: Mapping[str, str],
    start_hashes: Sequence[Mapping[str, str]],
) -> bool:
    """Return whether a document has this content already, without a further event.

    The starting generations are those to which the events of the ledger will be applied.

    Args:
        document_id: Id of the document.
        content_hash: Hash of the content. "" means that the document is removed.
        logged_hashes: Content hashes after the last events of the ledger, by document id.
        start_hashes: Content hashes of each starting generation. They count only if the ledger has
            no event of the document.
    """
    if document_id in logged_hashes:
        return logged_hashes[document_id] == content_hash
    return all(hashes.get(document_id, "") == content_hash for hashes in start_hashes)


def _put_documents(
    ledger: Ledger, source: DocumentSource, document_ids: Sequence[str], origins: Mapping[str, str]
) -> None:
    """Record documents in the ledger, with their origins.

    Args:
        ledger: The ledger to append to.
        source: Document source from which the contents are read.
        document_ids: Ids of the documents.
        origins: Origin of each document, such as "api", by document id. The origin of all other
            documents is `SOURCE`.
    """
    by_origin: dict[str, list[str]] = {}
    for document_id in document_ids:
        by_origin.setdefault(origins.get(document_id, SOURCE), []).append(document_id)
    for origin, ids in sorted(by_origin.items()):
        ledger.receive(source.read(ids), origin)


def _set_damage_aside(inspection: RetrieverInspection) -> Iterator[str]:
    """Move damaged folders of a retriever to another folder.

    If no generation is undamaged, all folders and the pointer are moved, so that the retriever is
    not live any more.

    Yields:
        A message for each folder.
    """
    store = inspection.store
    damaged_folder = store.folder / DAMAGED
    folders: Sequence[Path] = inspection.damaged
    if inspection.whole is None:
        folders = _generation_folders(store)
    for folder in folders:
        damaged_folder.mkdir(exist_ok=True)
        target = _free_path(damaged_folder / folder.name)
        folder.rename(target)
        yield f"{folder} is set aside as {target}"

    if inspection.whole is None:
        with suppress(FileNotFoundError):
            (store.folder / CURRENT).rename(_free_path(damaged_folder / CURRENT))
        yield (
            f"nothing of {inspection.retriever} is whole: make it live again by freshet promote, "
            f"or first register {inspection.retriever}"
        )


def _publish_whole_generation(
    ledger: Ledger, inspection: RetrieverInspection, is_mismatch: bool
) -> Iterator[str]:
    """Make the newest undamaged generation of a retriever the current one.

    A generation is a snapshot of the index. Searches use the current one.

    Args:
        ledger: The ledger of the project.
        inspection: Checked files of the retriever.
        is_mismatch: Whether the retriever was not made from this ledger. Then the generation is
            published with a new ledger position, so that all events of the ledger are applied to
            it.

    Yields:
        A message for each change.
    """
    store = inspection.store
    whole = inspection.whole
    if whole is None:
        return

    if inspection.number is None:
        pointer = store.folder / CURRENT
        write_text(pointer, f"{whole.number}\n")
        yield f"{pointer} names generation {whole.number} again"

    if is_mismatch:
        cursor = LedgerCursor(ledger.position(0), replay=True)
        published = store.publish_again(whole, cursor, {"adopted": ledger.id})
        yield (
            f"{inspection.retriever} goes on with the ledger {ledger.id}, as generation "
            f"{published.number}"
        )
    elif inspection.number is not None and whole.number != inspection.number:
        published = store.publish_again(whole, whole.cursor, {"rewound_to": whole.number})
        yield (
            f"{inspection.retriever} is at generation {whole.number} again, as "
            f"{published.number}, and takes in what it lacks"
        )


def _repair_default_retriever(project: Project, champion: str | None) -> Iterator[str]:
    """Correct the pointer to the default retriever, if it names no live retriever.

    The champion is preferred. Otherwise the retriever whose current generation changed last is
    used.

    Args:
        project: The project.
        champion: Name of the champion's retriever, or None.

    Yields:
        A message if the pointer changes.
    """
    pointer = project.live / CURRENT
    changed_times: dict[str, float] = {}
    for path in project.live.glob(f"*/{CURRENT}"):
        changed_times[path.parent.name] = path.stat().st_mtime
    # The error means that the pointer is missing or damaged.
    with suppress(FreshetError):
        if default_retriever(project.live) in changed_times:
            return

    if changed_times:
        name = champion
        if name is None or name not in changed_times:
            name = max(changed_times, key=lambda retriever: (changed_times[retriever], retriever))
        set_default_retriever(project.live, name)
        yield f"{pointer} names {name} again"
    elif pointer.exists():
        target = _free_path(pointer.with_name(f"{CURRENT}.{DAMAGED}"))
        pointer.rename(target)
        yield f"{pointer} is set aside as {target}: nothing is live"
